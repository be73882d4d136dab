//! Bytes that change in Redis: the job they belong to is set aside, the rest goes on.

use crate::{
    builders::*,
    harness::{Harness, run},
    redis_server,
};
use redrive::{
    domain::{
        ids::JobId,
        job::{Body, DeadReason, State},
    },
    store::{SkipReason, Which, redis::RedisStore},
};

/// More than what is kept within a record.
const LARGE: usize = 100_000;

/// Changes one byte of the only value in a hash of the queue; `at` counts from the end where negative.
fn flip(h: &Harness<RedisStore>, letter: char, at: isize) {
    let key = format!("{}:{{q}}:{letter}", h.place.namespace);
    let client = redis::Client::open(redis_server::shared().address()).unwrap();
    let mut redis = client.get_connection().unwrap();
    let mut all: Vec<Vec<u8>> = redis::cmd("HGETALL").arg(&key).query(&mut redis).unwrap();
    let [field, value] = &mut all[..] else { panic!("{} values in {key}", all.len() / 2) };
    let at = if at < 0 { value.len() - at.unsigned_abs() } else { at.unsigned_abs() };
    value[at] ^= 0x01;
    redis::cmd("HSET").arg(key).arg(&*field).arg(&*value).exec(&mut redis).unwrap();
}

async fn next_flows(h: &Harness<RedisStore>) {
    h.enqueue(job("q").id("next")).await;
    let claimed = h.try_claim(claim_of(&["q"], 1)).await;
    assert_eq!(claimed.jobs[0].spec.id.to_string(), "next");
    h.ack(claimed.jobs[0].delivery.lease).await.expect("the lease is out");
}

#[test]
fn a_damaged_body_makes_a_dead_letter_and_the_next_job_flows() {
    run(async |_: Harness<RedisStore>| {
        let large = "b".repeat(LARGE);
        for (body, letter, at, kept) in [
            ("body", 'j', -4, "cody".to_owned()),
            (large.as_str(), 'b', 0, format!("c{}", &large[1..])),
        ] {
            let h: Harness<RedisStore> = Harness::new().await;
            h.enqueue(job("q").id("bad").priority(5).body(body)).await;
            flip(&h, letter, at);
            next_flows(&h).await;
            let view = h.view(&JobId::parse("bad")).await;
            assert_eq!((view.state, view.corrupt), (State::Dead, true));
            assert_eq!(view.death.unwrap().reason, DeadReason::Corrupt);
            assert_eq!(view.spec.body, Body::Text(kept.into()), "its bytes are kept");
            let by_id = Which::Ids(vec![JobId::parse("bad")]);
            for which in [by_id, oldest(1)] {
                let done = h.requeue(requeue_of("q", which)).await.unwrap();
                assert_eq!(done.skipped, [(JobId::parse("bad"), SkipReason::DataCorrupt)]);
            }
            h.audit().await;
        }
    });
}

/// The level at byte 4 and the size before it are for scripts: they change an order and a reply's length, no job.
#[test]
fn a_damaged_head_makes_a_dead_letter_and_the_next_job_flows() {
    run(async |_: Harness<RedisStore>| {
        for at in (5..45).chain([-5]) {
            let h: Harness<RedisStore> = Harness::new().await;
            h.enqueue(job("q").priority(5)).await;
            flip(&h, 'j', at);
            next_flows(&h).await;
            let dead = h.dead("q").await;
            assert_eq!(dead.len(), 1, "byte {at}");
            assert_eq!(dead[0].death.as_ref().unwrap().reason, DeadReason::Corrupt, "byte {at}");
            assert_eq!(h.depths("q").await.held(), 1, "byte {at}");
            h.audit().await;
        }
    });
}

#[test]
fn a_damaged_job_that_is_leased_can_be_settled() {
    run(async |_: Harness<RedisStore>| {
        for at in 0..40 {
            let h: Harness<RedisStore> = Harness::new().await;
            h.enqueue(job("q").id("mine").key("k").expires(HOUR)).await;
            let lease = h.claim("q").await.delivery.lease;
            flip(&h, 'j', at);
            assert!(h.nack(lease, released()).await.is_ok(), "byte {at}");
            h.drain("q").await;
            assert_eq!(h.depths("q").await.held(), 1, "byte {at}");
            h.audit().await;
        }
    });
}

#[test]
fn a_damaged_letter_can_be_purged_and_leaves_nothing_behind() {
    run(async |h: Harness<RedisStore>| {
        for at in [6, 12, -1] {
            h.enqueue(job("q").id("bad").key("k").priority(5).expires(HOUR)).await;
            flip(&h, 'j', at);
            next_flows(&h).await;
            assert_eq!(h.purge(purge_of("q", oldest(10))).await.unwrap().count, 1, "byte {at}");
            assert!(h.views(&JobId::parse("bad")).await.is_empty(), "byte {at}");
            assert_eq!(h.depths("q").await.held(), 0, "byte {at}");
        }
        h.enqueue(job("q").id("bad").key("k").body("other")).await;
        h.audit().await;
    });
}
