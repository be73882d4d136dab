//! Claim: the place becomes a lease.

use super::{
    codec,
    leases::{Held, Traits, lease},
    memory::QueueNumber,
    places::{Place, Tie, lost_place},
    sweep::PROMOTIONS_MAX,
    writer::{Failure, Writer},
};
use crate::{
    domain::{
        breaker::Gate,
        chance::Dice,
        failure::Failure as JobFailure,
        ids::JobId,
        job::{DeadReason, Progress, Spec},
        settings::QueueSettings,
        time::{Timestamp, millis_ceil},
    },
    store::{Ask, Claim, Claimed, Delivered, Idle, IdleReason, Share, sizes},
};
use std::sync::Arc;

/// Jobs that one claim buries on its way; the next look goes on.
const BURIALS_MAX: usize = 100;

/// What a claim has gathered so far.
struct Basket<'a> {
    claim: &'a Claim,
    dice: Dice,
    request: Option<Arc<str>>,
    bytes: usize,
    /// Jobs met that were past their deadline or corrupt.
    buried: usize,
    full: bool,
    out: Claimed,
}

impl Basket<'_> {
    fn room(&self) -> usize {
        if self.full { 0 } else { self.claim.max_jobs - self.out.jobs.len() }
    }

    /// The reply as a whole is bounded, but one job always fits.
    fn has_room_for(&mut self, bytes: usize) -> bool {
        self.full |= !self.out.jobs.is_empty() && self.bytes + bytes > self.claim.max_bytes;
        !self.full
    }
}

/// A job at the front of its line.
struct First {
    place: Place,
    at: Timestamp,
}

impl Writer<'_> {
    pub(super) fn claim(&mut self, ask: &Ask, mut claim: Claim) -> Result<Claimed, Failure> {
        let settled = self.settle(ask, std::mem::take(&mut claim.settle))?;
        let mut basket = Basket {
            claim: &claim,
            dice: Dice::new(ask.seed),
            request: (!claim.request_id.is_empty()).then(|| claim.request_id.as_str().into()),
            bytes: 0,
            buried: 0,
            full: false,
            out: Claimed {
                now: self.now,
                settled,
                answer: self.next_answer(),
                ..Claimed::default()
            },
        };
        self.claimed_before(&mut basket)?;
        if basket.out.jobs.is_empty() {
            // Everybody's turn first, then whoever has more.
            for share in &claim.shares {
                if let Some(queue) = self.memory.find(&share.queue) {
                    self.promote(queue, PROMOTIONS_MAX)?;
                    self.take(ask, queue, share, share.first, &mut basket)?;
                }
            }
            for share in &claim.shares {
                if let Some(queue) = self.memory.find(&share.queue) {
                    self.take(ask, queue, share, usize::MAX, &mut basket)?;
                }
            }
        }
        let mut out = basket.out;
        if out.jobs.is_empty() {
            out.idle = claim.shares.iter().map(|share| self.idle(share)).collect();
        }
        // Whoever is woken for several jobs may take few of them: the others are somebody else's. With nothing handed out,
        // what is left cannot be handed out either.
        if !out.jobs.is_empty() {
            for share in &claim.shares {
                self.memory.tell(&share.queue);
            }
        }
        Ok(out)
    }

    /// The same request again: what it got the first time, as far as it is still leased.
    fn claimed_before(&mut self, basket: &mut Basket<'_>) -> Result<(), Failure> {
        let Some(request) = &basket.request else {
            return Ok(());
        };
        for number in self.memory.leases.of_request(request) {
            let Some(held) = self.memory.leases.of_number(number).cloned() else {
                continue;
            };
            let asked = |share: &Share| self.memory.find(&share.queue) == Some(held.queue);
            if !basket.claim.shares.iter().any(asked) {
                continue;
            }
            self.memory.leases.answered_again(number, basket.out.answer);
            if let Ok(spec) = self.read_job(number)? {
                let progress = self.progress_under(&held)?;
                let failure = self.failure_before(number, &progress)?;
                let delivered =
                    self.delivered(&held, spec, progress, failure, &basket.claim.worker_id)?;
                basket.out.jobs.push(delivered);
            }
        }
        Ok(())
    }

    /// Leases up to `most` jobs of one queue.
    fn take(
        &mut self,
        ask: &Ask,
        queue: QueueNumber,
        share: &Share,
        most: usize,
        basket: &mut Basket<'_>,
    ) -> Result<(), Failure> {
        if self.memory.queue(queue).is_none_or(|queue| queue.is_paused(self.now)) {
            return Ok(());
        }
        let gate = self.memory.gate(queue, self.now);
        let mut most = most.min(basket.room()).min(gate.width());
        let (probe, not_first) = match gate {
            Gate::Probes { not_first, .. } => (true, not_first.cloned()),
            _ => (false, None),
        };
        while most > 0 && !self.leases_are_full() {
            let firsts = match &not_first {
                None => self.first_ready(queue, most)?,
                Some(avoided) => self.first_others(queue, most, avoided)?,
            };
            if firsts.is_empty() {
                return Ok(());
            }
            let before = basket.out.jobs.len();
            let mut gone = 0;
            for first in &firsts {
                if basket.full || !self.take_one(ask, share, first, probe, basket)? {
                    break;
                }
                gone += 1;
            }
            self.leave_line(&firsts[..gone], not_first.is_none())?;
            if basket.full {
                return Ok(());
            }
            // Jobs that were past their deadline or corrupt made room for others.
            most -= basket.out.jobs.len() - before;
        }
        Ok(())
    }

    fn first_ready(&mut self, queue: QueueNumber, limit: usize) -> Result<Vec<First>, Failure> {
        if self.memory.queue(queue).is_none_or(|queue| queue.depths.ready == 0) {
            return Ok(Vec::new());
        }
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut rows = self.sql.first_ready.query((queue, limit))?;
        let mut firsts = Vec::new();
        while let Some(row) = rows.next()? {
            let (place, at) = Place::read(row)?;
            firsts.push(First { place, at });
        }
        Ok(firsts)
    }

    /// As `first_ready`, but one job comes only when there is no other.
    fn first_others(
        &mut self,
        queue: QueueNumber,
        limit: usize,
        avoided: &JobId,
    ) -> Result<Vec<First>, Failure> {
        let mut firsts = self.first_ready(queue, limit + 1)?;
        let is_avoided = |first: &First| first.place.tie == Tie::of(first.place.number, avoided);
        if firsts.len() > 1 {
            firsts.retain(|first| !is_avoided(first));
        }
        firsts.truncate(limit);
        Ok(firsts)
    }

    /// Removes the places of jobs that have been taken. `in_a_row`: with none left between them.
    fn leave_line(&mut self, taken: &[First], in_a_row: bool) -> Result<(), Failure> {
        match taken {
            [.., last] if in_a_row && taken.len() > 1 => {
                let (place, at) = (&last.place, last.at.millis().cast_signed());
                let up_to = (place.queue, place.rank(), at, &place.tie);
                if self.sql.delete_first_ready.execute(up_to)? != taken.len() {
                    return Err(lost_place(place));
                }
            }
            _ => {
                for First { place, at } in taken {
                    self.delete_ready(place, *at)?;
                }
            }
        }
        Ok(())
    }

    /// Leases a job, or buries it if nobody should get it any more; its place remains, for `leave_line`. False: there is
    /// no room for it.
    fn take_one(
        &mut self,
        ask: &Ask,
        share: &Share,
        First { place, at }: &First,
        probe: bool,
        basket: &mut Basket<'_>,
    ) -> Result<bool, Failure> {
        let at = *at;
        let settings = ask.settings.queue(&share.queue);
        let traits = Traits(if place.seen { Traits::SEEN } else { 0 });
        let progress = self.progress_of(place.number, traits)?;
        let spec = match self.read_job(place.number)? {
            Ok(spec) => spec,
            Err(damaged) => {
                let reason = DeadReason::Corrupt;
                self.bury_first(place, &damaged, &progress, reason, settings, basket)?;
                return Ok(true);
            }
        };
        if progress.deadline(spec.expires_at).is_some_and(|deadline| deadline <= self.now) {
            self.bury_first(place, &spec, &progress, DeadReason::Expired, settings, basket)?;
            return Ok(true);
        }
        let failure = self.failure_before(place.number, &progress)?;
        let bytes = sizes::of_job(&spec) + sizes::of_past(&progress, failure.as_ref());
        if !basket.has_room_for(bytes) {
            return Ok(false);
        }
        basket.bytes += bytes;
        self.memory.change(place.queue, |queue| queue.depths.ready -= 1);
        let mut progress = progress;
        let attempt = progress.deliver();
        let duration = basket.claim.lease_duration.unwrap_or(settings.lease_duration);
        let duration = duration.min(settings.max_run_time);
        let held = Held {
            queue: place.queue,
            lease: lease(
                share.queue.clone(),
                place.number,
                progress.deliveries,
                basket.dice.roll(),
            ),
            attempt,
            started_at: self.now,
            expires_at: self.now.after(duration),
            look_at: self.now.after(duration),
            unclaim_at: None,
            answer: basket.out.answer,
            duration,
            ready_at: at,
            traits: traits_of(place, &spec, &progress, probe),
            breaker: self.transitions(place.queue),
            request: basket.request.clone(),
        };
        self.insert_lease(&held, &basket.claim.worker_id)?;
        let delivered = self.delivered(&held, spec, progress, failure, &basket.claim.worker_id)?;
        self.memory.leases.insert(held);
        if probe {
            self.memory.probe_out(place.queue, place.number, self.now);
        }
        basket.out.jobs.push(delivered);
        Ok(true)
    }

    /// What a delivery remembers of its queue's breaker.
    fn transitions(&self, queue: QueueNumber) -> u64 {
        self.memory.queue(queue).map_or(0, |queue| queue.guards.work.transitions)
    }

    /// A job at the front of its line that nobody should get any more.
    fn bury_first(
        &mut self,
        place: &Place,
        spec: &Spec,
        progress: &Progress,
        reason: DeadReason,
        settings: &QueueSettings,
        basket: &mut Basket<'_>,
    ) -> Result<(), Failure> {
        self.memory.change(place.queue, |queue| queue.depths.ready -= 1);
        self.bury(place, spec, progress, reason, settings)?;
        basket.buried += 1;
        if basket.buried == BURIALS_MAX {
            basket.full = true;
            self.memory.change(place.queue, |queue| queue.made_available = true);
        }
        Ok(())
    }

    fn insert_lease(&mut self, held: &Held, worker_id: &str) -> Result<(), Failure> {
        self.sql.insert_lease.execute((
            held.lease.number.cast_signed(),
            held.queue,
            held.lease.delivery,
            held.lease.nonce.cast_signed(),
            held.attempt,
            held.started_at.millis().cast_signed(),
            held.expires_at.millis().cast_signed(),
            millis_ceil(held.duration).cast_signed(),
            held.ready_at.millis().cast_signed(),
            held.traits.0,
            (!worker_id.is_empty()).then_some(worker_id),
            held.request.as_deref(),
            held.breaker.cast_signed(),
        ))?;
        self.memory.change(held.queue, |queue| queue.depths.leased += 1);
        Ok(())
    }

    fn delivered(
        &mut self,
        held: &Held,
        spec: Spec,
        progress: Progress,
        last_failure: Option<JobFailure>,
        worker_id: &str,
    ) -> Result<Delivered, Failure> {
        let name = self.memory.queue(held.queue).map(|queue| queue.name.clone());
        let queue = name.ok_or_else(|| Failure::Stopped("a lease without its queue".into()))?;
        let delivery = held.delivery(worker_id.to_owned());
        Ok(Delivered { queue, spec, progress, delivery, last_failure })
    }

    /// Why the attempt before failed, for the worker that tries again.
    fn failure_before(
        &mut self,
        number: u64,
        progress: &Progress,
    ) -> Result<Option<JobFailure>, Failure> {
        if progress.last_failed_at.is_none() {
            return Ok(None);
        }
        self.last_failure(number)
    }

    pub(super) fn last_failure(&mut self, number: u64) -> Result<Option<JobFailure>, Failure> {
        let mut rows = self.sql.last_failure.query([number.cast_signed()])?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        Ok(codec::read_failure(row.get_ref(0)?.as_blob().unwrap_or_default()).ok())
    }

    pub(super) fn progress_of(&mut self, number: u64, traits: Traits) -> Result<Progress, Failure> {
        if !traits.has(Traits::SEEN) {
            return Ok(Progress::default());
        }
        Ok(self.read_progress(number)?.unwrap_or_default())
    }

    pub(super) fn leases_are_full(&self) -> bool {
        self.memory.leases.len() >= self.options.max_leases
    }

    fn idle(&self, share: &Share) -> Idle {
        let queue = self.memory.find(&share.queue).and_then(|number| self.memory.queue(number));
        let (reason, until) = match queue {
            None => (IdleReason::NoSuchQueue, None),
            Some(queue) if queue.is_paused(self.now) => {
                (IdleReason::Paused, queue.pause.as_ref().and_then(|pause| pause.until))
            }
            Some(queue) => match self.memory.gate(queue.number, self.now) {
                Gate::Held { until } => (IdleReason::BreakerOpen, until),
                Gate::Limited { until } => (IdleReason::Limited, Some(until)),
                _ if queue.depths.ready > 0 && self.leases_are_full() => {
                    (IdleReason::Limited, None)
                }
                _ if queue.depths.scheduled > 0 => (IdleReason::NotDue, queue.next_due),
                _ => (IdleReason::Empty, None),
            },
        };
        Idle { queue: share.queue.clone(), reason, until }
    }
}

fn traits_of(place: &Place, spec: &Spec, progress: &Progress, probe: bool) -> Traits {
    let bits = [
        (place.seen, Traits::SEEN),
        (matches!(place.tie, Tie::Id(_)), Traits::OWN_ID),
        (spec.key.is_some(), Traits::KEY),
        (spec.expires_at.is_some(), Traits::DEADLINE),
        (progress.retries > 0, Traits::RETRIED),
        (probe, Traits::PROBE),
    ];
    Traits(bits.iter().filter(|(has, _)| *has).map(|(_, bit)| bit).sum())
}
