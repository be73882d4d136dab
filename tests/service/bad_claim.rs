//! Claims that must not hand out anything, and those whose wishes are cut to what there is.

use crate::scene::Scene;
use crate::server::{Server, Setup, claim, claim_of, inner, job, time};
use redrive::{domain::Limits, grpc::pb};
use std::time::Duration;
use tonic::Code;

#[tokio::test]
async fn a_claim_names_its_queues() {
    let scene = Scene::set().await;
    let many: Vec<_> = (0..101).map(|n| format!("q{n}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    scene.refuses_fields(scene.server.claim(claim_of(&[])), &["queues"]).await;
    scene.refuses_fields(scene.server.claim(claim_of(&many)), &["queues"]).await;
    scene.refuses_fields(scene.server.claim(claim_of(&["q", "q"])), &["queues[1]"]).await;
}

#[tokio::test]
async fn weights_are_for_the_queues_named_and_for_turns() {
    let scene = Scene::set().await;
    let weighted =
        |queue: &str, weight| pb::ClaimRequest { weights: [(queue.to_owned(), weight)].into(), ..claim("q") };
    for (claim, field) in [
        (weighted("other", 1), "weights[\"other\"]"),
        (weighted("q", 0), "weights[\"q\"]"),
        (weighted("q", u32::MAX), "weights[\"q\"]"),
    ] {
        scene.refuses_fields(scene.server.claim(claim), &[field]).await;
    }
    let strict = pb::ClaimRequest { order: pb::ClaimOrder::Strict.into(), ..weighted("q", 1) };
    scene.refuses_fields(scene.server.claim(strict), &["weights"]).await;
}

#[tokio::test]
async fn an_unknown_order_is_refused() {
    let scene = Scene::set().await;
    for order in [3, -1, i32::MAX] {
        let request = pb::ClaimRequest { order, ..claim("q") };
        scene.refuses_fields(scene.server.claim(request), &["order"]).await;
    }
}

#[tokio::test]
async fn worker_and_request_ids_are_at_most_256_bytes() {
    let scene = Scene::set().await;
    let long = "x".repeat(257);
    let request = pb::ClaimRequest { worker_id: long.clone(), request_id: long, ..claim("q") };
    let fields = ["worker_id", "request_id"];
    scene.refuses_fields(scene.server.claim(request), &fields).await;
}

#[tokio::test]
async fn a_request_id_belongs_to_a_worker() {
    let scene = Scene::set().await;
    let request = pb::ClaimRequest { request_id: "r1".into(), worker_id: String::new(), ..claim("q") };
    scene.refuses_fields(scene.server.claim(request), &["worker_id"]).await;
}

#[tokio::test]
async fn wishes_over_a_limit_are_cut_not_refused() {
    let limits = Limits { wait: Duration::from_millis(50), batch_items: 3, ..Limits::default() };
    let server = Server::with(Setup { limits, ..Setup::default() }).await;
    for _ in 0..5 {
        server.enqueue(job("q")).await.unwrap();
    }
    let greedy = pb::ClaimRequest { max_jobs: u32::MAX, max_bytes: u32::MAX, wait: time(3_600, 0), ..claim("q") };
    assert_eq!(server.claim(greedy.clone()).await.unwrap().jobs.len(), 3);
    assert_eq!(server.claim(greedy.clone()).await.unwrap().jobs.len(), 2);
    // The wait is cut to the limit: the answer comes before the hour is over.
    let answer = tokio::time::timeout(Duration::from_secs(20), server.claim(greedy)).await;
    assert!(answer.expect("cut to the limit").unwrap().jobs.is_empty());
}

#[tokio::test]
async fn a_page_of_queues_is_cut_and_its_token_checked() {
    let limits = Limits { page_size_max: 2, ..Limits::default() };
    let server = Server::with(Setup { limits, ..Setup::default() }).await;
    for name in ["a", "b", "c"] {
        server.enqueue(job(name)).await.unwrap();
    }
    server.dead_letter("d", "x", crate::server::error("E")).await;
    server.dead_letter("d", "y", crate::server::error("E")).await;
    let list = |page_token: &str| {
        let request = pb::ListQueuesRequest { page_size: 1_000, page_token: page_token.into() };
        let mut admin = server.admin();
        async move { inner(admin.list_queues(request).await) }
    };
    let first = list("").await.unwrap();
    let names: Vec<_> = first.queues.iter().map(|queue| queue.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let second = list(&first.next_page_token).await.unwrap();
    assert_eq!(second.queues[0].name, "c");

    let dead = pb::ListDeadLettersRequest { queue: "d".into(), page_size: 1, ..Default::default() };
    let foreign = server.list_dead(dead).await.unwrap().next_page_token;
    let token = first.next_page_token;
    let mut bad = vec!["rubbish".to_owned(), "\0".into(), foreign, token[1..].to_owned()];
    for at in 0..token.len() {
        let mut changed = token.clone().into_bytes();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        bad.push(String::from_utf8(changed).unwrap());
    }
    for token in bad {
        let refused = list(&token).await.unwrap_err();
        let code = Code::InvalidArgument;
        crate::scene::assert_refused(&refused, code, "INVALID_FIELD", &["page_token"]);
    }
}
