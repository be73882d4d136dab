use super::*;
use crate::{domain::ids::QueueName, grpc::convert::Violation};
use tonic::{
    Code,
    codegen::http::{HeaderName, HeaderValue},
};

fn queue(name: &str) -> QueueName {
    QueueName::parse(name).unwrap()
}

/// One of each; the match keeps the list complete.
fn all_refusals() -> Vec<Refusal> {
    let all = vec![
        Refusal::Field { field: "delay".into(), message: "must not be negative".into() },
        Refusal::JobNotFound { id: "order-17".into(), searched: None },
        Refusal::QueueNotFound { queue: queue("emails") },
        Refusal::BreakerNotFound { name: "queue:nowhere".into() },
        Refusal::LeaseLost,
        Refusal::AmbiguousJobId { id: "7".into(), queues: vec![queue("a"), queue("b")] },
        Refusal::NotAdded(Refused::IdTaken),
        Refusal::NotAdded(Refused::KeyTaken),
        Refusal::NotAdded(Refused::IdAndKeyDiffer),
        Refusal::NotAdded(Refused::QueueFull { limit: 10 }),
        Refusal::NotAdded(Refused::TooManyQueues { limit: 10_000 }),
        Refusal::WrongState { id: "order-17".into(), state: State::Dead },
    ];
    for refusal in &all {
        match refusal {
            Refusal::Field { .. }
            | Refusal::JobNotFound { .. }
            | Refusal::QueueNotFound { .. }
            | Refusal::BreakerNotFound { .. }
            | Refusal::LeaseLost
            | Refusal::AmbiguousJobId { .. }
            | Refusal::WrongState { .. }
            | Refusal::NotAdded(
                Refused::IdTaken
                | Refused::KeyTaken
                | Refused::IdAndKeyDiffer
                | Refused::QueueFull { .. }
                | Refused::TooManyQueues { .. },
            ) => {}
        }
    }
    all
}

fn all_errors() -> Vec<Error> {
    let stores = [
        StoreError::Unavailable("closed".into()),
        StoreError::DiskLow("120 MiB left".into()),
        StoreError::Overloaded("64 MiB waiting".into()),
        StoreError::OutcomeUnknown("the commit failed".into()),
        StoreError::MemoryLow("maxmemory is 1 GiB".into()),
        StoreError::DurabilityNotConfirmed("0 of 1 replicas have it".into()),
    ];
    let refused = all_refusals().into_iter().map(Error::Refused);
    refused.chain(stores.map(Error::Store)).collect()
}

/// Run with `--nocapture` to get the README's error table.
#[test]
fn every_refusal_has_a_code_a_reason_and_a_way_out() {
    println!("| code | reason | retry after | message |\n|---|---|---|---|");
    for error in all_errors() {
        let status = status(error);
        let details = status.get_error_details();
        let info = details.error_info().expect("every error has a reason");
        assert_eq!(info.domain, "redrive");
        assert!(info.reason.chars().all(|c| c.is_ascii_uppercase() || c == '_'));
        let retry = details.retry_info().and_then(|info| info.retry_delay);
        assert_eq!(retry.is_some(), status.metadata().contains_key("grpc-retry-pushback-ms"));
        let retry = retry.map_or_else(|| "–".into(), crate::domain::duration::human);
        let (code, message) = (status.code(), status.message());
        println!("| {code:?} | {} | {retry} | {message} |", info.reason);
    }
}

#[test]
fn reasons_and_codes_are_those_of_the_contract() {
    let got: Vec<_> = all_errors()
        .into_iter()
        .map(|error| {
            let status = status(error);
            let reason = status.get_details_error_info().map(|info| info.reason);
            (status.code(), reason.unwrap_or_default())
        })
        .collect();
    let want = [
        (Code::InvalidArgument, "INVALID_FIELD"),
        (Code::NotFound, "JOB_NOT_FOUND"),
        (Code::NotFound, "QUEUE_NOT_FOUND"),
        (Code::NotFound, "BREAKER_NOT_FOUND"),
        (Code::FailedPrecondition, "LEASE_LOST"),
        (Code::FailedPrecondition, "AMBIGUOUS_JOB_ID"),
        (Code::AlreadyExists, "KEY_CONFLICT"),
        (Code::AlreadyExists, "KEY_CONFLICT"),
        (Code::AlreadyExists, "KEY_CONFLICT"),
        (Code::ResourceExhausted, "QUEUE_FULL"),
        (Code::ResourceExhausted, "TOO_MANY_QUEUES"),
        (Code::FailedPrecondition, "WRONG_STATE"),
        (Code::Unavailable, "STORE_UNAVAILABLE"),
        (Code::Unavailable, "DISK_LOW"),
        (Code::ResourceExhausted, "OVERLOADED"),
        (Code::Unavailable, "OUTCOME_UNKNOWN"),
        (Code::Unavailable, "DISK_LOW"),
        (Code::Unavailable, "DURABILITY_NOT_CONFIRMED"),
    ];
    assert_eq!(got, want.map(|(code, reason)| (code, reason.to_owned())));
}

#[test]
fn every_bad_field_is_a_violation() {
    let violation = |field: &str, size| Violation {
        place: None,
        field: field.into(),
        message: "is wrong".into(),
        body_too_large: size,
    };
    let two = Invalid(vec![violation("delay", None), violation("text", Some((9, 5)))]);
    let status = invalid(&two);
    let details = status.get_error_details();
    assert_eq!(details.error_info().map(|info| info.reason.as_str()), Some("INVALID_FIELD"));
    let fields = details
        .bad_request()
        .map(|bad| bad.field_violations.iter().map(|v| v.field.clone()).collect::<Vec<_>>());
    assert_eq!(fields, Some(vec!["delay".to_owned(), "text".to_owned()]));
    assert_eq!(status.message(), "delay: is wrong; text: is wrong");

    let item = invalid_item(&Invalid(vec![violation("text", Some((9, 5)))]));
    assert_eq!((item.reason.as_str(), item.field.as_str()), ("BODY_TOO_LARGE", "text"));
    assert_eq!((item.code, item.retryable), (Code::InvalidArgument.into(), false));
}

#[test]
fn an_item_says_whether_trying_again_helps() {
    let full = item(&Refusal::NotAdded(Refused::QueueFull { limit: 10 }));
    assert!(full.retryable && full.retry_after.is_some());
    let conflict = item(&Refusal::NotAdded(Refused::KeyTaken));
    assert!(!conflict.retryable && conflict.retry_after.is_none());
    assert_eq!(conflict.field, "idempotency_key");
}

#[test]
fn no_error_outgrows_the_headers_it_travels_in() {
    let violation = |at| Violation {
        place: None,
        field: format!("weights[{at}{}]", "é".repeat(1_000)),
        message: "is wrong".repeat(100),
        body_too_large: None,
    };
    let status = invalid(&Invalid((0..10_000).map(violation).collect()));
    assert!(status.message().starts_with("10000 fields are wrong; "));
    let sent = status.into_http::<()>();
    let bytes = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len();
    assert!(sent.headers().iter().map(bytes).sum::<usize>() < 8 << 10);
    let queues = (0..10_000).map(|n| queue(&format!("queue-{n}"))).collect();
    let error = Refusal::AmbiguousJobId { id: "7".into(), queues };
    let status = super::status(error.into());
    assert!(status.message().contains("queue-4, 9995 more"));
}
