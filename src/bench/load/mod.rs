//! One round of load: callers who enqueue, claim and settle until the jobs of the round are done.

mod caller;
pub(super) mod jobs;
mod stream;

use super::{
    Error,
    plan::{Mode, Plan},
    timings::{Kind, Timings},
};
use crate::{
    env::{self, Clock, SystemClock},
    grpc::pb::{self, queue_service_client::QueueServiceClient},
};
use std::{
    collections::HashMap,
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};
use tonic::{
    Response, Status,
    transport::{Channel, Endpoint},
};

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
    /// Somebody has made or settled jobs.
    moved: Notify,
    /// How long it took, once every job is done.
    took: watch::Sender<Option<Duration>>,
    /// The jobs that failed, until both is known of them.
    retries: Mutex<HashMap<String, Retry>>,
    clock: SystemClock,
}

/// What is known of a job that failed, as times since 1970.
#[derive(Clone, Copy, Debug)]
enum Retry {
    /// By the server's clock.
    DueAt(Duration),
    CameAt(Duration),
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
            took: watch::Sender::new(None),
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
        let took = *self.took.borrow();
        took.ok_or_else(|| Error::Broken("the callers ended before the jobs did".into()))
    }

    pub(super) fn acked(&self) -> u64 {
        self.acked.load(SeqCst)
    }

    pub(super) fn failed(&self) -> u64 {
        self.failed.load(SeqCst)
    }

    /// From 0 to 1, for whoever watches.
    pub(super) fn progress(&self) -> f64 {
        let share = match (self.plan.jobs, self.plan.duration) {
            (Some(jobs), _) => self.acked() as f64 / jobs as f64,
            (None, Some(time)) => self.elapsed().as_secs_f64() / time.as_secs_f64().max(0.001),
            (None, None) => 0.0,
        };
        share.min(1.0)
    }

    pub(super) fn elapsed(&self) -> Duration {
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
        let taken = self.made.fetch_update(SeqCst, SeqCst, |made| {
            (made < most).then(|| made.saturating_add(lot).min(most))
        });
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
        self.until(|| self.made.load(SeqCst) + lot <= self.acked() + self.plan.ahead).await;
    }

    /// Nor workers from the producers: that would eat up the backlog, which is there to stay.
    async fn wait_for_producers(&self) {
        if self.plan.backlog > 0 {
            let ahead = self.plan.ahead;
            let level = || self.acked() <= self.made.load(SeqCst) + ahead;
            self.until(|| self.all_is_made() || level()).await;
        }
    }

    async fn wait_until_all_is_made(&self) {
        self.until(|| self.all_is_made()).await;
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
        if finished && self.took.borrow().is_none() {
            self.took.send_replace(Some(self.elapsed()));
        }
        self.moved.notify_waiters();
    }

    fn is_finished(&self) -> bool {
        self.took.borrow().is_some()
    }

    async fn finished(&self) {
        // The sender is our own: it is there for as long as we are.
        let _ = self.took.subscribe().wait_for(Option::is_some).await;
    }

    /// Whether this attempt is to fail.
    fn fails(&self) -> bool {
        self.plan.fail_rate > 0.0 && env::random::<f64>() < self.plan.fail_rate
    }

    fn have_failed(&self, job_id: String, decision: &pb::NackResponse) -> Result<(), Error> {
        self.failed.fetch_add(1, SeqCst);
        let retry_at = decision.retry_at.as_ref().ok_or_else(|| Error::Answer {
            call: "Nack",
            why: format!("job {job_id} is not retried: {}", decision.explanation),
        })?;
        let due = since_1970(retry_at);
        let mut retries = self.retries();
        match retries.remove(&job_id) {
            Some(Retry::CameAt(came)) => self.record_lateness(due, came),
            Some(Retry::DueAt(_)) | None => drop(retries.insert(job_id, Retry::DueAt(due))),
        }
        Ok(())
    }

    fn record_lateness(&self, due: Duration, came: Duration) {
        self.timings.record(Kind::Lateness, came.saturating_sub(due));
    }

    fn retries(&self) -> MutexGuard<'_, HashMap<String, Retry>> {
        self.retries.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut retries = self.retries();
        for job in jobs.iter().filter(|job| job.attempt > 1) {
            match retries.remove(&job.job_id) {
                Some(Retry::DueAt(due)) => self.record_lateness(due, came),
                // Before its failure's own answer, on another connection.
                _ => drop(retries.insert(job.job_id.clone(), Retry::CameAt(came))),
            }
        }
    }

    /// Times a call, and says which one it was if it fails.
    async fn call<T>(
        &self,
        (call, kind): (&'static str, Kind),
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Error> {
        let began = env::instant();
        let answer = answer.await.map_err(|status| refused(call, &status))?;
        self.timings.record(kind, env::instant().duration_since(began));
        Ok(answer.into_inner())
    }
}

fn since_1970(at: &prost_types::Timestamp) -> Duration {
    Duration::new(at.seconds.cast_unsigned(), at.nanos.cast_unsigned())
}

pub(super) fn refused(call: &'static str, status: &Status) -> Error {
    Error::Answer { call, why: format!("{}: {}", status.code(), status.message()) }
}

/// An item of a batch that was refused.
fn item_refused(call: &'static str, error: Option<pb::ItemError>) -> Error {
    let error = error.unwrap_or_default();
    Error::Answer { call, why: format!("{}: {}", error.reason, error.message) }
}
