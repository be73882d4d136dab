//! Calls on dead letters that must neither move nor show anything.

use crate::scene::Scene;
use crate::server::{error, inner};
use crate::shapes::{by_all, by_filter, by_ids};
use prost_types::Timestamp;
use redrive::grpc::pb;
use tonic::Code;

fn list(queue: &str) -> pb::ListDeadLettersRequest {
    pb::ListDeadLettersRequest { queue: queue.into(), ..Default::default() }
}

fn requeue(queue: &str) -> pb::RequeueRequest {
    pb::RequeueRequest { queue: queue.into(), ..Default::default() }
}

fn purge(queue: &str) -> pb::PurgeDeadLettersRequest {
    pb::PurgeDeadLettersRequest { queue: queue.into(), ..Default::default() }
}

fn all(queue: &str) -> pb::RequeueRequest {
    pb::RequeueRequest { selector: by_all(), ..requeue(queue) }
}

#[tokio::test]
async fn what_is_not_there_is_not_found() {
    let scene = Scene::set().await;
    let server = &scene.server;
    let not_found = Code::NotFound;
    for id in ["nope", "'; drop table jobs; --", "0198f7c0-0000-7000-8000-000000000000"] {
        scene.refuses(server.get_job(id), not_found, "JOB_NOT_FOUND", &[]).await;
        scene.refuses(server.get_job_in(id, "q"), not_found, "JOB_NOT_FOUND", &[]).await;
    }
    let no_queue = "QUEUE_NOT_FOUND";
    scene.refuses(server.get_job_in("dead", "nope"), not_found, no_queue, &[]).await;
    for name in ["nope", "dlq:nope", "dlq:overflow:nope"] {
        scene.refuses(server.list_dead(list(name)), not_found, no_queue, &[]).await;
        scene.refuses(server.requeue(all(name)), not_found, no_queue, &[]).await;
    }
    let explain = pb::ExplainPolicyRequest { queue: "nope".into(), ..Default::default() };
    let call = async { inner(server.admin().explain_policy(explain).await) };
    scene.refuses(call, not_found, no_queue, &[]).await;
    scene.still_works().await;
}

#[tokio::test]
async fn dead_letters_are_named_by_their_queue() {
    let scene = Scene::set().await;
    for name in ["", "dlq:", "dlq:overflow:", "overflow:q", "dlq:dlq:q", "DLQ:q", "dlq: q", "q "] {
        scene.refuses_fields(scene.server.list_dead(list(name)), &["queue"]).await;
        scene.refuses_fields(scene.server.requeue(all(name)), &["queue"]).await;
    }
    let target = pb::RequeueRequest { target_queue: "dlq:q".into(), ..all("q") };
    scene.refuses_fields(scene.server.requeue(target), &["target_queue"]).await;
}

#[tokio::test]
async fn a_selector_that_means_nothing_is_refused_by_name() {
    let scene = Scene::set().await;
    let of = |selector| pb::RequeueRequest { selector, ..requeue("q") };
    for (request, fields) in [
        (requeue("q"), &["selector"][..]),
        (of(by_filter(pb::DeadLetterFilter::default())), &["selector.filter"]),
        (pb::RequeueRequest { limit: 5, ..of(by_ids(vec!["dead".into()])) }, &["limit"]),
        (of(by_ids(vec![String::new()])), &["selector.job_ids.ids[0]"]),
        (of(by_ids(vec!["x".repeat(257)])), &["selector.job_ids.ids[0]"]),
    ] {
        scene.refuses_fields(scene.server.requeue(request), fields).await;
    }
}

#[tokio::test]
async fn nothing_is_purged_by_accident() {
    let scene = Scene::set().await;
    let ids = || vec!["dead".to_owned()];
    let filter = pb::DeadLetterFilter::default();
    let all = || pb::PurgeDeadLettersRequest { selector: by_all(), ..purge("q") };
    for (request, fields) in [
        (purge("q"), &["selector"][..]),
        (pb::PurgeDeadLettersRequest { selector: by_filter(filter), ..purge("q") }, &["selector.filter"]),
        (pb::PurgeDeadLettersRequest { selector: by_ids(ids()), limit: 5, ..purge("q") }, &["limit"]),
        (pb::PurgeDeadLettersRequest { reason: "x".repeat(1_025), ..all() }, &["reason"]),
        (pb::PurgeDeadLettersRequest { request_id: "x".repeat(257), ..all() }, &["request_id"]),
        (pb::PurgeDeadLettersRequest { queue: "dlq:".into(), ..all() }, &["queue"]),
        (pb::PurgeDeadLettersRequest { cutoff: "rubbish".into(), ..all() }, &["cutoff"]),
    ] {
        scene.refuses_fields(scene.server.purge(request), fields).await;
    }
    let unknown = pb::PurgeDeadLettersRequest { selector: by_all(), ..purge("nope") };
    let call = scene.server.purge(unknown);
    scene.refuses(call, Code::NotFound, "QUEUE_NOT_FOUND", &[]).await;
    scene.still_works().await;
}

#[tokio::test]
async fn reasons_and_request_ids_are_bounded() {
    let scene = Scene::set().await;
    let request = pb::RequeueRequest { reason: "x".repeat(1_025), ..all("q") };
    scene.refuses_fields(scene.server.requeue(request), &["reason"]).await;
    let request = pb::RequeueRequest { request_id: "x".repeat(257), ..all("q") };
    scene.refuses_fields(scene.server.requeue(request), &["request_id"]).await;
}

#[tokio::test]
async fn a_filter_of_a_list_is_checked_and_an_empty_one_is_none() {
    let scene = Scene::set().await;
    let bad = || pb::DeadLetterFilter {
        error_type: "x".repeat(257),
        r#type: "x".repeat(257),
        reason: 77,
        message_contains: "x".repeat(4_097),
        died_after: Some(Timestamp { seconds: 0, nanos: -1 }),
        died_before: Some(Timestamp { seconds: i64::MAX, nanos: 0 }),
        fingerprint: "0123456789ABCDEF".into(),
        http_status: 0,
    };
    let names = ["error_type", "type", "reason", "message_contains", "fingerprint", "died_after", "died_before"];
    let fields = names.map(|name| format!("filter.{name}"));
    let fields = fields.each_ref().map(String::as_str);
    let filtered = pb::ListDeadLettersRequest { filter: Some(bad()), ..list("q") };
    scene.refuses_fields(scene.server.list_dead(filtered), &fields).await;
    let fields = names.map(|name| format!("selector.filter.{name}"));
    let fields = fields.each_ref().map(String::as_str);
    let filtered = pb::RequeueRequest { selector: by_filter(bad()), ..requeue("q") };
    scene.refuses_fields(scene.server.requeue(filtered), &fields).await;
    let filtered = pb::PurgeDeadLettersRequest { selector: by_filter(bad()), ..purge("q") };
    scene.refuses_fields(scene.server.purge(filtered), &fields).await;
    let view = pb::ListDeadLettersRequest { view: 5, ..list("q") };
    scene.refuses_fields(scene.server.list_dead(view), &["view"]).await;
    let filter = Some(pb::DeadLetterFilter::default());
    let empty = pb::ListDeadLettersRequest { filter, ..list("q") };
    assert_eq!(scene.server.list_dead(empty).await.unwrap().dead_letters.len(), 1);
}

#[tokio::test]
async fn an_unknown_view_is_refused() {
    let scene = Scene::set().await;
    for view in [3, -1, i32::MAX] {
        let request = pb::ListDeadLettersRequest { view, ..list("q") };
        scene.refuses_fields(scene.server.list_dead(request), &["view"]).await;
    }
}

#[tokio::test]
async fn tokens_are_good_only_as_they_came_and_where_they_came_from() {
    let scene = Scene::set().await;
    let server = &scene.server;
    for (queue, id) in [("q", "dead-2"), ("other", "a"), ("other", "b")] {
        server.dead_letter(queue, id, error("E")).await;
    }
    let page = |queue| pb::ListDeadLettersRequest { page_size: 1, ..list(queue) };
    let token = server.list_dead(page("q")).await.unwrap().next_page_token;
    let foreign = server.list_dead(page("other")).await.unwrap().next_page_token;
    let dry = |queue| pb::RequeueRequest { dry_run: true, ..all(queue) };
    let cutoff = server.requeue(dry("q")).await.unwrap().cutoff;
    let foreign_cutoff = server.requeue(dry("other")).await.unwrap().cutoff;
    assert!(!token.is_empty() && !cutoff.is_empty());

    let changed = |token: &str, at: usize| {
        let mut token = token.as_bytes().to_vec();
        token[at] = if token[at] == b'A' { b'B' } else { b'A' };
        String::from_utf8(token).unwrap()
    };
    let rubbish = || ["rubbish", "\0", "AAAAAAAAAAAAAAAAAAAAAAA"].map(str::to_owned);
    let mut bad: Vec<_> = rubbish().into();
    bad.extend([foreign, cutoff.clone()]);
    bad.extend((0..token.len()).map(|at| changed(&token, at)));
    for page_token in bad {
        let request = pb::ListDeadLettersRequest { page_token, ..list("q") };
        scene.refuses_fields(server.list_dead(request), &["page_token"]).await;
    }
    let request = pb::ListDeadLettersRequest { page_token: token.clone(), ..list("dlq:overflow:q") };
    scene.refuses_fields(server.list_dead(request), &["page_token"]).await;

    let mut bad: Vec<_> = rubbish().into();
    bad.extend([foreign_cutoff, token]);
    bad.extend((0..cutoff.len()).map(|at| changed(&cutoff, at)));
    for cutoff in bad {
        let request = pb::RequeueRequest { cutoff, ..all("q") };
        scene.refuses_fields(server.requeue(request), &["cutoff"]).await;
    }
    scene.still_works().await;
}
