//! The worker's stream: credits, settlements, and what becomes of jobs when it breaks.

use crate::scene::assert_refused;
use crate::server::{Server, Setup, ack, extend, inner, job, job_of, nack, steady, text, time};
use crate::shapes::after;
use redrive::grpc::pb;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

/// A worker's end of its stream.
struct Worker {
    says: mpsc::Sender<pb::WorkRequest>,
    hears: Streaming<pb::WorkResponse>,
}

fn hello(queue: &str) -> pb::WorkHello {
    pb::WorkHello { queues: vec![queue.into()], worker_id: "w1".into(), ..Default::default() }
}

impl Worker {
    async fn start(server: &Server, hello: pb::WorkHello, credits: u32) -> Self {
        let worker = Self::silent(server).await;
        worker.says(pb::WorkRequest { hello: Some(hello), ..credit(credits) }).await;
        worker
    }

    /// Has not said anything yet.
    async fn silent(server: &Server) -> Self {
        let (says, messages) = mpsc::channel(16);
        let hears = server.queue().work(ReceiverStream::new(messages)).await.unwrap();
        Self { says, hears: hears.into_inner() }
    }

    async fn says(&self, message: pb::WorkRequest) {
        self.says.send(message).await.expect("the server listens");
    }

    /// The next message, whatever it is.
    async fn hears(&mut self) -> Result<Option<pb::WorkResponse>, Status> {
        let patience = Duration::from_secs(20);
        tokio::time::timeout(patience, self.hears.message()).await.expect("a message in time")
    }

    /// The next jobs; why there are none before is passed over.
    async fn jobs(&mut self) -> Vec<pb::Job> {
        loop {
            let message = self.hears().await.unwrap().expect("the stream goes on");
            if !message.jobs.is_empty() {
                return message.jobs;
            }
        }
    }

    /// So many jobs, in as many messages as it takes.
    async fn jobs_in_all(&mut self, count: usize) -> Vec<pb::Job> {
        let mut jobs = Vec::new();
        while jobs.len() < count {
            jobs.extend(self.jobs().await);
        }
        assert_eq!(jobs.len(), count);
        jobs
    }

    async fn settled(&mut self) -> (u64, pb::SettleResponse, Vec<pb::Job>) {
        loop {
            let message = self.hears().await.unwrap().expect("the stream goes on");
            if let Some(settled) = message.settled {
                return (message.settle_id, settled, message.jobs);
            }
        }
    }

    /// Goes without a word.
    fn breaks(self) {
        drop(self);
    }
}

fn credit(credits: u32) -> pb::WorkRequest {
    pb::WorkRequest { add_credits: credits, ..Default::default() }
}

fn settle(settle_id: u64, acks: &[&str]) -> pb::WorkRequest {
    let acks = acks.iter().map(|lease| ack(lease)).collect();
    let settle = Some(pb::SettleRequest { acks, ..Default::default() });
    pb::WorkRequest { settle, settle_id, ..Default::default() }
}

async fn fill(server: &Server, count: usize) {
    let jobs = vec![job("q"); count];
    server.queue().enqueue_batch(pb::EnqueueBatchRequest { jobs }).await.unwrap();
}

async fn depths(server: &Server) -> (u32, u32) {
    let queue = server.list_queues().await.remove(0);
    (queue.ready, queue.leased)
}

/// Looks until it is so: what a broken stream leaves behind is put right in the background.
async fn becomes<T: PartialEq + std::fmt::Debug, F: Future<Output = T>>(mut look: impl FnMut() -> F, wanted: T) {
    let looks = async {
        loop {
            let found = look().await;
            if found == wanted {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    let patience = Duration::from_secs(20);
    tokio::time::timeout(patience, looks).await.unwrap_or_else(|_| panic!("never {wanted:?}"));
}

#[tokio::test]
async fn a_worker_gets_as_many_jobs_as_it_has_credits_for() {
    let server = Server::start().await;
    fill(&server, 10).await;
    let mut worker = Worker::start(&server, hello("q"), 3).await;
    let jobs = worker.jobs_in_all(3).await;
    assert_eq!(depths(&server).await, (7, 3));
    // Settling gives no credit back.
    worker.says(settle(7, &[&jobs[0].lease, &jobs[1].lease])).await;
    let (id, settled, more) = worker.settled().await;
    assert_eq!((id, settled.acks.len(), more.len()), (7, 2, 0));
    assert_eq!(depths(&server).await, (7, 1));
    let third = pb::WorkRequest { add_credits: 5, ..settle(8, &[&jobs[2].lease]) };
    worker.says(third).await;
    let (id, _, more) = worker.settled().await;
    assert_eq!(id, 8);
    let rest = if more.is_empty() { worker.jobs_in_all(5).await } else { more };
    assert_eq!(rest.len(), 5, "settled and claimed in one go");
    assert_eq!(depths(&server).await, (2, 5));
}

#[tokio::test]
async fn a_worker_that_waits_gets_a_job_as_soon_as_there_is_one() {
    let server = Server::start().await;
    let mut worker = Worker::start(&server, hello("q"), 1).await;
    let nothing = worker.hears().await.unwrap().unwrap();
    assert_eq!(nothing.idle[0].reason(), pb::IdleReason::NoSuchQueue);
    server.enqueue(job_of("q", "x")).await.unwrap();
    let jobs = worker.jobs().await;
    assert_eq!((jobs[0].job_id.as_str(), jobs[0].attempt), ("x", 1));
    worker.says(settle(1, &[&jobs[0].lease])).await;
    worker.settled().await;
    assert_eq!(server.get_job("x").await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn why_nothing_comes_is_said_when_it_changes() {
    let server = Server::start().await;
    fill(&server, 1).await;
    let mut worker = Worker::start(&server, hello("q"), 2).await;
    worker.jobs().await;
    let empty = worker.hears().await.unwrap().unwrap();
    assert_eq!(empty.idle[0].reason(), pb::IdleReason::Empty);
    server.enqueue(pb::EnqueueRequest { start: after(time(60, 0)), ..job("q") }).await.unwrap();
    let pause = pb::PauseQueueRequest { queue: "q".into(), ..Default::default() };
    server.admin().pause_queue(pause).await.unwrap();
    worker.says(credit(1)).await;
    let paused = worker.hears().await.unwrap().unwrap();
    assert_eq!(paused.idle[0].reason(), pb::IdleReason::Paused);
}

#[tokio::test]
async fn settlements_are_answered_in_order_and_each_item_for_itself() {
    let server = Server::start().await;
    fill(&server, 4).await;
    let mut worker = Worker::start(&server, hello("q"), 4).await;
    let jobs = worker.jobs_in_all(4).await;
    let everything = pb::SettleRequest {
        acks: vec![ack(&jobs[0].lease), ack("nonsense"), ack(&jobs[0].lease)],
        nacks: vec![nack(&jobs[1].lease, "E")],
        extensions: vec![extend(&jobs[2].lease)],
    };
    let first = pb::WorkRequest { settle: Some(everything), settle_id: 1, ..Default::default() };
    worker.says(first).await;
    worker.says(settle(2, &[&jobs[3].lease])).await;
    worker.says(settle(3, &[&jobs[3].lease])).await;
    let (id, settled, _) = worker.settled().await;
    assert_eq!(id, 1);
    let reasons = settled.acks.iter().map(|item| match &item.outcome {
        Some(pb::ack_result::Outcome::Ok(_)) => "OK",
        Some(pb::ack_result::Outcome::Error(error)) => error.reason.as_str(),
        None => "nothing",
    });
    assert_eq!(reasons.collect::<Vec<_>>(), ["OK", "INVALID_FIELD", "LEASE_LOST"]);
    assert_eq!((settled.nacks.len(), settled.extensions.len()), (1, 1));
    let (id, settled, _) = worker.settled().await;
    let gone = |settled: &pb::SettleResponse| match &settled.acks[0].outcome {
        Some(pb::ack_result::Outcome::Ok(acked)) => acked.already_gone,
        other => panic!("{other:?}"),
    };
    assert_eq!((id, gone(&settled)), (2, false));
    let (id, settled, _) = worker.settled().await;
    assert_eq!((id, gone(&settled)), (3, true));
}

#[tokio::test]
async fn jobs_that_were_not_begun_return_at_once_when_the_stream_breaks() {
    let server = Server::start().await;
    fill(&server, 3).await;
    let hello = pb::WorkHello { reports_started: true, ..hello("q") };
    let mut worker = Worker::start(&server, hello, 3).await;
    let jobs = worker.jobs_in_all(3).await;
    let started = vec![jobs[0].lease.clone()];
    worker.says(pb::WorkRequest { started, ..Default::default() }).await;
    // What was said before the stream breaks counts: its answer proves that it was heard.
    worker.says(settle(1, &[])).await;
    worker.settled().await;
    worker.breaks();
    becomes(|| depths(&server), (2, 1)).await;
    let info = server.get_job(&jobs[1].job_id).await.unwrap();
    assert_eq!((info.interruptions, info.job.unwrap().attempt), (1, 1));
    assert_eq!(info.attempts[0].status(), pb::AttemptStatus::Interrupted);
    // The one that was begun can still be settled.
    assert!(!server.ack(&jobs[0].lease).await.unwrap().already_gone);
    let again = server.take("q").await;
    assert_eq!((again.job_id.as_str(), again.attempt), (jobs[1].job_id.as_str(), 1));
    let lost = server.ack(&jobs[1].lease).await.unwrap_err();
    assert_refused(&lost, Code::FailedPrecondition, "LEASE_LOST", &[]);
}

#[tokio::test]
async fn a_job_that_kills_its_workers_reaches_the_dead_letters() {
    let server = Server::start().await;
    server.enqueue(job_of("q", "poison")).await.unwrap();
    let mut failures = 0;
    for _ in 0..100 {
        let hello = pb::WorkHello { reports_started: true, ..hello("q") };
        let mut worker = Worker::start(&server, hello, 1).await;
        let lease = worker.jobs().await.remove(0).lease;
        worker.breaks();
        becomes(
            || async {
                let info = server.get_job("poison").await.unwrap();
                info.state() != pb::JobState::Leased
            },
            true,
        )
        .await;
        server.extend(extend(&lease)).await.unwrap_err();
        let info = server.get_job("poison").await.unwrap();
        if info.state() == pb::JobState::Dead {
            assert_eq!((info.dead_reason(), failures), (pb::DeadReason::Exhausted, 3));
            return;
        }
        failures += u32::from(info.state() == pb::JobState::Retrying);
        server.pass(Duration::from_secs(10)).await;
    }
    panic!("it kills workers for ever");
}

#[tokio::test]
async fn without_reports_the_leases_outlive_the_stream() {
    let server = Server::start().await;
    fill(&server, 2).await;
    let mut worker = Worker::start(&server, hello("q"), 2).await;
    let jobs = worker.jobs_in_all(2).await;
    worker.breaks();
    let mut other = Worker::start(&server, hello("q"), 1).await;
    other.says(settle(1, &[&jobs[0].lease])).await;
    let (_, settled, _) = other.settled().await;
    assert!(matches!(settled.acks[0].outcome, Some(pb::ack_result::Outcome::Ok(_))));
    assert_eq!(depths(&server).await, (0, 1));
}

#[tokio::test]
async fn what_a_worker_says_last_is_carried_out_before_its_stream_ends() {
    let server = Server::start().await;
    fill(&server, 2).await;
    let mut worker = Worker::start(&server, hello("q"), 2).await;
    let jobs = worker.jobs_in_all(2).await;
    worker.says(settle(1, &[&jobs[0].lease])).await;
    worker.says(settle(2, &[&jobs[1].lease])).await;
    let Worker { says, mut hears } = worker;
    drop(says);
    let mut answered = Vec::new();
    while let Some(message) = hears.message().await.unwrap() {
        answered.extend(message.settled.map(|_| message.settle_id));
    }
    assert_eq!(answered, [1, 2]);
    assert_eq!(depths(&server).await, (0, 0));
}

#[tokio::test]
async fn beyond_its_bytes_a_worker_gets_no_more_until_it_settles_some() {
    let server = Server::start().await;
    for _ in 0..4 {
        let body = text(&"x".repeat(10_000));
        server.enqueue(pb::EnqueueRequest { body, ..job("q") }).await.unwrap();
    }
    let hello = pb::WorkHello { max_bytes_in_flight: 25_000, ..hello("q") };
    let mut worker = Worker::start(&server, hello, 100).await;
    let jobs = worker.jobs_in_all(3).await;
    // It has credits left, but is beyond its bound.
    worker.says(pb::WorkRequest { add_credits: 1, ..settle(1, &[]) }).await;
    worker.settled().await;
    assert_eq!(depths(&server).await, (1, 3));
    worker.says(settle(2, &[&jobs[0].lease])).await;
    let (_, _, more) = worker.settled().await;
    if more.is_empty() {
        worker.jobs_in_all(1).await;
    }
    assert_eq!(depths(&server).await, (0, 3));
}

#[tokio::test]
async fn a_job_of_any_size_goes_to_a_worker_that_has_nothing() {
    let server = Server::start().await;
    let body = text(&"x".repeat(500_000));
    server.enqueue(pb::EnqueueRequest { body, ..job("q") }).await.unwrap();
    let hello = pb::WorkHello { max_bytes_in_flight: 1, ..hello("q") };
    let mut worker = Worker::start(&server, hello, 1).await;
    assert_eq!(worker.jobs().await.len(), 1);
}

#[tokio::test]
async fn a_cancelled_job_is_told_to_its_worker() {
    let server = Server::start().await;
    server.enqueue(job_of("q", "x")).await.unwrap();
    let mut worker = Worker::start(&server, hello("q"), 1).await;
    let lease = worker.jobs().await.remove(0).lease;
    let cancel = pb::CancelJobRequest { job_id: "x".into(), ..Default::default() };
    inner(server.admin().cancel_job(cancel).await).unwrap();
    let news = worker.hears().await.unwrap().unwrap();
    assert_eq!(news.cancel_requested, [lease]);
}

#[tokio::test]
async fn after_stop_nothing_comes_and_settling_goes_on() {
    let server = Server::start().await;
    fill(&server, 5).await;
    let mut worker = Worker::start(&server, hello("q"), 2).await;
    let jobs = worker.jobs_in_all(2).await;
    worker.says(pb::WorkRequest { stop: true, add_credits: 10, ..Default::default() }).await;
    worker.says(settle(1, &[&jobs[0].lease])).await;
    let (_, _, more) = worker.settled().await;
    assert_eq!((more.len(), depths(&server).await), (0, (3, 1)));
}

#[tokio::test]
async fn a_server_that_shuts_down_drains_its_streams() {
    let server = Server::start().await;
    fill(&server, 2).await;
    let mut worker = Worker::start(&server, hello("q"), 1).await;
    let lease = worker.jobs().await.remove(0).lease;
    server.service.drain();
    let news = worker.hears().await.unwrap().unwrap();
    assert!(news.drain);
    worker.says(pb::WorkRequest { add_credits: 5, ..settle(1, &[&lease]) }).await;
    let (_, settled, jobs) = worker.settled().await;
    assert_eq!((settled.acks.len(), jobs.len()), (1, 0));
    assert_eq!(worker.hears().await.unwrap(), None, "all is settled, the stream ends");
}

#[tokio::test]
async fn a_worker_that_does_not_read_is_handed_no_more() {
    let server = Server::start().await;
    for _ in 0..100 {
        let jobs = vec![pb::EnqueueRequest { body: text(&"x".repeat(100_000)), ..job("q") }; 10];
        server.queue().enqueue_batch(pb::EnqueueBatchRequest { jobs }).await.unwrap();
    }
    let hello = pb::WorkHello { max_bytes_in_flight: u32::MAX, ..hello("q") };
    let worker = Worker::start(&server, hello.clone(), 1_000).await;
    // One that reads gets what is left: by the time there is nothing more, the other has had every chance to take it.
    let mut reader = Worker::start(&server, hello, 2_000).await;
    let mut read = 0;
    loop {
        let message = reader.hears().await.unwrap().expect("the stream goes on");
        read += message.jobs.len();
        if message.idle.iter().any(|idle| idle.reason() == pb::IdleReason::Empty) {
            break;
        }
    }
    assert!(read > 750, "{read} for who reads, the rest of 1,000 for who does not");
    assert_eq!(depths(&server).await, (0, 1_000));
    // What it never got goes to another worker.
    worker.breaks();
    assert!(!reader.jobs().await.is_empty());
}

#[tokio::test]
async fn a_breaker_holds_a_stream_back_as_it_holds_claims() {
    let mut queue = steady(Duration::from_secs(10));
    queue.breaker.failure_threshold = 1;
    let server = Server::with(Setup { defaults: queue, ..Setup::default() }).await;
    fill(&server, 3).await;
    // The failure comes a second after the delivery.
    let mut worker = Worker::start(&server, hello("q"), 1).await;
    let lease = worker.jobs().await.remove(0).lease;
    server.pass(Duration::from_secs(1)).await;
    let nacks = vec![nack(&lease, "E")];
    let settle = Some(pb::SettleRequest { nacks, ..Default::default() });
    worker.says(pb::WorkRequest { settle, ..credit(5) }).await;
    let held = worker.hears().await.unwrap().unwrap();
    assert_eq!(held.idle[0].reason(), pb::IdleReason::BreakerOpen);
    server.pass(Duration::from_secs(2)).await;
    assert_eq!(worker.jobs().await.len(), 1, "one probe");
}

#[tokio::test]
async fn bad_messages_end_the_stream_with_a_reason() {
    let server = Server::start().await;
    fill(&server, 1).await;
    let refused = async |message: pb::WorkRequest, field: &str| {
        let mut worker = Worker::silent(&server).await;
        worker.says(message).await;
        let status = worker.hears().await.unwrap_err();
        assert_refused(&status, Code::InvalidArgument, "INVALID_FIELD", &[field]);
    };
    refused(credit(1), "hello").await;
    let nameless = pb::WorkHello { queues: vec!["!".into()], ..Default::default() };
    refused(pb::WorkRequest { hello: Some(nameless), ..Default::default() }, "queues[0]").await;
    let started = vec!["nonsense".into()];
    let hello_and = |message: pb::WorkRequest| pb::WorkRequest { hello: Some(hello("q")), ..message };
    refused(hello_and(pb::WorkRequest { started, ..Default::default() }), "started[0]").await;
    let mut worker = Worker::start(&server, hello("q"), 0).await;
    worker.says(hello_and(credit(1))).await;
    let status = worker.hears().await.unwrap_err();
    assert_refused(&status, Code::InvalidArgument, "INVALID_FIELD", &["hello"]);
    assert_eq!(depths(&server).await, (1, 0), "nothing was handed out");
}

#[tokio::test]
async fn several_streams_share_the_work_and_no_job_is_delivered_twice() {
    let server = Server::start().await;
    fill(&server, 1_000).await;
    let mut all = Vec::new();
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(Worker::start(&server, hello("q"), 250).await);
    }
    for mut worker in workers {
        let jobs = worker.jobs_in_all(250).await;
        let leases: Vec<&str> = jobs.iter().map(|job| job.lease.as_str()).collect();
        worker.says(settle(1, &leases)).await;
        worker.settled().await;
        all.extend(jobs.into_iter().map(|job| job.job_id));
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!((all.len(), depths(&server).await), (1_000, (0, 0)));
}
