//! Servers whose clocks are minutes apart. Time is that of Redis, so it makes no difference.

use crate::fleet::{CONFIG, Fleet};
use crate::load::{Load, nack};
use crate::requests::{ack, claim, job, seconds};
use crate::server::scratch;
use crate::servers::{Kind, Launch, Server, WallClock as RedisClock};
use crate::wall_clock::WallClock;
use redrive::grpc::pb::enqueue_request::Start;
use redrive::grpc::pb::{ClaimRequest, EnqueueRequest, ExtendRequest, GetServerInfoRequest, JobState, NackKind};
use std::time::{Duration, Instant};

const MINUTES_APART: [i64; 2] = [-7 * 60, 11 * 60];

/// The first is behind, the second ahead; Redis' clock is right.
fn fleet(redis: &Server) -> (tempfile::TempDir, Fleet) {
    let place = scratch();
    let clocks = MINUTES_APART.map(|offset| {
        let folder = place.path().join(offset.to_string());
        std::fs::create_dir(&folder).unwrap();
        let clock = WallClock::in_folder(&folder);
        clock.set(offset);
        clock
    });
    let fleet = Fleet::with(&redis.address(), 2, CONFIG, |at, launch| clocks[at % 2].of(launch));
    (place, fleet)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_minutes_apart_cost_no_job_no_lease_and_no_delay() {
    let redis = Server::start(Kind::Redis);
    let (_place, fleet) = fleet(&redis);
    let mut load = Load::with(&fleet, true);
    load.run(2_000).await;
    let report = load.finish(&fleet, 0).await;
    println!("clocks {MINUTES_APART:?} s from Redis': {report}");
    report.assert_word_kept();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_and_a_lease_last_as_long_at_a_server_whose_clock_is_minutes_away() {
    let redis = Server::start(Kind::Redis);
    let (_place, fleet) = fleet(&redis);
    for (at, server) in fleet.servers.iter().enumerate() {
        // Was the clock turned at all?
        let info = server.admin().await.get_server_info(GetServerInfoRequest {}).await.unwrap();
        let warnings = info.into_inner().warnings;
        assert!(warnings.iter().any(|warning| warning.contains("clock")), "{at}: {warnings:?}");
    }
    let ways = fleet.ways();
    for (from, to) in [(0, 1), (1, 0)] {
        let (mut here, mut there) = (ways[from].clone(), ways[to].clone());
        let queue = format!("q{from}");
        for id in ["a-retried", "b-leased"] {
            here.enqueue(EnqueueRequest { job_id: id.into(), ..job(&queue) }).await.unwrap();
        }
        let two = ClaimRequest { max_jobs: 2, lease_duration: seconds(4), ..claim(&queue) };
        let leased_at = Instant::now();
        let jobs = here.claim(two).await.unwrap().into_inner().jobs;
        let [retried, leased] = &jobs[..] else { panic!("{jobs:?}") };

        let later = redrive::grpc::pb::NackRequest { retry_after: seconds(2), ..nack(retried, NackKind::Retry) };
        let nacked_at = Instant::now();
        here.nack(later).await.unwrap();
        let patient = ClaimRequest { wait: seconds(20), ..claim(&queue) };
        let retried = there.claim(patient.clone()).await.unwrap().into_inner().jobs.remove(0);
        let retry_took = nacked_at.elapsed();
        assert_eq!(retried.job_id, "a-retried");
        assert!(retry_took >= Duration::from_secs(2), "early: {retry_took:?}");
        there.ack(ack(&retried.lease)).await.unwrap();

        assert_eq!(fleet.state(to, &queue, "b-leased").await, Some(JobState::Leased));
        let back = there.claim(patient).await.unwrap().into_inner().jobs.remove(0);
        let lease_took = leased_at.elapsed();
        assert_eq!(back.job_id, "b-leased");
        assert!(lease_took >= Duration::from_secs(4), "stolen: {lease_took:?}");
        assert!(here.ack(ack(&leased.lease)).await.is_err(), "the first lease is over");
        there.ack(ack(&back.lease)).await.unwrap();
        println!(
            "from {:+} s to {:+} s: a retry of 2 s took {retry_took:.2?}, a lease of 4 s {lease_took:.2?}",
            MINUTES_APART[from], MINUTES_APART[to]
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_has_the_grace_of_a_restart_after_a_jump_of_redis_clock() {
    for jump in [7_200, -7_200] {
        let clock = RedisClock::at(0);
        let redis = clock.of(Launch::new(Kind::Redis)).start();
        let fleet = Fleet::start(&redis.address(), 1);
        let mut worker = fleet.ways().remove(0);
        for (id, after) in [("a-leased", 0), ("b-later", 5)] {
            let start = seconds(after).map(Start::Delay);
            worker.enqueue(EnqueueRequest { job_id: id.into(), start, ..job("q") }).await.unwrap();
        }
        let leased = worker.claim(claim("q")).await.unwrap().into_inner().jobs.remove(0);
        clock.set(jump);
        // When this one is due, the lease of 3 s has run out.
        let patient = ClaimRequest { wait: seconds(20), ..claim("q") };
        let next = worker.claim(patient).await.unwrap().into_inner().jobs.remove(0);
        assert_eq!(next.job_id, "b-later", "{jump}");
        assert_eq!(fleet.state(0, "q", "a-leased").await, Some(JobState::Leased));
        worker.extend(ExtendRequest { lease: leased.lease, ..ExtendRequest::default() }).await.unwrap();
        assert_eq!(fleet.stats(0, "q").await.lease_expired, 0);
    }
}
