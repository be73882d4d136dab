//! Which dead letters are meant: by what they died of, when, and what they were.

use super::{
    failure::Failure, glob::Glob, job::DeadReason, rules::contains_ignoring_ascii_case,
    time::Timestamp,
};

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
            && self
                .message_contains
                .as_ref()
                .is_none_or(|part| contains_ignoring_ascii_case(&failure.message, part))
            && self.fingerprint.as_ref().is_none_or(|print| *print == failure.fingerprint(job_type))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: Timestamp = Timestamp::from_millis(1_000);

    fn failure() -> Failure {
        Failure { http_status: 503, ..Failure::new("TimeoutError", "No answer from MX1") }
    }

    fn fits(filter: &DeadFilter) -> bool {
        filter.fits_death(DeadReason::Exhausted, NOON)
            && filter.fits_job("send-mail", Some(&failure()))
    }

    fn cases() -> Vec<(DeadFilter, bool)> {
        let any = DeadFilter::default;
        let glob = |pattern: &str| Some(Glob::new(pattern));
        let at = |millis| Some(Timestamp::from_millis(millis));
        let print = Some(failure().fingerprint("send-mail"));
        let other_print = Some(failure().fingerprint("other"));
        let part = |part: &str| Some(part.to_owned());
        vec![
            (any(), true),
            (DeadFilter { error_type: glob("Timeout*"), ..any() }, true),
            (DeadFilter { error_type: glob("Timeout"), ..any() }, false),
            (DeadFilter { job_type: glob("send-????"), ..any() }, true),
            (DeadFilter { job_type: glob("send"), ..any() }, false),
            (DeadFilter { reason: Some(DeadReason::Exhausted), ..any() }, true),
            (DeadFilter { reason: Some(DeadReason::Expired), ..any() }, false),
            (DeadFilter { message_contains: part("no ANSWER"), ..any() }, true),
            (DeadFilter { message_contains: part("mx2"), ..any() }, false),
            (DeadFilter { died_after: at(999), ..any() }, true),
            (DeadFilter { died_after: at(1_000), ..any() }, false),
            (DeadFilter { died_before: at(1_001), ..any() }, true),
            (DeadFilter { died_before: at(1_000), ..any() }, false),
            (DeadFilter { fingerprint: print, ..any() }, true),
            (DeadFilter { fingerprint: other_print, ..any() }, false),
            (DeadFilter { http_status: Some(503), ..any() }, true),
            (DeadFilter { http_status: Some(500), ..any() }, false),
        ]
    }

    #[test]
    fn each_field_decides_by_itself() {
        for (filter, expected) in cases() {
            assert_eq!(fits(&filter), expected, "{filter:?}");
            assert_eq!(filter.is_empty(), filter == DeadFilter::default());
        }
    }

    #[test]
    fn every_field_given_must_fit() {
        let error_type = Some(Glob::new("Timeout*"));
        let both = |http_status| DeadFilter {
            error_type: error_type.clone(),
            http_status: Some(http_status),
            ..DeadFilter::default()
        };
        assert!(fits(&both(503)) && !fits(&both(500)));
    }

    #[test]
    fn a_job_that_never_failed_fits_no_failure() {
        for (filter, fits) in cases() {
            let without = filter.fits_job("send-mail", None);
            assert!(!(without && filter.asks_about_failure()), "{filter:?}");
            let of_the_death = DeadFilter { job_type: None, ..filter.clone() };
            if !filter.asks_about_failure() {
                assert!(of_the_death.fits_job("send-mail", None), "{filter:?} {fits}");
            }
        }
        let anything = DeadFilter { error_type: Some(Glob::new("*")), ..DeadFilter::default() };
        assert!(!anything.fits_job("send-mail", None));
    }
}
