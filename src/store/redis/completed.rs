//! Completed jobs, where their queue keeps them: with their history and their result, until their retention is over.

use super::{
    Core,
    connection::Arg,
    ending::Out,
    record::{self, Held, Number},
    registry::Queue,
    scripts::{COMPLETE, REMOVE_COMPLETED},
    settle::FINISHED_KEYS_MAX,
};
use crate::{
    domain::{
        breaker::Sent, job::AttemptStatus, lease::Lease, settings::QueueSettings, time::Timestamp,
    },
    store::{Ack, Acked, LeaseLost, StoreError, codec, history, sizes},
};
use std::sync::Arc;

/// Jobs that one script completes or removes; results may be large.
pub(super) const COMPLETED_MAX: usize = 50;
/// How often a lease may change between looking at it and ending it.
const TRIES_MAX: usize = 20;

type Answers = [Result<Acked, LeaseLost>];

impl Core {
    /// LEASED → COMPLETED for the jobs of one queue.
    pub(super) async fn complete(
        &self,
        queue: &Arc<Queue>,
        settings: &QueueSettings,
        acks: &[(usize, Ack)],
        answers: &mut Answers,
    ) -> Result<(), StoreError> {
        let mut left: Vec<&(usize, Ack)> = acks.iter().collect();
        let mut sent = Vec::new();
        for _ in 0..TRIES_MAX {
            left = self.complete_some(queue, settings, left, &mut sent, answers).await?;
            if left.is_empty() {
                // They are done, whatever a breaker makes of it.
                drop(self.heed_successes(queue, settings, &sent).await);
                return Ok(());
            }
        }
        Err(StoreError::OutcomeUnknown("a lease changes all the time".into()))
    }

    /// Looks and applies once; hands back what has changed meanwhile.
    async fn complete_some<'a>(
        &self,
        queue: &Arc<Queue>,
        settings: &QueueSettings,
        acks: Vec<&'a (usize, Ack)>,
        sent: &mut Vec<Sent>,
        answers: &mut Answers,
    ) -> Result<Vec<&'a (usize, Ack)>, StoreError> {
        let number = |ack: &Ack| Number(ack.lease.number);
        let numbers: Vec<_> = acks.iter().map(|(_, ack)| number(ack)).collect();
        let (now, outs) = self.outs(queue, &numbers).await?;
        let keys = record::millis(settings.key_retention);
        let mut args: Vec<Arg> = vec![keys.into(), FINISHED_KEYS_MAX.into()];
        let mut asked = Vec::new();
        for (item, out) in acks.into_iter().zip(&outs) {
            let (at, ack) = item;
            match out.held(queue).filter(|held| held.delivery.lease == ack.lease) {
                Some(held) => {
                    args.extend(completion(out, &held, ack, now));
                    asked.push((item, held.sent()));
                }
                None => answers[*at] = self.acked_before(out, &ack.lease).await?,
            }
        }
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        let (now, mut reply) = self.run(&COMPLETE, queue, args).await?;
        let mut left = Vec::new();
        for (item, was_sent) in asked {
            if reply.int()? == 0 {
                answers[item.0] = Ok(Acked { already_gone: false });
                sent.push(was_sent);
            } else {
                left.push(item);
            }
        }
        if let Some(retention) = settings.completed_retention {
            self.agenda.note(queue.number, now.after(retention));
        }
        Ok(left)
    }

    /// The answer to an Ack of a lease that is not out: the job is gone, or this very lease completed it.
    async fn acked_before(
        &self,
        out: &Out,
        lease: &Lease,
    ) -> Result<Result<Acked, LeaseLost>, StoreError> {
        let done = match out.record[..] {
            [] => self.elsewhere(lease).await?.is_none(),
            _ => out.ended_under(lease).is_some_and(|it| it.status == AttemptStatus::Succeeded),
        };
        Ok(if done { Ok(Acked { already_gone: true }) } else { Err(LeaseLost) })
    }

    /// Completed jobs that were kept for long enough go, at most so many. Says how many, and when the next has to.
    pub(super) async fn end_completed(
        &self,
        queue: &Queue,
        settings: &QueueSettings,
        most: usize,
    ) -> Result<(usize, Option<Timestamp>), StoreError> {
        // Those of a queue that no longer keeps any have been kept for long enough.
        let retention = settings.completed_retention.unwrap_or_default();
        let now = self.now();
        let until = now.millis().saturating_sub(record::millis(retention));
        let mut gone = 0;
        loop {
            let limit = (most - gone).min(COMPLETED_MAX);
            let args = vec![until.into(), (limit as u64).into()];
            let (_, mut reply) = self.run(&REMOVE_COMPLETED, queue, args).await?;
            let removed = reply.count()? as usize;
            gone += removed;
            let next = reply.maybe_time()?.map(|done| done.after(retention));
            if removed < limit || gone == most {
                return Ok((gone, next));
            }
        }
    }
}

/// Whether the delivery of this lease ended so, and well.
pub(super) fn is_success(attempt: &[u8], lease: &Lease) -> bool {
    let attempt = codec::read_attempt(attempt);
    attempt.is_ok_and(|it| it.is_of(lease) && it.status == AttemptStatus::Succeeded)
}

/// One job's arguments.
fn completion(out: &Out, held: &Held, ack: &Ack, now: Timestamp) -> [Arg; 8] {
    let mut progress = out.progress_under(held);
    let retried = progress.retries > 0;
    let attempt = progress.complete(&held.delivery, &ack.note, now);
    if !held.checkpoint.is_empty() {
        progress.checkpoint.clone_from(&held.checkpoint);
    }
    let seq = progress.recorded;
    let kept = history::FIRST_ATTEMPTS + history::LAST_ATTEMPTS;
    let forget = (seq > kept).then(|| (seq - history::LAST_ATTEMPTS).to_be_bytes().to_vec());
    let past = sizes::of_past(&progress, out.last_failure().as_ref());
    let result = match &ack.result[..] {
        [] => Vec::new(),
        result => codec::result(result),
    };
    [
        out.number.bytes().into(),
        Arg::from(&out.lease[..]),
        record::progress(&progress, past).into(),
        seq.to_be_bytes().to_vec().into(),
        codec::attempt(&history::summary(&attempt)).into(),
        forget.unwrap_or_default().into(),
        result.into(),
        retried.into(),
    ]
}
