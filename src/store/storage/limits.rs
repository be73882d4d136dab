//! What rules let through, and what is measured under them. For engines that look in Rust: `take_groups.lua` does the same.

use super::{Entry, Member, Version};
use crate::domain::{Rate, Timestamp};

/// What a group, or the queue as a whole, may do.
#[derive(Clone, Debug, Default)]
pub struct Rule {
    pub group: u16,
    pub version: Version,
    /// For every lease taken under it.
    pub flags: u8,
    /// This job only if there is no other.
    pub pass_over: Option<u64>,
    /// So many leases at most at once.
    pub leased: Option<u64>,
    pub probes: Option<Probes>,
    pub rate: Option<Rate>,
    pub ramp: Option<Ramp>,
}

/// Leases are probes: at most so many of this epoch that started after that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probes {
    pub most: u64,
    pub started_after: Timestamp,
}

/// A second rate, of a recovery. Its [`Meter`] says whether jobs had to wait for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ramp {
    pub rate: Rate,
    /// Jobs that become ready may wait so long after there were none.
    pub patience_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoppedBy {
    Leased,
    Probes,
    Rate,
    Ramp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    pub group: u16,
    pub by: StoppedBy,
    /// When the oldest probe no longer counts, or the next token is there. None: when a lease ends.
    pub until: Option<Timestamp>,
}

/// What takes remember of a group whose rule has a rate or a ramp. An engine for one process may keep it in memory alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Meter {
    /// When the tokens were counted.
    pub at: Timestamp,
    /// Infinite: none were counted, as the rule had no rate.
    pub tokens: f64,
    pub ramp_tokens: f64,
    /// When a take under a ramp last left nothing ready.
    pub empty_at: Timestamp,
    /// When a ramp, by its rate or by `leased`, last stopped a take while jobs had been ready for longer than its patience.
    pub held_at: Timestamp,
    /// Under a ramp and this version: each step of a ramp has its own.
    pub most_leased: u64,
    pub epoch: u32,
    /// [`Version::random`].
    pub random: [u8; 8],
}

/// Times of servers differ a little. A bucket that is further ahead than this was filled before the clock stepped back.
const AHEAD_MAX_MS: u64 = 1_000;
/// What limits are compared with.
pub(in crate::store) trait Measures {
    type Error;

    /// Leases of a group, or of the whole queue.
    fn leased(&self, group: u16) -> u64;

    /// All that are out, by their start.
    fn probes(&mut self) -> Result<Vec<Entry>, Self::Error>;

    fn meter(&self, group: u16) -> Option<Meter>;
}

/// What a rule lets through in one take.
#[derive(Clone, Debug)]
pub(in crate::store) struct Allowance {
    pub(super) most: u64,
    pub(super) taken: u64,
    by: StoppedBy,
    until: Option<Timestamp>,
    leased: u64,
    meter: Option<Meter>,
}

impl Allowance {
    fn limit(&mut self, most: u64, by: StoppedBy, until: Option<Timestamp>) {
        if most < self.most {
            (self.most, self.by, self.until) = (most, by, until);
        }
    }

    fn limit_to_tokens(&mut self, tokens: f64, rate: &Rate, by: StoppedBy, now: Timestamp) {
        self.limit(Rate::whole(tokens), by, rate.next_at(tokens, now));
    }
}

impl Rule {
    /// Of the queue as a whole.
    pub fn whole(version: Version) -> Self {
        Self { group: super::WHOLE_QUEUE, version, ..Self::default() }
    }

    /// It lets everything through.
    pub(in crate::store) fn is_free(&self) -> bool {
        self.leased.is_none() && self.probes.is_none() && self.rate.is_none() && self.ramp.is_none()
    }

    pub(super) fn allow<M: Measures>(&self, measures: &mut M, now: Timestamp) -> Result<Allowance, M::Error> {
        let (by, until) = (StoppedBy::Leased, None);
        let mut allowance = Allowance { most: u64::MAX, taken: 0, by, until, leased: 0, meter: None };
        if self.leased.is_some() || self.ramp.is_some() {
            allowance.leased = measures.leased(self.group);
        }
        if let Some(most) = self.leased {
            allowance.limit(most.saturating_sub(allowance.leased), StoppedBy::Leased, None);
        }
        if let Some(probes) = self.probes {
            let (left, oldest) = probes.left(self.version.epoch, measures.probes()?.into_iter());
            // Without one that runs, the first starts now.
            let oldest = oldest.or_else(|| (probes.most > 0).then_some(now));
            let until = oldest.map(|oldest| oldest.after(now.since(probes.started_after)));
            allowance.limit(left, StoppedBy::Probes, until);
        }
        if self.rate.is_some() || self.ramp.is_some() {
            let meter = self.refilled(measures.meter(self.group), now);
            if let Some(rate) = &self.rate {
                allowance.limit_to_tokens(meter.tokens, rate, StoppedBy::Rate, now);
            }
            if let Some(ramp) = &self.ramp {
                allowance.limit_to_tokens(meter.ramp_tokens, &ramp.rate, StoppedBy::Ramp, now);
            }
            allowance.meter = Some(meter);
        }
        Ok(allowance)
    }

    fn refilled(&self, before: Option<Meter>, now: Timestamp) -> Meter {
        let Version { epoch, random, .. } = self.version;
        let mut meter = before.unwrap_or_else(|| Meter {
            at: now,
            tokens: f64::INFINITY,
            ramp_tokens: f64::INFINITY,
            empty_at: Timestamp::default(),
            held_at: Timestamp::default(),
            most_leased: 0,
            epoch,
            random,
        });
        if meter.at.millis() > now.millis() + AHEAD_MAX_MS {
            meter.at = now;
        }
        let elapsed = now.millis().saturating_sub(meter.at.millis());
        let refill = |tokens, rate: Option<Rate>| rate.map_or(f64::INFINITY, |rate| rate.refilled(tokens, elapsed));
        meter.tokens = refill(meter.tokens, self.rate);
        meter.ramp_tokens = refill(meter.ramp_tokens, self.ramp.map(|ramp| ramp.rate));
        meter.at = meter.at.max(now);
        if (meter.epoch, meter.random) != (epoch, random) {
            (meter.epoch, meter.random, meter.most_leased) = (epoch, random, 0);
        }
        meter
    }

    /// `ready`: jobs are left. `is_short`: fewer were taken than asked.
    pub(super) fn end(
        &self, allowance: Allowance, ready: bool, is_short: bool, now: Timestamp,
    ) -> (Option<Stop>, Option<Meter>) {
        let Allowance { most, taken, by, until, leased, mut meter } = allowance;
        let is_stopped = ready && is_short && taken >= most;
        if let Some(meter) = &mut meter {
            meter.tokens -= taken as f64;
            meter.ramp_tokens -= taken as f64;
            if let Some(ramp) = &self.ramp {
                meter.most_leased = meter.most_leased.max(leased + taken);
                let waited = now.millis().saturating_sub(meter.empty_at.millis());
                if !ready {
                    meter.empty_at = now;
                } else if is_stopped && matches!(by, StoppedBy::Leased | StoppedBy::Ramp) && waited > ramp.patience_ms {
                    meter.held_at = now;
                }
            }
        }
        (is_stopped.then_some(Stop { group: self.group, by, until }), meter)
    }
}

impl Probes {
    /// How many may start, and when the first of those that run has started. `probes`: all that are out, by their start.
    fn left(&self, epoch: u32, probes: impl Iterator<Item = Entry>) -> (u64, Option<Timestamp>) {
        let of_epoch = probes.filter(|probe| matches!(probe.member, Member::Probe { epoch: of, .. } if of == epoch));
        let starts = of_epoch.map(|probe| Timestamp::from_millis(probe.score));
        let mut starts = starts.filter(|start| *start > self.started_after).peekable();
        let oldest = starts.peek().copied();
        (self.most.saturating_sub(starts.count() as u64), oldest)
    }
}
