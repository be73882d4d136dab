//! What a primary's own figures give away: a failover that lost writes, a restart, a clock that jumped.
//!
//! A primary numbers the bytes that it hands to its replicas, under an id. One that takes over has a new id, and keeps
//! the old one with the number at which it stopped: what the old primary had beyond that is lost. The figures are as old
//! as the last heartbeat, so a loss is a lower bound, and none seen is not none.

use super::{address::Endpoint, info::Info};
use crate::domain::store_clock::Reading;
use redis::Value;
use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// So many are remembered.
const NOTICES_MAX: usize = 20;
/// Workers may have tried in vain to prolong their leases for this long.
const OUTAGE_MIN: Duration = Duration::from_secs(2);
/// Clocks are set right by small steps all the time.
const JUMP_MIN: Duration = Duration::from_secs(2);

/// A primary's figures at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) primary: bool,
    replid: String,
    offset: i64,
    /// Of the primary that it was a replica of.
    former_replid: String,
    former_offset: i64,
    /// Redis' wall clock, and ours since boot, both in µs.
    redis_us: i64,
    boot_us: i64,
}

impl Sample {
    /// From the replies to PING, `INFO replication` and TIME.
    pub(super) fn read(replies: &[Value], before: Reading, after: Reading) -> Result<Self, String> {
        let [ping, info, time] = replies else {
            return Err(format!("{} replies to 3 commands", replies.len()));
        };
        if let Value::ServerError(error) = ping {
            return Err(format!("{} {}", error.code(), error.details().unwrap_or_default()));
        }
        let info = Info::read(info)?;
        let (seconds, micros): (i64, i64) =
            redis::from_redis_value(time.clone()).map_err(|error| error.to_string())?;
        Ok(Self::of(&info, seconds * 1_000_000 + micros, middle(before, after)))
    }

    fn of(info: &Info, redis_us: i64, boot_us: i64) -> Self {
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

fn middle(before: Reading, after: Reading) -> i64 {
    i64::try_from(before.boot_us.midpoint(after.boot_us)).unwrap_or(i64::MAX)
}

/// What was noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Another server is the primary now, or the same one again after a restart.
    Failover { to: Endpoint, loss: Loss },
    /// Redis' clock went by more or less than time did.
    ClockJump { at: Endpoint, by_ms: i64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Up to the last heartbeat before it.
    NoneSeen,
    /// So many bytes of what Redis hands to its replicas, or more.
    AtLeast(u64),
    Unknown,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failover { to, loss: Loss::NoneSeen } => {
                write!(f, "Redis at {to} has taken over as primary; no lost writes were seen")
            }
            Self::Failover { to, loss: Loss::AtLeast(bytes) } => write!(
                f,
                "Redis at {to} has taken over as primary WITHOUT THE LAST WRITES of the former one, \
                 at least {bytes} bytes: jobs enqueued just before may be gone, and finished ones \
                 may run again"
            ),
            Self::Failover { to, loss: Loss::Unknown } => write!(
                f,
                "Redis at {to} has begun anew as primary; whether writes were lost cannot be seen, \
                 it depends on its persistence"
            ),
            Self::ClockJump { at, by_ms } => write!(
                f,
                "the clock of Redis at {at} has jumped by {by_ms} ms: what is due comes that much \
                 too early or too late"
            ),
        }
    }
}

/// Looks at all primaries of one Redis.
#[derive(Debug, Default)]
pub(super) struct Watch {
    seen: Mutex<Seen>,
    outages: AtomicU64,
}

#[derive(Debug, Default)]
struct Seen {
    /// The last of each id.
    by_replid: HashMap<String, Sample>,
    by_endpoint: HashMap<Endpoint, Sample>,
    notices: VecDeque<Notice>,
}

impl Watch {
    /// A server was out of reach for so long.
    pub(super) fn was_lost_for(&self, time: Duration) {
        if time >= OUTAGE_MIN {
            self.outages.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn outages(&self) -> u64 {
        self.outages.load(Ordering::Relaxed)
    }

    pub(super) fn note(&self, endpoint: &Endpoint, sample: &Sample) {
        let mut seen = self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for notice in seen.note(endpoint, sample) {
            match &notice {
                Notice::Failover { loss: Loss::NoneSeen, .. } => tracing::warn!("{notice}"),
                _ => tracing::error!("{notice}"),
            }
            if seen.notices.len() == NOTICES_MAX {
                seen.notices.pop_front();
            }
            seen.notices.push_back(notice);
        }
    }

    /// The latest, oldest first.
    pub(super) fn notices(&self) -> Vec<Notice> {
        let seen = self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        seen.notices.iter().cloned().collect()
    }
}

impl Seen {
    fn note(&mut self, endpoint: &Endpoint, sample: &Sample) -> Vec<Notice> {
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

    fn failover(&self, endpoint: &Endpoint, sample: &Sample) -> Option<Notice> {
        if self.by_replid.contains_key(&sample.replid) {
            return None;
        }
        let loss = match self.by_replid.get(&sample.former_replid) {
            Some(former) => {
                let stopped = sample.former_offset - 1;
                match u64::try_from(former.offset - stopped) {
                    Ok(lost @ 1..) => Loss::AtLeast(lost),
                    _ => Loss::NoneSeen,
                }
            }
            // A server that nobody has seen before is no news.
            None if self.by_endpoint.contains_key(endpoint) => Loss::Unknown,
            None => return None,
        };
        Some(Notice::Failover { to: endpoint.clone(), loss })
    }

    fn jump(&self, endpoint: &Endpoint, sample: &Sample) -> Option<Notice> {
        let former = self.by_replid.get(&sample.former_replid);
        let former = self.by_endpoint.get(endpoint).or(former)?;
        let passed = sample.boot_us - former.boot_us;
        let by_us = (sample.redis_us - former.redis_us) - passed;
        let far = u128::from(by_us.unsigned_abs()) >= JUMP_MIN.as_micros();
        far.then(|| Notice::ClockJump { at: endpoint.clone(), by_ms: by_us / 1_000 })
    }
}

#[cfg(test)]
mod tests;
