//! A Cluster whose slots move and whose primaries die.

use crate::scene::{confirmed, count, look, open, options, short_of, try_open};
use crate::servers::{Cluster, Kind, Launch, until};
use redrive::store::StoreError;
use redrive::store::redis::Durability;
use redrive::store::redis::connection::{Loss, Warning};
use std::time::Instant;

fn keys() -> Vec<String> {
    (0..60).map(|n| format!("rd:{{q{n}}}:k")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_slot_is_found_whichever_server_was_named() {
    let cluster = Cluster::start(Kind::Redis).await;
    let redis = open(&cluster.address(), &options()).await;
    assert!(redis.is_cluster());
    let mut owners = std::collections::HashSet::new();
    for key in keys() {
        assert_eq!(count(&redis, &key).await, Ok(1));
        owners.insert(cluster.owner(&key));
    }
    assert_eq!(owners.len(), 3);
    // One address is enough, also that of a replica.
    for server in [&cluster.servers[0], &cluster.servers[5]] {
        let redis = open(&server.address(), &options()).await;
        assert!(redis.is_cluster());
        for key in keys() {
            assert_eq!(look(&redis, &key).await, Ok(1));
        }
    }
    let found = redis.preflight().await.unwrap();
    assert!(found.lines[0].1.ends_with(", a Cluster of 3 primaries"), "{found:?}");
    assert_eq!(found.lines[2].1, "1, 1, 1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_primary_is_replaced_and_other_slots_never_notice() {
    let mut cluster = Cluster::start(Kind::Redis).await;
    let redis = open(&cluster.address(), &confirmed(Durability::Replicated(1))).await;
    for key in keys() {
        count(&redis, &key).await.unwrap();
    }
    let victim = cluster.owner(&keys()[0]);
    let (hit, spared): (Vec<_>, Vec<_>) = keys().into_iter().partition(|key| cluster.owner(key) == victim);
    let began = Instant::now();
    cluster.servers[victim].kill();
    for key in &spared {
        assert_eq!(count(&redis, key).await, Ok(2), "{key}");
    }
    until("its slots are served again", || async { look(&redis, &hit[0]).await.is_ok() }).await;
    let away = began.elapsed();
    let mut lost = 0;
    for key in &hit {
        lost += i64::from(look(&redis, key).await.unwrap() < 1);
    }
    println!("Cluster: back after {away:?}, {lost} confirmed writes lost");
    assert_eq!(lost, 0);
    until("the failover is noticed", || async { !redis.warnings().is_empty() }).await;
    let warning = redis.warnings().remove(0);
    assert!(matches!(warning, Warning::Failover { loss: Loss::NoneSeen, .. }), "{warning:?}");
    // The new primary has no replica until the old one comes back as such.
    let impatient = open(&cluster.address(), &short_of(Durability::Replicated(1))).await;
    let short = count(&impatient, &hit[0]).await.unwrap_err();
    assert!(matches!(short, StoreError::DurabilityNotConfirmed(_)), "{short:?}");
    cluster.servers[victim].restart();
    until("writes are confirmed again", || async { count(&redis, &hit[0]).await.is_ok() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_change_hands_are_followed_without_an_error() {
    let cluster = Cluster::start(Kind::Redis).await;
    let redis = open(&cluster.address(), &options()).await;
    let key = "rd:{moving}:k";
    assert_eq!(count(&redis, key).await, Ok(1));
    let from = cluster.owner(key);
    let to = (0..3).find(|at| *at != from).unwrap();
    let (source, target) = (&cluster.servers[from], &cluster.servers[to]);
    let slot: i64 = source.ask(&format!("CLUSTER KEYSLOT {key}"));
    let (source_id, target_id): (String, String) = (source.ask("CLUSTER MYID"), target.ask("CLUSTER MYID"));
    let _: String = target.ask(&format!("CLUSTER SETSLOT {slot} IMPORTING {source_id}"));
    let _: String = source.ask(&format!("CLUSTER SETSLOT {slot} MIGRATING {target_id}"));
    // Still here: the source answers. A key that is not here is asked for there.
    assert_eq!(count(&redis, key).await, Ok(2));
    assert_eq!(count(&redis, "rd:{moving}:fresh").await, Ok(1));
    let _: String = source.ask(&format!("MIGRATE 127.0.0.1 {} {key} 0 5000", target.port));
    assert_eq!(count(&redis, key).await, Ok(3));
    for server in [target, source] {
        let _: String = server.ask(&format!("CLUSTER SETSLOT {slot} NODE {target_id}"));
    }
    assert_eq!(count(&redis, key).await, Ok(4));
    assert_eq!(count(&redis, "rd:{moving}:fresh").await, Ok(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn several_addresses_of_servers_that_are_no_cluster_are_refused() {
    let (one, other) = (Launch::new(Kind::Redis).start(), Launch::new(Kind::Redis).start());
    let address = format!("{},127.0.0.1:{}", one.address(), other.port);
    let refused = try_open(&address, &options()).await.err().unwrap();
    let StoreError::Unavailable(why) = refused else { panic!("{refused:?}") };
    assert!(why.contains("cluster support disabled"), "{why}");
}
