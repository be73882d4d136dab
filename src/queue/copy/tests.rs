use super::fixture::*;
use crate::{
    domain::{
        breaker::{Breaker, Open},
        ids::{JobId, QueueName},
        job::{Body, State},
        pause::Pause,
        settings::{QueueSettings, Settings},
        time::Timestamp,
    },
    queue::{
        context::Event,
        facts::QueueFacts,
        records::{self, IdRecord, KeyRecord, Whereabouts},
        verify,
    },
    store::{
        Standing, StoreError, TakenIn,
        memory::MemoryStorage,
        storage::{
            Applied, Batch, Counter, CounterGroup, Entry, Found, GroupState, Index, Len, Member,
            Read, Reads, RecordKey, Rule, Storage, Table, Take, Taken, Write,
        },
    },
};
use std::{ops::Range, sync::Arc, time::Duration};

const HOUR: Duration = Duration::from_secs(3600);

async fn assert_sound(f: &mut Fixture) {
    let report = verify(&mut f.store, &mut |_| {}).await.unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
}

async fn totals(f: &mut Fixture) -> Vec<(Counter, i64)> {
    f.read(Read::Counters(CounterGroup::Totals)).await.counters()
}

#[test]
fn a_job_that_waits_is_ready_or_scheduled_at_its_own_time() {
    run(async |mut f| {
        let mut high = ready("high");
        high.spec.priority = 9;
        let jobs =
            vec![ready("a"), ready("b"), high, scheduled("later", 500), failed("again", 2, 600)];
        assert_eq!(f.import(jobs).await, [TakenIn::Added; 5]);
        let [a, b, high] =
            [f.number_of("a").await, f.number_of("b").await, f.number_of("high").await];
        assert_eq!(f.jobs(Index::Ready).await, [high, a, b]);
        let later = f.number_of("later").await;
        assert_eq!(f.jobs(Index::Scheduled).await, [later]);
        assert_eq!(f.jobs(Index::Retrying).await, [f.number_of("again").await]);
        assert!(f.record(Table::History, number(a)).await.is_none(), "nothing has happened to it");
        let due = |event: &Event| matches!(event, Event::Due { at: then, job: true, .. } if *then == at(500));
        assert!(f.events.iter().any(due), "{:?}", f.events);
        assert!(f.events.contains(&Event::Available { queue: f.queue.clone(), jobs: 3 }));
        assert_eq!(totals(&mut f).await, [(Counter::Total(12), 5)]);
        assert_sound(&mut f).await;
    });
}

#[test]
fn a_history_arrives_with_the_attempts_that_are_kept() {
    run(async |mut f| {
        let job = failed("often", 53, 600);
        f.import(vec![job.clone()]).await;
        let often = f.number_of("often").await;
        let history = f.record(Table::History, number(often)).await.unwrap();
        let history = records::read_history(&history).unwrap();
        assert_eq!(history.progress, job.progress);
        assert_eq!(
            (history.whereabouts, history.at, history.nonce),
            (Whereabouts::Retrying, at(600), 93)
        );
        let found = f.read(Read::Scan(Table::Attempt, None, 100)).await.scanned();
        let numbers: Vec<_> =
            found.iter().map(|(_, record)| records::read_attempt(record).unwrap().number).collect();
        let mut expected: Vec<u32> = (1..=10).chain(14..=53).collect();
        expected.sort_by_key(|n| crate::queue::state_changes::attempt_part(*n));
        assert_eq!(numbers, expected);
        for (part, failure) in [(0, "E1"), (1, "E53")] {
            let record = f.record(Table::Failure, RecordKey::Part(often, part)).await.unwrap();
            let read = records::read_failure(&record).unwrap();
            assert_eq!(read.error_type, failure);
            assert!(read.message.len() > 500, "it is whole");
        }
        assert_sound(&mut f).await;
    });
}

#[test]
fn a_leased_job_arrives_ready_at_its_old_position_with_the_delivery_counted() {
    run(async |mut f| {
        f.clock.advance(Duration::from_secs(1));
        let mut leased = ready("leased");
        (leased.state, leased.ready_at, leased.old_place) = (State::Leased, None, Some(at(20)));
        leased.progress.deliveries = 1;
        let mut behind = ready("behind");
        (behind.spec.enqueued_at, behind.spec.run_at, behind.ready_at) =
            (at(30), at(30), Some(at(30)));
        f.import(vec![behind, leased]).await;
        let (leased, behind) = (f.number_of("leased").await, f.number_of("behind").await);
        assert_eq!(f.jobs(Index::Ready).await, [leased, behind]);
        let taken = f.take(1, Rule::default()).await;
        assert_eq!((taken.jobs[0].number, taken.jobs[0].attempt), (leased, 1));
        assert_eq!(taken.jobs[0].lease[..4], [0, 0, 0, 2], "the second delivery");
        assert_sound(&mut f).await;
    });
}

#[test]
fn a_job_of_a_clock_that_is_ahead_is_found_where_it_waits() {
    run(async |mut f| {
        let mut early = ready("early");
        (early.spec.enqueued_at, early.spec.run_at, early.ready_at) =
            (at(90), at(90), Some(at(90)));
        f.import(vec![early]).await;
        let early = f.number_of("early").await;
        let history = f.record(Table::History, number(early)).await.unwrap();
        assert_eq!(records::read_history(&history).unwrap().whereabouts, Whereabouts::Scheduled);
        assert_eq!(f.jobs(Index::Scheduled).await, [early]);
        assert_sound(&mut f).await;
    });
}

#[test]
fn dead_letters_keep_their_order_and_their_type_of_error() {
    run(async |mut f| {
        f.import(vec![dead("d1", 40, false), dead("d2", 30, true)]).await;
        f.import(vec![dead("d3", 20, false)]).await;
        let [d1, d2, d3] =
            [f.number_of("d1").await, f.number_of("d2").await, f.number_of("d3").await];
        assert_eq!(f.entries(Index::Dead).await, [Entry::number(1, d1), Entry::number(3, d3)]);
        assert_eq!(f.entries(Index::Overflow).await, [Entry::number(2, d2)]);
        let record = f.record(Table::Dead, number(d2)).await.unwrap();
        let (death, record) = records::read_dead(&record).unwrap();
        assert_eq!((death, record.died_at, record.counted_as.as_str()), (2, at(30), "E1"));
        let types = f.read(Read::Counters(CounterGroup::ErrorTypes)).await;
        assert_eq!(types, Found::Counters(vec![(Counter::ErrorType("E1".into()), 3)]));
        assert_eq!(totals(&mut f).await, [(Counter::Total(12), 3)]);
        assert_sound(&mut f).await;
    });
}

#[test]
fn completed_jobs_keep_their_results_and_count_as_completed() {
    run(async |mut f| {
        let mut large = with_key(completed("done", 10, "well"), "k");
        large.spec.body = Body::Data(vec![7; 5_000].into());
        f.import(vec![large, completed("empty", 11, "")]).await;
        let done = f.number_of("done").await;
        assert_eq!(f.jobs(Index::Completed).await, [done, f.number_of("empty").await]);
        let result = f.record(Table::Result, number(done)).await.unwrap();
        assert_eq!(records::read_result(&result).unwrap(), "well");
        assert_eq!(f.record(Table::Body, number(done)).await.unwrap().len(), 5_000);
        let free_at = at(0).after(HOUR).millis();
        assert_eq!(f.score(Index::FinishedKey, Member::Text("k".into())).await, Some(free_at));
        assert_eq!(totals(&mut f).await, [(Counter::Total(1), 2), (Counter::Total(12), 2)]);
        assert_sound(&mut f).await;
    });
}

#[test]
fn an_id_that_is_there_is_passed_over() {
    run(async |mut f| {
        assert_eq!(
            f.import(vec![ready("a"), ready("a")]).await,
            [TakenIn::Added, TakenIn::AlreadyThere]
        );
        assert_eq!(
            f.import(vec![ready("a"), ready("b")]).await,
            [TakenIn::AlreadyThere, TakenIn::Added]
        );
        // An id of another store holds a number of that store: it has a record of its own here.
        let made = JobId::make(at(0), 1, 5).to_string();
        assert_eq!(
            f.import(vec![ready(&made), ready(&made)]).await,
            [TakenIn::Added, TakenIn::AlreadyThere]
        );
        assert_eq!(f.import(vec![ready(&made)]).await, [TakenIn::AlreadyThere]);
        let number = f.number_of(&made).await;
        assert!(number > 1);
        // One whose number is its own needs none.
        let next = f.len(Len::Table(Table::Job)).await + 10;
        let own: Vec<_> = (1..next + 20).map(|n| JobId::make(at(0), n, 5).to_string()).collect();
        let jobs = own.iter().skip(1).map(|id| ready(id)).collect();
        f.import(jobs).await;
        assert_eq!(
            f.import(own.iter().map(|id| ready(id)).collect()).await,
            vec![TakenIn::AlreadyThere; own.len()]
        );
        assert_sound(&mut f).await;
    });
}

#[test]
fn a_key_belongs_to_one_job_that_is_not_done() {
    run(async |mut f| {
        let jobs = vec![
            with_key(ready("first"), "k"),
            with_key(ready("second"), "k"),
            with_key(dead("dead", 1, false), "k"),
            with_key(completed("done", 2, ""), "k"),
        ];
        let taken = [TakenIn::Added, TakenIn::KeyTaken, TakenIn::Added, TakenIn::Added];
        assert_eq!(f.import(jobs).await, taken);
        let record = f.record(Table::Key, text("k")).await.unwrap();
        let first = f.number_of("first").await;
        assert_eq!(records::read_key(&record).unwrap().number, first);
        assert_eq!(f.import(vec![with_key(ready("third"), "k")]).await, [TakenIn::KeyTaken]);
        assert_sound(&mut f).await;
        // One that is done gives it to a job that waits.
        f.import(vec![with_key(completed("done-2", 2, ""), "k2")]).await;
        assert_eq!(f.len(Len::Index(Index::FinishedKey)).await, 1);
        assert_eq!(f.import(vec![with_key(ready("next"), "k2")]).await, [TakenIn::Added]);
        assert_eq!(f.len(Len::Index(Index::FinishedKey)).await, 0);
        let record = f.record(Table::Key, text("k2")).await.unwrap();
        assert_eq!(records::read_key(&record).unwrap().free_at, None);
        assert_sound(&mut f).await;
    });
}

#[test]
fn dead_jobs_hold_keys_where_the_queue_says_so() {
    run(async |mut f| {
        f.import(vec![with_key(dead("without", 1, false), "k1")]).await;
        assert!(f.record(Table::Key, text("k1")).await.is_none());
        let holding = QueueSettings { dead_jobs_hold_keys: true, ..QueueSettings::default() };
        f.settings = Settings { defaults: Arc::new(holding), ..Settings::default() };
        f.import(vec![with_key(dead("with", 1, false), "k2")]).await;
        assert!(f.record(Table::Key, text("k2")).await.is_some());
        assert_sound(&mut f).await;
    });
}

#[test]
fn deadlines_are_watched_while_jobs_wait() {
    run(async |mut f| {
        let expires = |mut job: crate::store::JobView| {
            job.spec.expires_at = Some(at(900));
            job
        };
        let mut cleared = expires(failed("cleared", 1, 0));
        cleared.progress.deadline_cleared = true;
        let jobs = vec![
            expires(ready("r")),
            expires(failed("f", 1, 600)),
            expires(dead("d", 1, false)),
            cleared,
        ];
        f.import(jobs).await;
        let [r, failed] = [f.number_of("r").await, f.number_of("f").await];
        let millis = at(900).millis();
        assert_eq!(
            f.entries(Index::Deadline).await,
            [Entry::number(millis, r), Entry::number(millis, failed)]
        );
        assert_sound(&mut f).await;
    });
}

#[test]
fn the_queue_is_held_back_as_it_was_there() {
    run(async |mut f| {
        let pause = Pause { until: Some(at(5_000)), reason: "night".into() };
        let open = Open { since: at(0), probe_at: at(700), successes: 0, failed_probe: None };
        let work = Breaker { transitions: 3, open: Some(open), ..Breaker::default() };
        let dead_letters = Breaker { transitions: 2, trips: 1, ..Breaker::default() };
        let standing = Standing { pause: Some(pause.clone()), work: work.clone(), dead_letters };
        f.try_import(standing.clone(), Vec::new(), 10).await.unwrap();
        let facts = QueueFacts::read(&mut f.store, &f.queue).await.unwrap().unwrap();
        assert_eq!((facts.queue.pause, &facts.breaker), (Some(pause), &work));
        assert_eq!(facts.queue.dead_letters, standing.dead_letters);
        assert_eq!(
            (facts.whole.state, facts.version.state),
            (GroupState::Held, GroupState::NeedsRule)
        );
        assert_eq!(facts.version.epoch, 3);
        assert_sound(&mut f).await;
        // Said again it changes nothing, and transitions never go back.
        f.try_import(standing, Vec::new(), 10).await.unwrap();
        let again = QueueFacts::read(&mut f.store, &f.queue).await.unwrap().unwrap();
        assert_eq!((again.whole, again.version), (facts.whole, facts.version));
        let work = Breaker { transitions: 1, trips: 1, ..Breaker::default() };
        f.try_import(Standing { work, ..Standing::default() }, Vec::new(), 10).await.unwrap();
        let after = QueueFacts::read(&mut f.store, &f.queue).await.unwrap().unwrap();
        assert_eq!((after.breaker.transitions, after.breaker.open), (3, None));
        assert!(after.queue.pause.is_some(), "nothing was said about it");
        assert_sound(&mut f).await;
    });
}

#[test]
fn a_queue_that_finds_no_room_is_refused() {
    run(async |mut f| {
        let refused = f.try_import(Standing::default(), vec![ready("a")], 0).await;
        assert!(matches!(refused, Err(crate::store::Refused::TooManyQueues { limit: 0 })));
    });
}

/// A store in which another call is faster: these writes come before the first batch.
struct Overtaken {
    store: MemoryStorage,
    writes: Vec<Write>,
}

impl Reads for Overtaken {
    fn now(&self) -> Timestamp {
        self.store.now()
    }

    async fn read(
        &mut self,
        queue: &QueueName,
        reads: &[Read],
    ) -> Result<Option<Vec<Found>>, StoreError> {
        self.store.read(queue, reads).await
    }

    async fn queues(
        &mut self,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<Vec<QueueName>, StoreError> {
        self.store.queues(after, limit).await
    }

    async fn holders(
        &mut self,
        table: Table,
        key: &RecordKey,
    ) -> Result<Vec<QueueName>, StoreError> {
        self.store.holders(table, key).await
    }
}

impl Storage for Overtaken {
    async fn apply(&mut self, queue: &QueueName, batch: &Batch) -> Result<Applied, StoreError> {
        let writes = std::mem::take(&mut self.writes);
        self.store.apply(queue, &Batch { writes, ..Batch::default() }).await?;
        self.store.apply(queue, batch).await
    }

    async fn take(
        &mut self,
        queue: &QueueName,
        take: &Take<'_>,
    ) -> Result<Option<Taken>, StoreError> {
        self.store.take(queue, take).await
    }

    async fn register(&mut self, queue: &QueueName, max: usize) -> Result<bool, StoreError> {
        self.store.register(queue, max).await
    }

    async fn forget(
        &mut self,
        queue: &QueueName,
        unused_since: Timestamp,
    ) -> Result<bool, StoreError> {
        self.store.forget(queue, unused_since).await
    }

    async fn numbers(&mut self, count: u64) -> Result<Range<u64>, StoreError> {
        self.store.numbers(count).await
    }
}

#[test]
fn an_id_a_key_or_a_number_that_is_taken_meanwhile_is_noticed() {
    run(async |mut f| {
        let other = ready("other").spec;
        let sameness = other.sameness();
        let id = records::id(&IdRecord { number: 90, sameness });
        let key = KeyRecord { number: 90, free_at: None, sameness, id: other.id.clone() };
        let job = records::job(&other, 2, Some(&sameness), &Default::default()).record;
        let writes = vec![
            Write::Put(Table::Id, text("a"), id),
            Write::Put(Table::Key, text("k"), records::key(&key)),
            Write::Put(Table::Job, number(2), job.clone()),
        ];
        let mut store = Overtaken { store: f.store.clone(), writes };
        let jobs = vec![ready("a"), with_key(ready("b"), "k"), ready("c")];
        let taken = f.import_to(&mut store, Standing::default(), jobs, 10).await.unwrap();
        assert_eq!(taken, [TakenIn::AlreadyThere, TakenIn::KeyTaken, TakenIn::Added]);
        assert_eq!(f.record(Table::Job, number(2)).await, Some(job));
        assert!(f.number_of("c").await > 3);
        assert_eq!(totals(&mut f).await, [(Counter::Total(12), 1)]);
        let available = |event: &&Event| matches!(event, Event::Available { .. });
        assert_eq!(f.events.iter().filter(available).count(), 1);
    });
}
