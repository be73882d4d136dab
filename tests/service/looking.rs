//! What operators see: jobs, queues, the server itself.

use crate::scene::{Scene, assert_refused};
use crate::server::{Server, Setup, claim, inner, job, job_of, nack, steady};
use crate::shapes::by_all;
use redrive::grpc::pb;
use std::time::Duration;
use tonic::Code;

#[tokio::test]
async fn a_job_that_is_not_running_says_why() {
    let scene = Scene::set().await;
    let server = &scene.server;
    let behind = pb::EnqueueRequest { priority: -1, ..job_of("q", "behind") };
    server.enqueue(behind).await.unwrap();
    server.enqueue(job_of("retries", "failed")).await.unwrap();
    let lease = server.take("retries").await.lease;
    server.nack(nack(&lease, "E")).await.unwrap();
    for (id, state, why) in [
        ("waiting", pb::JobState::Ready, "it is next"),
        ("behind", pb::JobState::Ready, "1 job of higher or equal priority goes first"),
        ("later", pb::JobState::Scheduled, "due in 1m"),
        ("failed", pb::JobState::Retrying, "retry after attempt 1 is due in 10s"),
        ("dead", pb::JobState::Dead, "NON_RETRYABLE"),
    ] {
        let info = server.get_job(id).await.unwrap();
        assert_eq!(info.state(), state, "{id}");
        assert!(info.waiting_because.contains(why), "{id}: {}", info.waiting_because);
        let waits = [pb::JobState::Scheduled, pb::JobState::Retrying].contains(&state);
        assert_eq!(info.run_at.is_some(), waits);
    }
    let running = server.get_job("running").await.unwrap();
    assert_eq!(running.state(), pb::JobState::Leased);
    assert_eq!(running.waiting_because, "it is leased to a worker without a name until 2027-01-15T08:00:30Z");
}

#[tokio::test]
async fn a_running_job_is_shown_with_its_attempt_and_without_its_lease() {
    let server = Server::start().await;
    server.enqueue(job_of("q", "x")).await.unwrap();
    let request = pb::ClaimRequest { worker_id: "w1".into(), ..claim("q") };
    let taken = server.take_by(request).await;
    let info = server.get_job("x").await.unwrap();
    let shown = info.job.unwrap();
    assert_eq!(shown.lease, "");
    assert_eq!(shown.lease_expires_at, taken.lease_expires_at);
    assert_eq!(info.attempts.len(), 1);
    assert_eq!(info.attempts[0].status(), pb::AttemptStatus::Running);
    assert_eq!((info.attempts[0].worker_id.as_str(), info.attempts[0].ended_at), ("w1", None));
}

#[tokio::test]
async fn an_id_in_two_queues_needs_its_queue() {
    let server = Server::start().await;
    for queue in ["a", "b"] {
        server.enqueue(job_of(queue, "twin")).await.unwrap();
    }
    let refused = server.get_job("twin").await.unwrap_err();
    assert_refused(&refused, Code::FailedPrecondition, "AMBIGUOUS_JOB_ID", &[]);
    let found = server.get_job_in("twin", "b").await.unwrap().job.unwrap();
    assert_eq!(found.queue, "b");
}

#[tokio::test]
async fn a_job_is_shown_as_it_was_enqueued() {
    let server = Server::start().await;
    let request = pb::EnqueueRequest { idempotency_key: "k".into(), priority: -3, ..job_of("q", "x") };
    server.enqueue(request).await.unwrap();
    let info = server.get_job("x").await.unwrap();
    assert_eq!((info.idempotency_key.as_str(), info.retry_policy), ("k", None));
    let job = info.job.unwrap();
    assert_eq!((job.priority, job.attempt, job.deliveries), (-3, 1, 0));
}

#[tokio::test]
async fn queues_show_their_depths_and_the_age_of_the_oldest_job() {
    let scene = Scene::set().await;
    scene.server.pass(Duration::from_millis(1_500)).await;
    let queue = scene.server.list_queues().await.remove(0);
    let depths = (queue.ready, queue.scheduled, queue.leased, queue.dead, queue.overflow);
    assert_eq!(depths, (1, 1, 1, 1, 0));
    assert_eq!(crate::server::long(queue.oldest_ready_age), 1_500);
    assert_eq!((queue.breaker(), queue.paused), (pb::BreakerState::Closed, false));
}

#[tokio::test]
async fn queues_come_in_pages_by_name() {
    let server = Server::start().await;
    for name in ["c", "a", "e", "b", "d"] {
        server.enqueue(job(name)).await.unwrap();
    }
    let mut request = pb::ListQueuesRequest { page_size: 2, ..Default::default() };
    let mut names = Vec::new();
    loop {
        let page = inner(server.admin().list_queues(request.clone()).await).unwrap();
        assert!(page.queues.len() <= 2);
        names.extend(page.queues.into_iter().map(|queue| queue.name));
        if page.next_page_token.is_empty() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
}

/// A queue exists once it is configured, whether or not anybody has enqueued to it.
#[tokio::test]
async fn a_configured_queue_is_there_before_its_first_job() {
    let policy = steady(Duration::from_secs(7));
    let queues = vec![("payments", policy)];
    let server = Server::with(Setup { queues, ..Setup::default() }).await;
    server.enqueue(job("zebra")).await.unwrap();
    server.enqueue(job("apples")).await.unwrap();
    let shown = server.list_queues().await;
    let names: Vec<_> = shown.iter().map(|queue| queue.name.as_str()).collect();
    assert_eq!(names, ["apples", "payments", "zebra"]);
    let base_delay = shown[1].policy.as_ref().unwrap().base_delay;
    assert_eq!(base_delay, crate::server::time(7, 0));
    let idle = server.claim(claim("payments")).await.unwrap().idle;
    assert_eq!(idle[0].reason(), pb::IdleReason::Empty);
    let list = pb::ListDeadLettersRequest { queue: "payments".into(), ..Default::default() };
    assert_eq!(server.list_dead(list).await.unwrap().queue_total, 0);
    let all = pb::RequeueRequest { queue: "payments".into(), selector: by_all(), ..Default::default() };
    assert_eq!(server.requeue(all).await.unwrap().requeued, 0);
    let refused = server.get_job_in("x", "payments").await.unwrap_err();
    assert_refused(&refused, Code::NotFound, "JOB_NOT_FOUND", &[]);
}

#[tokio::test]
async fn the_server_says_what_it_is_and_what_it_holds_itself_to() {
    let server = Server::start().await;
    let info = inner(server.admin().get_server_info(pb::GetServerInfoRequest {}).await).unwrap();
    assert_eq!(info.version, env!("CARGO_PKG_VERSION"));
    assert_eq!((info.engine.as_str(), info.durability.as_str()), ("embedded", "fsync"));
    assert_eq!(info.server_time.unwrap().seconds, 1_800_000_000);
    assert!(info.warnings.is_empty(), "{:?}", info.warnings);
    let limits = info.limits.unwrap();
    assert_eq!((limits.body_bytes, limits.headers_bytes, limits.batch_bytes), (1 << 20, 16 << 10, 4 << 20));
    assert_eq!((limits.reply_bytes, limits.note_bytes, limits.checkpoint_bytes), (7 << 19, 1 << 10, 16 << 10));
    assert_eq!((limits.details_bytes, limits.result_bytes, limits.name_bytes), (16 << 10, 64 << 10, 256));
    assert_eq!((limits.header_entries, limits.batch_items, limits.queues), (64, 1_000, 10_000));
    assert_eq!((limits.page_size_default, limits.page_size_max), (100, 1_000));
    assert_eq!((limits.bulk_default, limits.bulk_max, limits.filtered), (1_000, 10_000, 10_000));
    let seconds = [limits.wait, limits.lease_min, limits.lease_max, limits.delay].map(|time| time.unwrap().seconds);
    assert_eq!(seconds, [30, 1, 86_400, 366 * 86_400]);
    assert!(info.features.is_empty());
}
