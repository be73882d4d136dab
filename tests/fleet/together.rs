//! Three servers on one Redis: what one of them is told holds for all.

use crate::fleet::Fleet;
use crate::load::{Load, nack};
use crate::requests::{ack, claim, job, seconds};
use crate::servers::{Kind, Launch, Server};
use crate::shapes::by_oldest;
use redrive::grpc::pb::queue_service_client::QueueServiceClient;
use redrive::grpc::pb::{
    BreakerState, BreakerStatusRequest, ClaimRequest, EnqueueRequest, IdleReason, Job, NackKind, PauseQueueRequest,
    PurgeDeadLettersRequest, RequeueRequest, ResetBreakerRequest, ResumeQueueRequest, SetBreakerRequest,
};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tonic::transport::Channel;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_servers_share_one_queue_and_no_job_is_with_two_workers() {
    let redis = Server::start(Kind::Redis);
    let fleet = Fleet::start(&redis.address(), 3);
    let mut load = Load::with(&fleet, true);
    load.run(4_000).await;
    let report = load.finish(&fleet, 1).await;
    println!("three servers: {report}");
    report.assert_word_kept();
}

/// One call, said thirty times at once, at each server in turn: its one answer, with nothing of where it was said.
async fn said_thirty_times<A: PartialEq + std::fmt::Debug + Send + 'static>(
    call: impl Fn(usize) -> JoinHandle<A>,
) -> A {
    let said: Vec<_> = (0..30).map(|at| call(at % 3)).collect();
    let mut answers = Vec::new();
    for said in said {
        answers.push(said.await.unwrap());
    }
    let first = answers.remove(0);
    assert!(answers.iter().all(|answer| *answer == first), "{first:?} and {answers:?}");
    first
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_said_thirty_times_over_three_servers_has_one_answer() {
    let redis = Server::start(Kind::Redis);
    let fleet = Fleet::start(&redis.address(), 3);
    let mut ways = fleet.ways();
    for out in lease(&mut ways[0], 20).await {
        ways[1].nack(nack(&out, NackKind::Permanent)).await.unwrap();
    }
    let request = RequeueRequest {
        queue: "q".into(),
        selector: by_oldest(8),
        request_id: "requeue".into(),
        ..RequeueRequest::default()
    };
    let requeued = said_thirty_times(|at| {
        let (mut way, request) = (ways[at].clone(), request.clone());
        tokio::spawn(async move { way.requeue(request).await.unwrap().into_inner() })
    });
    assert_eq!(requeued.await.requeued, 8);
    let request = PurgeDeadLettersRequest {
        queue: "q".into(),
        selector: by_oldest(5),
        request_id: "purge".into(),
        ..PurgeDeadLettersRequest::default()
    };
    let mut admins = Vec::new();
    for server in &fleet.servers {
        admins.push(server.admin().await);
    }
    let purged = said_thirty_times(|at| {
        let (mut admin, request) = (admins[at].clone(), request.clone());
        tokio::spawn(async move { admin.purge_dead_letters(request).await.unwrap().into_inner() })
    });
    assert_eq!(purged.await.purged, 5);
    let request = ClaimRequest { max_jobs: 4, worker_id: "w".into(), request_id: "claim".into(), ..claim("q") };
    let claimed = said_thirty_times(|at| {
        let (mut way, request) = (ways[at].clone(), request.clone());
        tokio::spawn(async move {
            let jobs = way.claim(request).await.unwrap().into_inner().jobs;
            jobs.into_iter().map(|job| job.lease).collect::<Vec<_>>()
        })
    });
    assert_eq!(claimed.await.len(), 4);
    let stats = fleet.stats(0, "q").await;
    assert_eq!((stats.requeued, stats.purged), (8, 5));
    let rest = ways[2].claim(ClaimRequest { max_jobs: 100, ..claim("q") }).await.unwrap().into_inner().jobs;
    assert_eq!(rest.len(), 4, "the claim has four of the eight");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_out_with_a_killed_server_come_back_and_none_is_lost() {
    let redis = Launch::durable(Kind::Redis).start();
    let mut fleet = Fleet::start(&redis.address(), 3);
    let mut load = Load::with(&fleet, true);
    load.run(800).await;
    fleet.servers[0].kill();
    load.run(800).await;
    // A server that comes later helps as well.
    fleet.join();
    let report = load.finish(&fleet, 3).await;
    println!("a server killed: {report}");
    report.assert_word_kept();
    assert!(report.book.repeated.contains_key("no answer"), "no call was cut off");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_given_by_a_killed_server_is_ended_by_another() {
    let redis = Server::start(Kind::Redis);
    let mut fleet = Fleet::start(&redis.address(), 2);
    let (mut first, mut second) = (fleet.ways().remove(0), fleet.ways().remove(1));
    first.enqueue(EnqueueRequest { job_id: "a".into(), ..job("q") }).await.unwrap();
    let two = ClaimRequest { lease_duration: seconds(2), ..claim("q") };
    let began = Instant::now();
    let out = first.claim(two).await.unwrap().into_inner().jobs.remove(0);
    fleet.servers[0].kill();
    let patient = ClaimRequest { wait: seconds(20), ..claim("q") };
    let back = second.claim(patient).await.unwrap().into_inner().jobs.remove(0);
    let after = began.elapsed();
    println!("a lease of 2 s, its server killed: the job is back after {after:.2?}");
    assert_eq!((back.job_id.as_str(), back.attempt, back.deliveries), ("a", 2, 2));
    assert!(after >= Duration::from_secs(2), "{after:?}");
    assert!(second.ack(ack(&out.lease)).await.is_err(), "the old lease is over");
    second.ack(ack(&back.lease)).await.unwrap();
    assert_eq!(fleet.state(1, "q", "a").await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_and_a_breaker_set_at_one_server_hold_at_all() {
    let redis = Server::start(Kind::Redis);
    let fleet = Fleet::start(&redis.address(), 3);
    let mut ways = fleet.ways();
    let mut admin = fleet.servers[0].admin().await;
    ways[0].enqueue(job("q")).await.unwrap();
    for (at, way) in ways.iter_mut().enumerate() {
        // Each knows the queue, and what it knows must not stay as it is.
        let reply = way.breaker_status(BreakerStatusRequest::default()).await.unwrap();
        let breakers = reply.into_inner().breakers;
        assert!(breakers.iter().all(|it| it.state() == BreakerState::Closed), "server {at}");
    }
    admin.pause_queue(PauseQueueRequest { queue: "q".into(), ..Default::default() }).await.unwrap();
    assert_eq!(why_idle(&fleet).await, [IdleReason::Paused; 3]);
    admin.resume_queue(ResumeQueueRequest { queue: "q".into() }).await.unwrap();
    let name = "queue:q".to_owned();
    let open = SetBreakerRequest { name: name.clone(), state: BreakerState::Open.into(), reason: "a test".into() };
    admin.set_breaker(open).await.unwrap();
    assert_eq!(why_idle(&fleet).await, [IdleReason::BreakerOpen; 3]);
    for way in &mut ways {
        let request = BreakerStatusRequest { name: name.clone(), ..Default::default() };
        let breaker = way.breaker_status(request).await.unwrap().into_inner().breakers.remove(0);
        assert_eq!((breaker.state(), breaker.forced), (BreakerState::Open, true));
    }
    // A worker that waits at one server is let in by another.
    let mut waiting = ways[2].clone();
    let patient = ClaimRequest { wait: seconds(20), ..claim("q") };
    let waiting = tokio::spawn(async move { waiting.claim(patient).await });
    let mut second = fleet.servers[1].admin().await;
    second.reset_breaker(ResetBreakerRequest { name }).await.unwrap();
    let got = waiting.await.unwrap().unwrap().into_inner();
    assert_eq!(got.jobs.len(), 1);
}

async fn why_idle(fleet: &Fleet) -> Vec<IdleReason> {
    let mut reasons = Vec::new();
    for mut way in fleet.ways() {
        let reply = way.claim(claim("q")).await.unwrap().into_inner();
        assert_eq!(reply.jobs, []);
        reasons.push(reply.idle[0].reason());
    }
    reasons
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_breaker_that_failures_open_at_one_server_is_open_at_all() {
    let redis = Server::start(Kind::Redis);
    let fleet = Fleet::with(&redis.address(), 3, "", |_, launch| launch);
    let mut ways = fleet.ways();
    // A streak of twenty opens it, however short a time it takes.
    let out = lease(&mut ways[0], 20).await;
    for _ in 0..3 {
        ways[0].enqueue(job("q")).await.unwrap();
    }
    for out in &out {
        // Any server accepts it, whichever one delivered it: the lease token is enough.
        ways[1].nack(nack(out, NackKind::Retry)).await.unwrap();
    }
    assert_eq!(why_idle(&fleet).await, [IdleReason::BreakerOpen; 3]);
    assert_eq!(fleet.stats(0, "q").await.held, 23);
}

/// Failures are counted for all servers, whichever one receives them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_told_to_three_servers_in_turn_open_the_breaker_at_the_threshold() {
    let redis = Server::start(Kind::Redis);
    let fleet = Fleet::with(&redis.address(), 3, "", |_, launch| launch);
    let mut ways = fleet.ways();
    let out = lease(&mut ways[0], 20).await;
    ways[0].enqueue(job("q")).await.unwrap();
    for (at, out) in out.iter().enumerate() {
        for way in &mut ways {
            let (state, failures) = counted(way).await;
            // From the fifth on it opens as soon as a second has passed.
            if at < 5 || state == BreakerState::Closed {
                assert_eq!((state, failures), (BreakerState::Closed, at as u32));
            }
        }
        ways[at % 3].nack(nack(out, NackKind::Retry)).await.unwrap();
    }
    for way in &mut ways {
        assert_eq!(counted(way).await.0, BreakerState::Open);
    }
    assert_eq!(why_idle(&fleet).await, [IdleReason::BreakerOpen; 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn successes_at_one_server_keep_failures_at_another_from_opening_the_breaker() {
    let redis = Server::start(Kind::Redis);
    let fleet = Fleet::with(&redis.address(), 3, "", |_, launch| launch);
    let mut ways = fleet.ways();
    let out = lease(&mut ways[0], 30).await;
    for pair in out.chunks(2) {
        ways[1].nack(nack(&pair[0], NackKind::Retry)).await.unwrap();
        ways[2].ack(ack(&pair[1].lease)).await.unwrap();
    }
    for way in &mut ways {
        assert_eq!(counted(way).await, (BreakerState::Closed, 0));
    }
}

/// So many different jobs.
async fn lease(way: &mut QueueServiceClient<Channel>, jobs: usize) -> Vec<Job> {
    for _ in 0..jobs {
        way.enqueue(job("q")).await.unwrap();
    }
    let all = ClaimRequest { max_jobs: jobs as u32, ..claim("q") };
    let out = way.claim(all).await.unwrap().into_inner().jobs;
    assert_eq!(out.len(), jobs);
    out
}

/// The breaker's state, and the failures that it counts, as one server says.
async fn counted(way: &mut QueueServiceClient<Channel>) -> (BreakerState, u32) {
    let request = BreakerStatusRequest { name: "queue:q".into(), ..Default::default() };
    let breaker = way.breaker_status(request).await.unwrap().into_inner().breakers.remove(0);
    (breaker.state(), breaker.failure_count)
}
