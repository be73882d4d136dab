//! One round of load: callers who enqueue, claim and settle until the jobs of the round are done.

mod caller;
pub(super) mod jobs;
mod stream;

use super::Error;
use super::plan::{Mode, Plan};
use super::timings::{Kind, Timings};
use crate::env::{self, Clock, SystemClock};
use crate::grpc::pb;
use crate::grpc::pb::queue_service_client::QueueServiceClient;
use crate::lock::lock;
use std::collections::HashMap;
use std::fmt::Debug;
use std::future::Future;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, SetOnce};
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

pub(super) type Client = QueueServiceClient<Channel>;

/// The queue that is used, also on a server that has others.
pub(super) const QUEUE: &str = "redrive-bench";

/// Replies are larger than tonic's own limit where bodies are.
const MESSAGE_MAX: usize = 8 << 20;

pub(super) async fn connect(address: &str, connections: usize) -> Result<Vec<Client>, Error> {
    let unreachable = |error: tonic::transport::Error| unreachable(address, &error);
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(unreachable)?;
    let mut clients = Vec::with_capacity(connections);
    for _ in 0..connections {
        let channel = endpoint.connect().await.map_err(unreachable)?;
        clients.push(
            QueueServiceClient::new(channel)
                .max_decoding_message_size(MESSAGE_MAX)
                .max_encoding_message_size(MESSAGE_MAX),
        );
    }
    Ok(clients)
}

/// The innermost cause is the one that helps.
pub(super) fn unreachable(address: &str, error: &tonic::transport::Error) -> Error {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    Error::Connect { address: address.to_owned(), why: cause.to_string() }
}

/// What the callers of one round share.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) plan: Plan,
    pub(super) timings: Timings,
    began: Instant,
    /// Nothing is enqueued from then on.
    deadline: Option<Instant>,
    made: AtomicU64,
    acked: AtomicU64,
    failed: AtomicU64,
    /// Callers who may still enqueue.
    making: AtomicUsize,
    /// A caller has made or settled jobs.
    moved: Notify,
    /// How long it took, once every job is done.
    took: SetOnce<Duration>,
    /// Of the jobs that failed what is known first, as a time since 1970: when the retry is due, by the server's clock, or
    /// when a worker had it. That may come before the failure's own answer, on another connection.
    retries: Mutex<HashMap<String, Duration>>,
    clock: SystemClock,
}

impl Round {
    pub(super) fn new(plan: &Plan) -> Arc<Self> {
        let began = env::instant();
        let making = if plan.producers == 0 { plan.workers } else { plan.producers };
        Arc::new(Self {
            timings: Timings::new(),
            began,
            deadline: plan.duration.map(|duration| began + duration),
            made: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            making: AtomicUsize::new(making),
            moved: Notify::new(),
            took: SetOnce::new(),
            retries: Mutex::default(),
            clock: SystemClock::new(),
            plan: plan.clone(),
        })
    }

    /// Runs until as many jobs are done as were made. Says how long that took: until the last was done, not until the
    /// last caller had gone.
    pub(super) async fn run(self: &Arc<Self>, clients: &[Client]) -> Result<Duration, Error> {
        let mut callers = JoinSet::new();
        let client = |number: usize| clients[number % clients.len()].clone();
        for number in 0..self.plan.producers {
            callers.spawn(caller::produce(self.clone(), client(number)));
        }
        for number in 0..self.plan.workers {
            let (round, client) = (self.clone(), client(number));
            match (self.plan.mode, self.plan.producers) {
                (Mode::Stream, _) => callers.spawn(stream::work(round, client)),
                (_, 0) => callers.spawn(caller::do_everything(round, client)),
                _ => callers.spawn(caller::work(round, client)),
            };
        }
        while let Some(ended) = callers.join_next().await {
            ended.map_err(|error| Error::Broken(error.to_string()))??;
        }
        self.took.get().copied().ok_or_else(|| Error::Broken("the callers ended before the jobs did".into()))
    }

    pub(super) fn acked(&self) -> u64 {
        self.acked.load(SeqCst)
    }

    pub(super) fn failed(&self) -> u64 {
        self.failed.load(SeqCst)
    }

    fn elapsed(&self) -> Duration {
        env::instant().duration_since(self.began)
    }

    // ---- who makes jobs ----

    /// How many jobs to enqueue next, when it is time for them. 0: no more.
    async fn next_lot(&self) -> usize {
        if self.deadline.is_some_and(|deadline| env::instant() >= deadline) {
            return 0;
        }
        let lot = self.plan.batch as u64;
        let most = self.plan.jobs.unwrap_or(u64::MAX);
        let taken =
            self.made.fetch_update(SeqCst, SeqCst, |made| (made < most).then(|| made.saturating_add(lot).min(most)));
        let Ok(before) = taken else { return 0 };
        if let Some(rate) = self.plan.rate {
            let due = self.began + Duration::from_secs_f64(before as f64 / rate);
            tokio::time::sleep_until(due.into()).await;
        }
        lot.min(most - before) as usize
    }

    /// Producers do not run away from the workers.
    async fn wait_for_workers(&self) {
        let lot = self.plan.batch as u64;
        self.until(|| self.made.load(SeqCst) + lot <= self.acked() + self.ahead()).await;
    }

    /// Nor workers from the producers: that would eat up the backlog, which is there to stay.
    async fn wait_for_producers(&self) {
        if self.plan.backlog > 0 {
            let level = || self.acked() <= self.made.load(SeqCst) + self.ahead();
            self.until(|| self.all_is_made() || level()).await;
        }
    }

    fn ahead(&self) -> u64 {
        self.plan.ahead.unwrap_or_default()
    }

    fn all_is_made(&self) -> bool {
        self.making.load(SeqCst) == 0
    }

    async fn until(&self, condition: impl Fn() -> bool) {
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            // Before looking, so that nothing moves unseen in between.
            moved.as_mut().enable();
            if condition() {
                return;
            }
            moved.await;
        }
    }

    /// A caller makes no more jobs.
    fn made_all(&self) {
        self.making.fetch_sub(1, SeqCst);
        self.look_whether_finished();
    }

    // ---- who works ----

    fn have_acked(&self, jobs: usize) {
        self.acked.fetch_add(jobs as u64, SeqCst);
        self.look_whether_finished();
    }

    fn look_whether_finished(&self) {
        let finished = self.all_is_made() && self.acked() >= self.made.load(SeqCst);
        if finished {
            // The first who sees it says so.
            let _ = self.took.set(self.elapsed());
        }
        self.moved.notify_waiters();
    }

    /// Whether this attempt is to fail.
    fn fails(&self) -> bool {
        self.plan.fail_rate > 0.0 && env::random::<f64>() < self.plan.fail_rate
    }

    fn have_failed(&self, job_id: &str, decision: &pb::NackResponse) -> Result<(), Error> {
        self.failed.fetch_add(1, SeqCst);
        let retry_at = decision.retry_at.as_ref().ok_or_else(|| Error::Answer {
            call: "Nack",
            why: format!("job {job_id} is not retried: {}", decision.explanation),
        })?;
        let due = Duration::new(retry_at.seconds.cast_unsigned(), retry_at.nanos.cast_unsigned());
        self.retry(job_id, due, |came| came.saturating_sub(due));
        Ok(())
    }

    /// Something is known of a retry. `late`: how late it was, by what was known of it first.
    fn retry(&self, job_id: &str, known: Duration, late: impl Fn(Duration) -> Duration) {
        let mut retries = lock(&self.retries);
        match retries.remove(job_id) {
            Some(first) => self.timings.record(Kind::Lateness, late(first)),
            None => drop(retries.insert(job_id.to_owned(), known)),
        }
    }

    /// Jobs have reached a worker.
    fn delivered(&self, jobs: &[pb::Job]) {
        let now = self.elapsed();
        let ages = jobs.iter().filter_map(|job| jobs::made_at(job)?.min(now).into());
        self.timings.record_all(Kind::Delivery, ages.map(|made_at| now - made_at));
        if self.plan.fail_rate == 0.0 {
            return;
        }
        let came = Duration::from_micros(self.clock.read().wall_us);
        for job in jobs.iter().filter(|job| job.attempt > 1) {
            self.retry(&job.job_id, came, |due| came.saturating_sub(due));
        }
    }

    /// Times a call, and says which one it was if it fails.
    async fn call<T>(
        &self, (call, kind): (&'static str, Kind), answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Error> {
        let began = env::instant();
        let answer = answered(call, answer.await)?;
        self.timings.record(kind, env::instant().duration_since(began));
        Ok(answer)
    }
}

/// What the server answered, or which call it refused.
pub(super) fn answered<T>(call: &'static str, answer: Result<Response<T>, Status>) -> Result<T, Error> {
    let refused = |status: Status| format!("{}: {}", status.code(), status.message());
    answer.map(Response::into_inner).map_err(|status| Error::Answer { call, why: refused(status) })
}

/// An item of a batch that was refused.
fn item_refused(call: &'static str, item: &impl Debug) -> Error {
    Error::Answer { call, why: format!("{item:?}") }
}
