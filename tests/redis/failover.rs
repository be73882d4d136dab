//! Sentinel makes a replica the primary: who lost what, and who says so.

use crate::scene::{count, look, open, options, short_of};
use crate::servers::{Watched, until};
use redrive::store::StoreError;
use redrive::store::redis::Durability;
use redrive::store::redis::connection::{Loss, Redis, Warning};
use std::time::Instant;

async fn noticed(redis: &Redis) -> Warning {
    until("the failover is noticed", || async { !redis.warnings().is_empty() }).await;
    redis.warnings().remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_primary_loses_nothing_that_a_replica_has_confirmed() {
    let mut watched = Watched::start().await;
    let redis = open(&watched.address(), &short_of(Durability::Replicated(1))).await;
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let redis = redis.clone();
            tokio::spawn(async move {
                let (mut confirmed, mut in_doubt) = (0, 0);
                loop {
                    match count(&redis, "k").await {
                        Ok(_) => confirmed += 1,
                        Err(StoreError::Unavailable(_)) => return (confirmed, in_doubt),
                        Err(_) => in_doubt += 1,
                    }
                }
            })
        })
        .collect();
    until("some are confirmed", || async { look(&redis, "k").await.unwrap_or(0) > 300 }).await;
    let began = Instant::now();
    watched.primary.kill();
    let (mut confirmed, mut in_doubt) = (0, 0);
    for caller in callers {
        let (more_confirmed, more_in_doubt) = caller.await.unwrap();
        confirmed += more_confirmed;
        in_doubt += more_in_doubt;
    }
    until("the new primary is found", || async { look(&redis, "k").await.is_ok() }).await;
    let away = began.elapsed();
    let there = look(&redis, "k").await.unwrap();
    println!("Sentinel: {confirmed} confirmed, {in_doubt} in doubt, {there} there, lost 0, back after {away:?}");
    assert!(there >= confirmed, "{} lost", confirmed - there);
    assert!(there <= confirmed + in_doubt, "more than was sent");
    assert!(matches!(noticed(&redis).await, Warning::Failover { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_lost_writes_is_noticed() {
    let mut watched = Watched::start().await;
    let redis = open(&watched.address(), &options()).await;
    // The replica cannot come back to its primary, but sentinels still reach it.
    let _: String = watched.replica.ask("CONFIG SET masterauth not-the-password");
    let _: i64 = watched.primary.ask("CLIENT KILL TYPE replica");
    until("the replica is cut off", || async { watched.replica.info("master_link_status") == "down" }).await;
    for _ in 0..100 {
        count(&redis, "k").await.unwrap();
    }
    // A heartbeat has seen them.
    let seen = watched.primary.info("total_commands_processed").parse::<u64>().unwrap();
    until("a heartbeat has passed", || async {
        watched.primary.info("total_commands_processed").parse::<u64>().unwrap() > seen + 12
    })
    .await;
    watched.primary.kill();
    until("the new primary is found", || async { look(&redis, "k").await.is_ok() }).await;
    let lost = 100 - look(&redis, "k").await.unwrap();
    let warning = noticed(&redis).await;
    println!("{lost} of 100 answered writes are gone; noticed: {warning}");
    assert!(matches!(warning, Warning::Failover { loss: Loss::Seen, .. }), "{warning:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_failover_is_followed_although_the_old_primary_lives() {
    let watched = Watched::start().await;
    let redis = open(&watched.address(), &options()).await;
    assert_eq!(count(&redis, "k").await, Ok(1));
    watched.fail_over().await;
    until("the replica is the primary", || async { watched.replica.is_primary() }).await;
    until("writes arrive there", || async {
        let _ = count(&redis, "after").await;
        watched.replica.ask::<i64>("EXISTS after") == 1
    })
    .await;
    assert_eq!(look(&redis, "k").await, Ok(1));
}
