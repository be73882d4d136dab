//! Durability levels: an answer means that replicas, or disks, have it.

use crate::scene::{NO_ARGS, confirmed, count, look, open, short_of, try_open};
use crate::servers::{Kind, Launch, Server, until};
use redrive::{store::StoreError, store::redis::Durability, store::redis::connection::Script};
use std::time::{Duration, Instant};

async fn pair(kind: Kind) -> (Server, Server) {
    let primary = Launch::durable(kind).start();
    let follow = format!("replicaof 127.0.0.1 {}", primary.port);
    let replica = Launch::durable(kind).line(follow).start();
    until("the replica follows", || async { replica.info("master_link_status") == "up" }).await;
    // A replica that has just loaded its data takes a moment to confirm for the first time.
    let redis = open(&primary.address(), &short_of(Durability::Replicated(1))).await;
    until("it confirms", || async { count(&redis, "warm").await.is_ok() }).await;
    (primary, replica)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_lags_makes_writes_unconfirmed_and_reads_go_on() {
    let (primary, replica) = pair(Kind::Redis).await;
    let redis = open(&primary.address(), &short_of(Durability::Replicated(1))).await;
    assert_eq!(count(&redis, "k").await, Ok(1));
    replica.freeze();
    let writing = {
        let redis = redis.clone();
        tokio::spawn(async move { count(&redis, "k").await })
    };
    // It is applied, and others see it, while its own caller still waits.
    until("it is applied", || async { look(&redis, "k").await == Ok(2) }).await;
    let began = Instant::now();
    look(&redis, "k").await.unwrap();
    assert!(began.elapsed() < Duration::from_millis(200), "a read waited for a replica");
    let short = writing.await.unwrap().unwrap_err();
    let StoreError::DurabilityNotConfirmed(why) = &short else { panic!("{short:?}") };
    assert_eq!(why, "0 of 1 replicas have it after 1s");
    replica.thaw();
    until("writes are confirmed", || async { count(&redis, "other").await.is_ok() }).await;
    assert_eq!(look(&redis, "k").await, Ok(2), "it ran once");
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_that_come_together_share_one_wait() {
    let (primary, _replica) = pair(Kind::Redis).await;
    let redis = open(&primary.address(), &confirmed(Durability::Replicated(1))).await;
    count(&redis, "k").await.unwrap();
    let began = Instant::now();
    let calls: Vec<_> = (0..2_000)
        .map(|_| {
            let redis = redis.clone();
            tokio::spawn(async move { count(&redis, "k").await })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let took = began.elapsed();
    let waits = primary.info("cmdstat_wait");
    let waits: u64 = waits.split(['=', ',']).nth(1).unwrap().parse().unwrap();
    println!("2000 confirmed writes in {took:?} with {waits} WAITs");
    assert_eq!(look(&redis, "k").await, Ok(2_001));
    assert!(waits < 500, "{waits} WAITs for 2000 writes");
}

/// WAIT tells of what its own connection has written: of nothing, on a connection that found everything done.
#[tokio::test(flavor = "multi_thread")]
async fn what_another_connection_wrote_is_not_confirmed_by_the_one_that_finds_it() {
    let once = Script::new(&["if redis.call('EXISTS', KEYS[1]) == 0 then redis.call('SET', KEYS[1], 1) end return 1"]);
    for kind in [Kind::Redis, Kind::Valkey] {
        let (primary, replica) = pair(kind).await;
        let level = short_of(Durability::Replicated(1));
        let first = open(&primary.address(), &level).await;
        let second = open(&primary.address(), &level).await;
        assert_eq!(count(&second, "other").await, Ok(1));
        replica.freeze();
        for redis in [&first, &second] {
            let short = redis.run(&once, &["k".into()], &NO_ARGS[..]).await.unwrap_err();
            assert!(matches!(short, StoreError::DurabilityNotConfirmed(_)), "{kind:?}: {short:?}");
            let short = redis.confirm(b"k").await.unwrap_err();
            assert!(matches!(short, StoreError::DurabilityNotConfirmed(_)), "{kind:?}: {short:?}");
        }
        replica.thaw();
        until("it is confirmed", || async { second.confirm(b"k").await.is_ok() }).await;
        assert_eq!(primary.ask::<i64>("EXISTS k~"), 0, "the mark is gone");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_script_and_a_confirmation_go_together() {
    let (primary, _replica) = pair(Kind::Redis).await;
    let redis = open(&primary.address(), &confirmed(Durability::Replicated(1))).await;
    for round in 1..=3 {
        assert_eq!(count(&redis, "k").await, Ok(round));
        let _: String = primary.ask("SCRIPT FLUSH");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fsync_waits_for_disks_on_valkey() {
    let (primary, replica) = pair(Kind::Valkey).await;
    let redis = open(&primary.address(), &short_of(Durability::Fsync(1))).await;
    redis.preflight().await.unwrap();
    // A replica writes its file anew when it begins to follow; until then it confirms nothing.
    until("the replica's disk follows", || async { count(&redis, "k").await.is_ok() }).await;
    replica.freeze();
    let short = count(&redis, "k").await.unwrap_err();
    assert!(matches!(&short, StoreError::DurabilityNotConfirmed(why) if why.contains("disks")));
    replica.thaw();
    let alone = open(&primary.address(), &confirmed(Durability::Fsync(0))).await;
    assert_eq!(count(&alone, "other").await, Ok(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn fsync_is_refused_where_redis_does_not_know_it() {
    let server = Launch::durable(Kind::Redis).start();
    let redis = try_open(&server.address(), &short_of(Durability::Fsync(0))).await.unwrap();
    let version = server.info("redis_version");
    if version.starts_with("7.0") {
        let refused = redis.preflight().await.unwrap_err().to_string();
        assert!(refused.contains("needs Redis 7.2 or Valkey"), "{refused}");
        let short = count(&redis, "k").await.unwrap_err();
        assert!(matches!(short, StoreError::DurabilityNotConfirmed(_)), "{short:?}");
    } else {
        assert_eq!(count(&redis, "k").await, Ok(1));
    }
}
