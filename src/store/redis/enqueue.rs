//! Enqueue: jobs are packed here, and added where their queue is.

use super::{
    Core,
    connection::Arg,
    record::{self, Number},
    registry::Queue,
    reply::Reply,
    scripts::ENQUEUE,
};
use crate::{
    domain::{
        chance::Dice,
        ids::{JobId, QueueName},
        job::{NewJob, Spec, Start, State},
        settings::QueueSettings,
        time::Timestamp,
    },
    store::{Ask, Enqueued, Refused, StoreError},
};
use std::sync::Arc;

/// Jobs and bytes that one script adds: while it does, Redis does nothing else.
const JOBS_MAX: usize = 25;
const BYTES_MAX: usize = 1 << 20;
/// Numbers that are taken, against all odds, before the call is refused.
const TRIES_MAX: usize = 10;

type Added = Result<Enqueued, Refused>;

/// A job on its way in, and its place in the call.
struct Incoming {
    at: usize,
    job: NewJob,
}

/// What a script did with a job.
enum Outcome {
    Done(Added),
    /// Another job has its number.
    NumberTaken,
    /// The queue was forgotten meanwhile.
    QueueGone,
}

impl Core {
    pub(super) async fn enqueue(
        &self,
        ask: Ask,
        jobs: Vec<NewJob>,
    ) -> Result<Vec<Added>, StoreError> {
        let mut dice = Dice::new(ask.seed);
        let mut added: Vec<Option<Added>> = vec![None; jobs.len()];
        let mut begun = false;
        for (name, mut jobs) in by_queue(jobs) {
            for _ in 0..TRIES_MAX {
                let adding = self.add_all(&ask, &name, jobs, &mut dice, &mut added);
                jobs = adding.await.map_err(|error| after_some(error, begun))?;
                begun = true;
                if jobs.is_empty() {
                    break;
                }
            }
        }
        let failed = || StoreError::OutcomeUnknown("not every job found a number".into());
        added.into_iter().map(|added| added.ok_or_else(failed)).collect()
    }

    /// Adds the jobs of one queue; hands back those that have to be tried again.
    async fn add_all(
        &self,
        ask: &Ask,
        name: &QueueName,
        jobs: Vec<Incoming>,
        dice: &mut Dice,
        added: &mut [Option<Added>],
    ) -> Result<Vec<Incoming>, StoreError> {
        let queue = match self.queue_for(name).await? {
            Ok(queue) => queue,
            Err(refused) => {
                for incoming in jobs {
                    added[incoming.at] = Some(Err(refused.clone()));
                }
                return Ok(Vec::new());
            }
        };
        let settings = ask.settings.queue(name);
        let mut again = Vec::new();
        for (begun, chunk) in in_chunks(jobs).into_iter().enumerate() {
            let outcomes = self.add_some(&queue, settings, &chunk, dice).await;
            let outcomes = outcomes.map_err(|error| after_some(error, begun > 0))?;
            for (incoming, outcome) in chunk.into_iter().zip(outcomes) {
                match outcome {
                    Outcome::Done(done) => added[incoming.at] = Some(done),
                    Outcome::NumberTaken => again.push(incoming),
                    Outcome::QueueGone => {
                        self.registry.forget(&queue);
                        again.push(incoming);
                    }
                }
            }
        }
        Ok(again)
    }

    async fn add_some(
        &self,
        queue: &Arc<Queue>,
        settings: &QueueSettings,
        jobs: &[Incoming],
        dice: &mut Dice,
    ) -> Result<Vec<Outcome>, StoreError> {
        let limit = settings.max_depth.map_or_else(|| Arg::from(""), Arg::from);
        let mut args = vec![queue.number.into(), limit];
        let now = self.now();
        let mut specs = Vec::with_capacity(jobs.len());
        for Incoming { job, .. } in jobs {
            let number = self.next_number().await?;
            let known = self.known(queue, job).await?;
            specs.push(pack(job, number, now, dice, known, &mut args));
        }
        let (_, mut reply) = self.run(&ENQUEUE, queue, args).await?;
        let available = reply.int()?;
        if available < 0 {
            return Ok(jobs.iter().map(|_| Outcome::QueueGone).collect());
        }
        let mut outcomes = Vec::with_capacity(jobs.len());
        for spec in &specs {
            outcomes.push(self.outcome(queue, settings, spec, reply.list()?)?);
        }
        self.tell(queue, available).await;
        Ok(outcomes)
    }

    fn outcome(
        &self,
        queue: &Queue,
        settings: &QueueSettings,
        spec: &Spec,
        mut reply: Reply,
    ) -> Result<Outcome, StoreError> {
        let refused = match reply.int()? {
            0 => {
                let (state, at) = (state_of(reply.int()?), reply.time()?);
                let due = (state == State::Scheduled).then_some(at);
                for at in [due, spec.expires_at].into_iter().flatten() {
                    self.agenda.note(queue.number, at);
                }
                let id = spec.id.clone();
                let added = Enqueued { id, deduplicated: false, state, run_at: Some(at) };
                return Ok(Outcome::Done(Ok(added)));
            }
            1 => {
                let (state, at) = (state_of(reply.int()?), reply.time()?);
                let id = JobId::parse(&reply.text()?);
                let waits = matches!(state, State::Ready | State::Scheduled);
                let run_at = waits.then_some(at);
                return Ok(Outcome::Done(Ok(Enqueued { id, deduplicated: true, state, run_at })));
            }
            2 => Refused::IdTaken,
            3 => Refused::KeyTaken,
            4 => Refused::IdAndKeyDiffer,
            5 => Refused::QueueFull { limit: settings.max_depth.unwrap_or_default() },
            _ => return Ok(Outcome::NumberTaken),
        };
        Ok(Outcome::Done(Err(refused)))
    }

    /// A job that is there under an id which the server made: its number, and its print.
    async fn known(&self, queue: &Queue, job: &NewJob) -> Result<Vec<u8>, StoreError> {
        let Some(id) = job.id.as_ref().filter(|id| id.number().is_some()) else {
            return Ok(Vec::new());
        };
        let Some(number) = self.number_in(queue, id).await? else { return Ok(Vec::new()) };
        let Some(spec) = self.spec_of(queue, number).await? else { return Ok(Vec::new()) };
        let print = record::print(spec.sameness());
        Ok([&number.bytes()[..], &print].concat())
    }
}

/// The arguments of one job, and the job as it will be kept.
fn pack(
    job: &NewJob,
    number: Number,
    now: Timestamp,
    dice: &mut Dice,
    known: Vec<u8>,
    args: &mut Vec<Arg>,
) -> Spec {
    let (start, after) = match job.start {
        Start::Now => ("n", 0),
        Start::After(delay) => ("a", record::millis(delay)),
        Start::At(at) => ("t", at.millis()),
    };
    let print = match (&job.id, &job.key) {
        (None, None) => Vec::new(),
        _ => record::print(job.sameness()),
    };
    let id = job.id.clone().unwrap_or_else(|| JobId::make(now, number.0, dice.roll()));
    let (spec, _) = job.clone().admit(now, id);
    let (record, body) = record::job(&spec);
    let own_id = record::own_id(number, &spec.id).unwrap_or_default();
    args.extend([
        number.bytes().into(),
        record.into(),
        Arg::from(&body[..]),
        start.into(),
        after.into(),
        u64::from(record::level(spec.priority)).into(),
        own_id.as_str().into(),
        spec.key.as_deref().unwrap_or_default().into(),
        print.into(),
        record::extras(number, &spec).into(),
        known.into(),
        spec.id.to_string().as_str().into(),
    ]);
    spec
}

/// In the order in which the queues first come up.
fn by_queue(jobs: Vec<NewJob>) -> Vec<(QueueName, Vec<Incoming>)> {
    let mut queues: Vec<(QueueName, Vec<Incoming>)> = Vec::new();
    for (at, job) in jobs.into_iter().enumerate() {
        match queues.iter_mut().find(|(name, _)| *name == job.queue) {
            Some((_, jobs)) => jobs.push(Incoming { at, job }),
            None => queues.push((job.queue.clone(), vec![Incoming { at, job }])),
        }
    }
    queues
}

fn in_chunks(jobs: Vec<Incoming>) -> Vec<Vec<Incoming>> {
    let mut chunks: Vec<Vec<Incoming>> = Vec::new();
    let mut bytes = 0;
    for incoming in jobs {
        bytes += incoming.job.bytes();
        match chunks.last_mut() {
            Some(chunk) if chunk.len() < JOBS_MAX && bytes <= BYTES_MAX => chunk.push(incoming),
            _ => {
                bytes = incoming.job.bytes();
                chunks.push(vec![incoming]);
            }
        }
    }
    chunks
}

pub(super) fn state_of(code: i64) -> State {
    match code {
        1 => State::Scheduled,
        2 => State::Ready,
        3 => State::Leased,
        5 => State::Dead,
        _ => State::Completed,
    }
}

/// A call of several scripts that failed after the first of them has been applied in part.
pub(super) fn after_some(error: StoreError, applied: bool) -> StoreError {
    match error {
        StoreError::Unavailable(why) if applied => StoreError::OutcomeUnknown(why),
        other => other,
    }
}
