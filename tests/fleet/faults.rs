//! What goes wrong with Redis and with the way to it, under load: what was lost, duplicated or delivered early is counted.

use crate::fleet::Fleet;
use crate::ledger::{LedgerReport, QUEUE};
use crate::load::Load;
use crate::requests::{claim, job};
use crate::server::rounds;
use crate::servers::{Cluster, Fault, Kind, Launch, Proxy, Server, Watched, until};
use std::time::{Duration, Instant};
use tonic::Code;

/// A refusal that takes longer is none.
const FAST: Duration = Duration::from_secs(4);

fn assert_kept(what: &str, report: &LedgerReport) {
    println!("{what}: {report}");
    report.assert_word_kept();
    assert!(report.book.slowest_refusal < FAST, "{:?}", report.book.slowest_refusal);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_redis_with_its_file_synced_loses_nothing() {
    let mut redis = Launch::durable(Kind::Redis).start();
    let fleet = Fleet::start(&redis.address(), 3);
    let mut load = Load::on(&fleet);
    let rounds = rounds(3);
    for _ in 0..rounds {
        load.run(500).await;
        redis.kill();
        redis.restart();
    }
    load.run(200).await;
    let report = load.finish(&fleet, 0).await;
    assert_kept(&format!("Redis killed {rounds} times, appendfsync always"), &report);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_are_killed_and_come_back_lose_nothing() {
    let redis = Launch::durable(Kind::Redis).start();
    let mut fleet = Fleet::start(&redis.address(), 3);
    let mut load = Load::with(&fleet, true);
    let rounds = rounds(3);
    for round in 0..rounds {
        load.run(300).await;
        fleet.kill_and_restart(round as usize % 3);
    }
    load.run(200).await;
    let report = load.finish(&fleet, 0).await;
    assert_kept(&format!("servers killed {rounds} times"), &report);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_servers_say_so_at_once_and_recover_by_themselves() {
    let mut redis = Launch::durable(Kind::Redis).start();
    let fleet = Fleet::start(&redis.address(), 2);
    let mut ways = fleet.ways();
    ways[0].enqueue(job("q")).await.unwrap();
    fleet.all_serving(true).await;
    redis.kill();
    let began = Instant::now();
    fleet.all_serving(false).await;
    let noticed = began.elapsed();
    let began = Instant::now();
    for way in &mut ways {
        for _ in 0..5 {
            let refused = way.enqueue(job("q")).await.unwrap_err();
            assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
            let refused = way.claim(claim("q")).await.unwrap_err();
            assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
        }
    }
    let refusing = began.elapsed();
    redis.restart();
    let began = Instant::now();
    fleet.all_serving(true).await;
    let back = began.elapsed();
    println!(
        "Redis killed: NOT_SERVING after {noticed:.2?}, 20 calls refused in {refusing:.2?}, SERVING \
         {back:.2?} after its return"
    );
    assert!(noticed < FAST && refusing < FAST, "{noticed:?} {refusing:?}");
    for way in &mut ways {
        way.enqueue(job("q")).await.unwrap();
    }
    assert_eq!(fleet.stats(1, "q").await.held, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_killed_under_sentinel_loses_nothing_that_was_confirmed() {
    let mut watched = Watched::start().await;
    let fleet = Fleet::durable(&watched.address(), 3, "replicated(1)");
    let mut load = Load::on(&fleet);
    load.run(500).await;
    watched.primary.kill();
    let began = Instant::now();
    until("the replica is the primary", || async { watched.replica.is_primary() }).await;
    let promoted = began.elapsed();
    // Without a replica to confirm, every write is refused; a new replica makes up for it.
    let follow = format!("replicaof 127.0.0.1 {}", watched.replica.port);
    let _second = Launch::durable(Kind::Redis).line(follow).start();
    load.run(20).await;
    let away = began.elapsed();
    load.run(300).await;
    let report = load.finish(&fleet, 0).await;
    println!("Sentinel: promoted after {promoted:.1?}, work goes on after {away:.1?}");
    assert_kept("primary killed under Sentinel, replicated(1)", &report);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_killed_in_a_cluster_loses_nothing_that_was_confirmed() {
    let mut cluster = Cluster::start(Kind::Redis).await;
    let fleet = Fleet::durable(&cluster.address(), 3, "replicated(1)");
    let mut load = Load::on(&fleet);
    load.run(500).await;
    let key = format!("redrive:{{{QUEUE}}}:s");
    let owner = cluster.owner(&key);
    cluster.servers[owner].kill();
    let began = Instant::now();
    until("another has its slots", || async { cluster.owner(&key) != owner }).await;
    let promoted = began.elapsed();
    // It comes back as the replica that confirms.
    cluster.servers[owner].restart();
    load.run(20).await;
    let away = began.elapsed();
    load.run(300).await;
    let report = load.finish(&fleet, 0).await;
    println!("Cluster: promoted after {promoted:.1?}, work goes on after {away:.1?}");
    assert_kept("primary killed in a Cluster, replicated(1)", &report);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_cut_after_sending_lose_nothing_and_double_nothing() {
    let redis = Server::start(Kind::Redis);
    let proxy = Proxy::start(redis.port).await;
    let fleet = Fleet::start(&proxy.address(), 3);
    let mut load = Load::on(&fleet);
    for round in 0..12 {
        load.run(80).await;
        let fault = if round % 3 == 0 { Fault::CutAfter(100) } else { Fault::CutBeforeReply };
        proxy.befall_open(fault);
    }
    load.run(200).await;
    let report = load.finish(&fleet, 2).await;
    assert_kept("connections cut 12 times", &report);
    assert!(report.book.repeated.contains_key("OUTCOME_UNKNOWN"), "nothing was in doubt");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_that_swallow_everything_are_replaced() {
    let redis = Server::start(Kind::Redis);
    let proxy = Proxy::start(redis.port).await;
    let fleet = Fleet::start(&proxy.address(), 2);
    let mut load = Load::on(&fleet);
    load.run(300).await;
    proxy.befall_open(Fault::BlackHole);
    let began = Instant::now();
    load.run(20).await;
    println!("black-holed sockets: work goes on after {:.1?}", began.elapsed());
    let report = load.finish(&fleet, 0).await;
    assert_kept("black-holed sockets", &report);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_redis_forgets_are_taught_again_unnoticed() {
    let redis = Server::start(Kind::Redis);
    let fleet = Fleet::start(&redis.address(), 3);
    let mut load = Load::on(&fleet);
    for _ in 0..20 {
        load.run(50).await;
        let _: String = redis.ask("SCRIPT FLUSH");
    }
    let report = load.finish(&fleet, 0).await;
    assert_kept("SCRIPT FLUSH 20 times", &report);
    assert!(report.book.repeated.is_empty(), "{:?}", report.book.repeated);
}
