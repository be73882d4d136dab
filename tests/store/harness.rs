//! A store of its own, with a clock that stands still.

use crate::{
    builders::{claim_of, queue, sweep_all},
    engines::{Engine, Place, Site},
    told::{Told, lock},
};
use bytes::Bytes;
use redrive::{
    domain::{
        breaker::BreakerName,
        ids::{JobId, QueueName},
        job::{Attempt, NewJob},
        lease::Lease,
        settings::{QueueSettings, Settings},
        time::Timestamp,
        verdict::Ending,
    },
    env::ManualClock,
    store::{
        Ack, Acked, Ask, BreakerOrder, BreakerView, BreakerViews, Cancelled, Claim, Claimed,
        DeadCountQuery, DeadCounts, DeadLetterPage, DeadLetterQuery, Delivered, Depths, Enqueued,
        Extend, Extended, Idle, JobPage, JobQuery, JobRefused, JobView, LeaseLost, Nack, NewPause,
        Purge, PurgeRefused, Purged, QueueRefused, QueueView, Refused, Requeue, RequeueRefused,
        Requeued, Settled, Settlements, Stats, Sweep, Swept, Unanswered,
    },
};
use std::{
    collections::HashMap,
    future::Future,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

/// One test of the suite, run on every engine; `embedded only` is for what is true of that engine alone.
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
                $crate::harness::run(scenario::<redrive::store::redis::RedisStore>);
            }

            #[test]
            fn redis_cluster() {
                let scenario = scenario::<redrive::store::redis::RedisStore>;
                $crate::harness::run_in($crate::engines::Site::Cluster, scenario);
            }

            #[test]
            fn valkey() {
                let scenario = scenario::<redrive::store::redis::RedisStore>;
                $crate::harness::run_in($crate::engines::Site::Valkey, scenario);
            }
        }
    };
    ($(#[$meta:meta])* embedded only: async fn $name:ident($h:ident) $body:block) => {
        $(#[$meta])*
        mod $name {
            store_test!(@ $h $body);
        }
    };
    (@ $h:ident $body:block) => {
        use super::*;

        #[allow(unused_mut)]
        async fn scenario<S: $crate::engines::Engine>(mut $h: $crate::harness::Harness<S>) {
            $body
            $h.audit().await;
        }

        #[test]
        fn embedded() {
            $crate::harness::run(scenario::<redrive::store::embedded::Embedded>);
        }
    };
}

pub(crate) struct Harness<S> {
    store: Option<S>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) told: Arc<Told>,
    /// Another one is what a changed configuration brings.
    pub(crate) settings: Arc<Settings>,
    pub(crate) place: Place,
    seed: Mutex<u64>,
    answers: Mutex<HashMap<Lease, u64>>,
    _directory: tempfile::TempDir,
}

/// Runs one scenario to its end.
pub(crate) fn run<S: Engine, F: Future<Output = ()>>(scenario: impl FnOnce(Harness<S>) -> F) {
    run_in(Site::One, scenario);
}

/// The same, where it matters which Redis it is.
pub(crate) fn run_in<S: Engine, F: Future<Output = ()>>(
    site: Site,
    scenario: impl FnOnce(Harness<S>) -> F,
) {
    runtime().block_on(async { scenario(Harness::new_in(site).await).await });
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

impl<S: Engine> Harness<S> {
    pub(crate) async fn new() -> Self {
        Self::new_in(Site::One).await
    }

    pub(crate) async fn new_in(site: Site) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut harness = Self {
            store: None,
            clock: Arc::new(ManualClock::at(Duration::from_secs(1_000_000_000))),
            told: Arc::default(),
            settings: Arc::default(),
            place: Place::new(directory.path(), site),
            seed: Mutex::new(0),
            answers: Mutex::default(),
            _directory: directory,
        };
        harness.open().await;
        harness
    }

    // ---- the store itself ----

    pub(crate) fn store(&self) -> &S {
        self.store.as_ref().expect("the store is open")
    }

    pub(crate) async fn open(&mut self) {
        if !S::KEEPS_ANSWERS {
            lock(&self.answers).clear();
        }
        self.store = Some(self.open_another().await.expect("the store opens"));
    }

    /// Opens the same directory once more, whatever has it open.
    pub(crate) async fn open_another(&self) -> Result<S, String> {
        S::open(&self.place, self.clock.clone(), self.told.clone()).await
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

    /// A new seed for each call.
    pub(crate) fn ask(&self) -> Ask {
        let mut seed = lock(&self.seed);
        *seed += 1;
        Ask { settings: self.settings.clone(), seed: *seed }
    }

    /// All that was asked before this has been answered, and what follows from that has been done.
    pub(crate) async fn catch_up(&self) {
        self.store().catch_up(self.ask()).await;
    }

    /// What was announced as due since the last look; announcements come after the answers.
    pub(crate) async fn due(&self) -> Vec<Timestamp> {
        self.catch_up().await;
        self.told.take_due()
    }

    // ---- enqueue ----

    pub(crate) async fn enqueue_all(&self, jobs: Vec<NewJob>) -> Vec<Result<Enqueued, Refused>> {
        let answer = self.store().enqueue(self.ask(), jobs).await;
        answer.expect("the store is well")
    }

    pub(crate) async fn try_enqueue(&self, job: NewJob) -> Result<Enqueued, Refused> {
        self.enqueue_all(vec![job]).await.remove(0)
    }

    /// Adds a job that nothing stands in the way of.
    pub(crate) async fn enqueue(&self, job: NewJob) -> JobId {
        let added = self.try_enqueue(job).await.expect("the job is added");
        assert!(!added.deduplicated, "{added:?}");
        added.id
    }

    // ---- claim ----

    pub(crate) async fn try_claim(&self, claim: Claim) -> Claimed {
        let answer = self.store().claim(self.ask(), claim).await;
        let claimed = answer.expect("the store is well");
        let leases = claimed.jobs.iter().map(|job| (job.delivery.lease.clone(), claimed.answer));
        lock(&self.answers).extend(leases);
        claimed
    }

    /// The answer that handed out this lease last reached nobody.
    pub(crate) async fn unclaim(&self, lease: Lease) {
        let answer = lock(&self.answers).get(&lease).copied().unwrap_or_default();
        let unanswered = Unanswered { leases: vec![lease], answer, ..Unanswered::default() };
        self.store().unclaim(unanswered).await.expect("the store is well");
    }

    pub(crate) async fn claim_many(&self, queue: &str, max_jobs: usize) -> Vec<Delivered> {
        self.try_claim(claim_of(&[queue], max_jobs)).await.jobs
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
        let answer = self.store().settle(self.ask(), settlements).await;
        answer.expect("the store is well")
    }

    pub(crate) async fn ack(&self, lease: Lease) -> Result<Acked, LeaseLost> {
        self.ack_with(lease, "", Bytes::new()).await
    }

    pub(crate) async fn ack_with(
        &self,
        lease: Lease,
        note: &str,
        result: Bytes,
    ) -> Result<Acked, LeaseLost> {
        let acks = vec![Ack { lease, note: note.into(), result }];
        let settlements = Settlements { acks, ..Settlements::default() };
        self.settle(settlements).await.acks.remove(0)
    }

    pub(crate) async fn nack(&self, lease: Lease, ending: Ending) -> Result<Attempt, LeaseLost> {
        self.nack_saving(lease, ending, "").await
    }

    pub(crate) async fn nack_saving(
        &self,
        lease: Lease,
        ending: Ending,
        checkpoint: &str,
    ) -> Result<Attempt, LeaseLost> {
        let nacks = vec![Nack { lease, ending, checkpoint: checkpoint.into() }];
        let settlements = Settlements { nacks, ..Settlements::default() };
        self.settle(settlements).await.nacks.remove(0)
    }

    pub(crate) async fn extend(
        &self,
        lease: Lease,
        duration: Option<Duration>,
        checkpoint: &str,
    ) -> Result<Extended, LeaseLost> {
        let extends = vec![Extend { lease, duration, checkpoint: checkpoint.into() }];
        let settlements = Settlements { extends, ..Settlements::default() };
        self.settle(settlements).await.extends.remove(0)
    }

    /// Enqueues a job and lets it die at once.
    pub(crate) async fn bury(&self, job: NewJob) -> JobId {
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
            let swept = self.store().sweep(self.ask(), sweep).await;
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

    pub(crate) async fn requeue(&self, requeue: Requeue) -> Result<Requeued, RequeueRefused> {
        let answer = self.store().requeue(self.ask(), requeue).await;
        answer.expect("the store is well")
    }

    pub(crate) async fn purge(&self, purge: Purge) -> Result<Purged, PurgeRefused> {
        let answer = self.store().purge(purge).await;
        answer.expect("the store is well")
    }

    pub(crate) async fn dead_counts(&self, query: DeadCountQuery) -> DeadCounts {
        self.store().dead_letter_counts(query).await.expect("the store is well")
    }

    pub(crate) async fn dead_page(&self, query: DeadLetterQuery) -> DeadLetterPage {
        let page = self.store().dead_letters(query).await;
        page.expect("the store is well").expect("the queue exists")
    }

    /// All dead letters of a queue, whole.
    pub(crate) async fn dead(&self, name: &str) -> Vec<JobView> {
        let query = crate::builders::dead_query(name);
        self.dead_page(query).await.jobs
    }

    pub(crate) async fn views(&self, id: &JobId) -> Vec<JobView> {
        let views = self.store().job(id.clone(), None).await;
        views.expect("the store is well")
    }

    /// The one job of this id.
    pub(crate) async fn view(&self, id: &JobId) -> JobView {
        let mut views = self.views(id).await;
        assert_eq!(views.len(), 1, "{id} is there once");
        views.remove(0)
    }

    pub(crate) async fn pause(
        &self,
        name: &str,
        duration: Option<Duration>,
    ) -> Result<(), QueueRefused> {
        let pause = NewPause { duration, reason: "why not".into() };
        let done = self.store().pause(self.ask(), queue(name), Some(pause)).await;
        done.expect("the store is well")
    }

    pub(crate) async fn resume(&self, name: &str) -> Result<(), QueueRefused> {
        let done = self.store().pause(self.ask(), queue(name), None).await;
        done.expect("the store is well")
    }

    /// Both breakers of a queue.
    pub(crate) async fn breakers(&self, name: &str) -> BreakerViews {
        let views = self.store().breakers(self.ask(), vec![queue(name)]).await;
        views.expect("the store is well").remove(0)
    }

    pub(crate) async fn set_breaker(
        &self,
        name: &str,
        order: BreakerOrder,
    ) -> Result<BreakerView, QueueRefused> {
        let name = BreakerName::parse(name).expect("the name of a breaker");
        let set = self.store().set_breaker(self.ask(), name, order).await;
        set.expect("the store is well")
    }

    pub(crate) async fn cancel(&self, id: &str) -> Result<Cancelled, JobRefused> {
        self.cancel_in(JobId::parse(id), None).await
    }

    pub(crate) async fn cancel_in(
        &self,
        id: JobId,
        queue: Option<QueueName>,
    ) -> Result<Cancelled, JobRefused> {
        let done = self.store().cancel(id, queue).await;
        done.expect("the store is well")
    }

    pub(crate) async fn run_now(&self, id: &str) -> Result<(), JobRefused> {
        self.run_now_in(JobId::parse(id), None).await
    }

    pub(crate) async fn run_now_in(
        &self,
        id: JobId,
        queue: Option<QueueName>,
    ) -> Result<(), JobRefused> {
        let done = self.store().run_now(id, queue).await;
        done.expect("the store is well")
    }

    pub(crate) async fn page(&self, query: JobQuery) -> JobPage {
        let page = self.store().jobs(query).await;
        page.expect("the store is well").expect("the queue exists")
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
        let stats = self.store().stats(name.map(queue)).await;
        stats.expect("the store is well")
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
    pub(crate) async fn audit(&self) {
        crate::audited::everything_adds_up(self).await;
    }
}
