//! What a primary's own figures tell: a failover that lost writes, a restart, a clock that jumped.
//!
//! A primary numbers the bytes that it hands to its replicas, under an id. One that takes over has a new id, and keeps
//! the old one with the number at which it stopped: what the old primary had beyond that is lost. The figures are as old
//! as the last heartbeat: none seen is not none.

use super::{address::Endpoint, fault, info::Info};
use crate::{domain::Reading, lock::lock};
use redis::Value;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};
use std::time::Duration;

/// So many are remembered.
const WARNINGS_MAX: usize = 20;
/// Workers may have tried in vain to prolong their leases for this long.
const OUTAGE_MIN: Duration = Duration::from_secs(2);
/// Clocks are set right by small steps all the time.
const JUMP_MIN: Duration = Duration::from_secs(2);

/// A primary's figures at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    pub(super) primary: bool,
    replid: String,
    offset: i64,
    /// Of the primary that it was a replica of.
    former_replid: String,
    former_offset: i64,
    /// Redis' wall clock, and ours since boot, both in µs.
    pub redis_us: i64,
    boot_us: i64,
}

impl Sample {
    /// From the replies to PING, `INFO replication` and TIME.
    pub(super) fn read(replies: &[Value], before: Reading, after: Reading) -> Result<Self, String> {
        let [ping, info, time] = replies else {
            return Err(format!("{} replies to 3 commands", replies.len()));
        };
        if let Value::ServerError(error) = ping {
            return Err(fault::text(error));
        }
        let info = Info::read(info)?;
        let (seconds, micros): (i64, i64) = redis::from_redis_value(time.clone()).map_err(|error| error.to_string())?;
        let boot_us = before.boot_us.midpoint(after.boot_us).cast_signed();
        Ok(Self::of(&info, seconds * 1_000_000 + micros, boot_us))
    }

    pub fn of(info: &Info, redis_us: i64, boot_us: i64) -> Self {
        let text = |field| info.get(field).unwrap_or_default().to_owned();
        Self {
            primary: info.get("role") == Some("master"),
            replid: text("master_replid"),
            offset: info.number("master_repl_offset").unwrap_or(0),
            former_replid: text("master_replid2"),
            former_offset: info.number("second_repl_offset").unwrap_or(-1),
            redis_us,
            boot_us,
        }
    }
}

/// For operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// Another server is the primary now, or the same one again after a restart.
    Failover { to: Endpoint, loss: Loss },
    /// Redis' clock went by more or less than time did.
    ClockJump { at: Endpoint, by_ms: i64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Up to the last heartbeat before it.
    NoneSeen,
    /// The former primary had more than this one got from it.
    Seen,
    Unknown,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (to, how) = match self {
            Self::ClockJump { at, by_ms } => {
                let effect = "what is due comes that much too early or too late";
                return write!(f, "the clock of Redis at {at} has jumped by {by_ms} ms: {effect}");
            }
            Self::Failover { to, loss: Loss::NoneSeen } => (to, "taken over as primary; no lost writes were seen"),
            Self::Failover { to, loss: Loss::Seen } => (
                to,
                "taken over as primary WITHOUT THE LAST WRITES of the former one: jobs enqueued just before may be \
                 gone, and finished ones may run again",
            ),
            Self::Failover { to, loss: Loss::Unknown } => {
                (to, "begun anew as primary; whether writes were lost cannot be seen, it depends on its persistence")
            }
        };
        write!(f, "Redis at {to} has {how}")
    }
}

/// Compares the figures of all primaries of one Redis.
#[derive(Debug, Default)]
pub struct FailoverMonitor {
    samples: Mutex<Samples>,
    outages: AtomicU64,
}

#[derive(Debug, Default)]
struct Samples {
    /// The last of each id.
    by_replid: HashMap<String, Sample>,
    by_endpoint: HashMap<Endpoint, Sample>,
    warnings: VecDeque<Warning>,
}

impl FailoverMonitor {
    /// A server was out of reach for so long.
    pub(super) fn was_lost_for(&self, time: Duration) {
        if time >= OUTAGE_MIN {
            self.outages.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn outages(&self) -> u64 {
        self.outages.load(Ordering::Relaxed)
    }

    pub fn note(&self, endpoint: &Endpoint, sample: &Sample) {
        let mut samples = lock(&self.samples);
        for warning in samples.note(endpoint, sample) {
            match &warning {
                Warning::Failover { loss: Loss::NoneSeen, .. } => tracing::warn!("{warning}"),
                _ => tracing::error!("{warning}"),
            }
            if samples.warnings.len() == WARNINGS_MAX {
                samples.warnings.pop_front();
            }
            samples.warnings.push_back(warning);
        }
    }

    /// The latest, oldest first.
    pub fn warnings(&self) -> Vec<Warning> {
        lock(&self.samples).warnings.iter().cloned().collect()
    }
}

impl Samples {
    fn note(&mut self, endpoint: &Endpoint, sample: &Sample) -> Vec<Warning> {
        let failover = self.failover(endpoint, sample);
        let jump = self.jump(endpoint, sample);
        if let Some(former) = self.by_endpoint.insert(endpoint.clone(), sample.clone())
            && former.replid != sample.replid
        {
            self.by_replid.remove(&former.replid);
        }
        self.by_replid.remove(&sample.former_replid);
        self.by_replid.insert(sample.replid.clone(), sample.clone());
        failover.into_iter().chain(jump).collect()
    }

    fn failover(&self, endpoint: &Endpoint, sample: &Sample) -> Option<Warning> {
        if self.by_replid.contains_key(&sample.replid) {
            return None;
        }
        let loss = match self.by_replid.get(&sample.former_replid) {
            // The first number that is no longer the former's.
            Some(former) if former.offset >= sample.former_offset => Loss::Seen,
            Some(_) => Loss::NoneSeen,
            // A server that was not seen before is no news.
            None if self.by_endpoint.contains_key(endpoint) => Loss::Unknown,
            None => return None,
        };
        Some(Warning::Failover { to: endpoint.clone(), loss })
    }

    fn jump(&self, endpoint: &Endpoint, sample: &Sample) -> Option<Warning> {
        let former = self.by_replid.get(&sample.former_replid);
        let former = self.by_endpoint.get(endpoint).or(former)?;
        let passed = sample.boot_us - former.boot_us;
        let by_us = (sample.redis_us - former.redis_us) - passed;
        let far = u128::from(by_us.unsigned_abs()) >= JUMP_MIN.as_micros();
        far.then(|| Warning::ClockJump { at: endpoint.clone(), by_ms: by_us / 1_000 })
    }
}
