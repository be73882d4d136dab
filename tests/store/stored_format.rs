//! Stores that an earlier build has written, with a job in every state: what is in them is read back, all of it is in order, and
//! work goes on.
//!
//! `script/make-fixtures` writes them anew, and what they are expected to hold. After a release only the expectation is: a change
//! that needs other stores cannot read what users have.

use crate::builders::*;
use crate::engines::{Engine, Site};
use crate::harness::{Harness, runtime};
use crate::redis_server;
use redrive::domain::{Body, Failure, JobId, NewJob, OnConflict, Outcome, PolicyOverride, QueueSettings};
use redrive::queue::hosts::redis::RedisStore;
use redrive::queue::hosts::sqlite::SqliteStore;
use redrive::queue::{BreakerOrder, Claim, Depths, EnqueueOutcome, JobView, RequestId, Requeue, Which};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
/// What tells the fixture apart on a Redis that tests share.
const NAMESPACE: &str = "stored-format";
/// From the start of the harness's clock to the end of [`fill`].
const FILLED_AFTER: Duration = Duration::from_secs(70);
const QUEUES: [&str; 9] = ["broken", "cancelled", "dying", "elsewhere", "expired", "held", "kept", "q", "returned"];

fn fixture(name: &str) -> PathBuf {
    Path::new(FIXTURES).join(name)
}

/// `stores` and what is expected of them, or `expected` alone.
fn is_to_be_written(what: &str) -> bool {
    env::var_os("REDRIVE_WRITE_FIXTURES").is_some_and(|wanted| wanted == what || wanted == "stores")
}

fn settings(queue: &mut QueueSettings) {
    without_jitter(queue);
    queue.policy.base_delay = HOUR;
    queue.policy.max_delay = HOUR;
    queue.dead_letters.max_entries = 2;
}

fn configure<E: Engine>(h: &mut Harness<E>) {
    h.set(settings);
    let settings = Arc::make_mut(&mut h.settings);
    let keeps = Arc::new(QueueSettings { completed_retention: Some(HOUR), ..(*settings.defaults).clone() });
    settings.queues.extend(["kept", "cancelled"].map(|name| (queue(name), keeps.clone())));
}

/// A job in every state, and all else that is stored.
async fn fill<E: Engine>(h: &Harness<E>) {
    let fail = async |name: &str, checkpoint: &str| {
        let lease = h.claim(name).await.delivery.lease;
        let failure = Failure { http_status: 503, stack_trace: "at line 7".into(), ..Failure::new("Timeout", "slow") };
        h.nack_saving(lease, failed_with(failure), checkpoint).await.unwrap();
    };
    // What a sweep does: a lease expires, and its Ack comes late; a deadline passes; failures of just before an opening, of which
    // their jobs had died, are returned.
    h.enqueue(job("kept").id("late")).await;
    let short = Claim { lease_duration: Some(SECOND), ..claim_of(&["kept"], 1) };
    let late = h.try_claim(short).await.jobs[0].delivery.lease.clone();
    h.enqueue(job("expired").id("expired").expires(SECOND)).await;
    for number in 0..5 {
        h.enqueue(job("returned").id(&format!("returned-{number}")).retries(0)).await;
    }
    let leases: Vec<_> = h.claim_many("returned", 5).await.into_iter().map(|job| job.delivery.lease).collect();
    h.advance(SECOND);
    for lease in leases {
        h.nack(lease, failed_with(Failure::new("ConnectException", "Connection refused"))).await.unwrap();
    }
    assert_eq!(h.sweep().await.expired.len(), 1);
    h.ack_with(late, "late", "a late result".into()).await.unwrap();
    // Dead letters, of which the third and the fourth are overflow; one was requeued before, one went to another queue.
    h.dead_letter(job("dying").id("requeued").key("dead-key")).await;
    let requeue = |ids: &str| requeue_of("dying", Which::Ids(vec![JobId::parse(ids)]));
    h.requeue(requeue("requeued")).await.unwrap();
    let lease = h.claim("dying").await.delivery.lease;
    h.nack(lease, permanent()).await.unwrap();
    for id in ["dead", "moved", "overflow-1", "overflow-2"] {
        h.dead_letter(job("dying").id(id)).await;
    }
    let request = RequestId { id: "move".into(), asked: [7; 32] };
    let there = Requeue { target: Some(queue("elsewhere")), request: Some(request), ..requeue("moved") };
    assert_eq!(h.requeue(there).await.unwrap().ids.len(), 1);
    // Completed with a result, and cancelled, both kept; and what stays of jobs that are not.
    h.enqueue(job("kept").id("completed").key("kept-key")).await;
    let lease = h.claim("kept").await.delivery.lease;
    h.ack_with(lease, "sent", "a result".into()).await.unwrap();
    h.enqueue(job("cancelled").id("cancelled")).await;
    h.cancel("cancelled").await.unwrap();
    h.enqueue(job("q").id("gone").key("gone-key")).await;
    let lease = h.claim("q").await.delivery.lease;
    h.ack(lease).await.unwrap();
    // A queue that is held back by an operator, and one whose downstream is broken.
    h.pause("held", Some(24 * HOUR)).await.unwrap();
    h.set_breaker("queue:held", BreakerOrder::Force { open: true, reason: "maintenance".into() }).await.unwrap();
    h.enqueue(job("held").id("waits")).await;
    for number in 0..6 {
        h.enqueue(job("broken").id(&format!("broken-{number}"))).await;
    }
    let leases: Vec<_> = h.claim_many("broken", 5).await.into_iter().map(|job| job.delivery.lease).collect();
    h.advance(SECOND);
    for lease in leases {
        h.nack(lease, failed_with(Failure::new("ConnectException", "Connection refused"))).await.unwrap();
    }
    // Jobs with breaker keys: one that an operator holds, one that a failure has named, one whose job runs.
    let keyed = |key: &str, id: &str| NewJob { breaker_key: Some(key.into()), ..job("keyed").id(id) };
    h.enqueue(job("keyed").id("learnt")).await;
    let lease = h.claim("keyed").await.delivery.lease;
    let failure = Failure { breaker_key: "api.example.com".into(), ..Failure::new("Timeout", "no answer") };
    h.nack(lease, failed_with(failure)).await.unwrap();
    h.enqueue(keyed("runs", "runs")).await;
    h.claim_many("keyed", 1).await;
    h.enqueue(keyed("smtp", "held")).await;
    h.set_breaker("queue:keyed/smtp", BreakerOrder::Force { open: true, reason: "maintenance".into() }).await.unwrap();
    // Waiting ones.
    h.enqueue(job("q").id("retrying").expires(24 * HOUR)).await;
    fail("q", "half way").await;
    h.enqueue(job("q").id("released")).await;
    let lease = h.claim("q").await.delivery.lease;
    h.nack(lease, Outcome::Released { retry_after: Some(HOUR), keep_position: false }).await.unwrap();
    h.enqueue(job("q").id("run-now").delay(HOUR)).await;
    h.run_now("run-now").await.unwrap();
    h.enqueue(job("q").id("scheduled").delay(2 * HOUR)).await;
    h.advance(FILLED_AFTER - 3 * SECOND);
    // The breaker has waited for long enough: a probe is out.
    let probe = Claim { lease_duration: Some(HOUR), ..claim_of(&["broken"], 1) };
    assert!(h.try_claim(probe).await.jobs[0].delivery.probe);
    // Leased: extended with a checkpoint, cancelled, and one that a claim with a request id has.
    for id in ["extended", "cancelling", "requested"] {
        h.enqueue(job("q").id(id).key(&format!("{id}-key")).priority(9)).await;
    }
    let claim = Claim { request_id: "claim-1".into(), lease_duration: Some(HOUR), ..claim_of(&["q"], 3) };
    let claimed = h.try_claim(claim).await;
    h.extend(claimed.jobs[0].delivery.lease.clone(), Some(2 * HOUR), "a third").await.unwrap();
    h.cancel("cancelling").await.unwrap();
    // Ready: one at its old position, one that took the place of another, one with everything that a producer can say, and one
    // whose id the store has made.
    h.enqueue(job("q").id("old-position").priority(5)).await;
    let lease = h.claim("q").await.delivery.lease;
    h.nack(lease, Outcome::Released { retry_after: None, keep_position: true }).await.unwrap();
    let replaced = |body| job("q").id("replaced").key("replaced-key").body(body);
    h.enqueue(replaced("old")).await;
    let replaces = NewJob { on_conflict: OnConflict::ReplaceWaiting, ..replaced("new") };
    assert_eq!(h.try_enqueue(replaces).await.unwrap().outcome, EnqueueOutcome::Replaced);
    let policy = PolicyOverride { max_retries: Some(9), base_delay: Some(SECOND), ..PolicyOverride::default() };
    h.enqueue(NewJob {
        headers: vec![("tenant".into(), "7".into())],
        content_type: "application/json".into(),
        body: Body::Text(r#"{"to":"ada@example.com"}"#.into()),
        policy: Some(Box::new(policy)),
        key_ttl: Some(HOUR),
        ..job("q").id("whole").key("own-ttl").priority(-3).expires(48 * HOUR)
    })
    .await;
    h.enqueue(job("q").id("large").body(&"large ".repeat(2_000))).await;
    h.enqueue(job("q").body("without an id")).await;
    h.advance(SECOND);
}

/// All that reads show, for people. Ids that the store made differ from engine to engine, and so do numbers.
async fn describe<E: Engine>(h: &Harness<E>) -> String {
    let mut out = String::new();
    for name in QUEUES {
        let view = h.queue(name).await.unwrap_or_else(|| panic!("there is no queue {name}"));
        let breakers = h.breakers(name).await;
        writeln!(out, "queue {name}").unwrap();
        writeln!(out, "  {:?}", view.depths).unwrap();
        writeln!(out, "  {:?}", view.totals).unwrap();
        writeln!(out, "  pause: {:?}", view.pause).unwrap();
        writeln!(out, "  work: {:?}", breakers.work.breaker).unwrap();
        writeln!(out, "  dead letters: {:?}", breakers.dead_letters.breaker).unwrap();
        for (_, listed) in h.page(jobs_of(name)).await.jobs {
            let found = h.views(&listed.spec.id).await;
            let [view] = &found[..] else { panic!("{} jobs have the id {}", found.len(), listed.spec.id) };
            describe_job(&mut out, view);
        }
        out.push('\n');
    }
    out
}

fn describe_job(out: &mut String, view: &JobView) {
    let made = matches!(view.spec.id, JobId::Uuid(_)).then(|| view.spec.id.to_string());
    let mut text = String::new();
    writeln!(text, "  {:?} {}", view.state, view.spec.id).unwrap();
    let spec = format!("{:?}", view.spec).replace(&"large ".repeat(2_000), "large ×2000");
    writeln!(text, "    {spec}").unwrap();
    writeln!(text, "    {:?}", view.progress).unwrap();
    let (ready_at, old_place) = (view.ready_at, view.old_place);
    writeln!(text, "    ready at {ready_at:?}, before {old_place:?}, completed at {:?}", view.completed_at).unwrap();
    if let Some(delivery) = &view.delivery {
        let (worker, expires_at) = (&delivery.worker_id, delivery.expires_at);
        writeln!(text, "    attempt {} by {worker} until {expires_at}", delivery.attempt).unwrap();
    }
    for attempt in &view.attempts {
        let attempt = redrive::domain::Attempt { nonce: 0, ..attempt.clone() };
        writeln!(text, "    {attempt:?}").unwrap();
    }
    for event in &view.events {
        writeln!(text, "    {event:?}").unwrap();
    }
    if let Some(death) = &view.death {
        writeln!(text, "    {death:?}").unwrap();
    }
    writeln!(text, "    last failure {:?}, result {:?}", view.last_failure, view.result).unwrap();
    match made.and_then(|id| Some((id, uuid(&view.spec.id)?))) {
        Some((id, number)) => *out += &text.replace(&id, "(made)").replace(&number, "(made)"),
        None => *out += &text,
    }
}

fn uuid(id: &JobId) -> Option<String> {
    let JobId::Uuid(number) = id else { return None };
    Some(number.to_string())
}

/// What was written, and what goes on from there.
async fn read_back<E: Engine>(mut h: Harness<E>) {
    h.clock.advance(FILLED_AFTER);
    configure(&mut h);
    h.open().await;
    h.verify().await;
    let (found, page) = (describe(&h).await, fixture("stored_format.txt"));
    if is_to_be_written("expected") {
        fs::write(&page, &found).unwrap();
    }
    let expected = fs::read_to_string(&page).unwrap();
    for (at, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "line {} of {}", at + 1, page.display());
    }
    assert_eq!(found.lines().count(), expected.lines().count(), "{}", page.display());

    // Keys and ids are held, a claim that is said again gets its jobs, and a lease from then is settled.
    for job in [
        job("q").id("gone"),
        job("q").key("gone-key"),
        job("kept").key("kept-key"),
        job("q").key("extended-key"),
        job("q").key("replaced-key").body("new"),
    ] {
        assert_eq!(h.try_enqueue(job).await.unwrap().outcome, EnqueueOutcome::Existing);
    }
    let again = Claim { request_id: "claim-1".into(), ..claim_of(&["q"], 3) };
    let jobs = h.try_claim(again).await.jobs;
    assert_eq!(jobs.len(), 3);
    for job in jobs.iter() {
        h.ack(job.delivery.lease.clone()).await.unwrap();
    }
    let probe = h.view(&JobId::parse("broken-5")).await.delivery.unwrap();
    assert!(probe.probe && !h.ack(probe.lease).await.unwrap().already_gone);
    assert!(h.breakers("broken").await.work.breaker.outage.is_some_and(|outage| outage.recovering));
    for (name, dead) in [("dying", 4), ("expired", 1)] {
        assert_eq!(h.requeue(requeue_of(name, oldest(10))).await.unwrap().ids.len(), dead);
    }
    h.resume("held").await.unwrap();
    h.set_breaker("queue:held", BreakerOrder::Reset).await.unwrap();
    // All that waits for a time, and then the rest, is done.
    h.advance(3 * HOUR);
    h.sweep().await;
    for name in QUEUES {
        h.set_breaker(&format!("queue:{name}"), BreakerOrder::Reset).await.unwrap();
        for job in h.claim_many(name, 100).await {
            h.ack(job.delivery.lease).await.unwrap();
        }
        assert_eq!(h.depths(name).await, Depths::default(), "{name}");
    }
    h.verify().await;
}

// ---- SQLite ----

#[test]
fn sqlite() {
    runtime().block_on(async {
        let database = fixture("redrive.db");
        if is_to_be_written("stores") {
            let mut h = Harness::<SqliteStore>::new().await;
            configure(&mut h);
            fill(&h).await;
            h.close().await;
            fs::copy(h.database(), &database).unwrap();
        }
        let h = Harness::<SqliteStore>::unopened(Site::One);
        fs::copy(&database, h.database()).unwrap();
        read_back(h).await;
    });
}

// ---- Redis ----

#[test]
fn redis() {
    from_commands(Site::One, redis_server::shared().address());
}

#[test]
fn valkey() {
    from_commands(Site::Valkey, redis_server::valkey().address());
}

fn from_commands(site: Site, address: &str) {
    let mut connection = redis::Client::open(address).unwrap().get_connection().unwrap();
    let unopened = || {
        let mut h = Harness::<RedisStore>::unopened(site);
        h.place.namespace = NAMESPACE.into();
        h
    };
    runtime().block_on(async {
        let commands = fixture("redis_commands.txt");
        if is_to_be_written("stores") && site == Site::One {
            let mut h = unopened();
            configure(&mut h);
            h.open().await;
            fill(&h).await;
            h.close().await;
            fs::write(&commands, dump(&mut connection)).unwrap();
        }
        for line in fs::read_to_string(&commands).unwrap().lines() {
            let words: Vec<_> = line.split(' ').map(unescaped).collect();
            let name = std::str::from_utf8(&words[0]).unwrap();
            redis::cmd(name).arg(&words[1..]).exec(&mut connection).unwrap();
        }
        read_back(unopened()).await;
    });
}

/// Every key of the namespace as the commands that make it, each pair on a line of its own; it is gone then.
fn dump(connection: &mut redis::Connection) -> String {
    let mut keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg(format!("{NAMESPACE}:*")).query(connection).unwrap();
    keys.sort();
    let mut out = String::new();
    for key in keys {
        let kind: String = redis::cmd("TYPE").arg(&key).query(connection).unwrap();
        let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = match kind.as_str() {
            "hash" => redis::cmd("HGETALL").arg(&key).query(connection).unwrap(),
            "zset" => redis::cmd("ZRANGE").arg(&key).arg(0).arg(-1).arg("WITHSCORES").query(connection).unwrap(),
            other => panic!("{} is a {other}", escaped(&key)),
        };
        pairs.sort();
        for (one, other) in pairs {
            // A member comes before its score here, and after it in the command.
            let [command, first, second] = match kind.as_str() {
                "hash" => ["HSET".into(), escaped(&one), escaped(&other)],
                _ => ["ZADD".into(), escaped(&other), escaped(&one)],
            };
            writeln!(out, "{command} {} {first} {second}", escaped(&key)).unwrap();
        }
        redis::cmd("DEL").arg(&key).exec(connection).unwrap();
    }
    out
}

/// Without spaces and line ends.
fn escaped(bytes: &[u8]) -> String {
    let mut out = String::new();
    for byte in bytes {
        match byte {
            b'!'..=b'~' if *byte != b'\\' => out.push(char::from(*byte)),
            _ => write!(out, "\\x{byte:02x}").unwrap(),
        }
    }
    out
}

fn unescaped(word: &str) -> Vec<u8> {
    let mut parts = word.split("\\x");
    let mut out = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (hex, rest) = part.split_at(2);
        out.push(u8::from_str_radix(hex, 16).unwrap());
        out.extend_from_slice(rest.as_bytes());
    }
    out
}
