//! Redis has no room left, or no replica to confirm: calls are refused so that repeating them is safe.

use crate::fleet::Fleet;
use crate::load::{Load, nack};
use crate::requests::{ack, claim, job, seconds};
use crate::servers::{Kind, Launch, Server, Watched, until};
use redrive::grpc::pb::{ClaimRequest, EnqueueRequest, JobState, NackKind};
use std::time::{Duration, Instant};
use tonic::{Code, Status};
use tonic_types::StatusExt;

fn reason(status: &Status) -> String {
    status.get_details_error_info().expect("a reason").reason
}

fn named(id: &str) -> EnqueueRequest {
    EnqueueRequest { job_id: id.into(), idempotency_key: id.into(), ..job("q") }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_redis_takes_no_new_jobs_and_loses_none_it_has() {
    let redis = Launch::durable(Kind::Redis).line("maxmemory-policy noeviction").start();
    let fleet = Fleet::start(&redis.address(), 2);
    let mut load = Load::on(&fleet);
    load.run(400).await;
    let mut way = fleet.ways().remove(1);
    for id in ["a-acked", "b-nacked", "c-left"] {
        way.enqueue(named(id)).await.unwrap();
    }
    let two = ClaimRequest { max_jobs: 2, lease_duration: seconds(60), ..claim("q") };
    let jobs = way.claim(two).await.unwrap().into_inner().jobs;

    let _: String = redis.ask("CONFIG SET maxmemory 1");
    let refused = way.enqueue(named("too-much")).await.unwrap_err();
    assert_eq!((refused.code(), reason(&refused).as_str()), (Code::Unavailable, "DISK_LOW"));
    assert!(refused.get_details_retry_info().is_some(), "{refused:?}");
    let acked = way.ack(ack(&jobs[0].lease)).await;
    let nacked = way.nack(nack(&jobs[1], NackKind::Permanent)).await;
    println!("full: Ack {}, Nack {}", told(acked.as_ref().err()), told(nacked.as_ref().err()));
    for refused in [acked.err(), nacked.err()].into_iter().flatten() {
        assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    }
    assert!(fleet.is_serving(0).await, "what is there can still be finished");

    let _: String = redis.ask("CONFIG SET maxmemory 0");
    way.enqueue(named("too-much")).await.unwrap();
    way.ack(ack(&jobs[0].lease)).await.unwrap();
    way.nack(nack(&jobs[1], NackKind::Permanent)).await.unwrap();
    assert_eq!(fleet.state(0, "q", "a-acked").await, None);
    assert_eq!(fleet.state(0, "q", "b-nacked").await, Some(JobState::Dead));
    assert_eq!(fleet.state(0, "q", "c-left").await, Some(JobState::Ready));
    load.run(200).await;
    let report = load.finish(&fleet, 0).await;
    println!("maxmemory reached: {report}");
    report.assert_word_kept();
    assert!(report.book.repeated.contains_key("DISK_LOW"), "{:?}", report.book.repeated);
}

fn told(refused: Option<&Status>) -> String {
    refused.map_or_else(|| "goes on".into(), reason)
}

async fn pair(kind: Kind) -> (Server, Server) {
    let primary = Launch::durable(kind).start();
    let follow = format!("replicaof 127.0.0.1 {}", primary.port);
    let replica = Launch::durable(kind).line(follow).start();
    until("the replica follows", || async { replica.info("master_link_status") == "up" }).await;
    until("the primary knows it", || async { primary.info("connected_slaves") == "1" }).await;
    (primary, replica)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_replica_has_is_not_confirmed_by_another_server_either() {
    for kind in [Kind::Redis, Kind::Valkey] {
        let (primary, replica) = pair(kind).await;
        let fleet = Fleet::durable(&primary.address(), 2, "replicated(1)");
        let mut ways = fleet.ways();
        for id in ["first", "second"] {
            // A replica that has just loaded its data takes a moment to confirm for the first time.
            until("it confirms", || async { fleet.ways().remove(0).enqueue(named(id)).await.is_ok() }).await;
        }
        // Both servers have written, and been confirmed.
        ways[1].enqueue(named("third")).await.unwrap();
        let two = ClaimRequest { max_jobs: 2, lease_duration: seconds(60), ..claim("q") };
        let jobs = ways[0].claim(two).await.unwrap().into_inner().jobs;
        replica.freeze();
        let began = Instant::now();
        // Repeated, a call changes nothing; but it must not be called safe before it is.
        for at in [0, 0, 1] {
            let way = &mut ways[at];
            let added = way.enqueue(named("late")).await.map(drop);
            let acked = way.ack(ack(&jobs[0].lease)).await.map(drop);
            let nacked = way.nack(nack(&jobs[1], NackKind::Permanent)).await.map(drop);
            for answer in [added, acked, nacked] {
                let short = answer.expect_err("no replica has it");
                assert_eq!(reason(&short), "DURABILITY_NOT_CONFIRMED", "{short:?}");
            }
        }
        let took = began.elapsed() / 9;
        assert!(took < Duration::from_secs(3), "{took:?}");
        replica.thaw();
        until("the replica has caught up", || async { fleet.ways().remove(1).enqueue(named("late")).await.is_ok() })
            .await;
        for way in &mut ways {
            assert!(way.ack(ack(&jobs[0].lease)).await.unwrap().into_inner().already_gone);
            way.nack(nack(&jobs[1], NackKind::Permanent)).await.unwrap();
        }
        let stats = fleet.stats(0, "q").await;
        assert_eq!((stats.enqueued, stats.completed, stats.dead_lettered), (4, 1, 1), "once each");
        println!("{kind:?}: a frozen replica, refused after {took:.2?}, and by the other server too");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_lags_holds_answers_back_and_nothing_confirmed_is_lost() {
    let mut watched = Watched::start().await;
    let fleet = Fleet::durable(&watched.address(), 2, "replicated(1)");
    let mut load = Load::on(&fleet);
    for _ in 0..3 {
        load.run(150).await;
        watched.replica.freeze();
        // Long enough for answers to be refused, too short for sentinels to give the replica up.
        load.refused("DURABILITY_NOT_CONFIRMED").await;
        watched.replica.thaw();
    }
    load.run(100).await;
    watched.replica.freeze();
    load.refused("DURABILITY_NOT_CONFIRMED").await;
    watched.primary.kill();
    watched.replica.thaw();
    until("the replica is the primary", || async { watched.replica.is_primary() }).await;
    let follow = format!("replicaof 127.0.0.1 {}", watched.replica.port);
    let _second = Launch::durable(Kind::Redis).line(follow).start();
    load.run(200).await;
    let report = load.finish(&fleet, 1).await;
    println!("a lagging replica, then the primary killed, replicated(1): {report}");
    report.assert_word_kept();
}
