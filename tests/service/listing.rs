//! ListJobs: the jobs of a queue, a page at a time.

use crate::scene::{Scene, assert_refused};
use crate::server::{Server, Setup, claim, inner, job, job_of, nack, steady, text};
use prost::Message;
use redrive::{domain::Limits, grpc::pb};
use std::time::Duration;
use tonic::{Code, Status};

fn of(queue: &str) -> pb::ListJobsRequest {
    pb::ListJobsRequest { queue: queue.into(), ..Default::default() }
}

async fn list(server: &Server, request: pb::ListJobsRequest) -> Result<pb::ListJobsResponse, Status> {
    inner(server.admin().list_jobs(request).await)
}

/// Walks all pages; the ids of each.
async fn pages(server: &Server, mut request: pb::ListJobsRequest) -> Vec<Vec<String>> {
    let mut pages = Vec::new();
    loop {
        let page = list(server, request.clone()).await.unwrap();
        let ids = page.jobs.into_iter().map(|info| info.job.unwrap().job_id);
        pages.push(ids.collect());
        if page.next_page_token.is_empty() {
            return pages;
        }
        request.page_token = page.next_page_token;
    }
}

#[tokio::test]
async fn all_jobs_are_listed_state_by_state() {
    let scene = Scene::set().await;
    let server = &scene.server;
    let all = ["waiting", "later", "retrying", "running", "dead", "done", "cancelled"];
    assert_eq!(pages(server, of("q")).await, [all]);
    let by_one = pb::ListJobsRequest { page_size: 1, ..of("q") };
    assert_eq!(pages(server, by_one).await, all.map(|id| [id]));
    for (state, id) in [
        (pb::JobState::Ready, "waiting"),
        (pb::JobState::Scheduled, "later"),
        (pb::JobState::Retrying, "retrying"),
        (pb::JobState::Leased, "running"),
        (pb::JobState::Dead, "dead"),
        (pb::JobState::Completed, "done"),
        (pb::JobState::Cancelled, "cancelled"),
    ] {
        let mut page = list(server, pb::ListJobsRequest { state: state.into(), ..of("q") }).await.unwrap();
        assert_eq!(page.jobs.len(), 1, "{id}");
        let info = page.jobs.remove(0);
        assert_eq!((info.state(), info.job.as_ref().unwrap().job_id.as_str()), (state, id));
        // What GetJob shows, without what is large.
        let mut expected = server.get_job(id).await.unwrap();
        expected.attempts.clear();
        expected.events.clear();
        assert_eq!(info, expected);
    }
}

#[tokio::test]
async fn a_full_view_shows_what_looking_at_each_job_shows() {
    let server = Server::start().await;
    let large = pb::EnqueueRequest {
        body: text("payload"),
        headers: [("tenant".to_owned(), "7".to_owned())].into(),
        ..job_of("q", "x")
    };
    server.enqueue(large).await.unwrap();
    let lease = server.take("q").await.lease;
    let failed = pb::NackRequest { checkpoint: "half".into(), ..nack(&lease, "E") };
    server.nack(failed).await.unwrap();
    server.pass(Duration::from_secs(10)).await;
    server.enqueue(job_of("q", "y")).await.unwrap();
    server.take("q").await;
    let full = pb::ListJobsRequest { view: pb::JobView::Full.into(), ..of("q") };
    let page = list(&server, full).await.unwrap();
    assert_eq!(page.jobs.len(), 2);
    for info in &page.jobs {
        let id = &info.job.as_ref().unwrap().job_id;
        assert_eq!(*info, server.get_job(id).await.unwrap());
        assert!(info.job.as_ref().unwrap().lease.is_empty());
    }
    for view in [pb::JobView::Unspecified, pb::JobView::Basic] {
        let request = pb::ListJobsRequest { view: view.into(), ..of("q") };
        let basic = list(&server, request).await.unwrap();
        let mut expected = page.clone();
        for info in &mut expected.jobs {
            info.attempts.clear();
            let job = info.job.as_mut().unwrap();
            job.body = None;
            job.headers.clear();
            job.checkpoint.clear();
        }
        assert_eq!(basic, expected);
    }
}

#[tokio::test]
async fn only_jobs_of_one_type_are_listed_where_one_is_named() {
    let server = Server::start().await;
    for (id, job_type) in [("a", "mail"), ("b", "sms"), ("c", "mail"), ("d", "mailbox")] {
        let request = pb::EnqueueRequest { r#type: job_type.into(), ..job_of("q", id) };
        server.enqueue(request).await.unwrap();
    }
    let mails = pb::ListJobsRequest { r#type: "mail".into(), page_size: 1, ..of("q") };
    let walked = pages(&server, mails).await;
    assert_eq!(walked.concat(), ["a", "c"]);
    let nothing = pb::ListJobsRequest { r#type: "fax".into(), ..of("q") };
    assert_eq!(pages(&server, nothing).await.concat(), [""; 0]);
}

/// A page looks at ten thousand jobs and no more, whatever it finds.
#[tokio::test]
async fn a_rare_type_in_a_long_queue_is_found_page_by_page() {
    let server = Server::start().await;
    for _ in 0..10 {
        let jobs = vec![job("q"); 1_000];
        server.queue().enqueue_batch(pb::EnqueueBatchRequest { jobs }).await.unwrap();
    }
    server.pass(Duration::from_millis(1)).await;
    let rare = pb::EnqueueRequest { r#type: "rare".into(), ..job_of("q", "the-one") };
    server.enqueue(rare).await.unwrap();
    let rare = pb::ListJobsRequest { r#type: "rare".into(), ..of("q") };
    let walked = pages(&server, rare).await;
    assert_eq!(walked, [vec![], vec!["the-one".to_owned()]]);
}

#[tokio::test]
async fn a_page_of_large_jobs_is_short() {
    let limits = Limits { reply_bytes: 100_000, ..Limits::default() };
    let server = Server::with(Setup { limits, ..Setup::default() }).await;
    for id in ["a", "b", "c", "d"] {
        let large = pb::EnqueueRequest { body: text(&"x".repeat(40_000)), ..job_of("q", id) };
        server.enqueue(large).await.unwrap();
    }
    let full = pb::ListJobsRequest { view: pb::JobView::Full.into(), ..of("q") };
    let page = list(&server, full.clone()).await.unwrap();
    assert!(page.encoded_len() <= 100_000 && page.jobs.len() == 2);
    assert_eq!(pages(&server, full).await.concat(), ["a", "b", "c", "d"]);
    assert_eq!(pages(&server, of("q")).await.len(), 1);
}

#[tokio::test]
async fn pages_have_a_hundred_by_default_and_at_most_a_thousand() {
    let server = Server::start().await;
    for count in [1_000, 1] {
        let jobs = vec![job("q"); count];
        server.queue().enqueue_batch(pb::EnqueueBatchRequest { jobs }).await.unwrap();
    }
    assert_eq!(list(&server, of("q")).await.unwrap().jobs.len(), 100);
    let greedy = pb::ListJobsRequest { page_size: u32::MAX, ..of("q") };
    let page = list(&server, greedy).await.unwrap();
    assert_eq!(page.jobs.len(), 1_000);
    let last = page.jobs.last().unwrap();
    assert_eq!(last.waiting_because, "999 jobs of higher or equal priority go first");
    let rest = pb::ListJobsRequest { page_token: page.next_page_token, ..of("q") };
    let page = list(&server, rest).await.unwrap();
    assert_eq!((page.jobs.len(), page.next_page_token.as_str()), (1, ""));
    let why = &page.jobs[0].waiting_because;
    assert_eq!(why, "1000 jobs of higher or equal priority go first");
}

#[tokio::test]
async fn a_configured_queue_has_an_empty_list_before_its_first_job() {
    let queues = vec![("payments", steady(Duration::ZERO))];
    let server = Server::with(Setup { queues, ..Setup::default() }).await;
    assert_eq!(list(&server, of("payments")).await.unwrap(), Default::default());
    let refused = list(&server, of("missing")).await.unwrap_err();
    assert_refused(&refused, Code::NotFound, "QUEUE_NOT_FOUND", &[]);
    let idle = server.claim(claim("missing")).await.unwrap().idle;
    assert_eq!(idle[0].reason(), pb::IdleReason::NoSuchQueue, "asking makes no queue");
}

#[tokio::test]
async fn bad_lists_are_refused_field_by_field() {
    let scene = Scene::set().await;
    let server = &scene.server;
    let by_one = pb::ListJobsRequest { page_size: 1, ..of("q") };
    let token = list(server, by_one).await.unwrap().next_page_token;
    let with_token = |page_token: &str, request: pb::ListJobsRequest| pb::ListJobsRequest {
        page_token: page_token.into(),
        ..request
    };
    let queues = pb::ListQueuesRequest { page_size: 1, ..Default::default() };
    let foreign = inner(server.admin().list_queues(queues).await).unwrap().next_page_token;
    for (request, fields) in [
        (of(""), &["queue"][..]),
        (of("a b"), &["queue"]),
        (of("dlq:q"), &["queue"]),
        (pb::ListJobsRequest { state: 77, ..of("q") }, &["state"]),
        (pb::ListJobsRequest { view: 77, ..of("q") }, &["view"]),
        (pb::ListJobsRequest { r#type: "x".repeat(257), ..of("q") }, &["type"]),
        (with_token("rubbish", of("q")), &["page_token"]),
        (with_token(&token[1..], of("q")), &["page_token"]),
        (with_token(&foreign, of("q")), &["page_token"]),
        (with_token(&token, pb::ListJobsRequest { r#type: "t".into(), ..of("q") }), &["page_token"]),
        (with_token(&token, pb::ListJobsRequest { state: pb::JobState::Ready.into(), ..of("q") }), &["page_token"]),
        (with_token(&token, of("other")), &["page_token"]),
    ] {
        scene.refuses_fields(list(server, request), fields).await;
    }
    let full = pb::ListJobsRequest { view: pb::JobView::Full.into(), ..of("q") };
    for same in [of("q"), full] {
        assert_eq!(list(server, with_token(&token, same)).await.unwrap().jobs.len(), 6);
    }
    scene.still_works().await;
}
