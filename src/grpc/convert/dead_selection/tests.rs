use super::*;
use crate::{
    domain::{job::DeadReason, limits::Limits, time::Timestamp},
    grpc::convert::testing::refusals,
};

fn read(given: pb::DeadLetterFilter) -> Result<DeadFilter, crate::grpc::convert::Invalid> {
    let limits = Limits::default();
    let mut check = Check::new(&limits);
    let filter = filter(&mut check, Some(given));
    check.done(filter)
}

fn time(seconds: i64, nanos: i32) -> Option<prost_types::Timestamp> {
    Some(prost_types::Timestamp { seconds, nanos })
}

#[test]
fn every_field_of_a_filter_is_read() {
    let given = pb::DeadLetterFilter {
        error_type: "Timeout*".into(),
        r#type: "send-*".into(),
        reason: pb::DeadReason::Expired.into(),
        message_contains: "reset".into(),
        died_after: time(1, 0),
        died_before: time(2, 0),
        fingerprint: "0123456789abcdef".into(),
        http_status: 503,
    };
    let expected = DeadFilter {
        error_type: Some(Glob::new("Timeout*")),
        job_type: Some(Glob::new("send-*")),
        reason: Some(DeadReason::Expired),
        message_contains: Some("reset".into()),
        died_after: Some(Timestamp::from_millis(1_000)),
        died_before: Some(Timestamp::from_millis(2_000)),
        fingerprint: Some("0123456789abcdef".into()),
        http_status: Some(503),
    };
    assert_eq!(read(given), Ok(expected));
    assert!(read(pb::DeadLetterFilter::default()).unwrap().is_empty());
}

#[test]
fn times_between_two_milliseconds_leave_nothing_out() {
    let given = pb::DeadLetterFilter {
        died_after: time(1, 1),
        died_before: time(1, 1),
        ..Default::default()
    };
    let filter = read(given).unwrap();
    assert_eq!(filter.died_after, Some(Timestamp::from_millis(1_000)));
    assert_eq!(filter.died_before, Some(Timestamp::from_millis(1_001)));
}

#[test]
fn bad_fields_of_a_filter_are_named() {
    let bad = pb::DeadLetterFilter {
        error_type: "x".repeat(257),
        r#type: "x".repeat(257),
        reason: 99,
        message_contains: "x".repeat(4_097),
        died_after: time(0, -1),
        died_before: time(i64::MAX, 0),
        fingerprint: "0123456789ABCDEF".into(),
        http_status: 0,
    };
    let refused = refusals(read(bad));
    let fields: Vec<_> = refused.iter().filter_map(|r| Some(r.split_once(": ")?.0)).collect();
    assert_eq!(
        fields,
        [
            "filter.error_type",
            "filter.type",
            "filter.reason",
            "filter.message_contains",
            "filter.fingerprint",
            "filter.died_after",
            "filter.died_before",
        ]
    );
}
