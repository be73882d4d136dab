//! How deliveries end that were no success: judged here, applied by a script under the lease as it was judged.

use super::{
    Core,
    connection::Arg,
    enqueue::state_of,
    record::{self, Held, Number},
    registry::Queue,
    reply::Reply,
    scripts::{END, LEASES},
    tally::{Counted, Counts},
};
use crate::{
    domain::{
        breaker::{BreakerState, Guarded},
        failure::Failure,
        job::{Attempt, DeadReason, Next, Progress, Spec, State},
        lease::Lease,
        settings::QueueSettings,
        time::Timestamp,
        verdict::Verdict,
    },
    store::{DeadNotice, StoreError, codec, history, sizes},
};

/// Deliveries that one script ends or tells of.
pub(super) const ENDINGS_MAX: usize = 100;

/// What a script has to know of a burial.
#[derive(Clone, Debug)]
pub(super) struct Burial {
    pub(super) reason: DeadReason,
    /// Of the last failure; empty: there was none.
    pub(super) error_type: String,
    pub(super) retried: bool,
    pub(super) guards: AtDeath,
}

/// How the breakers stand when a job dies.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AtDeath {
    pub(super) states: [BreakerState; 2],
    /// Until then everything is overflow.
    pub(super) spill_until: Timestamp,
}

impl Burial {
    /// Six arguments.
    pub(super) fn args(&self, settings: &QueueSettings) -> [Arg; 6] {
        [
            u64::from(codec::reason_code(self.reason)).into(),
            settings.dead_letters.max_entries.into(),
            settings.dead_jobs_hold_keys.into(),
            self.error_type.as_str().into(),
            self.retried.into(),
            self.guards.arg().as_str().into(),
        ]
    }
}

impl AtDeath {
    fn arg(&self) -> String {
        format!("{}{}", record::states(self.states), self.spill_until.millis())
    }
}

/// A delivery that was judged.
pub(super) struct Case<'a> {
    pub(super) spec: &'a Spec,
    pub(super) held: &'a Held,
    pub(super) verdict: &'a Verdict,
    /// Progress as it was while it was out.
    pub(super) before: &'a Progress,
    pub(super) expired: bool,
}

/// What became of the breaker by the endings.
pub(super) struct Heeded {
    /// As it was when they were judged.
    pub(super) before: Vec<u8>,
    /// As it is now, if that is another.
    pub(super) after: Option<Vec<u8>>,
    /// There was a transition.
    pub(super) moved: bool,
    /// What is counted now, if that is something else.
    pub(super) counted: Option<Counted>,
}

/// What became of deliveries that ended together.
#[derive(Debug)]
pub(super) struct Applied {
    pub(super) done: Vec<Done>,
    /// Others counted failures at the same time.
    pub(super) not_alone: bool,
}

/// One delivery's end, as `end.lua` takes it.
pub(super) struct Ended(Vec<Arg>);

/// What became of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) state: State,
    pub(super) overflow: bool,
    /// It is dead, and whether there was no room for it.
    pub(super) full: Option<bool>,
}

/// For each that died whether there was no room.
pub(super) fn full(done: &[Done]) -> Vec<bool> {
    done.iter().filter_map(|done| done.full).collect()
}

/// A delivery as `leases.lua` tells of it.
#[derive(Debug)]
pub(super) struct Out {
    pub(super) number: Number,
    pub(super) lease: Vec<u8>,
    pub(super) record: Vec<u8>,
    progress: Vec<u8>,
    failure: Vec<u8>,
    attempt: Vec<u8>,
}

impl Out {
    fn read(number: Number, mut reply: Reply) -> Result<Self, StoreError> {
        Ok(Self {
            number,
            lease: reply.bytes()?,
            record: reply.bytes()?,
            progress: reply.bytes()?,
            failure: reply.bytes()?,
            attempt: reply.bytes()?,
        })
    }

    /// The lease that is out.
    pub(super) fn held(&self, queue: &Queue) -> Option<Held> {
        record::read_lease(self.number, &queue.name, &self.lease)
    }

    pub(super) fn spec(&self) -> Spec {
        record::read_head(self.number, &self.record)
    }

    /// Progress as it was before this delivery.
    pub(super) fn progress(&self) -> Progress {
        record::read_progress(&self.progress)
    }

    /// Progress while it is out: the delivery that runs is counted.
    pub(super) fn progress_under(&self, held: &Held) -> Progress {
        let mut progress = self.progress();
        progress.deliveries = held.delivery.lease.delivery;
        progress.cancel_requested |= held.cancel_requested;
        progress
    }

    pub(super) fn last_failure(&self) -> Option<Failure> {
        codec::read_failure(&self.failure).ok()
    }

    /// Of the last failure, where there was one.
    pub(super) fn error_type(&self, progress: &Progress) -> String {
        let failure = progress.last_failed_at.and_then(|_| self.last_failure());
        failure.map(|failure| failure.error_type).unwrap_or_default()
    }

    /// How the delivery of this lease ended, until the job is delivered again.
    pub(super) fn ended_under(&self, lease: &Lease) -> Option<Attempt> {
        if !self.lease.is_empty() || self.progress().deliveries != lease.delivery {
            return None;
        }
        codec::read_attempt(&self.attempt).ok().filter(|attempt| attempt.is_of(lease))
    }
}

impl Done {
    fn read(mut reply: Reply) -> Result<Self, StoreError> {
        let state = state_of(reply.int()?);
        if reply.left() == 0 {
            return Ok(Self { state, overflow: false, full: None });
        }
        reply.int()?;
        Ok(Self { state, overflow: reply.int()? == 1, full: Some(reply.int()? == 1) })
    }
}

impl Ended {
    /// A verdict, ready to be applied.
    pub(super) fn judged(
        out: &Out,
        case: &Case<'_>,
        guards: AtDeath,
        settings: &QueueSettings,
    ) -> (Self, Option<Burial>) {
        let Case { spec, held, verdict, before, expired } = *case;
        let (progress, attempt) = (&verdict.progress, &verdict.attempt);
        let failure = attempt.failure.clone();
        let last_failure = failure.clone().or_else(|| out.last_failure());
        let seq = progress.recorded;
        let forget = (seq > history::FIRST_ATTEMPTS + history::LAST_ATTEMPTS)
            .then(|| seq - history::LAST_ATTEMPTS);
        let bytes = |seq: u32| seq.to_be_bytes().to_vec();
        let (kind, at, burial) = match verdict.next {
            Next::Later { at } | Next::Behind { at } => ("w", at, None),
            Next::OldPlace => ("w", held.ready_at, None),
            Next::Bury(reason) => {
                let error_type = last_failure.as_ref().map(|failure| failure.error_type.clone());
                let error_type = error_type.unwrap_or_default();
                let retried = progress.retries > 0;
                ("d", Timestamp::default(), Some(Burial { reason, error_type, retried, guards }))
            }
        };
        let past = sizes::of_past(progress, last_failure.as_ref());
        let mut args: Vec<Arg> = vec![
            out.number.bytes().into(),
            Arg::from(&out.lease[..]),
            kind.into(),
            record::progress(progress, past).into(),
            bytes(seq).into(),
            codec::attempt(&history::summary(attempt)).into(),
            forget.map(bytes).unwrap_or_default().into(),
            failure.as_ref().map(codec::failure).unwrap_or_default().into(),
            at.millis().into(),
            record::tie(out.number, &spec.id).into(),
            u64::from(record::level(spec.priority)).into(),
            progress.deadline(spec.expires_at).is_some().into(),
            failure.is_some().into(),
            (progress.retries > before.retries).into(),
            expired.into(),
        ];
        args.extend(burial_args(burial.as_ref(), settings));
        (Self(args), burial)
    }

    /// A job that was leased and dies before anybody has it: nothing counts.
    pub(super) fn buried_unseen(
        number: Number,
        lease: &[u8],
        progress: &[u8],
        burial: &Burial,
        settings: &QueueSettings,
    ) -> Self {
        let progress = match progress {
            [] => record::progress(&Progress::default(), 0),
            progress => progress.to_vec(),
        };
        let mut args = plain(number, lease, "d", progress);
        args.extend(burial_args(Some(burial), settings));
        Self(args)
    }

    /// A job whose claim was never answered: back to where it was, and only the delivery counts.
    pub(super) fn given_back(
        out: &Out,
        spec: &Spec,
        held: &Held,
        settings: &QueueSettings,
    ) -> Self {
        let progress = out.progress_under(held);
        let past = sizes::of_past(&progress, out.last_failure().as_ref());
        // Nobody ever had it, so it was waiting if it was cancelled.
        let kind = if progress.cancel_requested { "r" } else { "w" };
        let mut args = plain(out.number, &out.lease, kind, record::progress(&progress, past));
        args[8] = held.ready_at.millis().into();
        args[9] = record::tie(out.number, &spec.id).into();
        args[10] = u64::from(record::level(spec.priority)).into();
        args[11] = progress.deadline(spec.expires_at).is_some().into();
        let retried = progress.retries > 0;
        let burial = Burial {
            reason: DeadReason::Cancelled,
            error_type: String::new(),
            retried,
            guards: AtDeath::default(),
        };
        args.extend(burial_args(Some(&burial), settings));
        Self(args)
    }
}

/// The arguments up to the burial's, with nothing for the history and nothing counted.
fn plain(number: Number, lease: &[u8], kind: &str, progress: Vec<u8>) -> Vec<Arg> {
    let mut args: Vec<Arg> =
        vec![number.bytes().into(), Arg::from(lease), kind.into(), progress.into()];
    args.extend((0..4).map(|_| Arg::default()));
    args.extend([0u64.into(), Arg::default(), 0u64.into()]);
    args.extend([false.into(), false.into(), false.into(), false.into()]);
    args
}

fn burial_args(burial: Option<&Burial>, settings: &QueueSettings) -> Vec<Arg> {
    match burial {
        Some(burial) => burial.args(settings).into(),
        None => vec![Arg::default(); 6],
    }
}

impl Core {
    /// What is known of these jobs and their deliveries.
    pub(super) async fn outs(
        &self,
        queue: &Queue,
        numbers: &[Number],
    ) -> Result<(Timestamp, Vec<Out>), StoreError> {
        let args = numbers.iter().map(|number| number.bytes().into()).collect();
        let (now, mut reply) = self.run(&LEASES, queue, args).await?;
        queue.guards.see(reply.bytes()?, reply.bytes()?);
        queue.guards.see_counts(Counts::read(&mut reply)?);
        let mut outs = Vec::with_capacity(numbers.len());
        for number in numbers {
            outs.push(Out::read(*number, reply.list()?)?);
        }
        Ok((now, outs))
    }

    /// Applies endings, all or none. None: a lease or the breaker is no longer what it was.
    pub(super) async fn end(
        &self,
        queue: &Queue,
        heeded: Option<Heeded>,
        ended: Vec<Ended>,
    ) -> Result<Option<Applied>, StoreError> {
        let count = ended.len();
        let whatever = Heeded { before: b"*".to_vec(), after: None, moved: false, counted: None };
        let Heeded { before, after, moved, counted } = heeded.unwrap_or(whatever);
        let after = after.unwrap_or_default();
        let mut args: Vec<Arg> = vec![before.into(), Arg::from(&after[..]), moved.into()];
        args.extend(match counted {
            None => vec![Arg::default(); 4],
            Some(Counted { after, before, known, failures }) => {
                vec![after.into(), before.into(), known.into(), failures.into()]
            }
        });
        args.extend(ended.into_iter().flat_map(|ended| ended.0));
        let (_, mut reply) = self.run(&END, queue, args).await?;
        let available = reply.int()?;
        if available < 0 {
            return Ok(None);
        }
        if !after.is_empty() {
            queue.guards.see_one(Guarded::Work, after);
        }
        let mut counts = reply.list()?;
        let not_alone = counts.left() > 0;
        if not_alone {
            queue.guards.see_counts(Counts::read(&mut counts)?);
        }
        let mut done = Vec::with_capacity(count);
        for _ in 0..count {
            done.push(Done::read(reply.list()?)?);
        }
        // Where the breaker has moved, that is told as a whole.
        if !moved {
            self.tell(queue, available).await;
        }
        Ok(Some(Applied { done, not_alone }))
    }

    /// Tells of a job that has become a dead letter, and keeps in mind how long it is kept.
    pub(super) fn died(
        &self,
        queue: &Queue,
        spec: &Spec,
        progress: &Progress,
        burial: &Burial,
        done: &Done,
        settings: &QueueSettings,
    ) {
        if let Some(retention) = settings.dead_letters.retention {
            self.agenda.note(queue.number, self.now().after(retention));
        }
        self.listener.died(&DeadNotice {
            queue: queue.name.clone(),
            id: spec.id.clone(),
            job_type: spec.job_type.clone(),
            reason: burial.reason,
            attempts: progress.tries,
            error_type: burial.error_type.clone(),
            overflow: done.overflow,
        });
    }
}
