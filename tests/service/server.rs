//! The real stack on a temporary directory and a loopback socket, and short ways to call it.

use crate::counting::Counting;
use redrive::config::{Config, Overrides};
use redrive::domain::{Jitter, Limits, QueueName, QueueSettings, RetryPolicy, Settings, Strategy, Timestamp};
use redrive::env::{Clock, ManualClock, SystemClock};
use redrive::grpc::pb;
use redrive::grpc::pb::admin_service_client::AdminServiceClient;
use redrive::grpc::pb::queue_service_client::QueueServiceClient;
use redrive::grpc::{self, ServerFacts};
use redrive::queue::Sweep;
use redrive::queue::hosts::sqlite::{SqliteHost, SqliteStore};
use redrive::queue::{Setup as StoreSetup, StoreLimits, Subscribers};
use redrive::service::{EventLog, Service, Waiters};
use redrive::store::sqlite::{Durability, Options};
use std::{future::pending, net::SocketAddr, path::Path, sync::Arc, time::Duration};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// How a server is set up.
#[derive(Default)]
pub(crate) struct Setup {
    /// What every queue inherits.
    pub(crate) defaults: QueueSettings,
    pub(crate) queues: Vec<(&'static str, QueueSettings)>,
    pub(crate) limits: Limits,
    pub(crate) facts: ServerFacts,
    /// Time passes by itself; otherwise only by `Server::pass`.
    pub(crate) real_time: bool,
}

pub(crate) struct Server {
    pub(crate) channel: Channel,
    pub(crate) address: SocketAddr,
    pub(crate) service: Arc<Service<Counting<SqliteHost>>>,
    pub(crate) clock: Arc<ManualClock>,
    directory: TempDir,
}

fn standing_still() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Duration::from_secs(1_800_000_000)))
}

/// The same delay before each of three retries, no chance in it.
pub(crate) fn steady(delay: Duration) -> QueueSettings {
    QueueSettings {
        policy: RetryPolicy {
            strategy: Strategy::Fixed,
            base_delay: delay,
            jitter: Jitter::None,
            ..RetryPolicy::default()
        },
        ..QueueSettings::default()
    }
}

/// Nothing but the policy decides: no breaker opens.
pub(crate) fn unguarded(mut queue: QueueSettings) -> Setup {
    queue.breaker.disabled = true;
    Setup { defaults: queue, ..Setup::default() }
}

impl Server {
    /// Every queue retries three times, ten seconds apart. Time stands still.
    pub(crate) async fn start() -> Self {
        Self::with(Setup { defaults: steady(Duration::from_secs(10)), ..Setup::default() }).await
    }

    pub(crate) async fn with(setup: Setup) -> Self {
        let name = |name: &str| QueueName::parse(name).unwrap();
        let queues = setup.queues.into_iter();
        let settings = Settings {
            defaults: Arc::new(setup.defaults),
            queues: queues.map(|(n, queue)| (name(n), Arc::new(queue))).collect(),
        };
        let (directory, clock) = (tempfile::tempdir().unwrap(), standing_still());
        let machine: Arc<dyn Clock> = match setup.real_time {
            true => Arc::new(SystemClock::new()),
            false => clock.clone(),
        };
        Self::open(directory, clock, machine, settings.into(), setup.limits, setup.facts).await
    }

    /// What a configuration file with this text makes of it. Time stands still.
    pub(crate) async fn configured(file: &str) -> Self {
        let file = Some((Path::new("redrive.toml"), file));
        let settings = Config::resolve(&Overrides::default(), file).unwrap().settings;
        let (directory, clock) = (tempfile::tempdir().unwrap(), standing_still());
        let (limits, facts) = (Limits::default(), ServerFacts::default());
        Self::open(directory, clock.clone(), clock, settings, limits, facts).await
    }

    /// Ends as after a signal, and starts again on what is on disk. Time goes on standing still.
    pub(crate) async fn restarted(self) -> Self {
        self.service.drain();
        self.service.queues().close().await;
        let (settings, limits) = (self.service.queues().settings(), self.service.limits().clone());
        let clock = self.clock.clone();
        Self::open(self.directory, self.clock, clock, settings, limits, ServerFacts::default()).await
    }

    async fn open(
        directory: TempDir, clock: Arc<ManualClock>, machine: Arc<dyn Clock>, settings: Arc<Settings>, limits: Limits,
        facts: ServerFacts,
    ) -> Self {
        let waiters = Arc::new(Waiters::default());
        let subscribers = Subscribers::default().with(waiters.clone()).with(Arc::new(EventLog::default()));
        let setup = StoreSetup { settings, subscribers, ..StoreSetup::default() };
        let options = Options {
            // A power cut is the business of other tests.
            durability: Durability::None,
            ..Options::new(directory.path())
        };
        let bounds = StoreLimits { queues: limits.queues, ..SqliteStore::default_limits() };
        let store = SqliteStore::open_sqlite(options, bounds, machine, setup).await;
        let store = store.unwrap().wrap(Counting::new);
        let service = Service::new(store, waiters, limits);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(service.clone().run_sweeper());
        tokio::spawn(grpc::serve(service.clone(), listener, facts, pending()));
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let channel = endpoint.connect().await.unwrap();
        Self { channel, address, service, clock, directory }
    }

    /// Lets time pass, and what it makes due happen.
    pub(crate) async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        let asked_at = self.service.queues().now();
        let spare_none = Sweep { asked_at, spare_made_before: Timestamp::default(), spare_until: Timestamp::default() };
        self.service.sweep_once(spare_none).await.unwrap();
    }

    pub(crate) fn queue(&self) -> QueueServiceClient<Channel> {
        QueueServiceClient::new(self.channel.clone())
    }

    pub(crate) fn admin(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.channel.clone())
    }

    pub(crate) async fn enqueue(&self, job: pb::EnqueueRequest) -> Result<pb::EnqueueResponse, Status> {
        inner(self.queue().enqueue(job).await)
    }

    pub(crate) async fn claim(&self, claim: pb::ClaimRequest) -> Result<pb::ClaimResponse, Status> {
        inner(self.queue().claim(claim).await)
    }

    pub(crate) async fn ack(&self, lease: &str) -> Result<pb::AckResponse, Status> {
        inner(self.queue().ack(ack(lease)).await)
    }

    pub(crate) async fn nack(&self, nack: pb::NackRequest) -> Result<pb::NackResponse, Status> {
        inner(self.queue().nack(nack).await)
    }

    pub(crate) async fn extend(&self, extend: pb::ExtendRequest) -> Result<pb::ExtendResponse, Status> {
        inner(self.queue().extend(extend).await)
    }

    pub(crate) async fn settle(&self, settle: pb::SettleRequest) -> Result<pb::SettleResponse, Status> {
        inner(self.queue().settle(settle).await)
    }

    pub(crate) async fn requeue(&self, which: pb::RequeueRequest) -> Result<pb::RequeueResponse, Status> {
        inner(self.queue().requeue(which).await)
    }

    pub(crate) async fn purge(
        &self, which: pb::PurgeDeadLettersRequest,
    ) -> Result<pb::PurgeDeadLettersResponse, Status> {
        inner(self.admin().purge_dead_letters(which).await)
    }

    pub(crate) async fn list_dead(
        &self, list: pb::ListDeadLettersRequest,
    ) -> Result<pb::ListDeadLettersResponse, Status> {
        inner(self.queue().list_dead_letters(list).await)
    }

    pub(crate) async fn get_job(&self, id: &str) -> Result<pb::JobInfo, Status> {
        self.get_job_in(id, "").await
    }

    pub(crate) async fn get_job_in(&self, id: &str, queue: &str) -> Result<pb::JobInfo, Status> {
        let request = pb::GetJobRequest { job_id: id.into(), queue: queue.into(), ..pb::GetJobRequest::default() };
        let reply = self.admin().get_job(request).await?.into_inner();
        Ok(reply.info.expect("an answer has its job"))
    }

    pub(crate) async fn list_queues(&self) -> Vec<pb::QueueInfo> {
        let request = pb::ListQueuesRequest::default();
        inner(self.admin().list_queues(request).await).unwrap().queues
    }

    /// The totals of one queue; of all where its name is empty.
    pub(crate) async fn stats(&self, queue: &str) -> Result<pb::GetStatsResponse, Status> {
        let request = pb::GetStatsRequest { queue: queue.into() };
        inner(self.admin().get_stats(request).await)
    }

    /// Claims the one job that must be there.
    pub(crate) async fn take(&self, queue: &str) -> pb::Job {
        self.take_by(claim(queue)).await
    }

    pub(crate) async fn take_by(&self, claim: pb::ClaimRequest) -> pb::Job {
        let mut reply = self.claim(claim).await.unwrap();
        assert_eq!(reply.jobs.len(), 1, "{:?}", reply.idle);
        reply.jobs.remove(0)
    }

    /// Enqueues a job of this id and lets it die at once.
    pub(crate) async fn dead_letter(&self, queue: &str, id: &str, error: pb::Failure) {
        // Ahead of all others, so that it is the next to be handed out.
        let first = pb::EnqueueRequest { priority: 127, ..job_of(queue, id) };
        self.enqueue(first).await.unwrap();
        let job = self.take(queue).await;
        assert_eq!(job.job_id, id);
        let nack = pb::NackRequest {
            lease: job.lease,
            error: Some(error),
            kind: pb::NackKind::Permanent.into(),
            ..Default::default()
        };
        let dead = self.nack(nack).await.unwrap();
        assert_eq!(dead.outcome(), pb::NackOutcome::DeadLettered);
    }
}

pub(crate) fn inner<T>(reply: Result<tonic::Response<T>, Status>) -> Result<T, Status> {
    reply.map(tonic::Response::into_inner)
}

pub(crate) fn job(queue: &str) -> pb::EnqueueRequest {
    pb::EnqueueRequest { queue: queue.into(), r#type: "t".into(), ..Default::default() }
}

pub(crate) fn job_of(queue: &str, id: &str) -> pb::EnqueueRequest {
    pb::EnqueueRequest { job_id: id.into(), ..job(queue) }
}

pub(crate) fn text(text: &str) -> Option<pb::enqueue_request::Body> {
    Some(pb::enqueue_request::Body::Text(text.into()))
}

pub(crate) fn claim(queue: &str) -> pb::ClaimRequest {
    claim_of(&[queue])
}

pub(crate) fn claim_of(queues: &[&str]) -> pb::ClaimRequest {
    pb::ClaimRequest { queues: queues.iter().map(|&queue| queue.to_owned()).collect(), ..Default::default() }
}

pub(crate) fn ack(lease: &str) -> pb::AckRequest {
    pb::AckRequest { lease: lease.into(), ..Default::default() }
}

pub(crate) fn error(error_type: &str) -> pb::Failure {
    pb::Failure { r#type: error_type.into(), ..Default::default() }
}

pub(crate) fn nack(lease: &str, error_type: &str) -> pb::NackRequest {
    pb::NackRequest { lease: lease.into(), error: Some(error(error_type)), ..Default::default() }
}

pub(crate) fn extend(lease: &str) -> pb::ExtendRequest {
    pb::ExtendRequest { lease: lease.into(), ..Default::default() }
}

pub(crate) fn time(seconds: i64, nanos: i32) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos })
}

pub(crate) fn millis(millis: u64) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(Duration::from_millis(millis)).ok()
}

/// Milliseconds of a time or a duration on the wire.
pub(crate) fn in_millis(seconds: i64, nanos: i32) -> i64 {
    seconds * 1_000 + i64::from(nanos) / 1_000_000
}

pub(crate) fn at(time: Option<prost_types::Timestamp>) -> i64 {
    let time = time.expect("a time is given");
    in_millis(time.seconds, time.nanos)
}

pub(crate) fn long(time: Option<prost_types::Duration>) -> i64 {
    let time = time.expect("a duration is given");
    in_millis(time.seconds, time.nanos)
}
