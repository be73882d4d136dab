//! Waiting workers: woken when there is work, in time, and no more of them than needed. In real time.

use crate::server::{Server, Setup, at, claim, job, job_of, long, nack, steady, time};
use crate::shapes::after;
use redrive::domain::{Bounds, MaxRate, QueueName};
use redrive::grpc::pb;
use redrive::queue::Settlements;
use redrive::service::{ClaimRequest, MessageBudget, Order};
use std::time::Duration;
use tokio::task::JoinHandle;
use tonic::{Request, Status};

/// What a busy machine may be late by.
const LATE_MAX: i64 = 250;

async fn in_real_time(delay: Duration) -> Server {
    Server::with(Setup { defaults: steady(delay), real_time: true, ..Setup::default() }).await
}

fn worker(server: &Server, queue: &str) -> JoinHandle<Result<pb::ClaimResponse, Status>> {
    let request = pb::ClaimRequest { wait: time(25, 0), ..claim(queue) };
    let mut client = server.queue();
    tokio::spawn(async move { client.claim(request).await.map(tonic::Response::into_inner) })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_job_wakes_one_of_a_hundred_workers() {
    let server = in_real_time(Duration::ZERO).await;
    let workers: Vec<_> = (0..100).map(|_| worker(&server, "q")).collect();
    let store = server.service.queues().host();
    store.looked(100).await;
    server.enqueue(job_of("q", "the-one")).await.unwrap();
    store.looked(101).await;
    // A further waiter that was woken would look once more before it returns.
    server.service.drain();
    let mut got = Vec::new();
    for worker in workers {
        let reply = worker.await.unwrap().unwrap();
        if reply.jobs.is_empty() {
            assert_eq!(reply.idle[0].reason(), pb::IdleReason::Draining);
        }
        got.extend(reply.jobs.into_iter().map(|job| job.job_id));
    }
    assert_eq!(got, ["the-one"]);
    assert_eq!(store.looks(), 101);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_reaches_as_many_workers_as_it_has_jobs() {
    let server = in_real_time(Duration::ZERO).await;
    let workers: Vec<_> = (0..20).map(|_| worker(&server, "q")).collect();
    server.service.queues().host().looked(20).await;
    let jobs = vec![job("q"); 20];
    server.queue().enqueue_batch(pb::EnqueueBatchRequest { jobs }).await.unwrap();
    for worker in workers {
        assert_eq!(worker.await.unwrap().unwrap().jobs.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_reaches_a_waiting_worker_when_it_is_due() {
    let server = in_real_time(Duration::from_millis(300)).await;
    server.enqueue(job("q")).await.unwrap();
    let lease = server.take("q").await.lease;
    let waiting = worker(&server, "q");
    server.service.queues().host().looked(2).await;
    let retry_at = at(server.nack(nack(&lease, "E")).await.unwrap().retry_at);
    let reply = waiting.await.unwrap().unwrap();
    assert_eq!(reply.jobs[0].attempt, 2);
    let late = at(reply.server_time) - retry_at;
    assert!((0..=LATE_MAX).contains(&late), "{late} ms late");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delayed_job_reaches_a_waiting_worker_when_it_is_due() {
    let server = in_real_time(Duration::ZERO).await;
    let waiting = worker(&server, "q");
    server.service.queues().host().looked(1).await;
    let request = pb::EnqueueRequest { start: after(time(0, 200_000_000)), ..job("q") };
    let run_at = at(server.enqueue(request).await.unwrap().run_at);
    let reply = waiting.await.unwrap().unwrap();
    let late = at(reply.server_time) - run_at;
    assert!((0..=LATE_MAX).contains(&late), "{late} ms late");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_comes_due_in_a_paused_queue_wakes_no_waiter() {
    let server = in_real_time(Duration::ZERO).await;
    let request = pb::EnqueueRequest { start: after(time(0, 100_000_000)), ..job_of("q", "paused") };
    server.enqueue(request).await.unwrap();
    let pause = pb::PauseQueueRequest { queue: "q".into(), ..Default::default() };
    server.admin().pause_queue(pause).await.unwrap();
    let waiting = worker(&server, "q");
    server.service.queues().host().looked(1).await;
    while server.get_job("paused").await.unwrap().state() != pb::JobState::Ready {}
    server.service.drain();
    assert_eq!(waiting.await.unwrap().unwrap().jobs, []);
    assert_eq!(server.service.queues().host().looks(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_job_reaches_a_waiting_worker_at_once() {
    let server = in_real_time(Duration::ZERO).await;
    let waiting = worker(&server, "q");
    server.service.queues().host().looked(1).await;
    server.enqueue(job("q")).await.unwrap();
    let reply = waiting.await.unwrap().unwrap();
    let late = at(reply.server_time) - at(reply.jobs[0].enqueued_at);
    assert!((0..=LATE_MAX).contains(&late), "{late} ms late");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_job_of_a_worker_that_died_reaches_another_when_its_lease_ends() {
    let server = in_real_time(Duration::from_millis(50)).await;
    server.enqueue(job("q")).await.unwrap();
    let request = pb::ClaimRequest { lease_duration: time(1, 0), ..claim("q") };
    let lost = server.take_by(request).await;
    let reply = worker(&server, "q").await.unwrap().unwrap();
    assert_eq!(reply.jobs[0].attempt, 2);
    let late = at(reply.server_time) - at(lost.lease_expires_at) - 50;
    assert!((0..=2 * LATE_MAX).contains(&late), "{late} ms late");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_poll_answers_before_the_callers_deadline() {
    let server = in_real_time(Duration::ZERO).await;
    server.enqueue(pb::EnqueueRequest { start: after(time(60, 0)), ..job("q") }).await.unwrap();
    for timeout in [600, 100] {
        let mut request = Request::new(pb::ClaimRequest { wait: time(25, 0), ..claim("q") });
        request.set_timeout(Duration::from_millis(timeout));
        let reply = server.queue().claim(request).await.expect("an answer, not a deadline");
        let idle = &reply.into_inner().idle[0];
        assert_eq!(idle.reason(), pb::IdleReason::NotDue);
        assert!((50_000..=60_000).contains(&long(idle.retry_after)));
    }
}

/// The first in line has gone; the job must not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_hung_up_takes_no_job_with_it() {
    let server = in_real_time(Duration::ZERO).await;
    // Calls the service itself: over the wire a test cannot tell when the server learns of a hang-up.
    let request = ClaimRequest {
        queues: vec![QueueName::parse("q").unwrap()],
        order: Order::Strict,
        max_jobs: 1,
        max_bytes: 1 << 20,
        wait: Duration::from_secs(25),
        lease_duration: None,
        worker_id: String::new(),
        request_id: String::new(),
        settle: Settlements::default(),
        budget: MessageBudget::new(&Bounds::default()).address().connection(),
    };
    let service = server.service.clone();
    let gone = tokio::spawn(async move { service.claim(request).await });
    server.service.queues().host().looked(1).await;
    let waiting = worker(&server, "q");
    server.service.queues().host().looked(2).await;
    gone.abort();
    assert!(gone.await.unwrap_err().is_cancelled());
    server.enqueue(job_of("q", "x")).await.unwrap();
    let reply = waiting.await.unwrap().unwrap();
    assert_eq!(reply.jobs[0].job_id, "x");
}

/// Nothing happens meanwhile but that time passes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_worker_gets_the_next_job_that_max_rate_lets_out_when_its_token_comes() {
    let mut queue = steady(Duration::ZERO);
    queue.max_rate = Some(MaxRate::parse("4/s").unwrap());
    let server = Server::with(Setup { defaults: queue, real_time: true, ..Setup::default() }).await;
    for _ in 0..2 {
        server.enqueue(job("q")).await.unwrap();
    }
    let first = server.claim(claim("q")).await.unwrap();
    let reply = worker(&server, "q").await.unwrap().unwrap();
    assert_eq!((first.jobs.len(), reply.jobs.len()), (1, 1));
    let after = at(reply.server_time) - at(first.server_time);
    assert!((240..=250 + LATE_MAX).contains(&after), "after {after} ms, at four a second");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_worker_gets_the_next_job_that_a_recovery_lets_out_when_its_token_comes() {
    let mut queue = steady(Duration::ZERO);
    queue.breaker.first_probe = Duration::ZERO;
    let server = Server::with(Setup { defaults: queue, real_time: true, ..Setup::default() }).await;
    for _ in 0..25 {
        server.enqueue(job("q")).await.unwrap();
    }
    let many = server.claim(pb::ClaimRequest { max_jobs: 20, ..claim("q") }).await.unwrap();
    for job in many.jobs {
        server.nack(nack(&job.lease, "ConnectionRefused")).await.unwrap();
    }
    let probe = worker(&server, "q").await.unwrap().unwrap().jobs.remove(0);
    // What it takes: one job at a time comes to three a second.
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.ack(&probe.lease).await.unwrap();
    let first = worker(&server, "q").await.unwrap().unwrap();
    server.ack(&first.jobs[0].lease).await.unwrap();
    let reply = worker(&server, "q").await.unwrap().unwrap();
    assert_eq!(reply.jobs.len(), 1);
    let after = at(reply.server_time) - at(first.server_time);
    assert!((250..=320 + LATE_MAX).contains(&after), "after {after} ms");
}
