//! Operators' calls that contradict themselves, come twice, or bring what belongs elsewhere: clear words, and no mark left.

use crate::scene::Scene;
use crate::server::{error, inner};
use redrive::grpc::pb;

const SELECTORS: [&str; 4] = ["job_ids", "filter", "oldest", "all"];

/// With the selectors whose bits are set.
fn requeue(selectors: u32) -> pb::RequeueRequest {
    let has = |bit: u32| selectors & 1 << bit != 0;
    let filter = pb::DeadLetterFilter { error_type: "E".into(), ..Default::default() };
    pb::RequeueRequest {
        queue: "q".into(),
        job_ids: if has(0) { vec!["dead".into()] } else { Vec::new() },
        filter: has(1).then_some(filter),
        oldest: u32::from(has(2)),
        all: has(3),
        ..Default::default()
    }
}

fn purge(selectors: u32) -> pb::PurgeDeadLettersRequest {
    let pb::RequeueRequest { queue, job_ids, filter, oldest, all, .. } = requeue(selectors);
    pb::PurgeDeadLettersRequest { queue, job_ids, filter, oldest, all, ..Default::default() }
}

#[tokio::test]
async fn none_and_more_than_one_selector_are_refused_in_every_combination() {
    let scene = Scene::set().await;
    let server = &scene.server;
    for selectors in (0..16u32).filter(|selectors| selectors.count_ones() != 1) {
        let named = SELECTORS.iter().enumerate().filter(|(bit, _)| selectors & 1 << bit != 0);
        let mut fields: Vec<_> = named.map(|(_, name)| *name).collect();
        if selectors == 0 {
            fields.push("job_ids");
        }
        let refused = [
            scene.refuses_fields(server.requeue(requeue(selectors)), &fields).await,
            scene.refuses_fields(server.purge(purge(selectors)), &fields).await,
        ];
        for status in refused {
            assert!(status.message().contains("exactly one of"), "{}", status.message());
        }
    }
    for selector in (0..4).map(|bit| 1 << bit) {
        let dry = pb::PurgeDeadLettersRequest { dry_run: true, ..purge(selector) };
        assert_eq!(server.purge(dry).await.unwrap().purged, 1, "alone each of them is good");
    }
}

#[tokio::test]
async fn a_token_of_another_list_is_refused() {
    let scene = Scene::set().await;
    let server = &scene.server;
    for (queue, id) in [("q", "dead-2"), ("other", "a"), ("other", "b")] {
        server.dead_letter(queue, id, error("E")).await;
    }
    let (page_size, queue) = (1, "q".to_owned());
    let dead = pb::ListDeadLettersRequest { queue, page_size, ..Default::default() };
    let jobs = pb::ListJobsRequest { queue: "q".into(), page_size, ..Default::default() };
    let queues = pb::ListQueuesRequest { page_size, ..Default::default() };
    let counts = pb::GetDeadLetterStatsRequest { page_size, ..Default::default() };
    let mut admin = server.admin();
    let tokens = [
        server.list_dead(dead.clone()).await.unwrap().next_page_token,
        inner(admin.list_jobs(jobs.clone()).await).unwrap().next_page_token,
        inner(admin.list_queues(queues.clone()).await).unwrap().next_page_token,
        inner(admin.get_dead_letter_stats(counts.clone()).await).unwrap().next_page_token,
    ];
    for (at, token) in tokens.iter().enumerate() {
        let page_token = token.clone();
        assert!(!page_token.is_empty());
        let dead = pb::ListDeadLettersRequest { page_token: page_token.clone(), ..dead.clone() };
        let jobs = pb::ListJobsRequest { page_token: page_token.clone(), ..jobs.clone() };
        let queues = pb::ListQueuesRequest { page_token: page_token.clone(), ..queues.clone() };
        let counts = pb::GetDeadLetterStatsRequest { page_token, ..counts.clone() };
        let mut refused = Vec::new();
        let field = &["page_token"];
        if at != 0 {
            refused.push(scene.refuses_fields(server.list_dead(dead), field).await);
        }
        if at != 1 {
            refused.push(scene.refuses_fields(admin.clone().list_jobs(jobs), field).await);
        }
        if at != 2 {
            refused.push(scene.refuses_fields(admin.clone().list_queues(queues), field).await);
        }
        if at != 3 {
            let call = admin.get_dead_letter_stats(counts);
            refused.push(scene.refuses_fields(call, field).await);
        }
        for status in refused {
            assert!(status.message().contains("belongs to another query"), "{}", status.message());
        }
    }
}

#[tokio::test]
async fn a_cutoff_is_good_for_its_own_call_and_queue_only() {
    let scene = Scene::set().await;
    let server = &scene.server;
    for (queue, id) in [("q", "dead-2"), ("other", "a"), ("other", "b")] {
        server.dead_letter(queue, id, error("E")).await;
    }
    let all = 1 << 3;
    let dry = pb::PurgeDeadLettersRequest { dry_run: true, limit: 1, ..purge(all) };
    let elsewhere = pb::PurgeDeadLettersRequest { queue: "other".into(), ..dry.clone() };
    let of_requeue = pb::RequeueRequest { dry_run: true, limit: 1, ..requeue(all) };
    for cutoff in [
        server.purge(dry).await.unwrap().cutoff,
        server.purge(elsewhere).await.unwrap().cutoff,
        server.requeue(of_requeue).await.unwrap().cutoff,
    ] {
        // Nor does a dry run's lead on to a call that does something.
        let request = pb::PurgeDeadLettersRequest { cutoff: cutoff.clone(), ..purge(all) };
        scene.refuses_fields(server.purge(request), &["cutoff"]).await;
        let back = pb::RequeueRequest { cutoff: cutoff.clone(), ..requeue(all) };
        scene.refuses_fields(server.requeue(back), &["cutoff"]).await;
        let by_id = pb::PurgeDeadLettersRequest { cutoff, ..purge(1) };
        scene.refuses_fields(server.purge(by_id), &["cutoff"]).await;
    }
    // Nor one of all to a filter, or of a filter to another and to all.
    let filter = |error_type: &str| {
        let filter = Some(pb::DeadLetterFilter { error_type: error_type.into(), ..Default::default() });
        pb::RequeueRequest { filter, dry_run: true, limit: 1, ..requeue(0) }
    };
    let everything = pb::RequeueRequest { dry_run: true, limit: 1, ..requeue(all) };
    let of_all = server.requeue(everything.clone()).await.unwrap().cutoff;
    let of_filter = server.requeue(filter("E")).await.unwrap().cutoff;
    for (request, cutoff) in [(filter("E"), of_all), (filter("E*"), of_filter.clone()), (everything, of_filter)] {
        let request = pb::RequeueRequest { cutoff, ..request };
        scene.refuses_fields(server.requeue(request), &["cutoff"]).await;
    }
}

#[tokio::test]
async fn an_id_that_is_purged_or_not_dead_is_passed_over() {
    let scene = Scene::set().await;
    let server = &scene.server;
    server.dead_letter("q", "gone", error("E")).await;
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
    let gone = pb::PurgeDeadLettersRequest { job_ids: ids(&["gone"]), ..purge(1) };
    assert_eq!(server.purge(gone.clone()).await.unwrap().purged, 1);
    let named = ["gone", "running", "waiting", "later", "done", "missing"];
    for job_ids in [ids(&["gone"]), ids(&named)] {
        let request = pb::PurgeDeadLettersRequest { job_ids, ..gone.clone() };
        let back = pb::RequeueRequest { job_ids: request.job_ids.clone(), ..requeue(1) };
        let purged = scene.unmoved(server.purge(request.clone())).await;
        let requeued = scene.unmoved(server.requeue(back)).await;
        assert_eq!((purged.purged, requeued.requeued), (0, 0));
        for skipped in [purged.skipped, requeued.skipped] {
            let passed_over: Vec<_> = skipped.iter().map(|job| job.job_id.as_str()).collect();
            assert_eq!(passed_over, request.job_ids);
            assert!(skipped.iter().all(|job| job.reason == "JOB_NOT_FOUND"), "{skipped:?}");
        }
    }
    assert_eq!(server.stats("q").await.unwrap().purged, 1);
    scene.still_works().await;
}
