//! Servers that share one Redis.

use crate::server::{Launch, Server, config_file, scratch};
use crate::servers::{LONG, until};
use redrive::grpc::pb::queue_service_client::QueueServiceClient;
use redrive::grpc::pb::{GetJobRequest, GetStatsRequest, GetStatsResponse, JobState};
use std::path::PathBuf;
use tempfile::TempDir;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// Leases are short, retries come soon, and no job runs out of attempts.
pub(crate) const CONFIG: &str = r#"
[defaults]
lease_duration = "3s"
breaker = { disabled = true }
policy = { strategy = "fixed", base_delay = "150ms", jitter = "none", max_retries = 100 }
"#;

pub(crate) struct Fleet {
    pub(crate) servers: Vec<Server>,
    redis: String,
    config: PathBuf,
    _place: TempDir,
}

impl Fleet {
    /// So many servers with the settings of the load, on the Redis at this address.
    pub(crate) fn start(redis: &str, count: usize) -> Self {
        Self::with(redis, count, CONFIG, |_, launch| launch)
    }

    /// As `start`, with a level of durability.
    pub(crate) fn durable(redis: &str, count: usize, level: &str) -> Self {
        Self::with(redis, count, CONFIG, |_, launch| launch.arg("--durability").arg(level))
    }

    /// As `start`, with settings, and each server launched as `how` wants it.
    pub(crate) fn with(redis: &str, count: usize, config: &str, how: impl Fn(usize, Launch) -> Launch) -> Self {
        let place = scratch();
        let config = config_file(place.path(), config);
        let mut fleet = Self { servers: Vec::new(), redis: redis.to_owned(), config, _place: place };
        fleet.servers = (0..count).map(|at| how(at, fleet.launch(redis)).start()).collect();
        fleet
    }

    fn launch(&self, redis: &str) -> Launch {
        let launch = Launch::bare().arg("--listen").arg("127.0.0.1:0");
        launch.arg("--redis").arg(redis).arg("--config").arg(&self.config)
    }

    /// One more.
    pub(crate) fn join(&mut self) {
        let server = self.launch(&self.redis).start();
        self.servers.push(server);
    }

    /// Kills a server and starts it again where it was.
    pub(crate) fn kill_and_restart(&mut self, at: usize) {
        let address = self.servers[at].address.to_string();
        self.servers[at].kill();
        let launch = Launch::bare().arg("--listen").arg(address);
        self.servers[at] = launch.arg("--redis").arg(&self.redis).arg("--config").arg(&self.config).start();
    }

    /// Ways to all servers, which are tried when they are used: one may be gone by then.
    pub(crate) fn ways(&self) -> Vec<QueueServiceClient<Channel>> {
        let way = |server: &Server| {
            let endpoint = Endpoint::from_shared(format!("http://{}", server.address)).unwrap();
            QueueServiceClient::new(endpoint.connect_lazy())
        };
        self.servers.iter().map(way).collect()
    }

    pub(crate) async fn stats(&self, at: usize, queue: &str) -> GetStatsResponse {
        let request = GetStatsRequest { queue: queue.into() };
        let mut admin = self.servers[at].admin().await;
        admin.get_stats(request).await.unwrap().into_inner()
    }

    /// A job's state, as this server sees it; None: it is not there. While the server cannot answer, it is asked again.
    pub(crate) async fn state(&self, at: usize, queue: &str, id: &str) -> Option<JobState> {
        let mut admin = self.servers[at].admin().await;
        let asking = async {
            loop {
                let request = GetJobRequest { job_id: id.into(), queue: queue.into(), ..GetJobRequest::default() };
                match admin.get_job(request).await {
                    Ok(reply) => return Some(reply.into_inner().info.expect("a job").state()),
                    Err(status) if status.code() == Code::NotFound => return None,
                    Err(status) => assert_eq!(status.code(), Code::Unavailable, "{status:?}"),
                }
            }
        };
        tokio::time::timeout(LONG, asking).await.expect("the server can say")
    }

    pub(crate) async fn is_serving(&self, at: usize) -> bool {
        let mut health = HealthClient::new(self.servers[at].connect().await);
        let request = HealthCheckRequest { service: "redrive.v1.QueueService".into() };
        let reply = health.check(request).await.unwrap().into_inner();
        reply.status() == ServingStatus::Serving
    }

    /// Waits until every server's health says so.
    pub(crate) async fn all_serving(&self, serving: bool) {
        for at in 0..self.servers.len() {
            let what = format!("server {at} says {}", if serving { "SERVING" } else { "NOT_SERVING" });
            until(&what, || async { self.is_serving(at).await == serving }).await;
        }
    }
}
