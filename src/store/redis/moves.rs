//! Moves between queues, which may be in different slots: a recorded move of several steps that any server completes.
//!
//! 1. `depart`: the dead letter is bound for the other queue, and nobody else may have it.
//! 2. `arrive`: it is READY there, and a mark says so.
//! 3. `leave`: it is gone here.
//!
//! Until it has arrived it is here, from then on it is there. Each step may be done twice, by several servers at once. The
//! mark names the death that the job is moved from, so that it says nothing of another move of the same job.

use super::{
    Core,
    connection::Arg,
    dead::Letter,
    look::Show,
    record::{self, Number},
    registry::Queue,
    reply::{Reply, bytes_of},
    scripts::{ARRIVE, DEPART, LEAVE},
};
use crate::{
    domain::{ids::QueueName, lease::Lease},
    store::{JobView, SkipReason, StoreError, sizes},
};
use std::sync::Arc;

/// Moves that one sweep completes in one queue.
const COMPLETED_MAX: u64 = 100;
/// Queues through which a job is followed.
const HOPS_MAX: usize = 10;
/// How often a target may be forgotten while a job is on its way.
const TRIES_MAX: usize = 5;

/// Where a dead letter is bound for, as it is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) to: QueueName,
    pub(super) keep_attempts: bool,
    /// Which of the job's deaths it is.
    pub(super) death: u64,
}

impl Bound {
    fn write(&self) -> Vec<u8> {
        let keep = [u8::from(self.keep_attempts)];
        [&keep, &self.death.to_be_bytes()[..], self.to.as_str().as_bytes()].concat()
    }

    fn read(record: &[u8]) -> Option<Self> {
        let (keep, rest) = record.split_first()?;
        let (death, name) = rest.split_first_chunk()?;
        let to = QueueName::parse(std::str::from_utf8(name).ok()?)?;
        Some(Self { to, keep_attempts: *keep == 1, death: u64::from_be_bytes(*death) })
    }
}

/// What the queue that it goes to answered.
enum Arrival {
    Here,
    Refused(SkipReason),
    /// That queue was forgotten.
    NoQueue,
}

impl Core {
    /// Moves one dead letter; says why not, where it cannot be.
    pub(super) async fn move_one(
        self: &Arc<Self>,
        from: &Arc<Queue>,
        letter: &Letter,
        bound: &Bound,
    ) -> Result<Option<SkipReason>, StoreError> {
        let args = vec![bound.write().into(), letter.number.bytes().into(), letter.death.into()];
        let (_, mut reply) = self.run(&DEPART, from, args).await?;
        if reply.int()? != 0 {
            return Ok(Some(SkipReason::JobNotFound));
        }
        // From here on somebody will complete it.
        self.agenda.note(from.number, self.now().after(std::time::Duration::from_secs(5)));
        self.complete_move(from, letter.number, bound).await
    }

    async fn complete_move(
        self: &Arc<Self>,
        from: &Arc<Queue>,
        number: Number,
        bound: &Bound,
    ) -> Result<Option<SkipReason>, StoreError> {
        let show = Show { full: true, attempts: true };
        let view = self.views(from, &[number], show).await?.into_iter().flatten().next();
        for _ in 0..TRIES_MAX {
            let Ok(to) = self.queue_for(&bound.to).await? else {
                self.leave(from, number, bound, false).await?;
                return Ok(Some(SkipReason::JobNotFound));
            };
            let arrival = match &view {
                Some(view) => self.arrive(from, &to, number, view, bound, false).await?,
                None => Arrival::Here,
            };
            match arrival {
                Arrival::Here => {
                    self.leave(from, number, bound, true).await?;
                    return Ok(None);
                }
                Arrival::Refused(reason) => {
                    self.leave(from, number, bound, false).await?;
                    return Ok(Some(reason));
                }
                Arrival::NoQueue => self.registry.forget(&to),
            }
        }
        Err(StoreError::OutcomeUnknown(format!("{} is forgotten again and again", bound.to)))
    }

    async fn leave(
        &self,
        from: &Queue,
        number: Number,
        bound: &Bound,
        arrived: bool,
    ) -> Result<(), StoreError> {
        let to = bound.to.as_str();
        let args = vec![arrived.into(), to.into(), bound.write().into(), number.bytes().into()];
        self.run(&LEAVE, from, args).await.map(|_| ())
    }

    /// Whether it could be moved, and if not, why.
    pub(super) async fn would_arrive(
        &self,
        from: &Queue,
        to: &Queue,
        number: Number,
        view: &JobView,
        bound: &Bound,
    ) -> Result<Option<SkipReason>, StoreError> {
        Ok(match self.arrive(from, to, number, view, bound, true).await? {
            Arrival::Refused(reason) => Some(reason),
            Arrival::Here | Arrival::NoQueue => None,
        })
    }

    async fn arrive(
        &self,
        from: &Queue,
        to: &Queue,
        number: Number,
        view: &JobView,
        bound: &Bound,
        dry_run: bool,
    ) -> Result<Arrival, StoreError> {
        let spec = &view.spec;
        let mut progress = view.progress.clone();
        progress.requeue(self.now(), spec.expires_at, bound.keep_attempts);
        let deadline = progress.deadline(spec.expires_at);
        let past = sizes::of_past(&progress, view.last_failure.as_ref());
        let (record, body) = record::job(spec);
        let [shown, carried, uuid] = Self::id_args(&spec.id);
        let mut args: Vec<Arg> = vec![
            to.number.into(),
            dry_run.into(),
            mark(from, number, bound.death).into(),
            number.bytes().into(),
            record.into(),
            Arg::from(&body[..]),
            record::extras(number, spec).into(),
            record::progress(&progress, past).into(),
            record::print(spec.sameness()).into(),
            record::tie(number, &spec.id).into(),
            u64::from(record::level(spec.priority)).into(),
            carried,
            uuid,
            shown,
            deadline.is_some().into(),
        ];
        if !dry_run {
            args.extend(self.history(from, number, progress.recorded).await?);
        }
        let (_, mut reply) = self.run(&ARRIVE, to, args).await?;
        let code = reply.int()?;
        if code < 0 {
            return Ok(Arrival::NoQueue);
        }
        self.tell(to, reply.int()?).await;
        if let Some(at) = deadline.filter(|_| !dry_run) {
            self.agenda.note(to.number, at);
        }
        Ok(match code {
            0 => Arrival::Here,
            1 => Arrival::Refused(SkipReason::IdTaken),
            _ => Arrival::Refused(SkipReason::KeyTaken),
        })
    }

    /// The fields of a job's history and what they hold, as they are.
    async fn history(
        &self,
        queue: &Queue,
        number: Number,
        recorded: u32,
    ) -> Result<Vec<Arg>, StoreError> {
        let first = 1..=recorded.min(10);
        let last = recorded.saturating_sub(39).max(11)..=recorded;
        let number = number.bytes();
        let mut fields = vec![[&number[..], b"0"].concat(), [&number[..], b"1"].concat()];
        fields.extend(first.chain(last).map(|seq| [&number[..], &seq.to_be_bytes()].concat()));
        let key = queue.keys.of(b'h');
        let mut command = redis::cmd("HMGET");
        command.arg(key).arg(&fields);
        let mut reply = Reply::of(self.redis.command(key, command).await?)?;
        let mut args = Vec::new();
        for field in fields {
            let value = reply.bytes()?;
            if !value.is_empty() {
                args.extend([Arg::from(field), Arg::from(value)]);
            }
        }
        Ok(args)
    }

    /// Completes what others have begun.
    pub(super) async fn complete_moves(
        self: &Arc<Self>,
        from: &Arc<Queue>,
    ) -> Result<(), StoreError> {
        let key = from.keys.of(b'm');
        let mut command = redis::cmd("HSCAN");
        command.arg(key).arg(0).arg("COUNT").arg(COMPLETED_MAX);
        let mut reply = Reply::of(self.redis.command(key, command).await?)?;
        reply.bytes()?;
        let mut bound = reply.list()?;
        while bound.left() > 0 {
            let (number, record) = (Number::read(&bound.bytes()?), bound.bytes()?);
            if let Some(bound) = Bound::read(&record) {
                self.complete_move(from, number, &bound).await?;
            }
        }
        Ok(())
    }

    /// The other queue that has the job of a lease by now.
    pub(super) async fn elsewhere(&self, lease: &Lease) -> Result<Option<QueueName>, StoreError> {
        let number = Number(lease.number);
        let Some(queue) = self.find(&lease.queue).await? else { return Ok(None) };
        let key = queue.keys.of(b'n');
        let mut command = redis::cmd("HGET");
        command.arg(key).arg(number.bytes());
        let to = bytes_of(self.redis.command(key, command).await?);
        match to.and_then(|to| QueueName::parse(std::str::from_utf8(&to).ok()?)) {
            Some(to) => self.has_gone_on_to(to, number).await,
            None => Ok(None),
        }
    }

    /// The queue that has a job which left another for this one: this one, or wherever it went from there.
    pub(super) async fn has_gone_on_to(
        &self,
        mut name: QueueName,
        number: Number,
    ) -> Result<Option<QueueName>, StoreError> {
        for _ in 0..HOPS_MAX {
            let keys = self.names.queue(&name);
            let mut command = redis::cmd("HEXISTS");
            command.arg(keys.of(b'j')).arg(number.bytes());
            if self.redis.command(keys.of(b'j'), command).await? == redis::Value::Int(1) {
                return Ok(Some(name));
            }
            let mut command = redis::cmd("HGET");
            command.arg(keys.of(b'n')).arg(number.bytes());
            let next = bytes_of(self.redis.command(keys.of(b'n'), command).await?);
            let next = next.and_then(|next| QueueName::parse(std::str::from_utf8(&next).ok()?));
            let Some(next) = next else { return Ok(None) };
            name = next;
        }
        Ok(None)
    }

    /// Whether a dead letter of this queue is already in the one that it is bound for.
    pub(super) async fn has_arrived_elsewhere(
        &self,
        from: &Queue,
        number: Number,
    ) -> Result<bool, StoreError> {
        let key = from.keys.of(b'm');
        let mut command = redis::cmd("HGET");
        command.arg(key).arg(number.bytes());
        let bound = bytes_of(self.redis.command(key, command).await?);
        let Some(bound) = bound.and_then(|record| Bound::read(&record)) else { return Ok(false) };
        let keys = self.names.queue(&bound.to);
        let mut command = redis::cmd("ZSCORE");
        command.arg(keys.of(b'a')).arg(mark(from, number, bound.death));
        Ok(self.redis.command(keys.of(b'a'), command).await? != redis::Value::Nil)
    }
}

/// Which job of which queue has arrived, after which of its deaths.
fn mark(from: &Queue, number: Number, death: u64) -> Vec<u8> {
    [&from.number.to_be_bytes()[..], &number.bytes(), &death.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_letter_is_bound_for_reads_back() {
        for keep_attempts in [false, true] {
            let bound = Bound { to: QueueName::parse("other").unwrap(), keep_attempts, death: 7 };
            assert_eq!(Bound::read(&bound.write()), Some(bound));
        }
        assert_eq!(Bound::read(b""), None);
    }
}
