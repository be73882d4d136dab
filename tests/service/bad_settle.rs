//! Settlements that must not settle anything.

use crate::scene::Scene;
use crate::server::{Server, ack, claim, error, extend, inner, job, nack, time};
use prost_types::{Struct, Value, value::Kind};
use redrive::{domain::Lease, grpc::pb};
use tonic::Code;

#[tokio::test]
async fn what_is_no_lease_settles_nothing() {
    let scene = Scene::set().await;
    let changed = |at: usize| {
        let mut token = scene.lease.clone().into_bytes();
        token[at] = if token[at] == b'A' { b'B' } else { b'A' };
        String::from_utf8(token).unwrap()
    };
    let mut bad: Vec<_> =
        ["", "rubbish", "\0", "' OR 1=1 --", "ÄÖÜ", &"A".repeat(32), &"A".repeat(100_000)].map(str::to_owned).into();
    bad.extend((0..scene.lease.len()).map(changed));
    bad.push(format!("{}A", scene.lease));
    bad.push(format!("{} ", scene.lease));
    bad.push(scene.lease[1..].to_owned());
    for (at, lease) in bad.into_iter().enumerate() {
        scene.refuses_fields(scene.server.ack(&lease), &["lease"]).await;
        if at < 8 {
            scene.refuses_fields(scene.server.nack(nack(&lease, "E")), &["lease"]).await;
            scene.refuses_fields(scene.server.extend(extend(&lease)), &["lease"]).await;
        }
    }
    scene.still_works().await;
}

#[tokio::test]
async fn a_guessed_lease_opens_nothing() {
    let scene = Scene::set().await;
    let real = Lease::parse(&scene.lease).unwrap();
    for guess in [
        Lease { nonce: real.nonce ^ 1, ..real.clone() },
        Lease { delivery: real.delivery + 1, ..real.clone() },
        Lease { delivery: 0, ..real.clone() },
        Lease { delivery: u32::MAX, ..real.clone() },
    ] {
        let guess = guess.to_string();
        let lost = (Code::FailedPrecondition, "LEASE_LOST");
        scene.refuses(scene.server.ack(&guess), lost.0, lost.1, &[]).await;
        scene.refuses(scene.server.nack(nack(&guess, "E")), lost.0, lost.1, &[]).await;
        scene.refuses(scene.server.extend(extend(&guess)), lost.0, lost.1, &[]).await;
    }
    // A lease of a job that is not there: nothing to do for an Ack, lost for the others.
    for number in [0, 999, 1 << 47, (1 << 48) - 1] {
        let guess = Lease { number, ..real.clone() }.to_string();
        assert!(scene.server.ack(&guess).await.unwrap().already_gone);
        let call = scene.server.nack(nack(&guess, "E"));
        scene.refuses(call, Code::FailedPrecondition, "LEASE_LOST", &[]).await;
    }
    scene.still_works().await;
}

#[tokio::test]
async fn a_failure_without_a_type_is_unknown() {
    let server = Server::start().await;
    for kind in [pb::NackKind::Unspecified, pb::NackKind::Retry, pb::NackKind::Permanent] {
        for error in [None, Some(error(""))] {
            let id = server.enqueue(job("q")).await.unwrap().job_id;
            let lease = server.take("q").await.lease;
            let request = pb::NackRequest { kind: kind.into(), error, ..nack(&lease, "") };
            server.nack(request).await.unwrap();
            let kept = server.get_job(&id).await.unwrap().job.unwrap().last_failure.unwrap();
            assert_eq!((kept.r#type.as_str(), kept.truncated, kept.details_dropped), ("Unknown", false, false));
        }
    }
    server.enqueue(job("q")).await.unwrap();
    let lease = server.take("q").await.lease;
    let release = pb::NackRequest { kind: pb::NackKind::Release.into(), error: None, ..nack(&lease, "") };
    assert_eq!(server.nack(release).await.unwrap().outcome(), pb::NackOutcome::Released);
}

/// What is kept of this failure.
async fn kept(server: &Server, failure: pb::Failure) -> pb::Failure {
    let id = server.enqueue(job("q")).await.unwrap().job_id;
    let lease = server.take("q").await.lease;
    // Of a kind that the queue's breaker does not count.
    let kind = pb::NackKind::Permanent.into();
    let request = pb::NackRequest { error: Some(failure), kind, ..nack(&lease, "") };
    server.nack(request).await.unwrap();
    server.get_job(&id).await.unwrap().job.unwrap().last_failure.unwrap()
}

#[tokio::test]
async fn only_a_release_without_a_time_keeps_its_position() {
    let scene = Scene::set().await;
    let keep = pb::NackRequest { keep_position: true, ..nack(&scene.lease, "E") };
    for kind in [pb::NackKind::Unspecified, pb::NackKind::Retry, pb::NackKind::Permanent] {
        let request = pb::NackRequest { kind: kind.into(), ..keep.clone() };
        scene.refuses_fields(scene.server.nack(request), &["keep_position"]).await;
    }
    let release = pb::NackRequest { kind: pb::NackKind::Release.into(), ..keep };
    let later = pb::NackRequest { retry_after: time(1, 0), ..release.clone() };
    scene.refuses_fields(scene.server.nack(later), &["keep_position"]).await;
    scene.server.nack(release).await.unwrap();
    // Its old position is before those that came after it.
    let again = scene.server.take("q").await;
    assert_eq!((again.job_id.as_str(), again.attempt), ("running", 1));
}

#[tokio::test]
async fn nothing_in_an_error_refuses_a_nack() {
    let server = Server::start().await;
    // Cut between two characters: 256 is in the middle of one.
    let failure = kept(&server, error(&format!("x{}", "é".repeat(200)))).await;
    assert_eq!(failure.r#type, format!("x{}", "é".repeat(127)));
    assert!(failure.truncated && !failure.details_dropped);
    let failure = kept(&server, error(&"x".repeat(256))).await;
    assert!(failure.r#type.len() == 256 && !failure.truncated);
    let failure = kept(&server, pb::Failure { code: "ECONNREFUSED ".repeat(20), ..error("E") }).await;
    assert_eq!((failure.code.len(), failure.truncated), (256, true));
    // A category that this server does not know is none, and one is derived.
    for (code, derived) in [("", pb::FailureCategory::Unspecified), ("ECONNREFUSED", pb::FailureCategory::Unreachable)]
    {
        let failure = kept(&server, pb::Failure { category: 99, code: code.into(), ..error("E") }).await;
        assert_eq!((failure.category(), failure.category_derived), (derived, !code.is_empty()));
    }
    for http_status in [1, 99, 600, u32::MAX] {
        let failure = kept(&server, pb::Failure { http_status, ..error("E") }).await;
        assert_eq!(failure.http_status, 0);
    }
    for (kind, dropped) in [
        (Kind::StringValue("x".repeat((16 << 10) + 1)), true),
        (Kind::NumberValue(f64::NAN), true),
        (Kind::NumberValue(1e17), true),
        (Kind::StringValue("x".repeat((16 << 10) - 8)), false),
    ] {
        let fields = [("k".to_owned(), Value { kind: Some(kind) })].into();
        let failure = kept(&server, pb::Failure { details: Some(Struct { fields }), ..error("E") }).await;
        assert_eq!((failure.details.is_none(), failure.details_dropped), (dropped, dropped));
        assert_eq!((failure.r#type.as_str(), failure.truncated), ("E", false));
    }
    // What the worker says of the flags is not kept.
    let failure = kept(&server, pb::Failure { truncated: true, details_dropped: true, ..error("E") }).await;
    assert!(!failure.truncated && !failure.details_dropped);
}

#[tokio::test]
async fn an_unknown_kind_is_refused() {
    let scene = Scene::set().await;
    for kind in [4, 99, -1, i32::MAX] {
        let request = pb::NackRequest { kind, ..nack(&scene.lease, "E") };
        scene.refuses_fields(scene.server.nack(request), &["kind"]).await;
    }
}

#[tokio::test]
async fn what_a_settlement_carries_is_bounded() {
    let scene = Scene::set().await;
    let lease = scene.lease.as_str();
    let note = pb::AckRequest { note: "x".repeat(1_025), ..ack(lease) };
    let call = async { inner(scene.server.queue().ack(note).await) };
    scene.refuses_fields(call, &["note"]).await;
    let result = pb::AckRequest { result: vec![0; (64 << 10) + 1].into(), ..ack(lease) };
    let call = async { inner(scene.server.queue().ack(result).await) };
    scene.refuses_fields(call, &["result"]).await;

    let large = "x".repeat((16 << 10) + 1);
    let request = pb::ExtendRequest { checkpoint: large.clone(), ..extend(lease) };
    scene.refuses_fields(scene.server.extend(request), &["checkpoint"]).await;
    let request = pb::NackRequest { checkpoint: large, ..nack(lease, "E") };
    scene.refuses_fields(scene.server.nack(request), &["checkpoint"]).await;
    // Just at the limits.
    let note = pb::AckRequest { note: "x".repeat(1_024), result: vec![0; 64 << 10].into(), ..ack(lease) };
    inner(scene.server.queue().ack(note).await).unwrap();
}

#[tokio::test]
async fn a_settle_has_at_most_a_thousand_items_and_four_mebibytes() {
    let scene = Scene::set().await;
    let field = "acks, nacks and extensions";
    let many = pb::SettleRequest {
        acks: vec![ack(&scene.lease); 400],
        nacks: vec![nack(&scene.lease, "E"); 400],
        extensions: vec![extend(&scene.lease); 201],
    };
    scene.refuses_fields(scene.server.settle(many.clone()), &[field]).await;
    let within = pb::ClaimRequest { settle: Some(many), ..claim("q") };
    scene.refuses_fields(scene.server.claim(within), &["settle"]).await;
    let result = vec![0; 64 << 10].into();
    let large = pb::AckRequest { result, ..ack(&scene.lease) };
    let large = pb::SettleRequest { acks: vec![large; 65], ..Default::default() };
    scene.refuses_fields(scene.server.settle(large), &[field]).await;
}

#[tokio::test]
async fn long_error_texts_are_cut_and_flagged() {
    let server = Server::start().await;
    server.enqueue(job("q")).await.unwrap();
    // Cuts fall between characters, whatever their bytes.
    let failure = pb::Failure {
        message: "é".repeat(4_097),
        stack_trace: "→".repeat(5_000),
        response_body: "😀".repeat(2_049),
        ..error("E")
    };
    let lease = server.take("q").await.lease;
    let request = pb::NackRequest { error: Some(failure), kind: pb::NackKind::Permanent.into(), ..nack(&lease, "") };
    server.nack(request).await.unwrap();
    let list = pb::ListDeadLettersRequest { queue: "q".into(), ..Default::default() };
    let kept = server.list_dead(list).await.unwrap().dead_letters.remove(0).failure.unwrap();
    assert!(kept.truncated);
    assert_eq!(kept.message, "é".repeat(4_096));
    assert_eq!(kept.stack_trace, "→".repeat(4_096));
    assert_eq!(kept.response_body, "😀".repeat(2_048));
}
