//! What a breaker knows of outcomes: failures since the last success, how much failing and how much load is usual, and which
//! failures were counted of late.

use super::{super::ids::JobId, super::settings::BreakerSettings, super::time::Timestamp, EndedDelivery, Recovery};
use std::time::Duration;

/// A streak of failures this unlikely is no coincidence.
const COINCIDENCE: f64 = 1e-6;
/// The longest streak that the usual failures ask for: where 63 % fail as a rule, a breaker has nothing to say.
const NEEDED_MAX: u32 = 30;
/// A queue that succeeded a moment ago is no outage: a busy one has short streaks.
const QUIET: Duration = Duration::from_secs(1);
/// But so many failures one after the other are one: half a second at 40 jobs/s.
const LONG_STREAK: u32 = 20;
/// A bucket lasts at least so long, and has so many outcomes.
const BUCKET: Duration = Duration::from_secs(5);
const BUCKET_OUTCOMES: u64 = 20;
/// Or it lasts this long. What is usual follows what happens within this time, and so long may a queue be degraded.
const MEMORY: Duration = Duration::from_secs(15 * 60);
/// A bucket moves the usual load by this share.
const LOAD_WEIGHT: f64 = 0.3;
/// More than this share of failures, and so many times the usual share, is degraded.
const DEGRADED_SHARE: f64 = 0.2;
const DEGRADED_TIMES: f64 = 3.0;
/// Counted failures that an opening can return.
const RETURNED_MAX: usize = 40;
/// Before the streak began, the outage may have begun already.
const RETURNED_BEFORE: Duration = Duration::from_secs(1);
/// A success moves the time that successes take by this share.
const TOOK_WEIGHT: f64 = 1.0 / 16.0;

/// Sums over the successes of one epoch, which every server adds to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Successes {
    pub count: u64,
    /// Of jobs that had a counted failure before: they do not speak.
    pub retried: u64,
    pub took_ms: u64,
    /// Of the logarithms of the milliseconds that each took, in thousandths.
    pub ln_took: i64,
}

impl Successes {
    /// One success.
    pub fn of(started_at: Timestamp, now: Timestamp, retried: bool) -> Self {
        let took_ms = now.millis().saturating_sub(started_at.millis());
        let ln_took = (ln_ms(took_ms) * 1_000.0) as i64;
        Self { count: 1, retried: retried.into(), took_ms, ln_took }
    }

    pub fn add(&mut self, more: Self) {
        self.count += more.count;
        self.retried += more.retried;
        self.took_ms += more.took_ms;
        self.ln_took += more.ln_took;
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            count: self.count.saturating_sub(earlier.count),
            retried: self.retried.saturating_sub(earlier.retried),
            took_ms: self.took_ms.saturating_sub(earlier.took_ms),
            ln_took: self.ln_took - earlier.ln_took,
        }
    }
}

fn ln_ms(took_ms: u64) -> f64 {
    (took_ms.max(1) as f64).ln()
}

/// Where this share fails, a streak of so many is no coincidence.
fn unusual_streak(share: f64) -> u32 {
    if share <= 0.0 {
        return 0;
    }
    // A whisker less, so that a whole number is not rounded up to the next.
    let unusual = (COINCIDENCE.ln() / share.min(0.99).ln() - 1e-9).ceil();
    if unusual < f64::from(NEEDED_MAX) { unusual as u32 } else { NEEDED_MAX }
}

/// What a closed breaker has found to be usual. It outlives outages and restarts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usual {
    /// Of outcomes that speak, those that are failures.
    pub share: f64,
    /// Outcomes that this is known from.
    pub known: f64,
    /// Jobs in flight on average.
    pub load: Option<f64>,
    /// The mean logarithm of the milliseconds that a success takes.
    pub ln_took: Option<f64>,
}

impl Usual {
    /// It differs enough from what was kept to be kept again.
    pub fn is_news(&self, kept: &Self) -> bool {
        let differs = |now: Option<f64>, kept: Option<f64>, by: f64| match (now, kept) {
            (Some(now), Some(kept)) => (now - kept).abs() > by,
            (now, kept) => now.is_some() != kept.is_some(),
        };
        let ln = |load: Option<f64>| load.map(|load| load.max(1e-3).ln());
        (self.known > 0.0) != (kept.known > 0.0)
            || (self.share - kept.share).abs() > 0.02
            || differs(ln(self.load), ln(kept.load), 0.25)
            || differs(self.ln_took, kept.ln_took, 0.25)
    }
}

/// Outcomes of some seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bucket {
    pub since: Timestamp,
    /// Of all jobs.
    pub successes: Successes,
    /// Those that speak.
    pub failed: u64,
}

impl Bucket {
    fn ok(&self) -> u64 {
        self.successes.count.saturating_sub(self.successes.retried)
    }

    fn outcomes(&self) -> u64 {
        self.ok() + self.failed
    }

    fn load(&self, now: Timestamp) -> Option<f64> {
        let elapsed = now.since(self.since).as_millis() as f64;
        (self.successes.count > 0 && elapsed > 0.0).then(|| self.successes.took_ms as f64 / elapsed)
    }
}

/// A failure that was counted against its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedFailure {
    pub job: JobId,
    pub number: u64,
    pub delivery: u32,
    pub at: Timestamp,
}

/// Outcomes of jobs that were handed out in this step of the ramp.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    pub ok: u64,
    pub failed: u64,
    /// Sum of the logarithms of the milliseconds of its successes.
    pub ln_took: f64,
}

/// Far more fails than is usual, although not everything does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Degraded {
    /// Of the last outcomes, those that are failures.
    pub share: f64,
    pub outcomes: u64,
    /// Failures do not count so long.
    pub until: Timestamp,
}

/// Where one process has a store to itself, this lives in its memory: after a restart it starts from what was usual.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutcomeStats {
    /// Failures that speak since the last success.
    pub streak: u32,
    pub streak_since: Timestamp,
    pub last_success: Option<Timestamp>,
    /// Of the sums of this epoch, what is in the buckets already.
    pub seen: Successes,
    pub bucket: Bucket,
    pub previous: Bucket,
    pub usual: Usual,
    pub degraded_since: Option<Timestamp>,
    /// The last ones, oldest first.
    pub counted: Vec<CountedFailure>,
    /// Failures of this outage that did not count, or were returned.
    pub uncounted: u64,
    /// What a success takes, of late.
    pub took_ms: f64,
    pub step: Step,
}

impl OutcomeStats {
    /// Nothing is known yet but what was usual.
    pub fn new(usual: Usual, now: Timestamp) -> Self {
        let took_ms = usual.ln_took.map_or(0.0, f64::exp);
        Self { usual, took_ms, bucket: Bucket { since: now, ..Bucket::default() }, ..Self::default() }
    }

    /// Another epoch: its outcomes are counted anew.
    pub(super) fn begin_epoch(&mut self, now: Timestamp) {
        if let took @ Some(_) = self.mean_took() {
            self.took_ms = took.unwrap_or_default();
        }
        self.streak = 0;
        self.seen = Successes::default();
        self.bucket = Bucket { since: now, ..Bucket::default() };
        self.previous = Bucket::default();
        self.counted.clear();
        self.step = Step::default();
    }

    fn mean_took(&self) -> Option<f64> {
        let (this, previous) = (&self.bucket.successes, &self.previous.successes);
        let count = this.count + previous.count;
        (count > 0).then(|| (this.took_ms + previous.took_ms) as f64 / count as f64)
    }

    /// Successes under a closed breaker were only summed up; the last of them was then.
    pub fn absorb(&mut self, sums: Successes, last: Option<Timestamp>) {
        let new = sums.since(self.seen);
        if new.count == 0 {
            return;
        }
        self.seen = sums;
        self.bucket.successes.add(new);
        self.streak = 0;
        self.last_success = self.last_success.max(last);
    }

    // ---- the streak ----

    /// How long a streak must be before it is more than the usual failures, or those of this recovery so far.
    pub fn needed(&self, recovery: Option<&Recovery>, settings: &BreakerSettings) -> u32 {
        let so_far = recovery.map_or(0, |recovery| unusual_streak(recovery.share).min(LONG_STREAK));
        unusual_streak(self.usual.share).max(so_far).max(settings.failure_threshold)
    }

    pub(super) fn lengthen_streak(&mut self, started_at: Timestamp, now: Timestamp) {
        // Failures are faster than successes: where none is known, the time counts from the first delivery that failed.
        self.last_success.get_or_insert(started_at);
        if self.streak == 0 {
            self.streak_since = now;
        }
        self.streak = self.streak.saturating_add(1);
    }

    /// While it recovers, a streak as long as what is in flight says that all of it fails.
    pub(super) fn is_an_outage(&self, recovery: Option<&Recovery>, settings: &BreakerSettings, now: Timestamp) -> bool {
        let needed = self.needed(recovery, settings);
        let long = f64::from(LONG_STREAK);
        let long = recovery.map_or(long, |recovery| long.min(f64::from(needed) + recovery.load));
        let quiet = self.last_success.is_none_or(|at| now.since(at) >= QUIET);
        self.streak >= needed && (quiet || f64::from(self.streak) >= long)
    }

    // ---- what was counted, to be returned ----

    pub(super) fn remember_counted(&mut self, ended: &EndedDelivery<'_>, now: Timestamp) {
        if self.counted.len() >= RETURNED_MAX {
            self.counted.remove(0);
        }
        let EndedDelivery { job, number, delivery, .. } = *ended;
        self.counted.push(CountedFailure { job: job.clone(), number, delivery, at: now });
    }

    pub(super) fn take_counted(&mut self) -> impl Iterator<Item = CountedFailure> + use<> {
        let before = RETURNED_BEFORE.as_millis() as u64;
        let since = if self.streak == 0 {
            Timestamp::MAX
        } else {
            Timestamp::from_millis(self.streak_since.millis().saturating_sub(before))
        };
        std::mem::take(&mut self.counted).into_iter().filter(move |failure| failure.at >= since)
    }

    // ---- what is usual ----

    pub(super) fn count_failure(&mut self, speaks: bool, now: Timestamp) {
        self.bucket.failed += u64::from(speaks);
        if self.is_degraded() {
            self.degraded_since.get_or_insert(now);
        }
    }

    /// The share of failures in this bucket and the last.
    fn recent(&self) -> (u64, f64) {
        let outcomes = self.bucket.outcomes() + self.previous.outcomes();
        let failed = self.bucket.failed + self.previous.failed;
        (outcomes, failed as f64 / outcomes.max(1) as f64)
    }

    /// Far more fails than is usual, although not everything does.
    pub fn is_degraded(&self) -> bool {
        let (outcomes, share) = self.recent();
        self.usual.known > 0.0
            && outcomes >= BUCKET_OUTCOMES
            && share > DEGRADED_SHARE.max(DEGRADED_TIMES * self.usual.share)
    }

    /// While it is degraded.
    pub fn degraded(&self, now: Timestamp) -> Option<Degraded> {
        let (outcomes, share) = self.recent();
        self.is_degraded().then(|| {
            let until = self.degraded_since.unwrap_or(now).after(MEMORY);
            Degraded { share, outcomes, until }
        })
    }

    /// When the bucket may end.
    pub fn bucket_ends_at(&self, now: Timestamp) -> Timestamp {
        let enough = self.bucket.since.after(BUCKET);
        if enough > now { enough } else { self.bucket.since.after(MEMORY) }
    }

    /// Ends a bucket of a closed breaker whose time has come. True: it has ended.
    pub fn roll(&mut self, now: Timestamp) -> bool {
        let (age, outcomes) = (now.since(self.bucket.since), self.bucket.outcomes());
        if age < MEMORY && (age < BUCKET || outcomes < BUCKET_OUTCOMES) {
            return false;
        }
        let usual = &mut self.usual;
        let toward = |value: &mut Option<f64>, sample: Option<f64>| {
            if let Some(sample) = sample {
                *value = Some(value.map_or(sample, |value| value + LOAD_WEIGHT * (sample - value)));
            }
        };
        toward(&mut usual.load, self.bucket.load(now));
        let Successes { count, ln_took, .. } = self.bucket.successes;
        toward(&mut usual.ln_took, (count > 0).then(|| ln_took as f64 / 1_000.0 / count as f64));
        if outcomes > 0 {
            let share = self.bucket.failed as f64 / outcomes as f64;
            if self.usual.known == 0.0 {
                self.usual.share = share;
            }
            self.follow(share, outcomes as f64, age, now);
        }
        self.previous = std::mem::replace(&mut self.bucket, Bucket { since: now, ..Bucket::default() });
        true
    }

    /// What is usual moves toward the share of failures in a bucket, but stands still while the queue is degraded.
    fn follow(&mut self, share: f64, outcomes: f64, age: Duration, now: Timestamp) {
        if self.is_degraded() {
            let since = *self.degraded_since.get_or_insert(now);
            if now.since(since) >= MEMORY {
                self.usual.share = self.recent().1;
                self.degraded_since = None;
            }
            return;
        }
        self.degraded_since = None;
        let usual = &mut self.usual;
        usual.known += outcomes;
        let by_time = age.min(Duration::from_secs(30)).as_secs_f64() / MEMORY.as_secs_f64();
        usual.share += (outcomes / usual.known).max(by_time) * (share - usual.share);
    }

    /// The load of an outage that begins; where no bucket is complete, that of the running one.
    pub(super) fn usual_load(&mut self, now: Timestamp) -> Option<f64> {
        if self.usual.load.is_none() {
            self.usual.load = self.bucket.load(self.last_success.unwrap_or(now));
        }
        self.usual.load
    }

    // ---- recovery ----

    pub(super) fn took(&mut self, started_at: Timestamp, now: Timestamp) {
        let took = now.since(started_at).as_millis() as f64;
        if self.took_ms > 0.0 {
            self.took_ms += TOOK_WEIGHT * (took - self.took_ms);
        } else {
            self.took_ms = took;
        }
    }

    pub(super) fn recovering_success(&mut self, started_at: Timestamp, step_started: Timestamp, now: Timestamp) {
        self.streak = 0;
        self.last_success = Some(now);
        self.took(started_at, now);
        if started_at >= step_started {
            self.step.ok += 1;
            self.step.ln_took += ln_ms(now.since(started_at).as_millis() as u64);
        }
    }

    pub(super) fn recovering_failure(&mut self, started_at: Timestamp, step_started: Timestamp) {
        self.step.failed += u64::from(started_at >= step_started);
    }
}
