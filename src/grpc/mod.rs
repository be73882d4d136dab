//! The wire: the only folder that knows tonic, prost and the generated types.
//!
//! `queue_service` and `admin_service` decode, call the service and encode; everything that can be wrong with a request is
//! found in `convert`, everything that can be said about a refusal is in `status`.

mod admin_service;
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
pub use layers::{response_budget::ResponseBudget, write_coalescing};
pub use reason::Reason;

use crate::domain::Settings;
use crate::queue::Host;
use crate::service::Service;
use crate::store::Health;
use pb::{admin_service_server::AdminServiceServer, queue_service_server::QueueServiceServer};
use std::{convert::Infallible, future::Future, sync::Arc, time::Duration};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};
use tonic::transport::server::Router;
use tonic_health::{ServingStatus, server::HealthReporter};

/// The contract with its comments, as reflection serves it.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/redrive.bin"));

const SERVICES: [&str; 3] = ["", "redrive.v1.QueueService", "redrive.v1.AdminService"];
/// So that our own checks answer before the transport does, with a reason instead of a bare code.
const ABOVE_BATCH: usize = 2 << 20;
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
    /// Connections at once; more wait to be accepted.
    pub connections_max: usize,
    /// A shutdown that takes longer is cut short.
    pub shutdown_within: Duration,
}

impl Default for ServerFacts {
    fn default() -> Self {
        Self {
            engine: "embedded".into(),
            durability: "fsync".into(),
            warnings: Vec::new(),
            connections_max: 10_000,
            shutdown_within: Duration::from_secs(20),
        }
    }
}

/// The server could not start or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the contract cannot be served by reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    #[error("the gRPC server failed: {0}")]
    Transport(#[from] tonic::transport::Error),
}

/// Serves until `shutdown` resolves and what is under way has ended, or `facts.shutdown_within` has passed.
pub async fn serve<H: Host>(
    service: Arc<Service<H>>, listener: TcpListener, facts: ServerFacts, shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let facts = Arc::new(facts);
    let (health, health_service) = tonic_health::server::health_reporter();
    let router = router(&service, &facts)?.add_service(health_service);
    let incoming = layers::accept::bounded(listener, facts.connections_max);
    let (stop, stopped) = oneshot::channel::<()>();
    let mut serving = Box::pin(router.serve_with_incoming_shutdown(incoming, async {
        // A dropped sender is a stop as well.
        let _ = stopped.await;
    }));
    tokio::select! {
        result = &mut serving => return Ok(result?),
        never = watch_health(&service, &health) => match never {},
        () = shutdown => {}
    }

    // In this order: health turns NOT_SERVING, pending claims return with DRAINING, calls under way end.
    report(&health, ServingStatus::NotServing).await;
    service.drain();
    drop(stop);
    match tokio::time::timeout(facts.shutdown_within, serving).await {
        Ok(result) => Ok(result?),
        Err(_) => {
            let within = crate::domain::duration::human(facts.shutdown_within);
            tracing::warn!("some connections did not end within {within}; going without them");
            Ok(())
        }
    }
}

fn router<H: Host>(service: &Arc<Service<H>>, facts: &Arc<ServerFacts>) -> Result<Router<layers::Layers>, ServeError> {
    let largest = service.limits().batch_bytes + ABOVE_BATCH;
    let budget = ResponseBudget::default();
    let queue = QueueServiceServer::new(queue_service::QueueApi {
        service: service.clone(),
        budget: budget.clone(),
        streams: Arc::new(Semaphore::new(work_stream::STREAMS_MAX)),
    })
    .max_decoding_message_size(largest)
    .max_encoding_message_size(largest);
    let admin = admin_service::AdminApi { service: service.clone(), facts: facts.clone(), budget };
    let admin = AdminServiceServer::new(admin).max_decoding_message_size(largest).max_encoding_message_size(largest);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            // So that tools can show the details of an error.
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
    };
    let router = layers::server(service.limits())
        .add_service(queue)
        .add_service(admin)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    Ok(router)
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
