//! A server that is killed while its queues are held back in every way there is, and goes on as before.

use crate::requests::{ack, claim, job, seconds};
use crate::server::{Launch, Server, config_file, scratch};
use redrive::grpc::pb::{
    Breaker, BreakerState, BreakerStatusRequest, ClaimRequest, EnqueueRequest, Failure, IdleReason, ListQueuesRequest,
    NackRequest, PauseQueueRequest, QueueIdle, QueueInfo, ResetBreakerRequest, SetBreakerRequest,
};

/// One 429 opens a breaker; that of `probing` is half open soon, and closes with its probe.
const CONFIG: &str = r#"
[defaults]
breaker = { recovery_timeout = "10m" }

[queues.probing]
breaker = { recovery_timeout = "1s", ramp = false }
"#;

async fn fail_one(server: &Server, name: &str) {
    let mut queue = server.queue().await;
    for id in ["first", "second", "third"] {
        let job = EnqueueRequest { job_id: id.into(), ..job(name) };
        queue.enqueue(job).await.unwrap();
    }
    let first = queue.claim(claim(name)).await.unwrap().into_inner().jobs.remove(0);
    let error = Failure { r#type: "TooManyRequests".into(), http_status: 429, ..Failure::default() };
    let nack = NackRequest { lease: first.lease, error: Some(error), ..NackRequest::default() };
    let answer = queue.nack(nack).await.unwrap().into_inner();
    assert_eq!(answer.queue_breaker(), BreakerState::Open, "{name}");
}

async fn idle(server: &Server, name: &str) -> QueueIdle {
    let reply = server.queue().await.claim(claim(name)).await.unwrap().into_inner();
    assert_eq!(reply.jobs, [], "{name}");
    reply.idle.into_iter().next().unwrap()
}

/// All that is kept of the breakers and the queues.
async fn seen(server: &Server) -> (Vec<Breaker>, Vec<QueueInfo>) {
    let breakers = server.queue().await.breaker_status(BreakerStatusRequest::default()).await;
    let queues = server.admin().await.list_queues(ListQueuesRequest::default()).await;
    let mut queues = queues.unwrap().into_inner().queues;
    for queue in &mut queues {
        queue.oldest_ready_age = None;
        // It is in memory.
        queue.last_claim_at = None;
    }
    (breakers.unwrap().into_inner().breakers, queues)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_holds_a_queue_back_holds_it_back_after_a_kill() {
    let place = scratch();
    let config = config_file(place.path(), CONFIG);
    let launch = || Launch::on(&place.path().join("data")).arg("--config").arg(&config);
    let mut server = launch().start();
    for name in ["open", "probing"] {
        fail_one(&server, name).await;
    }
    for name in ["forced", "paused"] {
        server.queue().await.enqueue(job(name)).await.unwrap();
    }
    let mut admin = server.admin().await;
    let pause = PauseQueueRequest { queue: "paused".into(), reason: "deploy".into(), duration: None };
    admin.pause_queue(pause).await.unwrap();
    let force = SetBreakerRequest {
        name: "queue:forced".into(),
        state: BreakerState::Open.into(),
        reason: "maintenance".into(),
    };
    admin.set_breaker(force).await.unwrap();
    let waits = ClaimRequest { wait: seconds(20), lease_duration: seconds(300), ..claim("probing") };
    let probe = server.queue().await.claim(waits).await.unwrap().into_inner().jobs.remove(0);
    assert_eq!(probe.job_id, "second");
    let before = seen(&server).await;
    server.kill();

    let server = launch().start();
    assert_eq!(seen(&server).await, before);
    for (name, reason) in
        [("open", IdleReason::BreakerOpen), ("forced", IdleReason::BreakerOpen), ("paused", IdleReason::Paused)]
    {
        assert_eq!(idle(&server, name).await.reason(), reason, "{name}");
    }
    // The probe that was out closes the breaker, and the third job, which was held back, goes to the waiter.
    let mut queue = server.queue().await;
    queue.ack(ack(&probe.lease)).await.unwrap();
    let waits = ClaimRequest { wait: seconds(20), ..claim("probing") };
    assert_eq!(queue.claim(waits).await.unwrap().into_inner().jobs[0].job_id, "third");
    let reset = ResetBreakerRequest { name: "queue:forced".into() };
    server.admin().await.reset_breaker(reset).await.unwrap();
    assert_eq!(queue.claim(claim("forced")).await.unwrap().into_inner().jobs.len(), 1);
    let line = server.log_line("nothing is held back any more");
    assert!(line.contains("queue:probing"), "{line}");
}
