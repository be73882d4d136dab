//! Settlements that must not settle anything.

use crate::scene::Scene;
use crate::server::{Server, ack, claim, error, extend, inner, job, nack};
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
async fn a_failure_must_say_what_it_is() {
    let scene = Scene::set().await;
    let nameless = pb::NackRequest { error: None, ..nack(&scene.lease, "") };
    for kind in [pb::NackKind::Unspecified, pb::NackKind::Retry, pb::NackKind::Permanent] {
        for error in [None, Some(error(""))] {
            let request = pb::NackRequest { kind: kind.into(), error, ..nameless.clone() };
            scene.refuses_fields(scene.server.nack(request), &["error.type"]).await;
        }
    }
    let release = pb::NackRequest { kind: pb::NackKind::Release.into(), ..nameless };
    let released = scene.server.nack(release).await.unwrap();
    assert_eq!(released.outcome(), pb::NackOutcome::Released);
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
    let request = pb::NackRequest { checkpoint: large.clone(), ..nack(lease, "E") };
    scene.refuses_fields(scene.server.nack(request), &["checkpoint"]).await;
    let request = nack(lease, &"x".repeat(257));
    scene.refuses_fields(scene.server.nack(request), &["error.type"]).await;
    for http_status in [1, 99, 600, u32::MAX] {
        let failure = pb::Failure { http_status, ..error("E") };
        let request = pb::NackRequest { error: Some(failure), ..nack(lease, "") };
        scene.refuses_fields(scene.server.nack(request), &["error.http_status"]).await;
    }
    for (kind, field) in [
        (Kind::StringValue(large), "error.details"),
        (Kind::NumberValue(f64::NAN), "error.details.k"),
        (Kind::NumberValue(1e17), "error.details.k"),
    ] {
        let fields = [("k".to_owned(), Value { kind: Some(kind) })].into();
        let failure = pb::Failure { details: Some(Struct { fields }), ..error("E") };
        let request = pb::NackRequest { error: Some(failure), ..nack(lease, "") };
        scene.refuses_fields(scene.server.nack(request), &[field]).await;
    }
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
