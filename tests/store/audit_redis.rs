//! `redrive audit --redis`: silent about a good store, and precise about every kind of damage.

use crate::{
    audited::one_of_everything,
    engines::Site,
    harness::{Harness, run_in},
};
use redrive::{
    queue::{self, hosts::redis::RedisStore},
    store::{AuditProgress, AuditReport, Check},
};

async fn audit(h: &Harness<RedisStore>) -> AuditReport {
    queue::verify(&mut h.store().storage().clone(), &mut |_| {}).await.unwrap()
}

/// What is found after this was done to the keys of a queue, in Lua: `key('r')` is the one of those that are ready, `one('r')`
/// the first entry of it, and `number(id)` that of a job.
async fn after(queue: &str, lua: &str) -> AuditReport {
    let mut h: Harness<RedisStore> = Harness::new().await;
    one_of_everything(&mut h).await;
    let script = format!(
        "local call = redis.call
         local function key(letter) return KEYS[1] .. letter end
         local function one(letter)
           if call('TYPE', key(letter)).ok == 'hash' then return call('HKEYS', key(letter))[1] end
           return call('ZRANGE', key(letter), 0, 0)[1]
         end
         local function number(id) return string.sub(call('HGET', key('i'), id), 1, 6) end
         local function rot(letter)
           local value = call('HGET', key(letter), one(letter))
           return call('HSET', key(letter), one(letter), string.sub(value, 1, -2))
         end
         {lua}
         return 1"
    );
    let client = redis::Client::open(crate::redis_server::shared().address()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let done: i64 =
        redis::Script::new(&script).key(h.place.key(queue, "")).invoke(&mut connection).unwrap();
    assert_eq!(done, 1);
    audit(&h).await
}

#[track_caller]
fn assert_found(report: &AuditReport, check: Check, part: &str) {
    let has = |found: &redrive::store::Finding| found.check == check && found.what.contains(part);
    assert!(report.findings.iter().any(has), "no {check:?} with {part:?}: {:#?}", report.findings);
}

async fn is_clean(mut h: Harness<RedisStore>) {
    one_of_everything(&mut h).await;
    let report = audit(&h).await;
    assert!(report.is_clean(), "{:#?}", report.findings);
    assert_eq!((report.jobs, report.queues.len()), (9, 4));
    assert!(report.records > report.jobs, "history counts, too");
    assert_eq!(audit(&h).await, report, "it changes nothing");
}

#[test]
fn a_busy_store_is_clean() {
    run_in(Site::One, is_clean);
}

#[test]
fn a_busy_store_in_a_cluster_is_clean() {
    run_in(Site::Cluster, is_clean);
}

#[test]
fn a_job_that_is_nowhere_or_in_two_places_is_found() {
    run_in(Site::One, async |_: Harness<RedisStore>| {
        let lost = after("q", "call('DEL', key('r'))").await;
        assert_found(&lost, Check::Places, "(ready) is nowhere");
        assert_found(&lost, Check::Counts, "jobs and places for");
        assert_found(&lost, Check::Law, "2 jobs came in and are neither held nor accounted for");
        let lost = after("kept", "call('DEL', key('z'))").await;
        assert_found(&lost, Check::Places, "(kept) is nowhere");
        let twice = after("q", "call('ZADD', key('z'), 5, number('ready'))").await;
        assert_found(&twice, Check::Places, "(ready) is in 2 places: READY, COMPLETED");
        let gone = after("dying", "call('HDEL', key('j'), number('dead-1'))").await;
        assert_found(&gone, Check::Places, "a place in DEAD leads to job");
        assert_found(&gone, Check::Places, "a death leads to job");
        assert_found(&gone, Check::Indexes, "a part of the history leads to job");
        assert_found(&gone, Check::Indexes, "progress leads to job");
        assert_found(&gone, Check::Indexes, "an id leads to (dead-1), which is not there");
        let lease = after("q", "call('DEL', key('l'))").await;
        assert_found(&lease, Check::Places, "a lease leads to job");
    });
}

#[test]
fn a_place_that_nobody_would_look_in_is_found() {
    run_in(Site::One, async |_: Harness<RedisStore>| {
        let level = after("q", "call('ZADD', key('r'), 5, one('r'))").await;
        assert_found(&level, Check::Places, "its place in line is not that of its priority");
        let tie = after("q", "call('ZADD', key('r'), 5, 'x' .. number('out'))").await;
        assert_found(&tie, Check::Places, "a place in READY leads to job");
        let death = after("dying", "call('ZADD', key('d'), 55, one('d'))").await;
        assert_found(&death, Check::Places, "its place is not that of its death");
        assert_found(&death, Check::Counts, "the next dead letter gets number 4, again");
        let mark = after("dying", "call('DEL', key('v'))").await;
        assert_found(&mark, Check::Places, "its mark of overflow is said twice");
        let number = after("q", "call('HSET', key('s'), 'number', 999)").await;
        assert_found(&number, Check::Indexes, "it has the number \"999\"");
    });
}

#[test]
fn counters_that_are_wrong_are_found() {
    run_in(Site::One, async |_: Harness<RedisStore>| {
        for counter in ["completed", "purged", "cancelled", "retention_expired"] {
            let report = after("q", &format!("call('HINCRBY', key('s'), '{counter}', 2)")).await;
            assert_found(&report, Check::Law, "2 jobs are held or went out and never came in");
        }
        for field in ["tally", "fails", "wins"] {
            let lua = format!("call('HSET', key('s'), '{field}', 'rot')");
            let report = after("q", &lua).await;
            assert_found(&report, Check::Checksums, "what its breaker has counted is damaged");
        }
        let enqueued = after("q", "call('HINCRBY', key('s'), 'enqueued', 1)").await;
        assert_eq!(enqueued.findings.len(), 1);
        let moved =
            "call('HINCRBY', key('s'), 'moved_in', 1) call('HINCRBY', key('s'), 'completed', 1)";
        let moved = after("q", moved).await;
        assert_found(&moved, Check::Law, "1 jobs moved out of queues and 2 into queues");
        let types = after("dying", "call('HINCRBY', key('t'), 'Hopeless', 1)").await;
        assert_found(&types, Check::Counts, "3 dead letters are counted by what they died of");
        let types = "call('HINCRBY', key('t'), 'Hopeless', -1) call('HSET', key('t'), 'Other', 1)";
        let types = after("dying", types).await;
        assert_found(&types, Check::Counts, "are said to have died of \"Other\", and 0 did");
    });
}

#[test]
fn what_does_not_lead_to_its_job_is_found() {
    run_in(Site::One, async |_: Harness<RedisStore>| {
        let id = after("q", "call('HDEL', key('i'), 'ready')").await;
        assert_found(&id, Check::Indexes, "(ready) cannot be found by its id");
        let key = after("q", "call('HDEL', key('k'), 'k-ready')").await;
        assert_found(&key, Check::Indexes, "(ready) cannot be found by its idempotency key");
        let deadline = after("q", "call('DEL', key('e'))").await;
        assert_found(&deadline, Check::Indexes, "(ready) cannot be found by its deadline");
        let id =
            after("q", "call('HSET', key('i'), 'another', call('HGET', key('i'), 'ready'))").await;
        assert_found(&id, Check::Indexes, "an id leads to (another), wrongly");
        let key = "call('HSET', key('k'), 'another', call('HGET', key('k'), 'k-ready'))";
        let key = after("q", key).await;
        assert_found(&key, Check::Indexes, "an idempotency key leads to (another), wrongly");
        let key = after("q", "call('DEL', key('f'))").await;
        assert_found(&key, Check::Indexes, "an idempotency key leads to (k-done), wrongly");
        let deadline = after("q", "call('ZADD', key('e'), 5, 'nobody')").await;
        assert_found(&deadline, Check::Indexes, "a deadline leads to job");
        let attempts =
            after("dying", "call('HDEL', key('h'), number('dead-1') .. '\\0\\0\\0\\1')").await;
        assert_found(&attempts, Check::Indexes, "1 attempts of job");
        let body = after("q", "call('HSET', key('b'), 'nobody', 'body')").await;
        assert_found(&body, Check::Indexes, "a body leads to job");
    });
}

#[test]
fn bytes_that_rot_are_found() {
    run_in(Site::One, async |_: Harness<RedisStore>| {
        let record = after("kept", "rot('j')").await;
        assert_found(&record, Check::Checksums, "the record of job");
        let body = after("q", "rot('b')").await;
        assert_found(&body, Check::Checksums, "(ready) is not what was written");
        let progress = after("dying", "rot('p')").await;
        assert_found(&progress, Check::Checksums, "the progress of job");
        let attempt = "local field = number('dead-1') .. '\\0\\0\\0\\1'
                       call('HSET', key('h'), field, 'rotten')";
        assert_found(&after("dying", attempt).await, Check::Checksums, "one attempt of job");
        let failure = "call('HSET', key('h'), number('dead-1') .. '0', 'rotten')";
        assert_found(&after("dying", failure).await, Check::Checksums, "one failure of job");
        let result = after("kept", "rot('q')").await;
        assert_found(&result, Check::Checksums, "one result of job");
    });
}

#[test]
fn a_long_audit_tells_how_far_it_is() {
    run_in(Site::One, async |mut h: Harness<RedisStore>| {
        one_of_everything(&mut h).await;
        let mut told = Vec::new();
        let mut tell = |progress: AuditProgress| told.push(progress.step);
        queue::verify(&mut h.store().storage().clone(), &mut tell).await.unwrap();
        assert!(told.contains(&"jobs") && told.contains(&"an id"), "{told:?}");
    });
}
