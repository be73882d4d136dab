//! A store of its own, with a clock that stands still.

use crate::builders::{claim_of, queue, sweep_all};
use crate::engines::{Engine, Place, Site};
use crate::recorded_events::{RecordedEvents, lock};
use bytes::Bytes;
use redrive::domain::{
    Attempt, BreakerName, JobId, Lease, NewJob, Outcome, QueueName, QueueSettings, Settings, Timestamp,
};
use redrive::env::ManualClock;
use redrive::queue::EnqueueOutcome;
use redrive::queue::{
    Ack, Acked, BreakerOrder, BreakerView, BreakerViews, Cancelled, Claim, Claimed, DeadCountQuery, DeadCounts,
    DeadLetterPage, DeadLetterQuery, Delivered, Depths, Enqueued, Extend, Extended, Idle, JobPage, JobQuery, JobView,
    Nack, NewPause, Purge, Purged, QueueView, Requeue, Requeued, Settled, Settlements, Stats, Sweep, Swept,
};
use redrive::queue::{Error, Queues, Refusal, Setup, Subscribers, UndeliveredClaim};
use std::collections::HashMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Of every cancellation and run-now.
pub(crate) const REASON: &str = "an operator's reason";

/// One test of the suite, run on every engine; `sqlite only` is for what is true of that engine alone.
macro_rules! store_test {
    ($(#[$meta:meta])* async fn $name:ident($h:ident) $body:block) => {
        $(#[$meta])*
        mod $name {
            store_test!(@ $h $body);

            #[test]
            fn memory() {
                $crate::harness::run(scenario::<redrive::queue::hosts::memory::MemoryStore>);
            }

            #[test]
            fn redis() {
                $crate::harness::run(scenario::<redrive::queue::hosts::redis::RedisStore>);
            }

            #[test]
            fn redis_cluster() {
                let scenario = scenario::<redrive::queue::hosts::redis::RedisStore>;
                $crate::harness::run_in($crate::engines::Site::Cluster, scenario);
            }

            #[test]
            fn valkey() {
                let scenario = scenario::<redrive::queue::hosts::redis::RedisStore>;
                $crate::harness::run_in($crate::engines::Site::Valkey, scenario);
            }
        }
    };
    ($(#[$meta:meta])* sqlite only: async fn $name:ident($h:ident) $body:block) => {
        $(#[$meta])*
        mod $name {
            store_test!(@ $h $body);
        }
    };
    (@ $h:ident $body:block) => {
        #[allow(unused_imports)]
        use super::*;

        #[allow(unused_mut)]
        async fn scenario<S: $crate::engines::Engine>(mut $h: $crate::harness::Harness<S>) {
            $body
            $h.verify().await;
        }

        #[test]
        fn sqlite() {
            $crate::harness::run(scenario::<redrive::queue::hosts::sqlite::SqliteStore>);
        }
    };
}

pub(crate) struct Harness<S: Engine> {
    store: Option<Queues<S::Host>>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) recorded: Arc<RecordedEvents>,
    /// Another one is what a changed configuration brings.
    pub(crate) settings: Arc<Settings>,
    pub(crate) place: Place,
    /// A new one for each call.
    seed: Arc<AtomicU64>,
    answers: Mutex<HashMap<Lease, u64>>,
    _directory: tempfile::TempDir,
}

/// Runs one scenario to its end.
pub(crate) fn run<S: Engine, F: Future<Output = ()>>(scenario: impl FnOnce(Harness<S>) -> F) {
    run_in(Site::One, scenario);
}

/// The same, where it matters which Redis it is.
pub(crate) fn run_in<S: Engine, F: Future<Output = ()>>(site: Site, scenario: impl FnOnce(Harness<S>) -> F) {
    runtime().block_on(async { scenario(Harness::new_in(site).await).await });
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// What was done, or why not: the store itself is well.
fn refused<T>(answer: Result<T, Error>) -> Result<T, Refusal> {
    answer.map_err(|error| match error {
        Error::Refused(refusal) => refusal,
        Error::Store(error) => panic!("the store is not well: {error}"),
    })
}

impl<S: Engine> Harness<S> {
    pub(crate) async fn new() -> Self {
        Self::new_in(Site::One).await
    }

    pub(crate) async fn new_in(site: Site) -> Self {
        let mut harness = Self::unopened(site);
        harness.open().await;
        harness
    }

    pub(crate) fn unopened(site: Site) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self {
            store: None,
            clock: Arc::new(ManualClock::at(Duration::from_secs(1_000_000_000))),
            recorded: Arc::default(),
            settings: Arc::default(),
            place: Place::new(directory.path(), site),
            seed: Arc::default(),
            answers: Mutex::default(),
            _directory: directory,
        }
    }

    // ---- the store itself ----

    pub(crate) fn store(&self) -> &Queues<S::Host> {
        let store = self.store.as_ref().expect("the store is open");
        if !Arc::ptr_eq(&store.settings(), &self.settings) {
            store.set_settings(self.settings.clone());
        }
        store
    }

    pub(crate) async fn open(&mut self) {
        self.store = Some(self.open_another().await.expect("the store opens"));
    }

    /// Opens the same directory once more, whatever has it open.
    pub(crate) async fn open_another(&self) -> Result<Queues<S::Host>, String> {
        let seed = self.seed.clone();
        let setup = Setup {
            settings: self.settings.clone(),
            subscribers: Subscribers::default().with(self.recorded.clone()),
            random: Arc::new(move || seed.fetch_add(1, Ordering::Relaxed) + 1),
            ..Setup::default()
        };
        S::open(&self.place, self.clock.clone(), setup).await
    }

    pub(crate) async fn close(&mut self) {
        if let Some(store) = self.store.take() {
            store.close().await;
        }
    }

    /// The handle goes away without a word.
    pub(crate) fn drop_store(&mut self) {
        self.store = None;
    }

    /// Opens as soon as the directory can be had.
    pub(crate) async fn open_when_free(&mut self) {
        while self.store.is_none() {
            self.store = self.open_another().await.ok();
            std::thread::yield_now();
        }
    }

    pub(crate) async fn reopen(&mut self) {
        self.close().await;
        self.open().await;
    }

    pub(crate) fn database(&self) -> PathBuf {
        Path::join(&self.place.directory, "redrive.db")
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.store().now()
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// Changes the settings of every queue.
    pub(crate) fn set(&mut self, change: impl FnOnce(&mut QueueSettings)) {
        let settings = Arc::make_mut(&mut self.settings);
        change(Arc::make_mut(&mut settings.defaults));
    }

    /// All that was asked before this has been answered, and what follows from that has been done.
    pub(crate) async fn catch_up(&self) {
        S::catch_up(self.store()).await;
    }

    /// What was announced as due since the last look; announcements come after the answers.
    pub(crate) async fn due(&self) -> Vec<Timestamp> {
        self.catch_up().await;
        self.recorded.take_due()
    }

    // ---- enqueue ----

    pub(crate) async fn enqueue_all(&self, jobs: Vec<NewJob>) -> Vec<Result<Enqueued, Refusal>> {
        let answer = self.store().enqueue(jobs).await;
        answer.expect("the store is well")
    }

    pub(crate) async fn try_enqueue(&self, job: NewJob) -> Result<Enqueued, Refusal> {
        self.enqueue_all(vec![job]).await.remove(0)
    }

    /// Adds a job that nothing stands in the way of.
    pub(crate) async fn enqueue(&self, job: NewJob) -> JobId {
        let added = self.try_enqueue(job).await.expect("the job is added");
        assert_eq!(added.outcome, EnqueueOutcome::Added, "{added:?}");
        added.id
    }

    // ---- claim ----

    pub(crate) async fn try_claim(&self, claim: Claim) -> Claimed {
        let mut claimed = self.store().claim(claim).await.expect("the store is well");
        claimed.jobs = claimed.jobs.delivered().into();
        let leases = claimed.jobs.iter().map(|job| (job.delivery.lease.clone(), claimed.answer));
        lock(&self.answers).extend(leases);
        claimed
    }

    /// The answer that handed out this lease last did not arrive.
    pub(crate) async fn unclaim(&self, lease: Lease) {
        let answer = lock(&self.answers).get(&lease).copied().unwrap_or_default();
        let unanswered = UndeliveredClaim { leases: vec![lease], answer, ..UndeliveredClaim::default() };
        self.store().unclaim(unanswered).await.expect("the store is well");
    }

    pub(crate) async fn claim_many(&self, queue: &str, max_jobs: usize) -> Vec<Delivered> {
        self.try_claim(claim_of(&[queue], max_jobs)).await.jobs.delivered()
    }

    /// The one job that a claim gets.
    pub(crate) async fn claim(&self, queue: &str) -> Delivered {
        let mut jobs = self.claim_many(queue, 1).await;
        jobs.pop().expect("a job is ready")
    }

    /// Why a claim gets none.
    pub(crate) async fn idle(&self, queue: &str) -> Idle {
        let mut claimed = self.try_claim(claim_of(&[queue], 1)).await;
        assert!(claimed.jobs.is_empty(), "{:?}", claimed.jobs);
        claimed.idle.pop().expect("a reason")
    }

    /// The ids of all that a queue hands out now, in order.
    pub(crate) async fn drain(&self, queue: &str) -> Vec<String> {
        let jobs = self.claim_many(queue, 1_000).await;
        jobs.iter().map(|job| job.spec.id.to_string()).collect()
    }

    // ---- settle ----

    pub(crate) async fn settle(&self, settlements: Settlements) -> Settled {
        let answer = self.store().settle(settlements).await;
        answer.expect("the store is well")
    }

    pub(crate) async fn ack(&self, lease: Lease) -> Result<Acked, Refusal> {
        self.ack_with(lease, "", Bytes::new()).await
    }

    pub(crate) async fn ack_with(&self, lease: Lease, note: &str, result: Bytes) -> Result<Acked, Refusal> {
        let acks = vec![Ack { lease, note: note.into(), result, breaker_key: String::new() }];
        let settlements = Settlements { acks, ..Settlements::default() };
        self.settle(settlements).await.acks.remove(0)
    }

    pub(crate) async fn nack(&self, lease: Lease, outcome: Outcome) -> Result<Attempt, Refusal> {
        self.nack_saving(lease, outcome, "").await
    }

    pub(crate) async fn nack_saving(
        &self, lease: Lease, outcome: Outcome, checkpoint: &str,
    ) -> Result<Attempt, Refusal> {
        let nacks = vec![Nack { lease, outcome, checkpoint: checkpoint.into() }];
        let settlements = Settlements { nacks, ..Settlements::default() };
        self.settle(settlements).await.nacks.remove(0)
    }

    pub(crate) async fn extend(
        &self, lease: Lease, duration: Option<Duration>, checkpoint: &str,
    ) -> Result<Extended, Refusal> {
        let extensions = vec![Extend { lease, duration, checkpoint: checkpoint.into() }];
        let settlements = Settlements { extensions, ..Settlements::default() };
        self.settle(settlements).await.extensions.remove(0)
    }

    /// Enqueues a job and lets it die at once.
    pub(crate) async fn dead_letter(&self, job: NewJob) -> JobId {
        let queue = job.queue.clone();
        let id = self.enqueue(job).await;
        let delivered = self.claim(queue.as_str()).await;
        assert_eq!(delivered.spec.id, id, "nothing else may be in line");
        let lease = delivered.delivery.lease;
        let ended = self.nack(lease, crate::builders::permanent()).await;
        ended.expect("the lease is out");
        id
    }

    // ---- time, dead letters, reads ----

    /// Sweeps until nothing more is due.
    pub(crate) async fn sweep(&self) -> Swept {
        self.sweep_sparing(sweep_all()).await
    }

    pub(crate) async fn sweep_sparing(&self, sweep: Sweep) -> Swept {
        let mut all = Swept::default();
        for _ in 0..1_000 {
            let swept = self.store().sweep(sweep).await;
            let swept = swept.expect("the store is well");
            all.promoted += swept.promoted;
            all.expired.extend(swept.expired);
            all.retention_expired += swept.retention_expired;
            all.completed_removed += swept.completed_removed;
            all.next = swept.next;
            if all.next.is_none_or(|next| next > self.now()) {
                return all;
            }
        }
        panic!("the sweep comes to no end: {all:?}");
    }

    pub(crate) async fn requeue(&self, requeue: Requeue) -> Result<Requeued, Refusal> {
        refused(self.store().requeue(requeue).await)
    }

    pub(crate) async fn purge(&self, purge: Purge) -> Result<Purged, Refusal> {
        refused(self.store().purge(purge).await)
    }

    pub(crate) async fn dead_counts(&self, query: DeadCountQuery) -> DeadCounts {
        self.store().dead_letter_counts(query).await.expect("the store is well")
    }

    pub(crate) async fn dead_page(&self, query: DeadLetterQuery) -> DeadLetterPage {
        let page = self.store().dead_letters(query).await;
        page.expect("the store is well")
    }

    /// All dead letters of a queue, whole.
    pub(crate) async fn dead(&self, name: &str) -> Vec<JobView> {
        let query = crate::builders::dead_query(name);
        self.dead_page(query).await.jobs
    }

    pub(crate) async fn views(&self, id: &JobId) -> Vec<JobView> {
        let views = self.store().jobs_of_id(id.clone(), None).await;
        views.expect("the store is well")
    }

    /// The one job of this id.
    pub(crate) async fn view(&self, id: &JobId) -> JobView {
        let mut views = self.views(id).await;
        assert_eq!(views.len(), 1, "{id} is there once");
        views.remove(0)
    }

    pub(crate) async fn pause(&self, name: &str, duration: Option<Duration>) -> Result<(), Refusal> {
        let pause = NewPause { duration, reason: "why not".into() };
        refused(self.store().pause(queue(name), Some(pause)).await)
    }

    pub(crate) async fn resume(&self, name: &str) -> Result<(), Refusal> {
        refused(self.store().pause(queue(name), None).await)
    }

    /// Both breakers of a queue.
    pub(crate) async fn breakers(&self, name: &str) -> BreakerViews {
        let views = self.store().breakers(vec![queue(name)]).await;
        views.expect("the store is well").remove(0)
    }

    pub(crate) async fn set_breaker(&self, name: &str, order: BreakerOrder) -> Result<BreakerView, Refusal> {
        let name = BreakerName::parse(name).expect("the name of a breaker");
        refused(self.store().set_breaker(name, order).await)
    }

    pub(crate) async fn cancel(&self, id: &str) -> Result<Cancelled, Refusal> {
        self.cancel_in(JobId::parse(id), None).await
    }

    pub(crate) async fn cancel_in(&self, id: JobId, queue: Option<QueueName>) -> Result<Cancelled, Refusal> {
        refused(self.store().cancel(id, queue, REASON.into()).await)
    }

    pub(crate) async fn run_now(&self, id: &str) -> Result<(), Refusal> {
        self.run_now_in(JobId::parse(id), None).await
    }

    pub(crate) async fn run_now_in(&self, id: JobId, queue: Option<QueueName>) -> Result<(), Refusal> {
        refused(self.store().run_now(id, queue, REASON.into()).await)
    }

    pub(crate) async fn page(&self, query: JobQuery) -> JobPage {
        let page = self.store().jobs(query).await;
        page.expect("the store is well")
    }

    /// All pages of a listing; the ids on each.
    pub(crate) async fn pages(&self, mut query: JobQuery) -> Vec<Vec<String>> {
        let mut pages = Vec::new();
        for _ in 0..10_000 {
            let page = self.page(query.clone()).await;
            pages.push(page.jobs.iter().map(|(_, view)| view.spec.id.to_string()).collect());
            if page.next.is_none() {
                return pages;
            }
            query.after = page.next;
        }
        panic!("the pages come to no end: {pages:?}");
    }

    pub(crate) async fn stats(&self, name: Option<&str>) -> Option<Stats> {
        refused(self.store().stats(name.map(queue)).await).ok()
    }

    pub(crate) async fn queues(&self) -> Vec<QueueView> {
        let queues = self.store().queues(None, 1_000).await;
        queues.expect("the store is well")
    }

    pub(crate) async fn queue(&self, name: &str) -> Option<QueueView> {
        let name = queue(name);
        let mut queues = self.queues().await.into_iter();
        queues.find(|queue| queue.name == name)
    }

    pub(crate) async fn depths(&self, name: &str) -> Depths {
        let queue = self.queue(name).await;
        queue.map(|queue| queue.depths).unwrap_or_default()
    }

    /// What came in is what went out and what is there.
    pub(crate) async fn verify(&self) {
        crate::verified::everything_adds_up(self).await;
    }
}
