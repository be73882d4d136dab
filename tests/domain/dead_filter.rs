use redrive::domain::{DeadFilter, DeadReason, Failure, Glob, Timestamp};

const NOON: Timestamp = Timestamp::from_millis(1_000);

fn failure() -> Failure {
    Failure { http_status: 503, ..Failure::new("TimeoutError", "No answer from MX1") }
}

fn fits(filter: &DeadFilter) -> bool {
    filter.fits_death(DeadReason::Exhausted, NOON) && filter.fits_job("send-mail", Some(&failure()))
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
