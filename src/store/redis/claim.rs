//! Claim: one script for each queue asked, in the order of the shares. Never more jobs in all than the call wants.

use super::{
    Core,
    connection::Arg,
    ending::{Applied, Burial, Ended, full},
    guards,
    record::{self, Held, Number},
    registry::Queue,
    reply::Reply,
    scripts::{AGAIN, CLAIM, GIVE_BACK},
};
use crate::{
    domain::{
        breaker::Guarded,
        chance::Dice,
        failure::Failure,
        ids::JobId,
        job::{DeadReason, Progress, Spec},
        settings::QueueSettings,
        time::Timestamp,
    },
    store::{
        Ask, Claim, Claimed, Delivered, Idle, IdleReason, Share, StoreError, Unanswered, codec,
        sizes,
    },
};
use std::sync::Arc;

/// Jobs that one script leases or looks at.
const JOBS_MAX: usize = 100;
const PROMOTIONS_MAX: u64 = 100;
/// Jobs that one claim buries on its way; the next look goes on.
const BURIALS_MAX: usize = 100;

/// What a claim has gathered so far.
struct Basket<'a> {
    ask: &'a Ask,
    claim: &'a Claim,
    dice: Dice,
    bytes: usize,
    buried: usize,
    full: bool,
    out: Claimed,
}

impl Basket<'_> {
    fn room(&self) -> usize {
        if self.full { 0 } else { self.claim.max_jobs - self.out.jobs.len() }
    }
}

/// A queue that is asked, and what its last script said.
struct Asked {
    queue: Option<Arc<Queue>>,
    said: Said,
}

#[derive(Clone, Copy, Default)]
struct Said {
    available: i64,
    paused: bool,
    pause_until: Option<Timestamp>,
    first_due: Option<Timestamp>,
    gate: i64,
    gate_until: Option<Timestamp>,
    /// It handed out less than it was asked for.
    empty: bool,
}

impl Said {
    /// It hands out nothing, whatever is in line.
    fn stopped(&self) -> bool {
        self.paused || self.gate > 1
    }
}

/// A job as `claim.lua` and `again.lua` hand it over.
struct Taken {
    number: Number,
    record: Vec<u8>,
    body: Vec<u8>,
    progress: Vec<u8>,
    failure: Vec<u8>,
    lease: Vec<u8>,
}

impl Taken {
    fn read(mut reply: Reply) -> Result<Self, StoreError> {
        let number = Number::read(&reply.bytes()?);
        reply.int()?;
        Ok(Self {
            number,
            record: reply.bytes()?,
            body: reply.bytes()?,
            progress: reply.bytes()?,
            failure: reply.bytes()?,
            lease: reply.bytes()?,
        })
    }

    fn progress(&self) -> Progress {
        record::read_progress(&self.progress)
    }

    fn failure(&self, progress: &Progress) -> Option<Failure> {
        progress.last_failed_at.and_then(|_| codec::read_failure(&self.failure).ok())
    }
}

impl Core {
    pub(super) async fn claim(&self, ask: Ask, mut claim: Claim) -> Result<Claimed, StoreError> {
        let settles = !claim.settle.is_empty();
        let settled = self.settle(&ask, std::mem::take(&mut claim.settle)).await?;
        let mut dice = Dice::new(ask.seed);
        let answer = dice.roll();
        let out = Claimed { now: self.now(), settled, answer, ..Claimed::default() };
        let (ask, claim) = (&ask, &claim);
        let mut basket = Basket { ask, claim, dice, bytes: 0, buried: 0, full: false, out };
        match self.gather(&mut basket).await {
            Ok(()) => Ok(basket.out),
            // What was leased is handed out; whatever went wrong shows again with the next call.
            Err(_) if !basket.out.jobs.is_empty() => Ok(basket.out),
            Err(StoreError::Unavailable(why)) if settles => Err(StoreError::OutcomeUnknown(why)),
            Err(error) => Err(error),
        }
    }

    async fn gather(&self, basket: &mut Basket<'_>) -> Result<(), StoreError> {
        let claim = basket.claim;
        let mut asked = Vec::with_capacity(claim.shares.len());
        for share in &claim.shares {
            asked.push(Asked { queue: self.find(&share.queue).await?, said: Said::default() });
        }
        if !claim.request_id.is_empty() {
            for queue in asked.iter().filter_map(|asked| asked.queue.clone()) {
                self.claimed_before(&queue, basket).await?;
            }
            if !basket.out.jobs.is_empty() {
                return Ok(());
            }
        }
        // Everybody's turn first, then whoever has more.
        for (share, asked) in claim.shares.iter().zip(&mut asked) {
            self.take(share, asked, share.first, basket).await?;
        }
        for (share, asked) in claim.shares.iter().zip(&mut asked) {
            if !asked.said.empty && !asked.said.stopped() && basket.room() > 0 {
                self.take(share, asked, usize::MAX, basket).await?;
            }
        }
        if basket.out.jobs.is_empty() {
            let idle = claim.shares.iter().zip(&asked);
            basket.out.idle = idle.map(|(share, asked)| idle_of(share, asked)).collect();
            return Ok(());
        }
        // Whoever is woken for several jobs may take few of them: the others are somebody else's.
        for asked in &asked {
            if let Some(queue) = &asked.queue {
                self.tell(queue, asked.said.available).await;
            }
        }
        Ok(())
    }

    /// The same request again: what it got the first time, as far as it is still leased.
    async fn claimed_before(
        &self,
        queue: &Arc<Queue>,
        basket: &mut Basket<'_>,
    ) -> Result<(), StoreError> {
        let answer = basket.out.answer.to_be_bytes();
        let mut from = 0;
        loop {
            let args = vec![
                basket.claim.request_id.as_str().into(),
                Arg::from(&answer[..]),
                (from as u64).into(),
                (JOBS_MAX as u64).into(),
            ];
            let (_, mut reply) = self.run(&AGAIN, queue, args).await?;
            let count = reply.count()? as usize;
            while reply.left() > 0 {
                let taken = Taken::read(reply.list()?)?;
                let spec = record::read_job(taken.number, &taken.record, taken.body.clone());
                let held = record::read_lease(taken.number, &queue.name, &taken.lease);
                if let (Ok(spec), Some(held)) = (spec, held) {
                    self.agenda.note(queue.number, held.delivery.expires_at);
                    basket.out.jobs.push(delivered(queue, &taken, spec, held));
                }
            }
            from += JOBS_MAX;
            if from >= count {
                return Ok(());
            }
        }
    }

    /// Leases up to `most` jobs of one queue.
    async fn take(
        &self,
        share: &Share,
        asked: &mut Asked,
        most: usize,
        basket: &mut Basket<'_>,
    ) -> Result<(), StoreError> {
        let Some(queue) = asked.queue.clone() else { return Ok(()) };
        let settings = basket.ask.settings.queue(&share.queue).clone();
        let mut left = most.min(basket.room());
        loop {
            let wanted = left.min(JOBS_MAX);
            let before = basket.out.jobs.len();
            let taken = self.take_some(&queue, &settings, wanted, asked, basket).await?;
            let Some(looked_at) = taken else { continue };
            let handed_out = basket.out.jobs.len() - before;
            left -= handed_out;
            asked.said.empty = looked_at < wanted && asked.said.gate == 0;
            // Jobs that were past their deadline or corrupt made room for others.
            let done = handed_out == looked_at && looked_at < wanted;
            if left == 0 || looked_at == 0 || done || basket.full {
                return Ok(());
            }
        }
    }

    /// One script; says how many jobs it leased. None: the breaker is another than was known.
    async fn take_some(
        &self,
        queue: &Arc<Queue>,
        settings: &QueueSettings,
        wanted: usize,
        asked: &mut Asked,
        basket: &mut Basket<'_>,
    ) -> Result<Option<usize>, StoreError> {
        let claim = basket.claim;
        let duration = claim.lease_duration.unwrap_or(settings.lease_duration);
        let duration = duration.min(settings.max_run_time);
        let nonces: Vec<u8> = (0..wanted).flat_map(|_| basket.dice.roll().to_be_bytes()).collect();
        let mut args: Vec<Arg> = vec![
            (wanted as u64).into(),
            (claim.max_bytes.saturating_sub(basket.bytes).min(1 << 40) as u64).into(),
            basket.out.jobs.is_empty().into(),
            PROMOTIONS_MAX.into(),
            record::millis(duration).into(),
            claim.worker_id.as_str().into(),
            claim.request_id.as_str().into(),
            Arg::from(&basket.out.answer.to_be_bytes()[..]),
            nonces.into(),
        ];
        args.extend(gate_args(queue, settings));
        let (now, mut reply) = self.run(&CLAIM, queue, args).await?;
        let available = reply.int()?;
        if available < 0 {
            queue.guards.see_one(Guarded::Work, reply.bytes()?);
            return Ok(None);
        }
        let pause = reply.int()?;
        let paused = pause == -1 || u64::try_from(pause).is_ok_and(|until| until > now.millis());
        reply.int()?;
        asked.said = Said {
            available,
            paused,
            pause_until: u64::try_from(pause).ok().map(Timestamp::from_millis),
            first_due: reply.maybe_time()?,
            gate: 0,
            gate_until: None,
            empty: false,
        };
        basket.full |= reply.int()? == 1;
        (asked.said.gate, asked.said.gate_until) = (reply.int()?, reply.maybe_time()?);
        basket.out.now = basket.out.now.max(now);
        let looked_at = reply.left();
        if looked_at > 0 {
            self.agenda.note(queue.number, now.after(duration));
            if asked.said.gate == 1 {
                self.agenda.note(queue.number, now.after(settings.breaker.recovery_timeout));
            }
        }
        let mut taken = Vec::with_capacity(looked_at);
        while reply.left() > 0 {
            taken.push(Taken::read(reply.list()?)?);
        }
        for taken in taken {
            self.hand_out(queue, settings, now, taken, basket).await?;
        }
        Ok(Some(looked_at))
    }

    /// A job that was leased, unless nobody should get it any more.
    async fn hand_out(
        &self,
        queue: &Arc<Queue>,
        settings: &QueueSettings,
        now: Timestamp,
        mut taken: Taken,
        basket: &mut Basket<'_>,
    ) -> Result<(), StoreError> {
        let body = std::mem::take(&mut taken.body);
        let read = record::read_job(taken.number, &taken.record, body);
        let Some(held) = record::read_lease(taken.number, &queue.name, &taken.lease) else {
            return Err(StoreError::OutcomeUnknown("a lease that nobody made".into()));
        };
        let progress = taken.progress();
        let overdue = |spec: &Spec| progress.deadline(spec.expires_at).is_some_and(|at| at <= now);
        let (spec, reason) = match read {
            Ok(spec) if overdue(&spec) => (spec, DeadReason::Expired),
            Err(spec) => (*spec, DeadReason::Corrupt),
            Ok(spec) => {
                basket.bytes += sizes::of_job(&spec)
                    + sizes::of_past(&progress, taken.failure(&progress).as_ref());
                basket.out.jobs.push(delivered(queue, &taken, spec, held));
                return Ok(());
            }
        };
        let error_type = taken.failure(&progress).map(|failure| failure.error_type);
        let burial = Burial {
            reason,
            error_type: error_type.unwrap_or_default(),
            retried: progress.retries > 0,
            guards: guards::at_death(queue, settings, now),
        };
        let ended =
            Ended::buried_unseen(taken.number, &taken.lease, &taken.progress, &burial, settings);
        let mut memory = queue.guards.memory.lock().await;
        if let Some(Applied { done, .. }) = self.end(queue, None, vec![ended]).await? {
            for done in &done {
                self.died(queue, &spec, &progress, &burial, done, settings);
            }
            self.heed_deaths(queue, &mut memory, settings, &full(&done)).await?;
        }
        drop(memory);
        basket.buried += 1;
        if basket.buried == BURIALS_MAX {
            basket.full = true;
        }
        Ok(())
    }

    /// Jobs whose claim was never answered go back, at once or after a while.
    pub(super) async fn unclaim(&self, unanswered: Unanswered) -> Result<(), StoreError> {
        for (queue, leases) in self.by_queue(unanswered.leases, |lease| lease).await? {
            let Some(queue) = queue else { continue };
            for leases in leases.chunks(JOBS_MAX) {
                let mut args = vec![
                    Arg::from(&unanswered.answer.to_be_bytes()[..]),
                    record::millis(unanswered.after).into(),
                ];
                for (_, lease) in leases {
                    let number = Number(lease.number);
                    args.extend([number.bytes().into(), record::token(lease).into()]);
                }
                let (_, mut reply) = self.run(&GIVE_BACK, &queue, args).await?;
                let back_at = reply.time()?;
                if unanswered.after.is_zero() {
                    let numbers = leases.iter().map(|(_, lease)| Number(lease.number));
                    self.return_abandoned(&queue, numbers.collect()).await?;
                } else {
                    self.agenda.note(queue.number, back_at);
                }
            }
        }
        Ok(())
    }
}

fn delivered(queue: &Queue, taken: &Taken, spec: Spec, held: Held) -> Delivered {
    let mut progress = taken.progress();
    let last_failure = taken.failure(&progress);
    progress.deliveries = held.delivery.lease.delivery;
    progress.cancel_requested |= held.cancel_requested;
    let delivery = held.delivery;
    Delivered { queue: queue.name.clone(), spec, progress, delivery, last_failure }
}

/// What the script has to know of the breaker: which one, and what it lets through.
fn gate_args(queue: &Queue, settings: &QueueSettings) -> [Arg; 8] {
    let record = queue.guards.record(Guarded::Work);
    let breaker = guards::read(&record);
    let (mut kind, mut probe_at, mut avoided) = ("a", "-1".to_owned(), None);
    match (&breaker.forced, &breaker.open) {
        (Some(forced), _) if forced.open => kind = "h",
        (None, Some(open)) if !settings.breaker.disabled => {
            kind = "o";
            probe_at = open.probe_at.millis().to_string();
            avoided = open.failed_probe.as_ref();
        }
        _ => {}
    }
    let number = avoided.and_then(JobId::number).map(|number| Number(number).bytes());
    let own = avoided.map(|id| [&[255], id.to_string().as_bytes(), &[0]].concat());
    [
        record.into(),
        Arg::from(&breaker.transitions.to_be_bytes()[..]),
        kind.into(),
        probe_at.as_str().into(),
        u64::from(settings.breaker.half_open_max_calls).into(),
        record::millis(settings.breaker.recovery_timeout).into(),
        number.unwrap_or_default().into(),
        own.unwrap_or_default().into(),
    ]
}

fn idle_of(share: &Share, asked: &Asked) -> Idle {
    let (reason, until) = match (&asked.queue, asked.said) {
        (None, _) => (IdleReason::NoSuchQueue, None),
        (_, said) if said.paused => (IdleReason::Paused, said.pause_until),
        (_, said) if said.gate == 3 => (IdleReason::BreakerOpen, said.gate_until),
        (_, said) if said.gate == 2 => (IdleReason::Limited, said.gate_until),
        (_, Said { first_due: Some(due), .. }) => (IdleReason::NotDue, Some(due)),
        _ => (IdleReason::Empty, None),
    };
    Idle { queue: share.queue.clone(), reason, until }
}
