//! The heart of redrive: what happens to a job whose delivery did not end with an Ack.
//!
//! Pure: the facts, the settings, the time and random numbers go in; the whole consequence comes out, and the store applies it
//! under the lease's fence.

use super::breaker::{BreakerState, Signal, in_words};
use super::category::FailureCategory;
use super::duration::human;
use super::failure::Failure;
use super::job::{Attempt, AttemptStatus, DeadReason, Delivery, Next, Progress};
use super::policy::{PolicyOverride, RetryPolicy};
use super::rules::{Then, first_match};
use super::settings::QueueSettings;
use super::time::{Timestamp, millis_ceil};
use std::time::Duration;

/// A job that is released more often than this has a failure instead.
pub const RELEASES_MAX: u32 = 100;
/// A job that is interrupted more often than this has a failure instead: it may be what kills its workers.
pub const INTERRUPTIONS_MAX: u32 = 3;
/// An upstream's Retry-After is stretched by up to this share, so that callers with the same Retry-After do not come at once.
const RETRY_AFTER_SPREAD: f64 = 0.1;

/// The job that was out, as the store knows it.
#[derive(Clone, Copy, Debug)]
pub struct Leased<'a> {
    pub delivery: &'a Delivery,
    pub progress: &'a Progress,
    pub policy: Option<&'a PolicyOverride>,
    pub expires_at: Option<Timestamp>,
    pub breaker: BreakerFacts,
}

/// The queue's breaker as the delivery ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BreakerFacts {
    pub state: BreakerState,
    /// A transient failure of this delivery counts against its job.
    pub counts: bool,
    /// A hold by this delivery would move it.
    pub counts_hold: bool,
    /// While OPEN: when probes begin.
    pub probe_at: Option<Timestamp>,
    /// It is that of a breaker key.
    pub of_key: bool,
}

/// How its delivery ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The worker reports a failure.
    Failed { failure: Failure, permanent: bool, retry_after: Option<Duration> },
    /// The worker hands it back. `keep_position`: to where it was, and not behind its priority level.
    Released { retry_after: Option<Duration>, keep_position: bool },
    /// It was not settled in time.
    Expired,
    /// Its stream broke before the work had begun.
    Interrupted,
}

impl Outcome {
    /// About what it takes of memory.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Failed { failure, .. } => failure.bytes(),
            Self::Released { .. } | Self::Expired | Self::Interrupted => 0,
        }
    }
}

/// Random numbers in `[0, 1)`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RandomFractions {
    pub jitter: f64,
    pub spread: f64,
}

/// The whole consequence.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryDecision {
    pub progress: Progress,
    pub next: Next,
    pub attempt: Attempt,
    /// For the queue's breaker.
    pub signal: Signal,
}

/// Decides one ended delivery.
pub fn decide(
    leased: Leased<'_>, outcome: Outcome, queue: &QueueSettings, now: Timestamp, random: RandomFractions,
) -> RetryDecision {
    let mut deciding = Deciding::start(leased, queue, now, random);
    deciding.attempt.nacked = matches!(outcome, Outcome::Failed { .. } | Outcome::Released { .. });
    match outcome {
        Outcome::Failed { failure, permanent, retry_after } => {
            deciding.attempt.status = AttemptStatus::Failed;
            let failure = failure.with_category();
            if permanent {
                deciding.record_failure(failure);
                deciding.count();
                deciding.dead_letter(DeadReason::NonRetryable, "the worker says that it will never succeed".into());
            } else {
                deciding.fail(failure, retry_after);
            }
        }
        Outcome::Released { retry_after, keep_position } => deciding.release(retry_after, keep_position),
        Outcome::Expired => {
            deciding.attempt.status = AttemptStatus::LeaseExpired;
            deciding.signal = Signal::Expired;
            deciding.fail(not_settled(leased.delivery, queue), None);
        }
        Outcome::Interrupted => deciding.interrupt(leased.delivery),
    }
    deciding.finish()
}

/// The lease is over, because it was not extended or could not be.
fn not_settled(delivery: &Delivery, queue: &QueueSettings) -> Failure {
    if delivery.expires_at < delivery.started_at.after(queue.max_run_time) {
        return lease_expired(delivery);
    }
    let longest = human(queue.max_run_time);
    let message = format!("{} ran for longer than the queue's max_run_time, {longest}", worker(delivery));
    Failure::new("MaxRunTimeExceeded", message)
}

fn worker(delivery: &Delivery) -> &str {
    match delivery.worker_id.as_str() {
        "" => "a worker without a name",
        name => name,
    }
}

fn lease_expired(delivery: &Delivery) -> Failure {
    let (worker, lease) = (worker(delivery), human(delivery.duration));
    let message = format!("{worker} neither settled nor extended its lease of {lease} in time");
    Failure::new("LeaseExpired", message)
}

/// A decision in the making.
struct Deciding<'a> {
    leased: Leased<'a>,
    queue: &'a QueueSettings,
    now: Timestamp,
    random: RandomFractions,
    progress: Progress,
    attempt: Attempt,
    signal: Signal,
}

impl<'a> Deciding<'a> {
    fn start(leased: Leased<'a>, queue: &'a QueueSettings, now: Timestamp, random: RandomFractions) -> Self {
        let progress = leased.progress.clone();
        let (breaker, redrives) = (leased.breaker.state, progress.redrives);
        let attempt = Attempt { breaker, redrives, ..Attempt::of(leased.delivery, now) };
        Self { leased, queue, now, random, progress, attempt, signal: Signal::None }
    }

    /// A transient failure: the first rule that fits decides, otherwise the policy.
    fn fail(&mut self, failure: Failure, retry_after: Option<Duration>) {
        let (error, error_type) = (in_words(&failure), failure.error_type.clone());
        let unreachable = failure.is_unreachable();
        match self.apply_rule(failure, retry_after, |_| true) {
            Some(Then::DeadLetter) => self.dead_letter_by_rule(),
            Some(Then::Release) => self.release(retry_after, false),
            Some(Then::Hold) => self.hold(error, error_type, retry_after),
            then => {
                // A worker reports that what it calls fails; a lease that ran out says nothing about that.
                if self.attempt.nacked {
                    self.signal = Signal::Failure { error, error_type, unreachable };
                }
                self.retry(then, retry_after);
            }
        }
    }

    /// The queue is held back, and this job waits with it. Where that does not move the breaker, the job waits alone.
    fn hold(&mut self, error: String, error_type: String, retry_after: Option<Duration>) {
        let hold = retry_after.unwrap_or(self.queue.breaker.recovery_timeout);
        let hold = hold.min(self.queue.max_retry_after);
        self.signal = Signal::Hold { error, error_type, hold };
        let BreakerFacts { counts_hold, probe_at, .. } = self.leased.breaker;
        self.put_back((!counts_hold).then_some(hold), false);
        if counts_hold && self.attempt.status == AttemptStatus::Released {
            // An earlier hold may last longer.
            let until = probe_at.unwrap_or_default().max(self.now.after(hold));
            let explanation = &self.attempt.explanation;
            let held = if self.leased.breaker.of_key { "the jobs of its breaker key are" } else { "the queue is" };
            self.attempt.explanation = format!("{held} held until {until}; {explanation}");
        }
    }

    /// Retries by the policy that fits this error, as long as it has retries left and the deadline allows.
    fn retry(&mut self, rule: Option<&Then>, retry_after: Option<Duration>) {
        let counts = !self.is_outage();
        if counts {
            self.count();
        } else {
            self.progress.uncounted += 1;
            self.progress.uncounted_since.get_or_insert(self.now);
        }
        let policy = self.policy(rule);
        self.progress.max_retries = Some(policy.max_retries);
        let number = self.attempt.number;
        if counts && number > policy.max_retries {
            let why = format!("attempt {number} failed and the policy has {} retries", policy.max_retries);
            return self.dead_letter(DeadReason::Exhausted, why);
        }
        // A failure that does not count still makes the next one wait longer.
        let retry = number.saturating_add(if counts { 0 } else { self.progress.uncounted - 1 });
        let backoff = policy.backoff(retry, self.progress.last_delay, self.random.jitter);
        let mut delay = backoff.delay;
        let mut explanation = backoff.explanation;
        let longest = self.queue.breaker.recovery_timeout;
        let held = matches!(self.leased.breaker.state, BreakerState::Open | BreakerState::HalfOpen);
        if !counts && held && delay > longest {
            // The queue is held back anyway, and needs jobs to probe with.
            delay = longest;
            explanation = format!("{explanation}; at most recovery_timeout {} while it is held", human(longest));
        }
        if let Some(Then::Patient) = rule {
            let category = self.attempt.failure.as_ref().and_then(|failure| failure.category);
            let category = category.map_or("", FailureCategory::as_str);
            explanation = format!(
                "{explanation}; patient, because the failure is {category} and neither the job nor its queue nor \
                 [defaults] sets max_retries"
            );
        }
        if let Some(asked) = retry_after {
            let most = self.queue.max_retry_after;
            let stretch = 1.0 + RETRY_AFTER_SPREAD * self.random.spread;
            let asked_for = asked.min(most).mul_f64(stretch);
            if asked_for > delay {
                delay = asked_for;
                let cut = if asked > most { ", cut to max_retry_after" } else { "" };
                let asked = human(asked);
                let delay = human(delay);
                explanation = format!("{explanation}; retry_after {asked}{cut} → {delay}");
            }
        }
        // What is kept of it, so that the answer can be given again.
        let delay = Duration::from_millis(millis_ceil(delay));
        let at = self.now.after(delay);
        if self.deadline_is_before(self.now) {
            return self.dead_letter(DeadReason::Expired, "its deadline has passed".into());
        }
        if self.deadline_is_before(at) {
            let why = format!("{explanation}; that would be after its deadline");
            return self.dead_letter(DeadReason::WouldMissDeadline, why);
        }
        if !counts {
            explanation += "; not counted during an outage";
        }
        self.attempt.explanation = explanation;
        self.progress.last_delay = Some(backoff.computed);
        self.progress.retries += 1;
        self.attempt.delay = Some(delay);
        self.attempt.retries_left = (policy.max_retries + 1).saturating_sub(number);
        self.attempt.next = Next::Later { at };
    }

    /// A failure that was to be expected: what the worker calls is known to be broken.
    fn is_outage(&self) -> bool {
        let grace = self.queue.breaker.outage_grace;
        let within_grace = self.progress.uncounted_since.is_none_or(|since| self.now.since(since) < grace);
        self.attempt.nacked && !self.leased.breaker.counts && within_grace
    }

    /// By its worker or by a rule, so often at most.
    fn release(&mut self, retry_after: Option<Duration>, keep_position: bool) {
        self.progress.releases += 1;
        if self.progress.releases > RELEASES_MAX {
            return self.release_limit(retry_after);
        }
        self.put_back(retry_after, keep_position);
    }

    /// Not a failure: back to the queue, attempt not counted.
    fn put_back(&mut self, retry_after: Option<Duration>, keep_position: bool) {
        self.attempt.status = AttemptStatus::Released;
        let max_retries = self.progress.max_retries.unwrap_or_else(|| self.policy(None).max_retries);
        self.attempt.retries_left = (max_retries + 1).saturating_sub(self.attempt.number);
        if self.deadline_is_before(self.now) {
            return self.dead_letter(DeadReason::Expired, "released after its deadline".into());
        }
        match retry_after.map(|asked| asked.min(self.queue.max_retry_after)) {
            Some(delay) if !delay.is_zero() => {
                let delay = Duration::from_millis(millis_ceil(delay));
                self.attempt.delay = Some(delay);
                self.attempt.explanation = format!("released for {}", human(delay));
                self.attempt.next = Next::Later { at: self.now.after(delay) };
            }
            _ if keep_position => {
                self.attempt.explanation = "released to its old position".into();
                self.attempt.next = Next::OldPlace;
            }
            _ => {
                self.attempt.explanation = "released behind its priority level".into();
                self.attempt.next = Next::Behind { at: self.now };
            }
        }
    }

    /// Released too often: a failure by the same rules, but none of them can release it again.
    fn release_limit(&mut self, retry_after: Option<Duration>) {
        let mut message = format!("released more than {RELEASES_MAX} times");
        if let Some(cause) = &self.attempt.failure {
            message = format!("{message}, the last time for {}: {}", cause.error_type, cause.message);
        }
        self.attempt.status = AttemptStatus::Failed;
        let failure = Failure::new("ReleaseLimit", message);
        match self.apply_rule(failure, retry_after, |then| !matches!(then, Then::Release | Then::Hold)) {
            Some(Then::DeadLetter) => self.dead_letter_by_rule(),
            then => self.retry(then, retry_after),
        }
    }

    /// Notes the failure with the first rule that fits it, if that may be applied.
    fn apply_rule(
        &mut self, failure: Failure, retry_after: Option<Duration>, may: impl Fn(&Then) -> bool,
    ) -> Option<&'a Then> {
        let rule = first_match(&self.queue.rules, &self.queue.default_rules, &failure, retry_after.is_some());
        let rule = rule.filter(|rule| may(&rule.then) && (rule.then != Then::Patient || self.may_be_patient()));
        self.attempt.rule = rule.map_or_else(String::new, |rule| rule.name.clone());
        self.record_failure(failure);
        rule.map(|rule| &rule.then)
    }

    fn dead_letter_by_rule(&mut self) {
        self.count();
        self.dead_letter(DeadReason::NonRetryable, "an error rule sends it to the dead letters".into());
    }

    fn deadline_is_before(&self, at: Timestamp) -> bool {
        self.progress.deadline(self.leased.expires_at).is_some_and(|deadline| deadline <= at)
    }

    fn interrupt(&mut self, delivery: &Delivery) {
        self.progress.interruptions += 1;
        if self.progress.interruptions > INTERRUPTIONS_MAX {
            self.attempt.status = AttemptStatus::LeaseExpired;
            let mut failure = lease_expired(delivery);
            failure.message = format!("interrupted more than {INTERRUPTIONS_MAX} times");
            return self.fail(failure, None);
        }
        self.attempt.status = AttemptStatus::Interrupted;
        self.attempt.explanation = "its stream broke before the work had begun".into();
        self.attempt.next = Next::OldPlace;
    }

    fn may_be_patient(&self) -> bool {
        self.queue.patient.is_some() && !self.leased.policy.is_some_and(PolicyOverride::sets_max_retries)
    }

    /// Job over rule over queue over server, field by field.
    fn policy(&self, rule: Option<&Then>) -> RetryPolicy {
        let mut policy = match (rule, &self.queue.patient) {
            (Some(Then::Patient), Some(patient)) => patient.clone(),
            _ => self.queue.policy.clone(),
        };
        for over in [rule.and_then(Then::policy), self.leased.policy].into_iter().flatten() {
            policy = policy.apply(over);
        }
        policy
    }

    fn record_failure(&mut self, failure: Failure) {
        self.progress.first_failed_at.get_or_insert(self.now);
        self.progress.last_failed_at = Some(self.now);
        self.progress.max_retries = None;
        self.attempt.failure = Some(failure.cut());
    }

    fn count(&mut self) {
        self.progress.tries = self.attempt.number;
        if self.leased.breaker.counts {
            // An outage that lasts longer than the grace does not begin anew with each failure that counts.
            self.progress.uncounted_since = None;
        }
        self.attempt.counted = true;
    }

    fn dead_letter(&mut self, reason: DeadReason, why: String) {
        self.attempt.explanation = why;
        self.attempt.retries_left = 0;
        self.attempt.delay = None;
        self.attempt.next = Next::DeadLetter(reason);
    }

    fn finish(mut self) -> RetryDecision {
        // Whatever was decided: it was cancelled, and this was its end.
        if self.progress.cancel_requested {
            self.attempt.explanation = "cancelled while it ran".into();
            self.attempt.retries_left = 0;
            self.attempt.delay = None;
            self.attempt.next = Next::Cancelled;
            self.attempt.status = AttemptStatus::Cancelled;
            self.signal = Signal::None;
        }
        self.progress.recorded += 1;
        let (next, signal) = (self.attempt.next, self.signal);
        RetryDecision { progress: self.progress, next, attempt: self.attempt, signal }
    }
}
