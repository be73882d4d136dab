//! Which dead letters are meant: by what they died of, when, and what they were.

use super::{failure::Failure, glob::Glob, job::DeadReason, rules::contains_ignoring_ascii_case, time::Timestamp};

/// Everything given must be true of a dead letter; what is said about a failure is never true where there was none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadFilter {
    /// Of the last failure.
    pub error_type: Option<Glob>,
    pub job_type: Option<Glob>,
    pub reason: Option<DeadReason>,
    /// A part of the last failure's message, whatever its ASCII case.
    pub message_contains: Option<String>,
    pub died_after: Option<Timestamp>,
    pub died_before: Option<Timestamp>,
    pub fingerprint: Option<String>,
    /// Of the last failure.
    pub http_status: Option<u32>,
}

impl DeadFilter {
    /// Names nothing, so it would match all.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// What the death alone says: false, and the job need not be looked at.
    pub fn fits_death(&self, reason: DeadReason, died_at: Timestamp) -> bool {
        self.reason.is_none_or(|wanted| wanted == reason)
            && self.died_after.is_none_or(|after| died_at > after)
            && self.died_before.is_none_or(|before| died_at < before)
    }

    /// The rest.
    pub fn fits_job(&self, job_type: &str, last_failure: Option<&Failure>) -> bool {
        self.job_type.as_ref().is_none_or(|glob| glob.matches(job_type))
            && match last_failure {
                Some(failure) => self.fits_failure(job_type, failure),
                None => !self.asks_about_failure(),
            }
    }

    /// The type of the job decides.
    pub fn asks_about_type(&self) -> bool {
        self.job_type.is_some() || self.fingerprint.is_some()
    }

    /// The last failure decides.
    pub fn asks_about_failure(&self) -> bool {
        self.error_type.is_some()
            || self.message_contains.is_some()
            || self.fingerprint.is_some()
            || self.http_status.is_some()
    }

    fn fits_failure(&self, job_type: &str, failure: &Failure) -> bool {
        self.error_type.as_ref().is_none_or(|glob| glob.matches(&failure.error_type))
            && self.http_status.is_none_or(|status| status == failure.http_status)
            && self.message_contains.as_ref().is_none_or(|part| contains_ignoring_ascii_case(&failure.message, part))
            && self.fingerprint.as_ref().is_none_or(|print| *print == failure.fingerprint(job_type))
    }
}
