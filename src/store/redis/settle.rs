//! Settle: leases end or go on. The fence is the lease itself: only the one that is out opens anything.

use super::{
    Core,
    completed::{COMPLETED_MAX, is_success},
    court::Court,
    ending::{ENDINGS_MAX, Ended, Out},
    record::{self, Number},
    registry::Queue,
    scripts::{ACK, EXTEND},
};
use crate::{
    domain::{
        breaker::Sent, chance::Dice, ids::QueueName, job::Attempt, lease::Lease,
        settings::QueueSettings,
    },
    store::{Ack, Acked, Ask, Extend, Extended, LeaseLost, Nack, Settled, Settlements, StoreError},
};
use std::sync::Arc;

/// Keys of finished jobs that a queue remembers.
pub(super) const FINISHED_KEYS_MAX: u64 = 1_000_000;
/// How often a lease may change between looking at it and ending it.
const TRIES_MAX: usize = 20;

/// Items of a call that belong to one queue, each with its place in the call. None: there is no such queue.
type Group<T> = (Option<Arc<Queue>>, Vec<(usize, T)>);

impl Core {
    pub(super) async fn settle(
        &self,
        ask: &Ask,
        items: Settlements,
    ) -> Result<Settled, StoreError> {
        let mut dice = Dice::new(!ask.seed);
        let acks = self.ack_all(ask, items.acks).await?;
        let begun = !acks.is_empty();
        let after = |error| super::enqueue::after_some(error, begun);
        let nacks = self.nack_all(ask, items.nacks, &mut dice).await.map_err(after)?;
        let begun = begun || !nacks.is_empty();
        let after = |error| super::enqueue::after_some(error, begun);
        let extends = self.extend_all(ask, items.extends).await.map_err(after)?;
        Ok(Settled { acks, nacks, extends })
    }

    /// By the queues that the leases name.
    pub(super) async fn by_queue<T>(
        &self,
        items: Vec<T>,
        lease: impl Fn(&T) -> &Lease,
    ) -> Result<Vec<Group<T>>, StoreError> {
        let mut groups: Vec<(QueueName, Vec<(usize, T)>)> = Vec::new();
        for (at, item) in items.into_iter().enumerate() {
            let queue = &lease(&item).queue;
            match groups.iter_mut().find(|(other, _)| other == queue) {
                Some((_, items)) => items.push((at, item)),
                None => groups.push((queue.clone(), vec![(at, item)])),
            }
        }
        let mut found = Vec::with_capacity(groups.len());
        for (queue, items) in groups {
            found.push((self.find(&queue).await?, items));
        }
        Ok(found)
    }

    async fn ack_all(
        &self,
        ask: &Ask,
        acks: Vec<Ack>,
    ) -> Result<Vec<Result<Acked, LeaseLost>>, StoreError> {
        let gone = Ok(Acked { already_gone: true });
        let mut answers = vec![gone; acks.len()];
        let mut begun = false;
        for (queue, acks) in self.by_queue(acks, |ack| &ack.lease).await? {
            let Some(queue) = queue else { continue };
            let settings = ask.settings.queue(&queue.name);
            if settings.completed_retention.is_some() {
                for acks in acks.chunks(COMPLETED_MAX) {
                    let keeping = self.complete(&queue, settings, acks, &mut answers).await;
                    keeping.map_err(|error| super::enqueue::after_some(error, begun))?;
                    begun = true;
                }
                continue;
            }
            let retention = settings.key_retention;
            for acks in acks.chunks(ENDINGS_MAX) {
                let mut args = vec![record::millis(retention).into(), FINISHED_KEYS_MAX.into()];
                for (_, ack) in acks {
                    let number = Number(ack.lease.number);
                    args.extend([number.bytes().into(), record::token(&ack.lease).into()]);
                }
                let run = self.run(&ACK, &queue, args).await;
                let (_, mut reply) = run.map_err(|e| super::enqueue::after_some(e, begun))?;
                begun = true;
                let mut sent = Vec::new();
                for (at, ack) in acks {
                    let number = Number(ack.lease.number);
                    let mut item = reply.list()?;
                    answers[*at] = match item.int()? {
                        0 => {
                            let (transitions, probe) = (item.count()?, item.int()? == 1);
                            sent.push(Sent { transitions, probe });
                            Ok(Acked { already_gone: false })
                        }
                        2 => Err(LeaseLost),
                        4 if !is_success(&item.bytes()?, &ack.lease) => Err(LeaseLost),
                        3 => match QueueName::parse(&item.text()?) {
                            Some(to) => match self.has_gone_on_to(to, number).await? {
                                Some(_) => Err(LeaseLost),
                                None => gone,
                            },
                            None => gone,
                        },
                        _ => gone,
                    };
                }
                // They are done, whatever a breaker makes of it.
                drop(self.heed_successes(&queue, settings, &sent).await);
            }
        }
        Ok(answers)
    }

    async fn extend_all(
        &self,
        ask: &Ask,
        extends: Vec<Extend>,
    ) -> Result<Vec<Result<Extended, LeaseLost>>, StoreError> {
        let mut answers = vec![Err(LeaseLost); extends.len()];
        for (queue, extends) in self.by_queue(extends, |extend| &extend.lease).await? {
            let Some(queue) = queue else { continue };
            let run_time = ask.settings.queue(&queue.name).max_run_time;
            for extends in extends.chunks(ENDINGS_MAX) {
                let mut args = vec![record::millis(run_time).into()];
                for (_, extend) in extends {
                    let number = Number(extend.lease.number);
                    let asked = extend.duration.map(|duration| record::millis(duration).into());
                    args.extend([
                        number.bytes().into(),
                        record::token(&extend.lease).into(),
                        asked.unwrap_or_default(),
                        extend.checkpoint.as_str().into(),
                    ]);
                }
                let (_, mut reply) = self.run(&EXTEND, &queue, args).await?;
                for (at, _) in extends {
                    let mut item = reply.list()?;
                    if item.int()? == 1 {
                        let expires_at = item.time()?;
                        let cancel_requested = item.int()? == 1;
                        self.agenda.note(queue.number, expires_at);
                        answers[*at] = Ok(Extended { expires_at, cancel_requested });
                    }
                }
            }
        }
        Ok(answers)
    }

    async fn nack_all(
        &self,
        ask: &Ask,
        nacks: Vec<Nack>,
        dice: &mut Dice,
    ) -> Result<Vec<Result<Attempt, LeaseLost>>, StoreError> {
        let mut answers = vec![Err(LeaseLost); nacks.len()];
        let mut begun = false;
        for (queue, nacks) in self.by_queue(nacks, |nack| &nack.lease).await? {
            let Some(queue) = queue else { continue };
            let mut nacks = nacks.into_iter();
            loop {
                let some: Vec<_> = nacks.by_ref().take(ENDINGS_MAX).collect();
                if some.is_empty() {
                    break;
                }
                let nacking = self.nack_some(ask, &queue, some, dice, &mut answers).await;
                nacking.map_err(|error| super::enqueue::after_some(error, begun))?;
                begun = true;
            }
        }
        Ok(answers)
    }

    /// Looks, judges, applies; where something has changed meanwhile, all over again.
    async fn nack_some(
        &self,
        ask: &Ask,
        queue: &Arc<Queue>,
        nacks: Vec<(usize, Nack)>,
        dice: &mut Dice,
        answers: &mut [Result<Attempt, LeaseLost>],
    ) -> Result<(), StoreError> {
        let settings = ask.settings.queue(&queue.name);
        let number = |(_, nack): &(usize, Nack)| Number(nack.lease.number);
        let numbers: Vec<_> = nacks.iter().map(number).collect();
        let mut memory = queue.guards.memory.lock().await;
        for _ in 0..TRIES_MAX {
            let (now, outs) = self.outs(queue, &numbers).await?;
            let mut court = Court::open(queue, settings, now);
            let (mut judged, mut again) = (Vec::new(), Vec::new());
            for ((at, nack), out) in nacks.iter().zip(&outs) {
                let held = out.held(queue).filter(|held| held.delivery.lease == nack.lease);
                let named_before = judged.iter().any(|(_, lease, _)| *lease == &nack.lease);
                match held {
                    Some(_) if named_before => again.push((*at, nack.clone())),
                    Some(held) => {
                        let ending = nack.ending.clone();
                        let verdict = court.judge(out, held, ending, &nack.checkpoint, dice);
                        judged.push((*at, &nack.lease, verdict));
                    }
                    None => answers[*at] = self.nacked_before(queue, out, &nack.lease).await?,
                }
            }
            let verdicts = judged.iter().map(|(.., verdict)| verdict).collect::<Vec<_>>();
            if !self.carry_out(queue, court, &verdicts, &mut memory).await? {
                continue;
            }
            for (at, _, judged) in judged {
                answers[at] = Ok(judged.attempt);
            }
            // A lease that is named twice has been settled by now.
            if !again.is_empty() {
                let numbers: Vec<_> = again.iter().map(number).collect();
                let (_, outs) = self.outs(queue, &numbers).await?;
                for ((at, nack), out) in again.iter().zip(&outs) {
                    answers[*at] = self.nacked_before(queue, out, &nack.lease).await?;
                }
            }
            return Ok(());
        }
        Err(StoreError::OutcomeUnknown("a lease changes all the time".into()))
    }

    /// The answer to a Nack that was given before, until the job is delivered again: here, or where it went meanwhile.
    async fn nacked_before(
        &self,
        queue: &Queue,
        out: &Out,
        lease: &Lease,
    ) -> Result<Result<Attempt, LeaseLost>, StoreError> {
        let mut ended = out.ended_under(lease);
        let mut kept_in = queue.keys.of(b's').to_vec();
        if out.record.is_empty()
            && let Some(name) = self.elsewhere(lease).await?
            && let Some(queue) = self.find(&name).await?
        {
            let (_, outs) = self.outs(&queue, &[out.number]).await?;
            ended = outs.first().and_then(|out| out.ended_under(lease));
            kept_in = queue.keys.of(b's').to_vec();
        }
        let before = ended.filter(|attempt| attempt.nacked);
        if before.is_some() {
            self.redis.confirm(&kept_in).await?;
        }
        Ok(before.ok_or(LeaseLost))
    }

    /// Jobs of callers who have gone, as far as they are due.
    pub(super) async fn return_abandoned(
        &self,
        queue: &Arc<Queue>,
        numbers: Vec<Number>,
    ) -> Result<(), StoreError> {
        // What a script has to know of a burial is not used here.
        let settings = QueueSettings::default();
        for _ in 0..TRIES_MAX {
            let (now, outs) = self.outs(queue, &numbers).await?;
            let (mut back, mut ended) = (Vec::new(), Vec::new());
            for out in &outs {
                let Some(held) = out.held(queue) else { continue };
                if held.unclaim_at.is_some_and(|at| at <= now) {
                    let spec = out.spec();
                    ended.push(Ended::given_back(out, &spec, &held, &settings));
                    let deadline = out.progress().deadline(spec.expires_at);
                    back.push(deadline);
                }
            }
            if ended.is_empty() {
                return Ok(());
            }
            if self.end(queue, None, ended).await?.is_some() {
                for at in back.into_iter().flatten() {
                    self.agenda.note(queue.number, at);
                }
                return Ok(());
            }
        }
        Err(StoreError::OutcomeUnknown("a lease changes all the time".into()))
    }
}
