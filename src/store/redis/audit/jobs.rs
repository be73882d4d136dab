//! Every job with its places and all that hangs on it.

use super::{Audit, PAGE};
use crate::{
    domain::{
        ids::QueueName,
        job::{Progress, Spec},
    },
    store::{
        AuditProgress, Check, StoreError, codec,
        redis::{
            connection::Arg,
            record::{self, Number},
            registry::Queue,
            reply::Reply,
            scripts::AUDIT_JOBS,
        },
    },
};

/// Jobs that one script tells of: their bodies may be large.
const JOBS_MAX: usize = 10;

/// A job as `audit_jobs.lua` tells of it. Empty: there is none.
struct Job {
    number: Number,
    record: Vec<u8>,
    body: Vec<u8>,
    progress: Vec<u8>,
    lease: Vec<u8>,
    death: Vec<u8>,
    result: Vec<u8>,
    ready: Option<u64>,
    scheduled: Option<u64>,
    leased: Option<u64>,
    dead: Option<u64>,
    overflow: Option<u64>,
    completed: Option<u64>,
    deadline: Option<u64>,
    id: Vec<u8>,
    key: Vec<u8>,
    failures: [Vec<u8>; 2],
    attempts: Vec<Vec<u8>>,
}

/// A score, which is a whole number wherever it is ours.
fn score(reply: &mut Reply) -> Result<Option<u64>, StoreError> {
    let text = reply.text()?;
    Ok(text.parse::<f64>().ok().map(|score| score as u64))
}

impl Job {
    fn read(number: Number, mut reply: Reply) -> Result<Option<Self>, StoreError> {
        if reply.left() == 0 {
            return Ok(None);
        }
        let (record, body, _extras) = (reply.bytes()?, reply.bytes()?, reply.bytes()?);
        let job = Self {
            number,
            record,
            body,
            progress: reply.bytes()?,
            lease: reply.bytes()?,
            death: reply.bytes()?,
            result: reply.bytes()?,
            ready: score(&mut reply)?,
            scheduled: score(&mut reply)?,
            leased: score(&mut reply)?,
            dead: score(&mut reply)?,
            overflow: score(&mut reply)?,
            completed: score(&mut reply)?,
            deadline: score(&mut reply)?,
            id: reply.bytes()?,
            key: reply.bytes()?,
            failures: [reply.bytes()?, reply.bytes()?],
            attempts: Vec::new(),
        };
        let mut entries = reply.list()?;
        let mut attempts = Vec::new();
        while entries.left() > 0 {
            attempts.push(entries.bytes()?);
        }
        Ok(Some(Self { attempts, ..job }))
    }

    fn homes(&self) -> Vec<&'static str> {
        [
            (self.ready.is_some(), "READY"),
            (self.scheduled.is_some(), "SCHEDULED"),
            (self.leased.is_some() || !self.lease.is_empty(), "LEASED"),
            (self.dead.is_some() || !self.death.is_empty(), "DEAD"),
            (self.completed.is_some(), "COMPLETED"),
        ]
        .into_iter()
        .filter_map(|(is, name)| is.then_some(name))
        .collect()
    }

    fn waits(&self) -> bool {
        self.ready.is_some() || self.scheduled.is_some()
    }

    /// For people.
    fn name(&self) -> String {
        format!("job {} ({})", self.number.0, record::read_head(self.number, &self.record).id)
    }

    /// What is wrong with where it is.
    fn places(&self, queue: &QueueName, spec: Option<&Spec>) -> Vec<String> {
        let (name, homes) = (self.name(), self.homes());
        let mut off = Vec::new();
        match homes[..] {
            [] => off.push(format!("{name} is nowhere: nobody will ever be given it")),
            [_] => {}
            [..] => {
                off.push(format!("{name} is in {} places: {}", homes.len(), homes.join(", ")));
            }
        }
        let level = self.ready.map(|score| record::read_score(score).0);
        if let (Some(level), Some(spec)) = (level, spec)
            && level != record::level(spec.priority)
        {
            off.push(format!("{name}, READY: its place in line is not that of its priority"));
        }
        if let Some((death, _)) = record::read_death(&self.death) {
            if self.dead != Some(death.number) {
                off.push(format!("{name}, DEAD: its place is not that of its death"));
            }
            if self.overflow.is_some() != death.overflow {
                off.push(format!("{name}, DEAD: its mark of overflow is said twice, differently"));
            }
        } else if !self.death.is_empty() {
            off.push(format!("{name}, DEAD: how it died cannot be read"));
        }
        if !self.lease.is_empty() && record::read_lease(self.number, queue, &self.lease).is_none() {
            off.push(format!("{name}, LEASED: its lease cannot be read"));
        }
        off
    }

    /// What is not as it was written.
    fn bytes(&self) -> Vec<String> {
        let name = self.name();
        let mut off = Vec::new();
        if !self.progress.is_empty() && self.read_progress().is_none() {
            off.push(format!("the progress of {name} is not what was written"));
        }
        for attempt in self.attempts.iter().filter(|entry| !entry.is_empty()) {
            if codec::read_attempt(attempt).is_err() {
                off.push(format!("one attempt of {name} is not what was written"));
            }
        }
        for failure in self.failures.iter().filter(|entry| !entry.is_empty()) {
            if codec::read_failure(failure).is_err() {
                off.push(format!("one failure of {name} is not what was written"));
            }
        }
        if !self.result.is_empty() && codec::read_result(&self.result).is_err() {
            off.push(format!("one result of {name} is not what was written"));
        }
        off
    }

    fn read_progress(&self) -> Option<Progress> {
        codec::read_progress(self.progress.get(record::PROGRESS_AT..)?).ok()
    }

    /// What should lead to it and does not.
    fn leads(&self, spec: &Spec) -> Vec<String> {
        let number = self.number.bytes();
        let mut missing = Vec::new();
        if record::own_id(self.number, &spec.id).is_some() && !self.id.starts_with(&number) {
            missing.push("its id");
        }
        let live = self.waits() || !self.lease.is_empty();
        let holds = self.key.starts_with(&number) && self.key.get(38..46) == Some(&[0; 8][..]);
        if live && spec.key.is_some() && !holds {
            missing.push("its idempotency key");
        }
        let progress = self.read_progress().unwrap_or_default();
        let deadline = progress.deadline(spec.expires_at).map(|at| at.millis().max(1));
        if self.waits() && deadline.is_some() && self.deadline != deadline {
            missing.push("its deadline");
        }
        let gaps = self.attempts.iter().filter(|entry| entry.is_empty()).count();
        let name = self.name();
        let mut off: Vec<_> =
            missing.iter().map(|what| format!("{name} cannot be found by {what}")).collect();
        if gaps > 0 {
            off.push(format!("{gaps} attempts of {name} are not there"));
        }
        off
    }
}

impl Audit<'_> {
    pub(super) async fn jobs(&mut self, queue: &Queue, of: u64) -> Result<(), StoreError> {
        let (mut cursor, mut done) = (Vec::from(*b"0"), 0);
        loop {
            let (next, numbers) = self.scan_page(queue, b'j', false, &cursor, PAGE).await?;
            for numbers in numbers.chunks(JOBS_MAX) {
                self.some_jobs(queue, numbers).await?;
                done += numbers.len() as u64;
            }
            (self.tell)(AuditProgress { step: "jobs", done, of: Some(of) });
            cursor = next;
            if cursor == b"0" {
                return Ok(());
            }
        }
    }

    async fn some_jobs(&mut self, queue: &Queue, numbers: &[Vec<u8>]) -> Result<(), StoreError> {
        let args = numbers.iter().map(|number| Arg::from(&number[..])).collect();
        let (_, mut reply) = self.core.run(&AUDIT_JOBS, queue, args).await?;
        for number in numbers {
            if let Some(job) = Job::read(Number::read(number), reply.list()?)? {
                self.job(queue, &job);
            }
        }
        Ok(())
    }

    fn job(&mut self, queue: &Queue, job: &Job) {
        let parts = [&job.progress, &job.failures[0], &job.failures[1], &job.result];
        let parts = parts.into_iter().chain(&job.attempts).filter(|part| !part.is_empty());
        self.report.records += 1 + parts.count() as u64;
        let spec = record::read_job(job.number, &job.record, job.body.clone());
        for what in job.places(&queue.name, spec.as_ref().ok()) {
            self.found(Check::Places, queue, what);
        }
        for what in job.bytes() {
            self.found(Check::Checksums, queue, what);
        }
        match &spec {
            Ok(spec) => {
                for what in job.leads(spec) {
                    self.found(Check::Indexes, queue, what);
                }
            }
            Err(_) => {
                let what = format!("the record of {} is not what was written", job.name());
                self.found(Check::Checksums, queue, what);
            }
        }
    }
}
