//! Settle: many settlements in one call, each for itself; alone or on the way to a claim.

use crate::server::{Server, ack, claim, extend, job_of, nack};
use pb::{ack_result, extend_result, nack_result};
use redrive::grpc::pb;

/// Leases of so many fresh jobs, `j0`, `j1` ...
async fn leases(server: &Server, count: u32) -> Vec<String> {
    for n in 0..count {
        server.enqueue(job_of("q", &format!("j{n}"))).await.unwrap();
    }
    let request = pb::ClaimRequest { max_jobs: count, ..claim("q") };
    let jobs = server.claim(request).await.unwrap().jobs;
    assert_eq!(jobs.len(), count as usize);
    jobs.into_iter().map(|job| job.lease).collect()
}

/// "ok", or the reason and the field of each refusal.
fn told(reply: &pb::SettleResponse) -> [Vec<String>; 3] {
    let error = |error: &pb::ItemError| match error.field.as_str() {
        "" => error.reason.clone(),
        field => format!("{} {field}", error.reason),
    };
    let acks = reply.acks.iter().map(|result| match result.outcome.as_ref().unwrap() {
        ack_result::Outcome::Ok(ok) if ok.already_gone => "gone".into(),
        ack_result::Outcome::Ok(_) => "ok".into(),
        ack_result::Outcome::Error(e) => error(e),
    });
    let nacks = reply.nacks.iter().map(|result| match result.outcome.as_ref().unwrap() {
        nack_result::Outcome::Ok(ok) => format!("ok {}", ok.attempt),
        nack_result::Outcome::Error(e) => error(e),
    });
    let extensions = reply.extensions.iter().map(|result| match result.outcome.as_ref().unwrap() {
        extend_result::Outcome::Ok(_) => "ok".into(),
        extend_result::Outcome::Error(e) => error(e),
    });
    [acks.collect(), nacks.collect(), extensions.collect()]
}

#[tokio::test]
async fn each_item_is_answered_for_itself_and_in_order() {
    let server = Server::start().await;
    let leases = leases(&server, 6).await;
    let gone = leases[5].clone();
    server.ack(&gone).await.unwrap();
    let settle = pb::SettleRequest {
        acks: vec![ack("rubbish"), ack(&leases[0]), ack(&gone), ack(&leases[1])],
        nacks: vec![
            nack(&leases[2], "E"),
            pb::NackRequest { checkpoint: "x".repeat(20_000), ..nack(&leases[3], "E") },
            nack(&gone, "E"),
        ],
        extensions: vec![
            extend(&gone),
            extend(&leases[4]),
            pb::ExtendRequest { checkpoint: "x".repeat(20_000), ..extend(&leases[3]) },
        ],
    };
    let reply = server.settle(settle).await.unwrap();
    let Some(ack_result::Outcome::Error(first)) = &reply.acks[0].outcome else { panic!("{reply:?}") };
    let Some(nack_result::Outcome::Error(second)) = &reply.nacks[1].outcome else { panic!("{reply:?}") };
    let Some(extend_result::Outcome::Error(third)) = &reply.extensions[2].outcome else { panic!("{reply:?}") };
    for (error, start) in
        [(first, "acks[0].lease: "), (second, "nacks[1].checkpoint: "), (third, "extensions[2].checkpoint: ")]
    {
        assert!(error.message.starts_with(start), "{}", error.message);
    }
    assert_eq!(
        told(&reply),
        [
            vec!["INVALID_FIELD lease", "ok", "gone", "ok"],
            vec!["ok 1", "INVALID_FIELD checkpoint", "LEASE_LOST"],
            vec!["LEASE_LOST", "ok", "INVALID_FIELD checkpoint"],
        ]
    );
    let queue = &server.list_queues().await[0];
    assert_eq!((queue.ready, queue.retrying, queue.scheduled, queue.leased), (0, 1, 0, 2));
}

#[tokio::test]
async fn a_lease_named_twice_is_settled_once_acks_first() {
    let server = Server::start().await;
    let leases = leases(&server, 3).await;
    let settle = pb::SettleRequest {
        acks: vec![ack(&leases[0]), ack(&leases[0])],
        nacks: vec![nack(&leases[0], "E"), nack(&leases[1], "E"), nack(&leases[1], "E")],
        extensions: vec![extend(&leases[1]), extend(&leases[2]), extend(&leases[2])],
    };
    let reply = server.settle(settle).await.unwrap();
    assert_eq!(
        told(&reply),
        [vec!["ok", "LEASE_LOST"], vec!["LEASE_LOST", "ok 1", "LEASE_LOST"], vec!["LEASE_LOST", "ok", "LEASE_LOST"],]
    );
}

#[tokio::test]
async fn an_item_error_says_what_a_call_would_have_said() {
    let server = Server::start().await;
    let lease = leases(&server, 1).await.remove(0);
    server.ack(&lease).await.unwrap();
    let settle = pb::SettleRequest { nacks: vec![nack(&lease, "E")], ..Default::default() };
    let reply = server.settle(settle).await.unwrap();
    let Some(nack_result::Outcome::Error(item)) = &reply.nacks[0].outcome else {
        panic!("{reply:?}");
    };
    let alone = server.nack(nack(&lease, "E")).await.unwrap_err();
    assert_eq!((item.code, item.message.as_str()), (alone.code() as i32, alone.message()));
    assert!(!item.retryable && item.retry_after.is_none());
}

#[tokio::test]
async fn nothing_to_settle_is_settled() {
    let server = Server::start().await;
    let reply = server.settle(pb::SettleRequest::default()).await.unwrap();
    assert_eq!(reply, pb::SettleResponse::default());
}

#[tokio::test]
async fn a_claim_settles_on_its_way() {
    let server = Server::start().await;
    let leases = leases(&server, 2).await;
    server.enqueue(job_of("q", "next")).await.unwrap();
    let settle = pb::SettleRequest {
        acks: vec![ack(&leases[0]), ack("rubbish")],
        nacks: vec![nack(&leases[1], "E")],
        ..Default::default()
    };
    let request = pb::ClaimRequest { settle: Some(settle), ..claim("q") };
    let reply = server.claim(request).await.unwrap();
    assert_eq!(reply.jobs[0].job_id, "next");
    let settled = reply.settled.expect("it was asked to settle");
    let expected = [vec!["ok", "INVALID_FIELD lease"], vec!["ok 1"], vec![]];
    assert_eq!(told(&settled), expected);
    let Some(ack_result::Outcome::Error(error)) = &settled.acks[1].outcome else { panic!("{settled:?}") };
    assert!(error.message.starts_with("settle.acks[1].lease: "), "{}", error.message);
}

#[tokio::test]
async fn what_a_claim_settles_stays_settled_though_no_job_comes() {
    let server = Server::start().await;
    let leases = leases(&server, 1).await;
    let settle = pb::SettleRequest { acks: vec![ack(&leases[0])], ..Default::default() };
    let request = pb::ClaimRequest { settle: Some(settle), ..claim("nothing-here") };
    let reply = server.claim(request).await.unwrap();
    assert!(reply.jobs.is_empty());
    assert_eq!(told(&reply.settled.unwrap())[0], ["ok"]);
    assert!(server.ack(&leases[0]).await.unwrap().already_gone);
}

#[tokio::test]
async fn a_draining_server_still_settles() {
    let server = Server::start().await;
    let leases = leases(&server, 1).await;
    server.enqueue(job_of("q", "stays")).await.unwrap();
    server.service.drain();
    let settle = pb::SettleRequest { acks: vec![ack(&leases[0])], ..Default::default() };
    let request = pb::ClaimRequest { settle: Some(settle), ..claim("q") };
    let reply = server.claim(request).await.unwrap();
    assert_eq!(told(&reply.settled.unwrap())[0], ["ok"]);
    assert_eq!(reply.idle[0].reason(), pb::IdleReason::Draining);
    assert_eq!(server.list_queues().await[0].ready, 1);
}

#[tokio::test]
async fn a_claim_without_settlements_says_nothing_about_them() {
    let server = Server::start().await;
    assert_eq!(server.claim(claim("q")).await.unwrap().settled, None);
    let settle = Some(pb::SettleRequest::default());
    let reply = server.claim(pb::ClaimRequest { settle, ..claim("q") }).await.unwrap();
    assert_eq!(reply.settled, Some(pb::SettleResponse::default()));
}
