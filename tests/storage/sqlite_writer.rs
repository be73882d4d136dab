//! What SQLite's writer promises beyond the contract: whole transactions, and a store that stops before it loses something.

use crate::fixture::{bytes, job_record, manual_clock, name, position, runtime};
use crate::sqlite::{Calls, SqliteCalls, done};
use redrive::store::sqlite::{Durability, OpenError, Options, SqliteEngine, SqliteStorage};
use redrive::store::storage::{
    Applied, Batch, Entry, Found, Index, Len, Read, Reads, RecordKey, Storage, Table, Write,
};
use redrive::store::{Health, StoreError};
use std::{fs, path::Path};
use tempfile::TempDir;

fn add(storage: &mut SqliteStorage<'_>, number: u64) -> Result<(), StoreError> {
    let queue = name("jobs");
    done(storage.register(&queue, 10))?;
    let writes = vec![
        Write::Put(Table::Job, RecordKey::Number(number), job_record(1, 0)),
        Write::Insert(Index::Ready, Entry::ready(position(0, 0, number))),
        Write::PutLease { number: number + 100, expires_at: storage.now(), record: bytes("lease") },
    ];
    let applied = done(storage.apply(&queue, &Batch { writes, ..Batch::default() }))?;
    assert!(matches!(applied, Applied::Done(_)));
    Ok(())
}

async fn lengths(store: &SqliteCalls) -> Vec<Found> {
    let lens = [Len::Table(Table::Job), Len::Index(Index::Ready), Len::Index(Index::Leased)];
    let reads = lens.map(Read::Len);
    let found = store.call(move |storage| done(storage.read(&name("jobs"), &reads))).await;
    found.unwrap().expect("the queue is there")
}

#[test]
fn a_call_that_fails_takes_all_of_its_transaction_with_it() {
    let directory = TempDir::new().unwrap();
    runtime().block_on(async {
        let store = SqliteCalls::open(directory.path(), manual_clock());
        store.call(|storage| add(storage, 1)).await.unwrap();
        let given = store.call(|storage| done(storage.numbers(5))).await.unwrap();
        let failed: Result<(), _> = store
            .call(|storage| {
                done(storage.numbers(7))?;
                done(storage.register(&name("other"), 10))?;
                add(storage, 2)?;
                Err(StoreError::Unavailable("a test".into()))
            })
            .await;
        assert_eq!(failed, Err(StoreError::Unavailable("a test".into())));
        assert_eq!(lengths(&store).await, [Found::Number(1), Found::Number(1), Found::Number(1)]);
        let queues = store.call(|storage| done(storage.queues(None, 10))).await.unwrap();
        assert_eq!(queues, [name("jobs")]);
        // Numbers that were given stay given.
        let next = store.call(|storage| done(storage.numbers(1))).await.unwrap();
        assert_eq!(next.start, given.end + 7);
        store.call(|storage| add(storage, 2)).await.unwrap();
        assert_eq!(lengths(&store).await, [Found::Number(2), Found::Number(2), Found::Number(2)]);
        assert_eq!(store.0.health(), Health::Well);
    });
}

#[test]
fn calls_that_find_nothing_write_nothing() {
    let directory = TempDir::new().unwrap();
    runtime().block_on(async {
        let store = SqliteCalls::open(directory.path(), manual_clock());
        store.call(|storage| add(storage, 1)).await.unwrap();
        let log = directory.path().join("redrive.db-wal");
        let before = fs::metadata(&log).unwrap().len();
        for _ in 0..20 {
            lengths(&store).await;
            let batch = Batch { writes: vec![Write::Promote(10)], ..Batch::default() };
            store.call(move |storage| done(storage.apply(&name("jobs"), &batch))).await.unwrap();
        }
        assert_eq!(fs::metadata(&log).unwrap().len(), before);
    });
}

async fn stops_after(directory: &Path, change: impl FnOnce()) -> String {
    let store = SqliteCalls::open(directory, manual_clock());
    store.call(|storage| add(storage, 1)).await.unwrap();
    change();
    let refused = store.call(|storage| add(storage, 2)).await.unwrap_err();
    assert!(matches!(refused, StoreError::Unavailable(_)), "{refused:?}");
    let later = store.call(|storage| add(storage, 3)).await.unwrap_err().to_string();
    assert!(later.contains("writes have stopped"), "{later}");
    let Health::Stopped(why) = store.0.health() else { panic!("it goes on") };
    store.0.close().await;
    why
}

#[test]
fn a_data_directory_that_is_removed_or_replaced_stops_writes() {
    let parent = TempDir::new().unwrap();
    let data = parent.path().join("data");
    runtime().block_on(async {
        let why = stops_after(&data, || fs::remove_dir_all(&data).unwrap()).await;
        assert!(why.contains("was removed"), "{why}");
        let copy = parent.path().join("copy");
        let why = stops_after(&data, || {
            fs::rename(&data, &copy).unwrap();
            fs::create_dir(&data).unwrap();
            fs::copy(copy.join("redrive.db"), data.join("redrive.db")).unwrap();
        })
        .await;
        assert!(why.contains("was replaced"), "{why}");
    });
}

#[test]
fn jobs_are_refused_when_the_disk_is_low() {
    let directory = TempDir::new().unwrap();
    runtime().block_on(async {
        let mut options = Options::new(directory.path());
        options.reserve_bytes = u64::MAX / 2;
        let store = SqliteCalls(SqliteEngine::open(options, manual_clock(), Calls).unwrap());
        let refused = store.run(true, |storage| add(storage, 1)).await.unwrap_err();
        assert!(matches!(refused, StoreError::DiskLow(_)), "{refused:?}");
        store.run(false, |storage| add(storage, 1)).await.unwrap();
        assert!(matches!(store.0.health(), Health::DiskLow(_)));
    });
}

#[test]
fn a_directory_has_one_store_and_is_whole_when_it_is_closed() {
    let directory = TempDir::new().unwrap();
    let options = || {
        let mut options = Options::new(directory.path());
        options.durability = Durability::None;
        options
    };
    runtime().block_on(async {
        let store = SqliteCalls::open(directory.path(), manual_clock());
        let second = SqliteEngine::open(options(), manual_clock(), Calls);
        assert!(matches!(second, Err(OpenError::Directory { error, .. }) if error.to_string().starts_with("another redrive uses it")));
        store.call(|storage| add(storage, 1)).await.unwrap();
        store.0.close().await;
        let refused = store.call(|storage| add(storage, 2)).await.unwrap_err().to_string();
        assert!(refused.contains("closed"), "{refused}");
        let log = fs::metadata(directory.path().join("redrive.db-wal"));
        assert!(log.map_or(0, |log| log.len()) == 0);
        SqliteEngine::open(options(), manual_clock(), Calls).unwrap().close().await;
    });
}
