//! Operators' calls that contradict themselves, come twice, or bring what belongs elsewhere: clear words, and no mark left.

use crate::scene::Scene;
use crate::server::{error, inner};
use crate::shapes::{by_all, by_filter, by_ids, by_oldest};
use redrive::grpc::pb;

/// One of each kind.
fn selectors() -> [Option<pb::DeadLetterSelector>; 4] {
    let filter = pb::DeadLetterFilter { error_type: "E".into(), ..Default::default() };
    [by_ids(vec!["dead".into()]), by_filter(filter), by_oldest(1), by_all()]
}

fn requeue(selector: Option<pb::DeadLetterSelector>) -> pb::RequeueRequest {
    pb::RequeueRequest { queue: "q".into(), selector, ..Default::default() }
}

fn purge(selector: Option<pb::DeadLetterSelector>) -> pb::PurgeDeadLettersRequest {
    pb::PurgeDeadLettersRequest { queue: "q".into(), selector, ..Default::default() }
}

#[tokio::test]
async fn a_selector_that_selects_nothing_is_refused_and_each_kind_alone_is_good() {
    let scene = Scene::set().await;
    let server = &scene.server;
    let all = |all| Some(pb::DeadLetterSelector { by: Some(pb::dead_letter_selector::By::All(all)) });
    let none = Some(pb::DeadLetterSelector { by: None });
    for selector in [None, none, by_ids(Vec::new()), by_oldest(0), all(false)] {
        let refused = [
            scene.refuses_fields(server.requeue(requeue(selector.clone())), &["selector"]).await,
            scene.refuses_fields(server.purge(purge(selector)), &["selector"]).await,
        ];
        for status in refused {
            assert!(status.message().contains("exactly one of"), "{}", status.message());
        }
    }
    for selector in selectors() {
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
    let dry = pb::PurgeDeadLettersRequest { dry_run: true, limit: 1, ..purge(by_all()) };
    let elsewhere = pb::PurgeDeadLettersRequest { queue: "other".into(), ..dry.clone() };
    let of_requeue = pb::RequeueRequest { dry_run: true, limit: 1, ..requeue(by_all()) };
    for cutoff in [
        server.purge(dry).await.unwrap().cutoff,
        server.purge(elsewhere).await.unwrap().cutoff,
        server.requeue(of_requeue).await.unwrap().cutoff,
    ] {
        // Nor does a dry run's lead on to a call that does something.
        let request = pb::PurgeDeadLettersRequest { cutoff: cutoff.clone(), ..purge(by_all()) };
        scene.refuses_fields(server.purge(request), &["cutoff"]).await;
        let back = pb::RequeueRequest { cutoff: cutoff.clone(), ..requeue(by_all()) };
        scene.refuses_fields(server.requeue(back), &["cutoff"]).await;
        let by_id = pb::PurgeDeadLettersRequest { cutoff, ..purge(by_ids(vec!["dead".into()])) };
        scene.refuses_fields(server.purge(by_id), &["cutoff"]).await;
    }
    // Nor one of all to a filter, or of a filter to another and to all.
    let filter = |error_type: &str| {
        let filter = pb::DeadLetterFilter { error_type: error_type.into(), ..Default::default() };
        pb::RequeueRequest { dry_run: true, limit: 1, ..requeue(by_filter(filter)) }
    };
    let everything = pb::RequeueRequest { dry_run: true, limit: 1, ..requeue(by_all()) };
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
    let ids = |ids: &[&str]| by_ids(ids.iter().map(|id| (*id).to_owned()).collect());
    assert_eq!(server.purge(purge(ids(&["gone"]))).await.unwrap().purged, 1);
    let named = ["gone", "running", "waiting", "later", "done", "missing"];
    for names in [&["gone"][..], &named] {
        let purged = scene.unmoved(server.purge(purge(ids(names)))).await;
        let requeued = scene.unmoved(server.requeue(requeue(ids(names)))).await;
        assert_eq!((purged.purged, requeued.requeued), (0, 0));
        for skipped in [purged.skipped, requeued.skipped] {
            let passed_over: Vec<_> = skipped.iter().map(|job| job.job_id.as_str()).collect();
            assert_eq!(passed_over, names);
            assert!(skipped.iter().all(|job| job.reason == "JOB_NOT_FOUND"), "{skipped:?}");
        }
    }
    assert_eq!(server.stats("q").await.unwrap().purged, 1);
    scene.still_works().await;
}
