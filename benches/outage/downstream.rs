//! What the workers call: serves so many calls a second, slows, falls over, is down for a while.

use redrive::domain::Rng;
use std::collections::VecDeque;
use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct Downstream {
    /// Calls a second that it serves in its usual time; above, it takes twice as long where it slows.
    pub(crate) capacity: usize,
    pub(crate) takes: Duration,
    pub(crate) slows: bool,
    /// Above so many calls in one second it falls over: 503 for 5 s, longer while more than its capacity arrive.
    pub(crate) falls_above: usize,
    /// Seconds from and to which it is down.
    pub(crate) down: (f64, f64),
    /// Calls hang for so long while it is down; otherwise they are refused at once.
    pub(crate) hangs: Option<Duration>,
    /// While it is down, only this share of the calls fails.
    pub(crate) fails: f64,
    /// Calls in a second, above which it answers 429.
    pub(crate) quota: Option<usize>,
}

impl Default for Downstream {
    fn default() -> Self {
        Self {
            capacity: 200,
            takes: Duration::from_millis(20),
            slows: true,
            falls_above: 300,
            down: (20.0, 140.0),
            hangs: None,
            fails: 1.0,
            quota: None,
        }
    }
}

/// Why a call failed: the type of the error and its HTTP status, or 0.
pub(crate) type Failed = (&'static str, u32);

/// A downstream with what it remembers of the calls.
pub(crate) struct Service {
    is: Downstream,
    calls: VecDeque<f64>,
    fallen_until: f64,
    rng: Rng,
    pub(crate) falls: u32,
    pub(crate) failed: u32,
    /// Calls in one sliding second since it is up again.
    pub(crate) peak: usize,
    /// After that.
    pub(crate) first_success: Option<f64>,
    /// Served and failed calls of each second.
    pub(crate) seconds: Vec<(u32, u32)>,
}

impl Service {
    pub(crate) fn new(is: Downstream) -> Self {
        Self {
            is,
            calls: VecDeque::new(),
            fallen_until: 0.0,
            rng: Rng::new(7),
            falls: 0,
            failed: 0,
            peak: 0,
            first_success: None,
            seconds: Vec::new(),
        }
    }

    /// How long the call takes, and why it fails.
    pub(crate) fn call(&mut self, at: f64) -> (Duration, Option<Failed>) {
        while self.calls.front().is_some_and(|call| call + 1.0 <= at) {
            self.calls.pop_front();
        }
        self.calls.push_back(at);
        let rate = self.calls.len();
        if at > self.is.down.1 {
            self.peak = self.peak.max(rate);
        }
        let (takes, error) = self.answer(at, rate);
        let second = at as usize;
        self.seconds.resize(self.seconds.len().max(second + 1), (0, 0));
        if error.is_some() {
            self.failed += 1;
            self.seconds[second].1 += 1;
        } else {
            self.seconds[second].0 += 1;
            if at > self.is.down.1 {
                self.first_success.get_or_insert(at - self.is.down.1);
            }
        }
        (takes, error)
    }

    fn answer(&mut self, at: f64, rate: usize) -> (Duration, Option<Failed>) {
        const UNAVAILABLE: Option<Failed> = Some(("ServiceUnavailable", 503));
        let soon = Duration::from_millis(2);
        let fails = self.rng.unit() < self.is.fails;
        if (self.is.down.0..self.is.down.1).contains(&at) && fails {
            return match self.is.hangs {
                _ if self.is.fails < 1.0 => (self.is.takes, UNAVAILABLE),
                Some(hangs) => (hangs, Some(("Timeout", 0))),
                None => (Duration::from_millis(1), Some(("ConnectionRefused", 0))),
            };
        }
        if at < self.fallen_until {
            if rate > self.is.capacity {
                self.fallen_until = self.fallen_until.max(at + 1.0);
            }
            return (soon, UNAVAILABLE);
        }
        if rate > self.is.falls_above {
            self.falls += 1;
            self.fallen_until = at + 5.0;
            return (soon, UNAVAILABLE);
        }
        if self.is.quota.is_some_and(|quota| rate > quota) {
            return (soon, Some(("TooManyRequests", 429)));
        }
        let slow = if self.is.slows && rate > self.is.capacity { 2 } else { 1 };
        (self.is.takes * slow, None)
    }
}
