//! Every error with its code and reason, the table of them in docs/errors-and-limits.md, and what all of them have in common.

use crate::server::{Server, claim};
use prost::Message;
use redrive::domain::{QueueName, State};
use redrive::grpc::{Reason, pb};
use redrive::queue::{Error, Refusal};
use redrive::store::StoreError;
use std::{fs, path::Path};
use tonic::Status;
use tonic::codegen::http::{HeaderName, HeaderValue};
use tonic_types::StatusExt;

const PAGE: &str = "docs/errors-and-limits.md";
const BEGIN: &str = "<!-- errors -->";
const END: &str = "<!-- /errors -->";

/// `INVALID_ARGUMENT`, as gRPC's own documents write it.
fn code_name(reason: Reason) -> String {
    let mut name = String::new();
    for letter in format!("{:?}", reason.code()).chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

fn table() -> String {
    let mut table = "| reason | gRPC code | when, and what to do |\n|---|---|---|\n".to_owned();
    for reason in Reason::ALL {
        let (name, meaning) = (reason.as_str(), reason.meaning());
        table += &format!("| `{name}` | `{}` | {meaning} |\n", code_name(reason));
    }
    table
}

#[test]
fn the_page_on_errors_lists_every_reason_with_its_code() {
    let expected = format!("{BEGIN}\n{}{END}", table());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let page = fs::read_to_string(path).unwrap();
    let found = page
        .split_once(BEGIN)
        .and_then(|(_, rest)| rest.split_once(END))
        .map(|(table, _)| format!("{BEGIN}{table}{END}"));
    assert!(found.as_deref() == Some(expected.as_str()), "{PAGE} must have:\n\n{expected}\n");
}

#[test]
fn what_a_full_redis_refuses_is_not_called_a_new_job() {
    // A worker that settles may be refused as well as a producer.
    let status = Status::from(Error::Store(StoreError::MemoryLow("OOM".into())));
    let says = "Redis has used all the memory that it may, and refused this call; ";
    assert!(status.message().starts_with(says), "{}", status.message());
    assert!(!status.message().contains("new job"), "{}", status.message());
}

#[test]
fn no_reason_is_listed_twice() {
    let mut names = Reason::ALL.map(Reason::as_str);
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
}

#[test]
fn every_error_has_its_reason_and_says_whether_trying_again_helps() {
    let queue = |name| QueueName::parse(name).unwrap();
    let not_added = |refused| Error::Refused(refused);
    let stored = |error: fn(String) -> StoreError| Error::Store(error("why".into()));
    let errors = [
        (Refusal::Field { field: "delay".into(), message: "is wrong".into() }.into(), Reason::InvalidField, false),
        (Refusal::JobNotFound { id: "7".into(), searched: None }.into(), Reason::JobNotFound, false),
        (Refusal::KeyNotFound { key: "k".into(), queue: queue("a"), kept: None }.into(), Reason::JobNotFound, false),
        (Refusal::QueueNotFound { queue: queue("emails") }.into(), Reason::QueueNotFound, false),
        (Refusal::BreakerNotFound { name: "queue:nowhere".into() }.into(), Reason::BreakerNotFound, false),
        (Refusal::LeaseLost.into(), Reason::LeaseLost, false),
        (Refusal::AmbiguousJobId { id: "7".into(), queues: vec![queue("a")] }.into(), Reason::AmbiguousJobId, false),
        (Refusal::WrongState { id: "7".into(), state: State::Dead }.into(), Reason::WrongState, false),
        (not_added(Refusal::IdTaken), Reason::KeyConflict, false),
        (not_added(Refusal::KeyTaken), Reason::KeyConflict, false),
        (not_added(Refusal::IdAndKeyDiffer), Reason::KeyConflict, false),
        (not_added(Refusal::QueueFull { limit: 10 }), Reason::QueueFull, true),
        (not_added(Refusal::TooManyQueues { limit: 10 }), Reason::TooManyQueues, false),
        (not_added(Refusal::RequestIdTaken), Reason::InvalidField, false),
        (stored(StoreError::Unavailable), Reason::StoreUnavailable, true),
        (stored(StoreError::NewerFormat), Reason::StoreUnavailable, true),
        (stored(StoreError::DiskLow), Reason::DiskLow, true),
        (stored(StoreError::DiskFull), Reason::DiskLow, true),
        (stored(StoreError::MemoryLow), Reason::DiskLow, true),
        (stored(StoreError::Overloaded), Reason::Overloaded, true),
        (stored(StoreError::OutcomeUnknown), Reason::OutcomeUnknown, true),
        (stored(StoreError::DurabilityNotConfirmed), Reason::DurabilityNotConfirmed, true),
    ];
    // A body that is too large is found before the store is asked.
    for reason in Reason::ALL.iter().filter(|reason| **reason != Reason::BodyTooLarge) {
        assert!(errors.iter().any(|(_, of, _)| of == reason), "{reason:?}");
    }
    for (error, reason, helps) in errors {
        let status = Status::from(error);
        let details = status.get_error_details();
        let info = details.error_info().expect("every error has a reason");
        // The same for callers that read plain trailers, and for those with one decoder for calls and items of batches.
        assert_eq!(status.metadata().get("redrive-reason").unwrap(), &info.reason);
        let whole = tonic_types::pb::Status::decode(status.details()).unwrap();
        let item = whole.details.iter().find(|detail| detail.type_url.ends_with("/redrive.v1.ItemError")).unwrap();
        let item = pb::ItemError::decode(&item.value[..]).unwrap();
        assert_eq!(
            (&item.reason, item.code, item.message.as_str()),
            (&info.reason, status.code().into(), status.message())
        );
        assert_eq!((info.reason.as_str(), info.domain.as_str()), (reason.as_str(), "redrive"));
        assert!(info.reason.chars().all(|c| c.is_ascii_uppercase() || c == '_'));
        assert_eq!(status.code(), reason.code());
        assert_eq!(details.retry_info().is_some_and(|info| info.retry_delay.is_some()), helps, "{reason:?}");
        assert_eq!(status.metadata().contains_key("grpc-retry-pushback-ms"), helps, "{reason:?}");
    }
}

#[tokio::test]
async fn no_error_outgrows_the_headers_it_travels_in() {
    let server = Server::start().await;
    let weights = (0..10_000).map(|n| (format!("{n}{}", "é".repeat(150)), 1)).collect();
    let status = server.claim(pb::ClaimRequest { weights, ..claim("q") }).await.unwrap_err();
    assert!(status.message().starts_with("10000 fields are wrong; "), "{status:?}");
    let details = status.get_error_details();
    assert!(details.bad_request().is_some_and(|bad| bad.field_violations.len() > 1), "{details:?}");
    let sent = status.into_http::<()>();
    let bytes = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len();
    assert!(sent.headers().iter().map(bytes).sum::<usize>() < 8 << 10);
    let queues = (0..10_000).map(|n| QueueName::parse(&format!("queue-{n}")).unwrap()).collect();
    let error = Error::from(Refusal::AmbiguousJobId { id: "7".into(), queues });
    assert!(Status::from(error).message().contains("queue-4, 9995 more"));
}
