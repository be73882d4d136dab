//! The wire: the only folder that knows tonic, prost and the generated types.
//!
//! `queue_service` and `admin_service` decode, call the service and encode; everything that can be wrong with a request is
//! found in `convert`, everything that can be said about a refusal is in `status`.

mod admin_service;
mod codec;
mod convert;
mod layers;
mod queue_service;
mod reason;
mod status;
mod work_stream;

/// The generated types.
#[allow(clippy::all, reason = "generated")]
pub mod pb {
    tonic::include_proto!("redrive.v1");
}

pub use convert::{caller_patience, duration_out, timestamp_out};
pub use layers::{frames, write_coalescing};
pub use reason::Reason;

use crate::domain::{Bounds, Settings};
use crate::queue::Host;
use crate::service::Service;
use crate::store::Health;
use pb::{admin_service_server::AdminServiceServer, queue_service_server::QueueServiceServer};
use std::{convert::Infallible, future::Future, sync::Arc, time::Duration};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::service::Routes;
use tonic_health::{ServingStatus, server::HealthReporter};

/// The contract with its comments, as reflection serves it.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/redrive.bin"));

const SERVICES: [&str; 3] = ["", "redrive.v1.QueueService", "redrive.v1.AdminService"];
const HEALTH_EVERY: Duration = Duration::from_secs(1);

/// What the server says about itself, and how it runs.
#[derive(Clone, Debug)]
pub struct ServerFacts {
    /// Which store engine, for GetServerInfo.
    pub engine: String,
    /// What OK means here: "fsync", "primary" ...
    pub durability: String,
    /// What the operator should know.
    pub warnings: Vec<String>,
    /// What clients may take.
    pub bounds: Bounds,
    /// A shutdown that takes longer is cut short.
    pub shutdown_within: Duration,
}

impl Default for ServerFacts {
    fn default() -> Self {
        Self {
            engine: "embedded".into(),
            durability: "fsync".into(),
            warnings: Vec::new(),
            bounds: Bounds::default(),
            shutdown_within: Duration::from_secs(20),
        }
    }
}

/// The server could not start or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the contract cannot be served by reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// Serves until `shutdown` resolves and what is under way has ended, or `facts.shutdown_within` has passed.
pub async fn serve<H: Host>(
    service: Arc<Service<H>>, listener: TcpListener, facts: ServerFacts, shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let facts = Arc::new(facts);
    let (health, health_service) = tonic_health::server::health_reporter();
    let routes = routes(&service, &facts)?.add_service(health_service).prepare();
    let peers = layers::peers::Peers::new(facts.bounds.clone());
    let longest = layers::deadline::longest(service.limits());
    let serving = layers::accept::Serving { peers: peers.clone(), routes, longest };
    let stop = watch::Sender::new(false);
    // To the end: what lasts too long is ended while the server drains, too.
    let mut serving = Box::pin(async {
        tokio::select! {
            () = layers::accept::serve(listener, serving, stop.clone()) => {}
            never = peers.watch() => match never {},
        }
    });
    tokio::select! {
        () = &mut serving => return Ok(()),
        never = watch_health(&service, &health) => match never {},
        () = shutdown => {}
    }

    // In this order: health turns NOT_SERVING, pending claims return with DRAINING, calls under way end.
    report(&health, ServingStatus::NotServing).await;
    service.drain();
    stop.send_replace(true);
    if tokio::time::timeout(facts.shutdown_within, serving).await.is_err() {
        let within = crate::domain::duration::human(facts.shutdown_within);
        tracing::warn!("some connections did not end within {within}; going without them");
    }
    Ok(())
}

fn routes<H: Host>(service: &Arc<Service<H>>, facts: &Arc<ServerFacts>) -> Result<Routes, ServeError> {
    // Messages are bounded before they get here.
    let queue = QueueServiceServer::new(queue_service::QueueApi { service: service.clone() });
    let queue = queue.max_decoding_message_size(usize::MAX);
    let admin = admin_service::AdminApi { service: service.clone(), facts: facts.clone() };
    let admin = AdminServiceServer::new(admin).max_decoding_message_size(usize::MAX);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            // So that tools can show the details of an error.
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
    };
    let routes = Routes::new(queue).add_service(admin);
    Ok(routes.add_service(reflection().build_v1()?).add_service(reflection().build_v1alpha()?))
}

/// Shows whether the store takes writes and jobs are handed out.
async fn watch_health<H: Host>(service: &Service<H>, health: &HealthReporter) -> Infallible {
    let mut shown = None;
    loop {
        let status = match service.queues().health() {
            Health::Well | Health::DiskLow(_) if !service.is_draining() => ServingStatus::Serving,
            Health::Well | Health::DiskLow(_) | Health::Stopped(_) => ServingStatus::NotServing,
        };
        if shown != Some(status) {
            report(health, status).await;
            shown = Some(status);
        }
        tokio::time::sleep(HEALTH_EVERY).await;
    }
}

async fn report(health: &HealthReporter, status: ServingStatus) {
    for service in SERVICES {
        health.set_service_status(service, status).await;
    }
}

/// What a request is checked against.
fn context<'a, H: Host>(
    service: &'a Service<H>, settings: &'a Settings, trace: &'a [(String, String)],
) -> convert::Context<'a> {
    convert::Context { limits: service.limits(), settings, now: service.queues().now(), trace }
}
