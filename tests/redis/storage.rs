//! What the engine does that only Redis makes it do: another store, lost entries, clocks, full memory, hints.

use crate::servers::{Kind, Launch, Server, WallClock, until};
use bytes::Bytes;
use redrive::domain::{QueueName, Timestamp};
use redrive::env::SystemClock;
use redrive::store::StoreError;
use redrive::store::redis::connection::Address;
use redrive::store::redis::{Hint, Options, RedisStorage, TimeSource};
use redrive::store::storage::{
    Applied, Batch, Entry, Fence, Found, GroupState, Index, LeaseTemplate, Position, Publish, Ramp, Rate, Read, Reads,
    RecordKey, Rule, StoppedBy, Storage, Table, Take, Taken, Version, WHOLE_QUEUE, Write,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn options(server: &Server) -> Options {
    let address = Address::parse_all([server.address().as_str()]).unwrap();
    Options { namespace: "rd".into(), heartbeat: false, ..Options::new(address) }
}

async fn open(server: &Server) -> RedisStorage {
    RedisStorage::open(options(server), Arc::new(SystemClock::new())).await.unwrap()
}

async fn opened(options: Options) -> Result<RedisStorage, String> {
    let opened = RedisStorage::open(options, Arc::new(SystemClock::new())).await;
    opened.map_err(|error| error.to_string())
}

fn emails() -> QueueName {
    QueueName::parse("emails").unwrap()
}

fn at(ready_at: Timestamp, number: u64) -> Position {
    of_group(0, ready_at, number)
}

fn of_group(group: u16, ready_at: Timestamp, number: u64) -> Position {
    Position { group, rank: 1, ready_at, number, tag: 0 }
}

/// A job in `Ready`, or in `Scheduled` where its time is to come.
fn enqueue(now: Timestamp, ready_at: Timestamp, number: u64) -> Batch {
    let job = RecordKey::Number(number);
    let position = at(ready_at, number);
    let insert = if ready_at <= now {
        Write::Insert(Index::Ready, Entry::ready(position))
    } else {
        Write::Insert(Index::Scheduled, Entry::waiting(position))
    };
    let put = Write::Put(Table::Job, job.clone(), Bytes::from_static(&[0, 0, 0, 9, 0, b'j']));
    let fences = vec![Fence::Absent(Table::Job, job)];
    Batch { fences, writes: vec![put, insert], publish: Publish::IfFirst }
}

async fn apply(storage: &mut RedisStorage, batch: &Batch) -> Result<Applied, StoreError> {
    storage.apply(&emails(), batch).await
}

async fn enqueued(storage: &mut RedisStorage, number: u64) {
    let now = storage.now();
    assert!(storage.register(&emails(), 10).await.unwrap());
    let applied = apply(storage, &enqueue(now, now, number)).await;
    assert!(matches!(applied, Ok(Applied::Done(_))), "{applied:?}");
}

async fn take(storage: &mut RedisStorage, jobs: usize) -> Result<Option<Taken>, StoreError> {
    take_under(storage, jobs, Rule::whole(Version::default()), Rule::default()).await
}

async fn take_under(
    storage: &mut RedisStorage, jobs: usize, whole: Rule, rule: Rule,
) -> Result<Option<Taken>, StoreError> {
    let now = storage.now();
    let lease = LeaseTemplate {
        started_at: now,
        expires_at: now.after(Duration::from_secs(30)),
        duration_ms: 30_000,
        seed: 7,
        tail: b"tail",
    };
    let take = Take {
        whole,
        groups: &[rule],
        jobs,
        bytes: 1 << 20,
        first_fits: true,
        promote: 100,
        lease,
        max_leases: usize::MAX,
    };
    storage.take(&emails(), &take).await
}

async fn jobs(storage: &mut RedisStorage) -> Option<Vec<u64>> {
    let scan = [Read::Scan(Table::Job, None, usize::MAX)];
    let found = storage.read(&emails(), &scan).await.unwrap()?;
    let records = found.into_iter().next().unwrap().scanned();
    let number = |(key, _)| match key {
        RecordKey::Number(number) => number,
        other => panic!("{other:?}"),
    };
    Some(records.into_iter().map(number).collect())
}

fn told(error: &StoreError, part: &str) -> bool {
    matches!(error, StoreError::Unavailable(why) if why.contains(part))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_was_emptied_takes_no_writes_until_it_is_opened_again() {
    let server = Server::start(Kind::Redis);
    let (mut one, mut other) = (open(&server).await, open(&server).await);
    enqueued(&mut one, 1).await;
    enqueued(&mut other, 2).await;
    let _: String = server.ask("FLUSHALL");
    let now = one.now();
    let error = apply(&mut one, &enqueue(now, now, 3)).await.unwrap_err();
    assert!(told(&error, "was emptied"), "{error}");
    // It stays so, for everything that writes.
    assert!(told(&one.numbers(1).await.unwrap_err(), "was emptied"));
    assert!(told(&one.register(&emails(), 10).await.unwrap_err(), "was emptied"));
    assert!(told(&take(&mut one, 1).await.unwrap_err(), "was emptied"));
    assert!(one.halted().unwrap().contains("start the server again"));
    // A new store is there: the other server notices with its heartbeat.
    let mut one = open(&server).await;
    enqueued(&mut one, 4).await;
    let error = other.heartbeat().await.unwrap_err();
    assert!(told(&error, "holds another store"), "{error}");
    assert!(apply(&mut other, &enqueue(now, now, 5)).await.is_err());
    let mut other = open(&server).await;
    enqueued(&mut other, 5).await;
    assert_eq!(jobs(&mut one).await, Some(vec![4, 5]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_another_format_is_refused_with_what_it_takes() {
    let server = Server::start(Kind::Redis);
    let _: i64 = server.ask("HSET rd:{~queues}:names emails 1");
    let refused = opened(options(&server)).await.err().unwrap();
    assert!(refused.contains("the format of a version before"), "{refused}");
    let _: i64 = server.ask("DEL rd:{~queues}:names");

    let mut storage = open(&server).await;
    enqueued(&mut storage, 1).await;
    // A newer server begins to write something that this one may read.
    let mut format = redis::Client::open(server.address()).unwrap().get_connection().unwrap();
    let mut set = |text: &str| {
        let mut command = redis::cmd("HSET");
        command.arg("rd:{~catalogue}:c").arg("~format").arg(text);
        command.query::<i64>(&mut format).unwrap();
    };
    set("1 2 0.7.0");
    let error = storage.heartbeat().await.unwrap_err();
    assert!(told(&error, "to write to this store takes redrive 0.7.0 or newer"), "{error}");
    let now = storage.now();
    assert!(apply(&mut storage, &enqueue(now, now, 2)).await.is_err());
    assert_eq!(jobs(&mut storage).await, Some(vec![1]));
    // And then something that it may not.
    set("2 2 0.8.0");
    assert!(storage.heartbeat().await.is_err());
    let error = storage.read(&emails(), &[]).await.unwrap_err();
    assert!(told(&error, "to read this store takes redrive 0.8.0 or newer"), "{error}");
    assert!(opened(options(&server)).await.err().unwrap().contains("0.8.0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_whose_forgetting_stopped_half_way_can_be_registered() {
    let server = Server::start(Kind::Redis);
    for after_catalogue in [false, true] {
        let mut storage = open(&server).await;
        assert!(storage.register(&emails(), 10).await.unwrap());
        let put = Write::Put(Table::Queue, RecordKey::Only, Bytes::from_static(b"paused"));
        let batch = Batch { writes: vec![put], ..Batch::default() };
        assert!(matches!(apply(&mut storage, &batch).await, Ok(Applied::Done(_))));
        let generation: String = server.ask("HGET rd:{emails}:s generation");
        let _: i64 = server.ask("HDEL rd:{emails}:s generation");
        let _: i64 = server.ask(&format!("HSET rd:{{emails}}:s closed {generation}"));
        if after_catalogue {
            let _: i64 = server.ask("HDEL rd:{~catalogue}:c emails");
            let _: i64 = server.ask("ZREM rd:{~catalogue}:n emails");
        }
        // What finds it closed writes nothing.
        assert_eq!(apply(&mut storage, &batch).await, Ok(Applied::NoQueue));
        enqueued(&mut storage, 1).await;
        let read = [Read::Record(Table::Queue, RecordKey::Only)];
        let found = storage.read(&emails(), &read).await.unwrap();
        assert_eq!(found, Some(vec![Found::Record(None)]));
        assert_eq!(jobs(&mut storage).await, Some(vec![1]));
        assert_eq!(storage.queues(None, 10).await, Ok(vec![emails()]));
        let _: String = server.ask("FLUSHALL");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_queue_that_the_catalogue_has_lost_are_found_again() {
    let server = Server::start(Kind::Redis);
    let mut storage = open(&server).await;
    enqueued(&mut storage, 1).await;
    let _: i64 = server.ask("HDEL rd:{~catalogue}:c emails");
    let _: i64 = server.ask("ZREM rd:{~catalogue}:n emails");
    let mut other = open(&server).await;
    assert_eq!(jobs(&mut other).await, None);
    enqueued(&mut other, 2).await;
    assert_eq!(jobs(&mut other).await, Some(vec![1, 2]));
    assert_eq!(jobs(&mut storage).await, Some(vec![1, 2]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_jump_of_the_clock_of_redis_makes_nothing_due() {
    for jump in [7_200, -7_200] {
        let clock = WallClock::at(0);
        let server = clock.of(Launch::new(Kind::Redis)).start();
        let mut storage = open(&server).await;
        enqueued(&mut storage, 1).await;
        let before = storage.now();
        let later = before.after(Duration::from_secs(3_600));
        apply(&mut storage, &enqueue(before, later, 2)).await.unwrap();
        // One that failed is due before the one that was scheduled.
        let retry_at = before.after(Duration::from_secs(1_800));
        let retrying = vec![
            Write::Put(Table::Job, RecordKey::Number(3), Bytes::from_static(b"job")),
            Write::Insert(Index::Retrying, Entry::waiting(at(retry_at, 3))),
        ];
        apply(&mut storage, &Batch { writes: retrying, ..Batch::default() }).await.unwrap();
        clock.set(jump);
        // The first take finds TIME off, and samples it.
        let first = take(&mut storage, 10).await.unwrap().unwrap();
        assert!(first.changed == [WHOLE_QUEUE] && first.jobs.is_empty());
        let second = take(&mut storage, 10).await.unwrap().unwrap();
        assert_eq!(second.jobs.len(), 1, "{second:?}");
        assert_eq!((second.promoted, second.next_due), (0, Some(retry_at)));
        for (index, number) in [(Index::Scheduled, 2), (Index::Retrying, 3)] {
            let range = Read::Range { index, after: None, up_to: None, limit: 9, reverse: false };
            let left = storage.read(&emails(), &[range]).await.unwrap().unwrap().remove(0).entries();
            assert_eq!(left.iter().map(|entry| entry.member.job()).collect::<Vec<_>>(), [Some(number)], "{index:?}");
        }
        // A server that starts later has the same time.
        let late = open(&server).await;
        for storage in [&storage, &late] {
            let passed = storage.now().since(before);
            assert!(storage.now() >= before && passed < Duration::from_secs(10), "{passed:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_take_that_waited_in_a_stopped_redis_takes_nothing() {
    let server = Server::start(Kind::Redis);
    let mut storage = open(&server).await;
    enqueued(&mut storage, 1).await;
    server.freeze();
    let mut waiting = storage.clone();
    let taking = tokio::spawn(async move { take(&mut waiting, 1).await });
    tokio::time::sleep(Duration::from_millis(600)).await;
    server.thaw();
    let taken = taking.await.unwrap().unwrap().unwrap();
    assert!(taken.changed == [WHOLE_QUEUE] && taken.jobs.is_empty(), "{taken:?}");
    assert_eq!(take(&mut storage, 1).await.unwrap().unwrap().jobs.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_becomes_ready_is_published() {
    let server = Server::start(Kind::Redis);
    let mut storage = open(&server).await;
    let hints = Arc::new(Mutex::new(Vec::new()));
    let heard = hints.clone();
    let _subscription = storage.subscribe(move |hint| heard.lock().unwrap().push(hint));
    let told = |count: usize| {
        let hints = hints.clone();
        async move {
            until("a hint comes", || async { hints.lock().unwrap().len() >= count }).await;
            hints.lock().unwrap().last().cloned().unwrap()
        }
    };
    assert_eq!(told(1).await, Hint::Missed);
    assert_eq!(storage.subscribers().await, Ok(1));
    enqueued(&mut storage, 1).await;
    assert_eq!(told(2).await, Hint::Ready(emails(), 1));
    // There was one before: no hint.
    enqueued(&mut storage, 2).await;
    let always = Batch { publish: Publish::Always, ..Batch::default() };
    apply(&mut storage, &always).await.unwrap();
    assert_eq!(told(3).await, Hint::Ready(emails(), 2));
    assert_eq!(take(&mut storage, 10).await.unwrap().unwrap().jobs.len(), 2);
    apply(&mut storage, &always).await.unwrap();
    // Two become due: a take promotes both and leaves one.
    let soon = storage.now().after(Duration::from_millis(50));
    for number in [3, 4] {
        let batch = enqueue(Timestamp::default(), soon, number);
        apply(&mut storage, &batch).await.unwrap();
    }
    until("both are due", async || storage.now() >= soon).await;
    assert_eq!(take(&mut storage, 1).await.unwrap().unwrap().promoted, 2);
    assert_eq!(told(4).await, Hint::Ready(emails(), 1));
    // A group that had nothing is news, unless it is held; so is one that what is due goes to.
    let held = Version { state: GroupState::Held, epoch: 1, random: [1; 8] };
    let put = Write::Put(Table::Version, RecordKey::Group(7), Bytes::copy_from_slice(&held.bytes()));
    let ready = |group, number| Write::Insert(Index::Keyed, Entry::ready(of_group(group, soon, number)));
    for writes in [vec![put], vec![ready(7, 5)], vec![ready(8, 6)], vec![ready(8, 7)]] {
        apply(&mut storage, &Batch { writes, publish: Publish::IfFirst, ..Batch::default() }).await.unwrap();
    }
    assert_eq!(told(5).await, Hint::Ready(emails(), 3));
    let due = [9, 10].map(|number| Write::Insert(Index::Retrying, Entry::waiting(of_group(9, soon, number))));
    apply(&mut storage, &Batch { writes: due.to_vec(), ..Batch::default() }).await.unwrap();
    assert_eq!(take(&mut storage, 4).await.unwrap().unwrap().jobs.len(), 4);
    assert_eq!(told(6).await, Hint::Ready(emails(), 2));
    // What is no hint is ignored.
    let _: i64 = server.ask("PUBLISH rd:{emails}:s seventeen");
    let _: i64 = server.ask("PUBLISH rd:{~none}:s 1");
    storage.publish(&emails(), b"17").await.unwrap();
    assert_eq!(told(7).await, Hint::Message(emails(), b"17".to_vec()));
    assert_eq!(hints.lock().unwrap().len(), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_redis_refuses_only_what_begins_with_an_addition() {
    let server = Launch::new(Kind::Redis).line("maxmemory-policy noeviction").start();
    let mut storage = open(&server).await;
    enqueued(&mut storage, 1).await;
    let soon = storage.now().after(Duration::from_millis(20));
    apply(&mut storage, &enqueue(Timestamp::default(), soon, 2)).await.unwrap();
    let _: String = server.ask("CONFIG SET maxmemory 1");
    until("the job is due", async || storage.now() >= soon).await;
    let now = storage.now();
    let refused = apply(&mut storage, &enqueue(now, now, 3)).await.unwrap_err();
    assert!(matches!(refused, StoreError::MemoryLow(_)), "{refused}");
    // Promotion, leases, their end and a failure go on.
    let taken = take(&mut storage, 10).await.unwrap().unwrap();
    assert_eq!((taken.jobs.len(), taken.promoted), (2, 1));
    let ack = |number| {
        let key = RecordKey::Number(number);
        let writes = vec![Write::Delete(Table::Lease, key.clone()), Write::Delete(Table::Job, key)];
        Batch { writes, ..Batch::default() }
    };
    assert!(matches!(apply(&mut storage, &ack(1)).await, Ok(Applied::Done(_))));
    let mut nack = ack(2);
    nack.writes.truncate(1);
    let entry = Entry::waiting(at(now, 2));
    nack.writes.push(Write::Put(Table::History, RecordKey::Number(2), Bytes::from_static(b"h")));
    nack.writes.push(Write::Insert(Index::Retrying, entry));
    assert!(matches!(apply(&mut storage, &nack).await, Ok(Applied::Done(_))));
    let promote = Batch { writes: vec![Write::Promote(10)], ..Batch::default() };
    let Ok(Applied::Done(done)) = apply(&mut storage, &promote).await else { panic!() };
    assert_eq!((done.promoted, done.ready), (1, 1));
    // A meter that cannot be written stops nothing.
    let rate = Rate { per_second: 1.0, burst: 0.0 };
    let rule = Rule { ramp: Some(Ramp { rate, patience_ms: 0 }), ..Rule::default() };
    let taken = take_under(&mut storage, 1, Rule::whole(Version::default()), rule).await.unwrap().unwrap();
    assert_eq!((taken.jobs.len(), taken.stops[0].by, taken.ready), (0, StoppedBy::Ramp, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_follows_the_times_of_servers() {
    let server = Server::start(Kind::Redis);
    const START: u64 = 1_794_000_000_000;
    let time = Arc::new(AtomicU64::new(START));
    let given = time.clone();
    let now = Arc::new(move || Timestamp::from_millis(given.load(Ordering::Relaxed)));
    let options = Options { time: TimeSource::Given(now), ..options(&server) };
    let mut storage = RedisStorage::open(options, Arc::new(SystemClock::new())).await.unwrap();
    for number in 1..=9 {
        enqueued(&mut storage, number).await;
    }
    let rate = Some(Rate { per_second: 10.0, burst: 2.0 });
    let whole = Rule { rate, ..Rule::whole(Version::default()) };
    let hour = 3_600_000;
    // A server that is 5 ms behind gets no credit twice; after a step back the queue goes on from there.
    for (at, jobs) in [
        (0, 2),
        (100, 1),
        (95, 0),
        (195, 0),
        (200, 1),
        (-hour, 0),
        (-hour + 99, 0),
        (-hour + 100, 1),
        (-hour + 5_000, 2),
    ] {
        time.store(START.saturating_add_signed(at), Ordering::Relaxed);
        let taken = take_under(&mut storage, 9, whole.clone(), Rule::default()).await.unwrap().unwrap();
        assert_eq!(taken.jobs.len(), jobs, "{at}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_batch_is_applied_whole_and_a_large_table_is_scanned_in_pages() {
    const RECORDS: u64 = 9_000;
    let server = Server::start(Kind::Redis);
    let mut storage = open(&server).await;
    storage.register(&emails(), 1).await.unwrap();
    let key = RecordKey::Number;
    let record = |number: u64| Bytes::from(number.to_string());
    let batch = Batch {
        fences: (0..RECORDS).map(|number| Fence::Absent(Table::Job, key(number))).collect(),
        writes: (0..RECORDS).map(|n| Write::Put(Table::Job, key(n), record(n))).collect(),
        publish: Publish::Never,
    };
    assert!(matches!(apply(&mut storage, &batch).await, Ok(Applied::Done(_))));
    let Ok(Applied::Changed(failed)) = apply(&mut storage, &batch).await else { panic!() };
    let failed: Vec<_> = failed.into_iter().map(|(at, _)| at as u64).collect();
    assert_eq!(failed, (0..RECORDS).collect::<Vec<_>>());
    let reads: Vec<_> = (0..RECORDS).rev().map(|n| Read::Record(Table::Job, key(n))).collect();
    let found = storage.read(&emails(), &reads).await.unwrap().unwrap();
    let expected: Vec<_> = (0..RECORDS).rev().map(|n| Found::Record(Some(record(n)))).collect();
    assert_eq!(found, expected);
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let scan = [Read::Scan(Table::Job, after.clone(), 700)];
        let page = storage.read(&emails(), &scan).await.unwrap().unwrap().remove(0).scanned();
        let Some((last, _)) = page.last() else { break };
        after = Some(last.clone());
        all.extend(page);
    }
    let expected: Vec<_> = (0..RECORDS).map(|number| (key(number), record(number))).collect();
    assert_eq!(all, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_with_different_settings_are_named() {
    let server = Server::start(Kind::Redis);
    let named = |name: &str| Options { server: name.into(), ..options(&server) };
    let (a, b) = (opened(named("a")).await.unwrap(), opened(named("b")).await.unwrap());
    a.join([1; 32]);
    b.join([2; 32]);
    a.heartbeat().await.unwrap();
    assert_eq!(a.warning(), None);
    b.heartbeat().await.unwrap();
    assert!(b.warning().unwrap().ends_with("(a) unlike (b)"));
    // Not all of many are named.
    let mut others = Vec::new();
    for name in ["c", "d", "e", "f", "g"] {
        let other = opened(named(name)).await.unwrap();
        other.join([1; 32]);
        other.heartbeat().await.unwrap();
        others.push(other);
    }
    b.heartbeat().await.unwrap();
    let warning = b.warning().unwrap();
    assert!(warning.ends_with("files: (a, c, d, e, f and 1 more) unlike (b)"), "{warning}");
    for other in others.iter().chain([&a]) {
        other.leave().await.unwrap();
    }
    b.heartbeat().await.unwrap();
    assert_eq!(b.warning(), None);
}
