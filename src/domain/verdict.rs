//! The heart of redrive: what happens to a job whose delivery did not end with an Ack.
//!
//! Pure: the facts, the settings, the time and the chance go in; the whole consequence comes out, and the store applies it
//! under the lease's fence.

use super::{
    breaker::{BreakerState, Signal, in_words},
    failure::Failure,
    job::{Attempt, AttemptStatus, DeadReason, Delivery, Next, Progress},
    policy::{PolicyOverride, RetryPolicy},
    rules::{ErrorFacts, Then, first_match},
    settings::QueueSettings,
    time::{Timestamp, millis_ceil},
};
use std::time::Duration;

/// A job that is released more often than this has a failure instead.
pub const RELEASES_MAX: u32 = 100;
/// A job that is interrupted more often than this has a failure instead: it may be what kills its workers.
pub const INTERRUPTIONS_MAX: u32 = 3;
/// Failures of a job that an outage keeps from counting, at most: from then on they count again.
pub const UNCOUNTED_MAX: u32 = 60;
/// An upstream's Retry-After is stretched by up to this share, so that all who were told the same do not come at once.
const RETRY_AFTER_SPREAD: f64 = 0.1;

/// The job that was out, as the store knows it.
#[derive(Clone, Copy, Debug)]
pub struct Leased<'a> {
    pub delivery: &'a Delivery,
    pub progress: &'a Progress,
    pub policy: Option<&'a PolicyOverride>,
    pub expires_at: Option<Timestamp>,
    pub breaker: Standing,
}

/// How the queue's breaker stands as the delivery ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    pub state: BreakerState,
    /// A hold by this delivery would move it.
    pub heeds_hold: bool,
}

/// How its delivery ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// The worker reports a failure.
    Failed { failure: Failure, permanent: bool, retry_after: Option<Duration> },
    /// The worker hands it back.
    Released { retry_after: Option<Duration> },
    /// Nobody settled it in time.
    Expired,
    /// Its stream broke before the work had begun.
    Interrupted,
}

impl Ending {
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
pub struct Chance {
    pub jitter: f64,
    pub spread: f64,
}

/// The whole consequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    pub progress: Progress,
    pub next: Next,
    pub attempt: Attempt,
    /// For the queue's breaker.
    pub signal: Signal,
}

/// Judges one ended delivery.
pub fn judge(
    leased: Leased<'_>,
    ending: Ending,
    queue: &QueueSettings,
    now: Timestamp,
    chance: Chance,
) -> Verdict {
    let mut case = Case::open(leased, queue, now, chance);
    case.attempt.nacked = matches!(ending, Ending::Failed { .. } | Ending::Released { .. });
    match ending {
        Ending::Failed { failure, permanent, retry_after } => {
            case.attempt.status = AttemptStatus::Failed;
            if permanent {
                case.explain("the worker says that it will never succeed".into());
                case.record_failure(failure);
                case.count();
                case.bury(DeadReason::NonRetryable);
            } else {
                case.fail(failure, retry_after);
            }
        }
        Ending::Released { retry_after } => case.release(retry_after),
        Ending::Expired => {
            case.attempt.status = AttemptStatus::LeaseExpired;
            case.signal = Signal::Expired;
            case.fail(lease_expired(leased.delivery), None);
        }
        Ending::Interrupted => case.interrupt(leased.delivery),
    }
    case.close()
}

fn lease_expired(delivery: &Delivery) -> Failure {
    let worker = match delivery.worker_id.as_str() {
        "" => "a worker without a name",
        name => name,
    };
    let lease = super::duration::human(delivery.duration);
    let message = format!("{worker} neither settled nor extended its lease of {lease} in time");
    Failure::new("LeaseExpired", message)
}

/// A verdict in the making.
struct Case<'a> {
    leased: Leased<'a>,
    queue: &'a QueueSettings,
    now: Timestamp,
    chance: Chance,
    progress: Progress,
    attempt: Attempt,
    signal: Signal,
}

impl<'a> Case<'a> {
    fn open(leased: Leased<'a>, queue: &'a QueueSettings, now: Timestamp, chance: Chance) -> Self {
        let delivery = leased.delivery;
        let attempt = Attempt {
            number: delivery.attempt,
            delivery: delivery.lease.delivery,
            nonce: delivery.lease.nonce,
            status: AttemptStatus::Failed,
            worker_id: delivery.worker_id.clone(),
            started_at: delivery.started_at,
            ended_at: now,
            note: String::new(),
            failure: None,
            next: Next::OldPlace,
            delay: None,
            retries_left: 0,
            counted: false,
            probe: delivery.probe,
            nacked: false,
            breaker: leased.breaker.state,
            rule: String::new(),
            explanation: String::new(),
        };
        let progress = leased.progress.clone();
        Self { leased, queue, now, chance, progress, attempt, signal: Signal::None }
    }

    /// A transient failure: the first rule that fits decides, otherwise the policy.
    fn fail(&mut self, failure: Failure, retry_after: Option<Duration>) {
        let rule = self.rule_for(&failure);
        if let Some((rule, Then::DeadLetter)) = rule {
            return self.dead_letter(rule, failure);
        }
        let error = in_words(&failure);
        self.record_failure(failure);
        if let Some((rule, _)) = rule {
            self.attempt.rule = rule.to_owned();
        }
        match rule.map(|(_, then)| then) {
            Some(Then::Release) => self.release(retry_after),
            Some(Then::Hold) => self.hold(error, retry_after),
            Some(Then::Policy(over)) => {
                self.blame(error);
                self.retry(Some(over), retry_after);
            }
            Some(Then::DeadLetter) | None => {
                self.blame(error);
                self.retry(None, retry_after);
            }
        }
    }

    /// A worker reports that what it calls fails; a lease that ran out says nothing about that.
    fn blame(&mut self, error: String) {
        if self.attempt.nacked {
            self.signal = Signal::Failure { error };
        }
    }

    /// The queue is held back, and this job waits with it. Where the breaker does not heed it, the job waits alone.
    fn hold(&mut self, error: String, retry_after: Option<Duration>) {
        let hold = retry_after.unwrap_or(self.queue.breaker.recovery_timeout);
        let hold = hold.min(self.queue.max_retry_after);
        self.signal = Signal::Hold { error, hold };
        if self.leased.breaker.heeds_hold {
            self.release(None);
        } else {
            self.release(Some(hold));
        }
    }

    /// Retries by the policy that fits this error, as long as it has retries left and the deadline allows.
    fn retry(&mut self, rule: Option<&PolicyOverride>, retry_after: Option<Duration>) {
        let counts = !self.is_outage();
        if counts {
            self.count();
        } else {
            self.progress.uncounted += 1;
        }
        let policy = self.policy(rule);
        let number = self.attempt.number;
        if counts && number > policy.max_retries {
            let retries = policy.max_retries;
            self.explain(format!("attempt {number} failed and the policy has {retries} retries"));
            return self.bury(DeadReason::Exhausted);
        }
        let backoff = policy.backoff(number, self.progress.last_delay, self.chance.jitter);
        let mut delay = backoff.delay;
        let mut explanation = backoff.explanation;
        if let Some(asked) = retry_after {
            let most = self.queue.max_retry_after;
            let stretch = 1.0 + RETRY_AFTER_SPREAD * self.chance.spread;
            let asked_for = asked.min(most).mul_f64(stretch);
            if asked_for > delay {
                delay = asked_for;
                let cut = if asked > most { ", cut to max_retry_after" } else { "" };
                let asked = super::duration::human(asked);
                let delay = super::duration::human(delay);
                explanation = format!("{explanation}; retry_after {asked}{cut} → {delay}");
            }
        }
        // What is kept of it, so that the answer can be given again.
        let delay = Duration::from_millis(millis_ceil(delay));
        let at = self.now.after(delay);
        let deadline = self.progress.deadline(self.leased.expires_at);
        if deadline.is_some_and(|deadline| deadline <= self.now) {
            self.explain("its deadline has passed".into());
            return self.bury(DeadReason::Expired);
        }
        if deadline.is_some_and(|deadline| deadline <= at) {
            self.explain(format!("{explanation}; that would be after its deadline"));
            return self.bury(DeadReason::WouldMissDeadline);
        }
        if !counts {
            explanation += "; not counted while the queue's breaker is not closed";
        }
        self.explain(explanation);
        self.progress.last_delay = Some(backoff.computed);
        self.progress.retries += 1;
        self.attempt.delay = Some(delay);
        self.attempt.retries_left = (policy.max_retries + 1).saturating_sub(number);
        self.attempt.next = Next::Later { at };
    }

    /// A failure that was to be expected: what the worker calls is known to be broken.
    fn is_outage(&self) -> bool {
        self.attempt.nacked
            && self.leased.breaker.state != BreakerState::Closed
            && self.progress.uncounted < UNCOUNTED_MAX
    }

    /// Not a failure: back to the queue, attempt not counted.
    fn release(&mut self, retry_after: Option<Duration>) {
        self.progress.releases += 1;
        if self.progress.releases > RELEASES_MAX {
            return self.release_limit(retry_after);
        }
        self.attempt.status = AttemptStatus::Released;
        let policy = self.policy(None);
        self.attempt.retries_left = (policy.max_retries + 1).saturating_sub(self.attempt.number);
        let deadline = self.progress.deadline(self.leased.expires_at);
        if deadline.is_some_and(|deadline| deadline <= self.now) {
            self.explain("released after its deadline".into());
            return self.bury(DeadReason::Expired);
        }
        match retry_after.map(|asked| asked.min(self.queue.max_retry_after)) {
            Some(delay) if !delay.is_zero() => {
                let delay = Duration::from_millis(millis_ceil(delay));
                self.attempt.delay = Some(delay);
                self.explain(format!("released for {}", super::duration::human(delay)));
                self.attempt.next = Next::Later { at: self.now.after(delay) };
            }
            _ => {
                self.explain("released behind its priority level".into());
                self.attempt.next = Next::Behind { at: self.now };
            }
        }
    }

    /// Released too often: a failure by the same rules, but none of them can release it again.
    fn release_limit(&mut self, retry_after: Option<Duration>) {
        let mut message = format!("released more than {RELEASES_MAX} times");
        if let Some(cause) = &self.attempt.failure {
            message =
                format!("{message}, the last time for {}: {}", cause.error_type, cause.message);
        }
        self.attempt.status = AttemptStatus::Failed;
        self.attempt.rule.clear();
        let failure = Failure::new("ReleaseLimit", message);
        match self.rule_for(&failure) {
            Some((rule, Then::DeadLetter)) => self.dead_letter(rule, failure),
            Some((rule, Then::Policy(over))) => {
                self.attempt.rule = rule.to_owned();
                self.record_failure(failure);
                self.retry(Some(over), retry_after);
            }
            Some((_, Then::Release | Then::Hold)) | None => {
                self.record_failure(failure);
                self.retry(None, retry_after);
            }
        }
    }

    /// The first rule that fits, by name and consequence.
    fn rule_for(&self, failure: &Failure) -> Option<(&'a str, &'a Then)> {
        let facts = ErrorFacts {
            error_type: &failure.error_type,
            message: &failure.message,
            http_status: failure.http_status,
        };
        let rule = first_match(&self.queue.rules, &self.queue.default_rules, &facts)?;
        Some((&rule.name, &rule.then))
    }

    fn dead_letter(&mut self, rule: &str, failure: Failure) {
        self.attempt.rule = rule.to_owned();
        self.record_failure(failure);
        self.count();
        self.explain("an error rule sends it to the dead letters".into());
        self.bury(DeadReason::NonRetryable);
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
        self.explain("its stream broke before the work had begun".into());
        self.attempt.next = Next::OldPlace;
    }

    /// Job over rule over queue over server, field by field.
    fn policy(&self, rule: Option<&PolicyOverride>) -> RetryPolicy {
        let mut policy = self.queue.policy.clone();
        for over in [rule, self.leased.policy].into_iter().flatten() {
            policy = policy.apply(over);
        }
        policy
    }

    fn record_failure(&mut self, failure: Failure) {
        self.progress.first_failed_at.get_or_insert(self.now);
        self.progress.last_failed_at = Some(self.now);
        self.attempt.failure = Some(failure.cut());
    }

    fn count(&mut self) {
        self.progress.tries = self.attempt.number;
        self.attempt.counted = true;
    }

    fn explain(&mut self, explanation: String) {
        self.attempt.explanation = explanation;
    }

    fn bury(&mut self, reason: DeadReason) {
        self.attempt.retries_left = 0;
        self.attempt.delay = None;
        self.attempt.next = Next::Bury(reason);
    }

    fn close(mut self) -> Verdict {
        // Whatever was decided: somebody cancelled it, and this was its end.
        if self.progress.cancel_requested {
            self.bury(DeadReason::Cancelled);
            self.attempt.status = AttemptStatus::Cancelled;
            self.explain("cancelled while it ran".into());
            self.signal = Signal::None;
        }
        self.progress.recorded += 1;
        let (next, signal) = (self.attempt.next, self.signal);
        Verdict { progress: self.progress, next, attempt: self.attempt, signal }
    }
}

#[cfg(test)]
mod tests;
