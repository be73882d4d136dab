//! `redrive verify --redis`: silent about a good store, and precise about every kind of damage.

use crate::engines::Site;
use crate::harness::{Harness, run_in};
use crate::verified::one_of_everything;
use redrive::queue;
use redrive::queue::hosts::redis::RedisStore;
use redrive::queue::{VerifyProgress, VerifyReport};
use redrive::store::Check;

async fn verify(h: &Harness<RedisStore>) -> VerifyReport {
    queue::verify(&mut h.store().storage().clone(), &mut |_| {}).await.unwrap()
}

/// What is found after this was done to the keys of a queue, in Lua: `key('ready')` is the one of those that are ready,
/// `one('ready')` the first entry of it, `number(id)` that of a job, and `JOB_2313` the number of none.
async fn after(queue: &str, lua: &str) -> VerifyReport {
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
         local function rot(letter, field)
           field = field or one(letter)
           return call('HSET', key(letter), field, string.sub(call('HGET', key(letter), field), 1, -2))
         end
         local totals = {{
           enqueued = 0, completed = 1, purged = 9, cancelled = 10, retention_expired = 11, 
           moved_in = 12, moved_out = 13 }}
         local function add(total, count)
           return call('HINCRBY', key('s'), 't:' .. string.char(totals[total]), count)
         end
         local JOB_2313 = '\\0\\0\\0\\0\\9\\9'
         {lua}
         return 1"
    );
    let client = redis::Client::open(crate::redis_server::shared().address()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let done: i64 = redis::Script::new(&script).key(h.place.key(queue, "")).invoke(&mut connection).unwrap();
    assert_eq!(done, 1);
    verify(&h).await
}

#[track_caller]
fn assert_found(report: &VerifyReport, check: Check, part: &str) {
    let has = |found: &redrive::store::Finding| found.check == check && found.what.contains(part);
    assert!(report.findings.iter().any(has), "no {check:?} with {part:?}: {:#?}", report.findings);
}

async fn is_clean(mut h: Harness<RedisStore>) {
    one_of_everything(&mut h).await;
    let report = verify(&h).await;
    assert!(report.is_clean(), "{:#?}", report.findings);
    assert_eq!((report.jobs, report.queues.len()), (10, 4));
    assert!(report.records > report.jobs, "history counts, too");
    assert_eq!(verify(&h).await, report, "it changes nothing");
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
        let lost = after("q", "call('DEL', key('ready'))").await;
        assert_found(&lost, Check::Places, "(ready) is nowhere");
        assert_found(&lost, Check::Counts, "jobs and places for");
        assert_found(&lost, Check::Law, "2 jobs came in and are neither held nor accounted for");
        let lost = after("kept", "call('DEL', key('completed'))").await;
        assert_found(&lost, Check::Places, "(kept) is nowhere");
        let twice = after("q", "call('ZADD', key('completed'), 5, number('ready'))").await;
        assert_found(&twice, Check::Places, "(ready) is in 2 places: READY, COMPLETED");
        let gone = after("dying", "call('HDEL', key('j'), number('dead-1'))").await;
        assert_found(&gone, Check::Places, "DEAD holds job");
        assert_found(&gone, Check::Indexes, "a dead-letter record of job");
        assert_found(&gone, Check::Indexes, "an attempt of job");
        assert_found(&gone, Check::Indexes, "the history of job");
        assert_found(&gone, Check::Indexes, "one id leads to job");
        let lease = after("q", "call('DEL', key('l'))").await;
        assert_found(&lease, Check::Places, "(out), LEASED: its lease is not there");
    });
}

#[test]
fn a_job_at_a_wrong_position_is_found() {
    run_in(Site::One, async |_: Harness<RedisStore>| {
        let rank = "local member = one('ready')
                    call('ZREM', key('ready'), member)
                    call('ZADD', key('ready'), 0, '\\5' .. string.sub(member, 2))";
        let rank = after("q", rank).await;
        assert_found(&rank, Check::Places, "its position is not that of its priority");
        let number = "local member = one('ready')
                      call('ZADD', key('ready'), 0, string.sub(member, 1, 7) .. JOB_2313 .. '\\0')";
        let number = after("q", number).await;
        assert_found(&number, Check::Places, "READY holds job 2313, which is not there");
        let death = after("dying", "call('ZADD', key('dead'), 55, one('dead'))").await;
        assert_found(&death, Check::Places, "its position is not that of its death");
        let overflow = after("dying", "call('DEL', key('overflow'))").await;
        assert_found(&overflow, Check::Places, "DEAD: it is not in the order of deaths");
    });
}

#[test]
fn counters_that_are_wrong_are_found() {
    run_in(Site::One, async |_: Harness<RedisStore>| {
        for counter in ["completed", "purged", "cancelled", "retention_expired"] {
            let report = after("q", &format!("add('{counter}', 2)")).await;
            assert_found(&report, Check::Law, "2 jobs are held or went out and never came in");
        }
        let outcomes = after("q", "call('HSET', key('s'), 'o\\0\\0', '\\1rotten')").await;
        assert_found(&outcomes, Check::Checksums, "what its breaker has counted is not what was written");
        let enqueued = after("q", "add('enqueued', 1)").await;
        assert_eq!(enqueued.findings.len(), 1);
        for counter in ["moved_in", "moved_out"] {
            let moved = after("q", &format!("add('{counter}', 1)")).await;
            assert_found(&moved, Check::Law, "1 jobs ");
        }
        let types = after("dying", "call('HINCRBY', key('types'), 'Hopeless', 1)").await;
        assert_found(&types, Check::Counts, "3 dead letters are counted by type of error");
        let types = "call('HINCRBY', key('types'), 'Hopeless', -1)
                     call('HSET', key('types'), 'Other', 1)";
        let types = after("dying", types).await;
        assert_found(&types, Check::Counts, "are counted under \"Other\", and there are 0");
    });
}

#[test]
fn what_does_not_lead_to_its_job_is_found() {
    run_in(Site::One, async |_: Harness<RedisStore>| {
        let id = after("q", "call('HDEL', key('i'), 'ready')").await;
        assert_found(&id, Check::Indexes, "(ready) cannot be found by its id");
        let key = after("q", "call('HDEL', key('k'), 'k-ready')").await;
        assert_found(&key, Check::Indexes, "(ready) cannot be found by its idempotency key");
        let deadline = after("q", "call('DEL', key('deadline'))").await;
        assert_found(&deadline, Check::Indexes, "(ready) cannot be found by its deadline");
        let id = after("q", "call('HSET', key('i'), 'another', call('HGET', key('i'), 'ready'))").await;
        assert_found(&id, Check::Indexes, "one id leads to job 1 (ready), wrongly");
        let key = "call('HSET', key('k'), 'another', call('HGET', key('k'), 'k-ready'))";
        let key = after("q", key).await;
        assert_found(&key, Check::Indexes, "one idempotency key leads to job 1 (ready), wrongly");
        let key = after("q", "call('DEL', key('finished'))").await;
        let not_freed = "the idempotency key \"k-done\" would not be freed at its time";
        assert_found(&key, Check::Indexes, not_freed);
        let deadline = after("q", "call('ZADD', key('deadline'), 5, JOB_2313)").await;
        let of_none = "one deadline leads to job 2313, which is not there";
        assert_found(&deadline, Check::Indexes, of_none);
        let attempts = after("dying", "call('HDEL', key('h'), number('dead-1') .. '\\1')").await;
        assert_found(&attempts, Check::Indexes, "1 attempts of job");
        let body = after("q", "call('HSET', key('B'), JOB_2313, 'body')").await;
        assert_found(&body, Check::Indexes, "a body of job 2313 is there without it");
    });
}

#[test]
fn bytes_that_rot_are_found() {
    run_in(Site::One, async |_: Harness<RedisStore>| {
        let record = after("kept", "rot('j')").await;
        assert_found(&record, Check::Checksums, "the record of job");
        let body = after("q", "rot('B')").await;
        assert_found(&body, Check::Checksums, "(ready) is not what was written");
        let history = after("dying", "rot('h', number('dead-1'))").await;
        assert_found(&history, Check::Checksums, "the history of job");
        let attempt = "call('HSET', key('h'), number('dead-1') .. '\\1', 'rotten')";
        assert_found(&after("dying", attempt).await, Check::Checksums, "one attempt of job");
        let failure = "call('HSET', key('h'), number('dead-1') .. '\\0f', 'rotten')";
        assert_found(&after("dying", failure).await, Check::Checksums, "one failure of job");
        let result = after("kept", "rot('R')").await;
        assert_found(&result, Check::Checksums, "one result of job");
    });
}

#[test]
fn a_long_verify_tells_how_far_it_is() {
    run_in(Site::One, async |mut h: Harness<RedisStore>| {
        one_of_everything(&mut h).await;
        let mut told = Vec::new();
        let mut tell = |progress: VerifyProgress| told.push(progress.step);
        queue::verify(&mut h.store().storage().clone(), &mut tell).await.unwrap();
        assert!(told.contains(&"jobs") && told.contains(&"ids"), "{told:?}");
    });
}
