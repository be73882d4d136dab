//! A store that other calls change meanwhile.

use super::*;

/// A store that changes before every read.
struct Busy {
    store: MemoryStorage,
    steps: u64,
}

impl Busy {
    async fn step(&mut self, queue: &QueueName) {
        self.steps += 1;
        assert!(self.steps < 20_000, "a verification has an end");
        match self.steps % 5 {
            0 => self.enqueue(queue).await,
            1 | 3 => {
                drop(take(&mut self.store, queue, 2, Rule::default(), Version::default()).await)
            }
            2 => self.end(queue, false).await,
            _ => self.end(queue, true).await,
        }
    }

    async fn apply(&mut self, queue: &QueueName, changes: Changes) {
        let applied = self.store.apply(queue, &changes.batch()).await.unwrap();
        assert!(matches!(applied, Applied::Done(_)), "{applied:?}");
    }

    async fn enqueue(&mut self, queue: &QueueName) {
        let number = self.store.numbers(1).await.unwrap().start;
        let mut spec = ready(&format!("new-{number}")).spec;
        let now = self.store.now();
        (spec.enqueued_at, spec.run_at, spec.expires_at) = (now, now, Some(at(90_000)));
        let sameness = spec.sameness();
        let record = records::job(&spec, number, Some(&sameness), &Default::default());
        let mut changes = Changes::default();
        changes.put(Table::Job, RecordKey::Number(number), record.record);
        let id = records::id(&records::IdRecord { number, sameness });
        changes.put(Table::Id, RecordKey::Text(spec.id.to_string().into()), id);
        changes.enter(
            records::position(number, records::rank(0), now, false),
            spec.expires_at,
            now,
        );
        changes.add(crate::queue::state_changes::Total::Enqueued, 1);
        self.apply(queue, changes).await;
    }

    /// A delivery ends: the job is done, or waits again.
    async fn end(&mut self, queue: &QueueName, done: bool) {
        let range =
            Read::Range { index: Index::Leased, after: None, up_to: None, limit: 1, reverse: true };
        let found = self.store.read(queue, &[range]).await.unwrap().unwrap().remove(0);
        let Some(number) = found.entries().first().and_then(|entry| entry.member.job()) else {
            return;
        };
        let found = self.store.read(queue, &LeaseFacts::reads(number)).await.unwrap().unwrap();
        let (facts, job) = LeaseFacts::found(queue, number, &mut found.into_iter()).unwrap();
        let lease: Lease = facts.as_ref().unwrap().lease.lease.clone();
        let mut changes = Changes::default();
        changes.fence(facts.as_ref().unwrap().fence());
        changes.end_lease(&lease);
        if done {
            changes.unwatch_deadline(&job);
            changes.free_id(&job.spec.id.to_string(), number);
            if job.spec.key.is_some() {
                changes.finish_key(&job, at(1), self.store.now());
            }
            changes.remove_job(number, job.traits);
            changes.add(crate::queue::state_changes::Total::Completed, 1);
        } else {
            let progress = facts.unwrap().progress();
            let history = History {
                whereabouts: Whereabouts::Ready,
                at: self.store.now(),
                ..job.next_history(progress)
            };
            let position = records::position(number, history.rank, history.at, true);
            changes.insert(Index::Ready, Entry::ready(position));
            changes.put(Table::History, RecordKey::Number(number), records::history(&history));
        }
        self.apply(queue, changes).await;
    }
}

impl Reads for Busy {
    fn now(&self) -> Timestamp {
        self.store.now()
    }

    async fn read(
        &mut self,
        queue: &QueueName,
        reads: &[Read],
    ) -> Result<Option<Vec<Found>>, StoreError> {
        self.step(queue).await;
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

#[test]
fn a_store_that_changes_meanwhile_is_clean_and_damage_in_it_is_found() {
    run(async |mut f| {
        everything(&mut f).await;
        f.import((0..300).map(|n| ready(&format!("more-{n}"))).collect()).await;
        f.clock.advance(Duration::from_millis(1));
        for steps in 0..7 {
            let mut busy = Busy { store: f.store.clone(), steps };
            let report = check(&mut busy).await;
            assert!(report.is_clean(), "{:#?}", report.findings);
            assert!(busy.steps > 50);
        }
        let later = f.number_of("later").await;
        let position = position(&mut f, Index::Scheduled, "later").await;
        f.write(vec![Write::Remove(Index::Scheduled, Entry::waiting(position))]).await;
        let report = check(&mut Busy { store: f.store.clone(), steps: 0 }).await;
        assert_found(&report, Check::Places, &format!("job {later} (later) is nowhere"));
    });
}
