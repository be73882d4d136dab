//! The leases that are out, in memory: by job, by when the sweep looks at them, and by the request that claimed them.

use super::memory::{QueueNumber, timestamp, unsigned};
use crate::domain::{breaker::Sent, ids::QueueName, job::Delivery, lease::Lease, time::Timestamp};
use rusqlite::Row;
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

/// What the claim knew about a job, so that the Ack need not look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traits(pub(super) i64);

impl Traits {
    /// It has a row in `progress`, and may have history.
    pub(super) const SEEN: i64 = 1;
    pub(super) const OWN_ID: i64 = 2;
    pub(super) const KEY: i64 = 4;
    pub(super) const DEADLINE: i64 = 8;
    /// It has been retried.
    pub(super) const RETRIED: i64 = 16;
    pub(super) const CANCEL_REQUESTED: i64 = 32;
    pub(super) const PROBE: i64 = 64;

    pub(super) fn has(self, bit: i64) -> bool {
        self.0 & bit != 0
    }
}

/// A lease that is out.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) queue: QueueNumber,
    pub(super) lease: Lease,
    pub(super) attempt: u32,
    pub(super) started_at: Timestamp,
    pub(super) expires_at: Timestamp,
    /// When the sweep looks at it: its expiry, the end of a grace, or when it goes back.
    pub(super) look_at: Timestamp,
    /// Its caller has gone: then the job goes back to its old place, unless somebody asks for it again.
    pub(super) unclaim_at: Option<Timestamp>,
    /// The claim's answer that handed it out last; 0 if that was before a restart.
    pub(super) answer: u64,
    pub(super) duration: Duration,
    pub(super) ready_at: Timestamp,
    pub(super) traits: Traits,
    /// The transitions of the queue's breaker when it was handed out.
    pub(super) breaker: u64,
    pub(super) request: Option<Arc<str>>,
}

impl Held {
    /// As the breaker knows it.
    pub(super) fn sent(&self) -> Sent {
        Sent { transitions: self.breaker, probe: self.traits.has(Traits::PROBE) }
    }

    pub(super) fn delivery(&self, worker_id: String) -> Delivery {
        Delivery {
            lease: self.lease.clone(),
            attempt: self.attempt,
            worker_id,
            started_at: self.started_at,
            expires_at: self.expires_at,
            duration: self.duration,
            probe: self.traits.has(Traits::PROBE),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Leases {
    by_number: HashMap<u64, Held>,
    by_look: BTreeSet<(Timestamp, u64)>,
    by_request: HashMap<Arc<str>, Vec<u64>>,
}

impl Leases {
    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    pub(super) fn insert(&mut self, held: Held) {
        let number = held.lease.number;
        self.by_look.insert((held.look_at, number));
        if let Some(request) = &held.request {
            self.by_request.entry(request.clone()).or_default().push(number);
        }
        self.by_number.insert(number, held);
    }

    pub(super) fn of_number(&self, number: u64) -> Option<&Held> {
        self.by_number.get(&number)
    }

    /// The lease, if it is the one that is out.
    pub(super) fn current(&self, lease: &Lease) -> Option<&Held> {
        self.by_number.get(&lease.number).filter(|held| held.lease == *lease)
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Held> {
        let held = self.by_number.remove(&number)?;
        self.by_look.remove(&(held.look_at, number));
        if let Some(request) = &held.request
            && let Some(numbers) = self.by_request.get_mut(request)
        {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.by_request.remove(request);
            }
        }
        Some(held)
    }

    pub(super) fn extend(&mut self, number: u64, expires_at: Timestamp) {
        if let Some(held) = self.by_number.get_mut(&number) {
            held.expires_at = expires_at;
        }
        self.keep(number);
    }

    /// Whoever has it is there: it ends when it expires.
    pub(super) fn keep(&mut self, number: u64) {
        if let Some(held) = self.by_number.get_mut(&number) {
            held.unclaim_at = None;
            let expires_at = held.expires_at;
            self.look_at(number, expires_at);
        }
    }

    /// A repeated claim hands it out once more.
    pub(super) fn answered_again(&mut self, number: u64, answer: u64) {
        if let Some(held) = self.by_number.get_mut(&number) {
            held.answer = answer;
        }
        self.keep(number);
    }

    /// Whoever got that answer has gone.
    pub(super) fn abandon(&mut self, lease: &Lease, answer: u64, at: Timestamp) {
        if let Some(held) = self.by_number.get_mut(&lease.number)
            && held.lease == *lease
            && held.answer == answer
        {
            held.unclaim_at = Some(at);
            let look_at = held.look_at.min(at);
            self.look_at(lease.number, look_at);
        }
    }

    /// Those that go back, and when.
    pub(super) fn abandoned(&self) -> Vec<(Lease, Timestamp)> {
        let at = |held: &Held| held.unclaim_at.map(|at| (held.lease.clone(), at));
        self.by_number.values().filter_map(at).collect()
    }

    /// Which answers are waited for, before all is read back from disk.
    pub(super) fn answers(&self) -> Vec<(Lease, u64, Option<Timestamp>)> {
        let known = |held: &&Held| held.answer > 0;
        let all = |held: &Held| (held.lease.clone(), held.answer, held.unclaim_at);
        self.by_number.values().filter(known).map(all).collect()
    }

    pub(super) fn look_at(&mut self, number: u64, at: Timestamp) {
        if let Some(held) = self.by_number.get_mut(&number) {
            self.by_look.remove(&(held.look_at, number));
            held.look_at = at;
            self.by_look.insert((at, number));
        }
    }

    /// Something new is known about a job that is out.
    pub(super) fn mark(&mut self, number: u64, bit: i64) {
        if let Some(held) = self.by_number.get_mut(&number) {
            held.traits.0 |= bit;
        }
    }

    pub(super) fn of_request(&self, request: &str) -> Vec<u64> {
        self.by_request.get(request).cloned().unwrap_or_default()
    }

    pub(super) fn to_look_at(&self, now: Timestamp, limit: usize) -> Vec<u64> {
        self.by_look.iter().take_while(|(at, _)| *at <= now).take(limit).map(|(_, n)| *n).collect()
    }

    pub(super) fn next_look(&self) -> Option<Timestamp> {
        self.by_look.first().map(|(at, _)| *at)
    }
}

/// What this engine knows of a delivery stands beside its lease, so the token carries none of it.
pub(super) fn lease(queue: QueueName, number: u64, delivery: u32, nonce: u64) -> Lease {
    Lease {
        queue,
        number,
        delivery,
        nonce,
        flags: 0,
        epoch: 0,
        started_at: Timestamp::default(),
        duration_ms: 0,
        own_id: None,
    }
}

/// A row of `leases`, in the order in which `Memory::load` selects it.
pub(super) fn read_lease(row: &Row<'_>, name: QueueName) -> rusqlite::Result<Held> {
    let request: Option<String> = row.get(10)?;
    let expires_at = timestamp(row, 6)?;
    Ok(Held {
        queue: row.get(1)?,
        lease: lease(name, unsigned(row, 0)?, row.get(2)?, unsigned(row, 3)?),
        attempt: row.get(4)?,
        started_at: timestamp(row, 5)?,
        expires_at,
        look_at: expires_at,
        unclaim_at: None,
        answer: 0,
        duration: Duration::from_millis(unsigned(row, 7)?),
        ready_at: timestamp(row, 8)?,
        traits: Traits(row.get(9)?),
        breaker: unsigned(row, 11)?,
        request: request.map(Arc::from),
    })
}
