//! Bytes that change in Redis: the job they belong to is set aside, the rest goes on.

use crate::builders::*;
use crate::harness::{Harness, run};
use crate::redis_server;
use redrive::domain::{Body, DeadReason, JobId, State};
use redrive::queue::hosts::redis::RedisStore;
use redrive::queue::{SkipReason, Which};

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
    h.ack(claimed.jobs[0].delivery.lease.clone()).await.expect("the lease is out");
}

#[test]
fn a_damaged_body_makes_a_dead_letter_and_the_next_job_flows() {
    run(async |_: Harness<RedisStore>| {
        let large = "b".repeat(LARGE);
        for (body, letter, at, kept) in
            [("body", 'j', -8, "cody".to_owned()), (large.as_str(), 'B', 0, format!("c{}", &large[1..]))]
        {
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
            h.verify().await;
        }
    });
}

#[test]
fn a_damaged_head_makes_a_dead_letter_and_the_next_job_flows() {
    run(async |_: Harness<RedisStore>| {
        for at in (0..45).chain([-5]) {
            let h: Harness<RedisStore> = Harness::new().await;
            h.enqueue(job("q").priority(5)).await;
            flip(&h, 'j', at);
            next_flows(&h).await;
            let dead = h.dead("q").await;
            assert_eq!(dead.len(), 1, "byte {at}");
            assert_eq!(dead[0].death.as_ref().unwrap().reason, DeadReason::Corrupt, "byte {at}");
            assert_eq!(h.depths("q").await.held(), 1, "byte {at}");
            h.verify().await;
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
            h.verify().await;
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
            h.advance(seconds(600));
        }
        h.enqueue(job("q").id("bad").key("k").body("other")).await;
        h.verify().await;
    });
}

/// Far beyond what a call takes, and short enough to fail for one that never ends.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

fn raw(h: &Harness<RedisStore>, command: &str, letter: &str, args: &[&[u8]]) {
    let client = redis::Client::open(redis_server::shared().address()).unwrap();
    let mut redis = client.get_connection().unwrap();
    redis::cmd(command).arg(h.place.key("q", letter)).arg(args).exec(&mut redis).unwrap();
}

/// The numbers of all dead letters, in their order.
fn numbers_of_letters(h: &Harness<RedisStore>) -> Vec<Vec<u8>> {
    let client = redis::Client::open(redis_server::shared().address()).unwrap();
    let mut redis = client.get_connection().unwrap();
    redis::cmd("ZRANGE").arg(h.place.key("q", "dead")).arg(0).arg(-1).query(&mut redis).unwrap()
}

/// The ids of all dead letters, read in pages of this size.
async fn listed(h: &Harness<RedisStore>, limit: usize) -> Vec<String> {
    let reading = async {
        let mut query = dead_query("q");
        query.limit = limit;
        let mut ids = Vec::new();
        loop {
            let page = h.dead_page(query.clone()).await;
            ids.extend(page.jobs.iter().map(|view| view.spec.id.to_string()));
            assert!(ids.len() < 100, "the same letters come again and again");
            match page.next {
                Some(next) => query.after = next,
                None => return ids,
            }
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("a list has an end")
}

async fn with_letters() -> Harness<RedisStore> {
    let h: Harness<RedisStore> = Harness::new().await;
    for id in ["a", "b", "c", "d"] {
        h.dead_letter(job("q").id(id)).await;
    }
    h
}

#[test]
fn letters_whose_place_is_not_that_of_their_death_are_all_found_and_only_once() {
    run(async |_: Harness<RedisStore>| {
        for (places, order) in [
            (["1001", "1002", "1003", "1004"], ["a", "b", "c", "d"]),
            (["4", "3", "2", "1"], ["d", "c", "b", "a"]),
            (["1.5", "2", "9007199254740992", "+inf"], ["a", "b", "c", "d"]),
        ] {
            for limit in [1, 2, 3, 100] {
                let h = with_letters().await;
                for (number, place) in numbers_of_letters(&h).iter().zip(places) {
                    raw(&h, "ZADD", "dead", &[place.as_bytes(), number]);
                }
                let ids = listed(&h, limit).await;
                // A place that no number can be may be beyond the end, but is no place to stay at.
                let all_whole = places.iter().all(|place| place.len() < 16 && !place.contains('.'));
                if all_whole {
                    assert_eq!(ids, order, "pages of {limit}, at {places:?}");
                }
                let mut once = ids.clone();
                once.sort();
                once.dedup();
                assert_eq!(once.len(), ids.len(), "pages of {limit}, at {places:?}: {ids:?}");
                let purging = h.purge(purge_of("q", oldest(10)));
                let purged = tokio::time::timeout(PATIENCE, purging).await;
                purged.expect("a purge has an end").unwrap();
            }
        }
    });
}

#[test]
fn letters_without_a_record_of_their_death_are_passed_over() {
    run(async |_: Harness<RedisStore>| {
        for (lost, left) in [(0..4, vec![]), (0..3, vec!["d"]), (1..3, vec!["a", "d"]), (2..4, vec!["a", "b"])] {
            for limit in [1, 2, 100] {
                let h = with_letters().await;
                for number in &numbers_of_letters(&h)[lost.clone()] {
                    raw(&h, "HDEL", "d", &[number]);
                }
                assert_eq!(listed(&h, limit).await, left, "{lost:?} are lost, pages of {limit}");
                let purging = h.purge(purge_of("q", oldest(limit)));
                let purged = tokio::time::timeout(PATIENCE, purging).await;
                let purged = purged.expect("a purge has an end").unwrap();
                assert_eq!(purged.count as usize, left.len().min(limit), "{lost:?}");
            }
        }
    });
}
