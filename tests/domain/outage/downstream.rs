//! What the workers call: serves so many calls a second, slows, falls over, is down for a while.

use redrive::domain::{Failure, FailureCategory, Rng};
use std::{collections::VecDeque, time::Duration};

pub(super) const SECOND: u64 = 1_000_000;

#[derive(Clone, Debug)]
pub(super) struct Downstream {
    /// Calls a second that it serves in its usual time.
    pub(super) capacity: f64,
    pub(super) takes_ms: f64,
    /// Above its capacity it takes twice as long.
    pub(super) slows: bool,
    /// Above so many calls in one second it falls over.
    pub(super) falls_above: f64,
    /// Seconds from and to which it is down.
    pub(super) down: Vec<(f64, f64)>,
    /// Calls hang for so long while it is down; otherwise they are refused at once.
    pub(super) hangs_ms: Option<f64>,
    /// From then to then this share of the calls fails.
    pub(super) brownout: Option<(f64, f64, f64)>,
    /// With an error that says so; otherwise with one that could be the job's own.
    pub(super) brownout_is_unreachable: bool,
    /// This share of the calls always fails, with HTTP 500.
    pub(super) usual_failures: f64,
    /// Calls in a second, above which it answers 429.
    pub(super) quota: Option<f64>,
    /// What a 429 asks for.
    pub(super) retry_after: Option<Duration>,
}

impl Default for Downstream {
    fn default() -> Self {
        Self {
            capacity: 200.0,
            takes_ms: 20.0,
            slows: true,
            falls_above: 300.0,
            down: Vec::new(),
            hangs_ms: None,
            brownout: None,
            brownout_is_unreachable: true,
            usual_failures: 0.0,
            quota: None,
            retry_after: None,
        }
    }
}

/// What a call came to, and after how many microseconds.
pub(super) struct Answer {
    pub(super) after: u64,
    pub(super) error: Option<Failure>,
}

/// A downstream with what it remembers of the calls.
pub(super) struct Service {
    pub(super) is: Downstream,
    calls: VecDeque<u64>,
    fallen_until: u64,
    /// The end of its last outage.
    pub(super) watched_from: u64,
    /// Calls in one sliding second since then.
    pub(super) peak: usize,
    /// When it fell over.
    pub(super) falls: Vec<u64>,
    pub(super) failed: u64,
    pub(super) calls_made: u64,
    pub(super) first_success: Option<u64>,
}

impl Service {
    pub(super) fn new(is: Downstream) -> Self {
        let watched_from = is.down.last().map_or(0, |(_, to)| (to * SECOND as f64) as u64);
        Self {
            is,
            calls: VecDeque::new(),
            fallen_until: 0,
            peak: 0,
            watched_from,
            falls: Vec::new(),
            failed: 0,
            calls_made: 0,
            first_success: None,
        }
    }

    /// How often it fell over between the end of one outage and the next.
    pub(super) fn falls_of_one_recovery(&self) -> u32 {
        let starts = self.is.down.iter().skip(1).map(|(from, _)| *from).chain([f64::MAX]);
        let recoveries = self.is.down.iter().map(|(_, to)| *to).zip(starts);
        let falls = |(from, to): (f64, f64)| {
            let within = |at: &&u64| (from..to).contains(&(**at as f64 / SECOND as f64));
            self.falls.iter().filter(within).count() as u32
        };
        recoveries.map(falls).max().unwrap_or(0)
    }

    /// It would serve a call now.
    pub(super) fn is_well(&self, now: u64) -> bool {
        now >= self.fallen_until && !self.is_down(now)
    }

    fn is_down(&self, now: u64) -> bool {
        let at = now as f64 / SECOND as f64;
        self.is.down.iter().any(|(from, to)| (*from..*to).contains(&at))
    }

    pub(super) fn call(&mut self, now: u64, rng: &mut Rng) -> Answer {
        self.calls_made += 1;
        while self.calls.front().is_some_and(|call| call + SECOND <= now) {
            self.calls.pop_front();
        }
        self.calls.push_back(now);
        let rate = self.calls.len() as f64;
        if now >= self.watched_from {
            self.peak = self.peak.max(self.calls.len());
        }
        let mut answer = self.answer(now, rate, rng);
        if answer.error.is_some() {
            self.failed += 1;
        } else if now >= self.watched_from {
            self.first_success.get_or_insert(now);
        }
        // No two calls take the same time.
        answer.after = (answer.after as f64 * (0.9 + 0.2 * rng.unit())) as u64;
        answer
    }

    fn answer(&mut self, now: u64, rate: f64, rng: &mut Rng) -> Answer {
        use FailureCategory::{RateLimited, Timeout, Unavailable, Unreachable};
        let fails = |after_ms: f64, error_type, category, http_status| Answer {
            after: (after_ms * 1e3) as u64,
            error: Some(Failure { category, http_status, ..Failure::new(error_type, "") }),
        };
        let at = now as f64 / SECOND as f64;
        if self.is_down(now) {
            return match self.is.hangs_ms {
                Some(ms) => fails(ms, "Timeout", Some(Timeout), 0),
                None => fails(1.0, "ConnectionRefused", Some(Unreachable), 0),
            };
        }
        if now < self.fallen_until {
            if rate > self.is.capacity {
                self.fallen_until = self.fallen_until.max(now + SECOND);
            }
            return fails(2.0, "HTTP503", Some(Unavailable), 503);
        }
        if rate > self.is.falls_above {
            self.falls.push(now);
            self.fallen_until = now + 5 * SECOND;
            return fails(2.0, "HTTP503", Some(Unavailable), 503);
        }
        if self.is.quota.is_some_and(|quota| rate > quota) {
            return fails(1.0, "TooManyRequests", Some(RateLimited), 429);
        }
        let slow = if self.is.slows && rate > self.is.capacity { 2.0 } else { 1.0 };
        let takes_ms = self.is.takes_ms * slow;
        if let Some((from, to, share)) = self.is.brownout
            && (from..to).contains(&at)
            && rng.unit() < share
        {
            return match self.is.brownout_is_unreachable {
                true => fails(takes_ms, "HTTP503", Some(Unavailable), 503),
                false => fails(takes_ms, "Brownout", None, 0),
            };
        }
        if rng.unit() < self.is.usual_failures {
            return fails(takes_ms, "HTTP500", None, 500);
        }
        Answer { after: (takes_ms * 1e3) as u64, error: None }
    }
}
