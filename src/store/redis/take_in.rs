//! Jobs that come from another store: each gets a number here, and everything else as it was there.

use super::{
    Core,
    connection::Arg,
    record::{self, Number},
    registry::Queue,
    scripts::{PAUSE, TAKE_IN},
    settle::FINISHED_KEYS_MAX,
};
use crate::{
    domain::{
        breaker::{Breaker, Guarded, Tally},
        job::Progress,
        pause::Pause,
        settings::QueueSettings,
        time::Timestamp,
    },
    store::{
        Ask, JobView, Newcomers, Refused, Standing, StoreError, TakenIn, codec, history, sizes,
        take_over,
    },
};
use std::sync::Arc;

/// About how many bytes one script takes in.
const BYTES_MAX: usize = 1 << 20;
/// Numbers that are taken, against all odds, and queues that are forgotten, before the call is refused.
const TRIES_MAX: usize = 10;

impl Core {
    pub(super) async fn take_in(
        self: &Arc<Self>,
        ask: Ask,
        newcomers: Newcomers,
    ) -> Result<Result<Vec<TakenIn>, Refused>, StoreError> {
        let Newcomers { queue: name, standing, jobs } = newcomers;
        let settings = ask.settings.queue(&name);
        let mut taken: Vec<Option<TakenIn>> = vec![None; jobs.len()];
        for _ in 0..TRIES_MAX {
            let queue = match self.queue_for(&name).await? {
                Ok(queue) => queue,
                Err(refused) => return Ok(Err(refused)),
            };
            let stands = self.stand(&queue, &standing, settings).await?;
            if !stands || !self.take_in_all(&queue, settings, &jobs, &mut taken).await? {
                self.registry.forget(&queue);
                continue;
            }
            if taken.iter().all(Option::is_some) {
                return Ok(Ok(taken.into_iter().flatten().collect()));
            }
        }
        Err(StoreError::OutcomeUnknown("not every job found a number".into()))
    }

    /// The queue is held back as it was there. False: it was forgotten.
    async fn stand(
        &self,
        queue: &Queue,
        standing: &Standing,
        settings: &QueueSettings,
    ) -> Result<bool, StoreError> {
        if let Some(pause) = &standing.pause
            && !self.pause_until(queue, pause).await?
        {
            return Ok(false);
        }
        let breakers =
            [(Guarded::Work, &standing.work), (Guarded::DeadLetters, &standing.dead_letters)];
        for (guarded, breaker) in breakers {
            if *breaker != Breaker::default() {
                // What is known of them may be from long ago.
                self.look_at_guards(queue).await?;
                let change = |here: &mut Breaker, _: &mut Option<Tally>, _: Timestamp| {
                    take_over(here, breaker)
                };
                if self.move_guard(queue, guarded, settings, change).await?.is_none() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    async fn pause_until(&self, queue: &Queue, pause: &Pause) -> Result<bool, StoreError> {
        let until = pause.until.map(|until| format!("@{}", until.millis()));
        let until = until.unwrap_or_default();
        let args = vec![queue.number.into(), until.as_str().into(), pause.reason.as_str().into()];
        let (_, mut reply) = self.run(&PAUSE, queue, args).await?;
        if reply.int()? < 0 {
            return Ok(false);
        }
        if let Some(until) = pause.until {
            self.agenda.note(queue.number, until);
        }
        Ok(true)
    }

    /// Takes in those that have not been, a script for so many. False: the queue was forgotten.
    async fn take_in_all(
        &self,
        queue: &Queue,
        settings: &QueueSettings,
        jobs: &[JobView],
        taken: &mut [Option<TakenIn>],
    ) -> Result<bool, StoreError> {
        let mut left: Vec<usize> = (0..jobs.len()).filter(|at| taken[*at].is_none()).collect();
        while !left.is_empty() {
            let mut bytes = 0;
            let fits = |at: &&usize| {
                bytes += sizes::of_view(&jobs[**at]);
                bytes <= BYTES_MAX
            };
            let some = left.iter().take_while(fits).count().max(1);
            let rest = left.split_off(some);
            if !self.take_in_some(queue, settings, jobs, &left, taken).await? {
                return Ok(false);
            }
            left = rest;
        }
        Ok(true)
    }

    async fn take_in_some(
        &self,
        queue: &Queue,
        settings: &QueueSettings,
        jobs: &[JobView],
        some: &[usize],
        taken: &mut [Option<TakenIn>],
    ) -> Result<bool, StoreError> {
        let mut args: Vec<Arg> = vec![
            queue.number.into(),
            record::millis(settings.key_retention).into(),
            FINISHED_KEYS_MAX.into(),
            settings.dead_jobs_hold_keys.into(),
        ];
        for at in some {
            args.extend(newcomer(self.next_number().await?, &jobs[*at]));
        }
        let (now, mut reply) = self.run(&TAKE_IN, queue, args).await?;
        let available = reply.int()?;
        if available < 0 {
            return Ok(false);
        }
        for at in some {
            taken[*at] = match reply.int()? {
                0 => {
                    self.note_newcomer(queue, &jobs[*at], settings, now);
                    Some(TakenIn::Added)
                }
                1 => Some(TakenIn::AlreadyThere),
                2 => Some(TakenIn::KeyTaken),
                _ => None,
            };
        }
        self.tell(queue, available).await;
        Ok(true)
    }

    /// When something about it is due.
    fn note_newcomer(
        &self,
        queue: &Queue,
        job: &JobView,
        settings: &QueueSettings,
        now: Timestamp,
    ) {
        let kept = match (&job.death, job.completed_at) {
            (Some(death), _) => {
                settings.dead_letters.retention.map(|kept| death.died_at.after(kept))
            }
            (None, Some(at)) => Some(at.after(settings.completed_retention.unwrap_or_default())),
            (None, None) => {
                let deadline = job.progress.deadline(job.spec.expires_at);
                deadline.into_iter().chain(Some(job.waits_at()).filter(|at| *at > now)).min()
            }
        };
        if let Some(at) = kept {
            self.agenda.note(queue.number, at);
        }
    }
}

/// One job's arguments.
fn newcomer(number: Number, job: &JobView) -> [Arg; 20] {
    let (spec, progress) = (&job.spec, &job.progress);
    let (record, body) = record::job(spec);
    let [shown, carried, uuid] = Core::id_args(&spec.id);
    let (kind, time) = match (&job.death, job.completed_at) {
        (Some(death), _) => ("d", death.died_at),
        (None, Some(at)) => ("c", at),
        (None, None) => ("w", job.waits_at()),
    };
    let past = sizes::of_past(progress, job.last_failure.as_ref());
    let fresh = kind == "w" && *progress == Progress::default();
    let (head, states) = job.death.as_ref().map(record::death).unwrap_or_default();
    let result = match &job.result[..] {
        [] => Vec::new(),
        result => codec::result(result),
    };
    let (count, history) = history_of(number, job);
    [
        number.bytes().into(),
        record.into(),
        Arg::from(&body[..]),
        record::extras(number, spec).into(),
        if fresh { Arg::default() } else { record::progress(progress, past).into() },
        record::print(spec.sameness()).into(),
        record::tie(number, &spec.id).into(),
        u64::from(record::level(spec.priority)).into(),
        carried,
        uuid,
        shown,
        kind.into(),
        time.millis().into(),
        progress.deadline(spec.expires_at).is_some().into(),
        result.into(),
        head.into(),
        job.error_type().into(),
        states.as_str().into(),
        count.into(),
        history.into(),
    ]
}

/// How many fields and values its history has, and these in one piece: Lua takes only so many arguments.
fn history_of(number: Number, job: &JobView) -> (u64, Vec<u8>) {
    let kept = history::take_apart(job);
    let number = number.bytes();
    let field = |end: &[u8]| [&number[..], end].concat();
    let mut parts = Vec::new();
    for (seq, record) in kept.attempts {
        parts.extend([field(&seq.to_be_bytes()), record]);
    }
    for (end, record) in [(b"0", kept.first), (b"1", kept.last)] {
        parts.extend(record.map(|record| [field(end), record]).into_iter().flatten());
    }
    let lengths = parts.iter().flat_map(|part| (part.len() as u32).to_be_bytes());
    let packed = lengths.chain(parts.iter().flatten().copied()).collect();
    (parts.len() as u64, packed)
}
