//! The ceiling: a server of the same contract that keeps nothing and decides nothing. What tonic and the wire allow.
//!
//! It answers with as many bytes as the real one. All that it remembers is how many jobs are there, so that its workers
//! wait for its producers like real ones.

use super::Error;
use crate::grpc::pb::{self, ack_result, enqueue_result, job, nack_result, queue_service_server as api};
use bytes::Bytes;
use clap::Args;
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status, Streaming, transport::Server, transport::server::TcpIncoming};

/// For `redrive bench --ceiling` alone.
#[derive(Clone, Debug, Args)]
pub struct NoopArgs {
    /// Bytes of each job's body
    #[arg(long, value_name = "BYTES", default_value_t = 256)]
    payload: usize,
}

/// What the real server takes, with room to spare.
const MESSAGE_MAX: usize = 8 << 20;

/// Serves until its standard input ends, and so not longer than who started it.
pub fn run(args: &NoopArgs) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::Start(error.to_string()))?;
    let served = runtime.block_on(serve(args.payload));
    served.map_err(|error| Error::Start(error.to_string()))
}

async fn serve(payload: usize) -> Result<(), Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    writeln!(io::stdout(), "  gRPC        {}", listener.local_addr()?)?;
    let (end, ended) = oneshot::channel::<()>();
    thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        drop(end);
    });
    let noop = Noop { ready: Arc::new(Semaphore::new(0)), body: vec![0; payload].into() };
    let service = api::QueueServiceServer::new(noop)
        .max_decoding_message_size(MESSAGE_MAX)
        .max_encoding_message_size(MESSAGE_MAX);
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let ended = async { drop(ended.await) };
    Ok(Server::builder().add_service(service).serve_with_incoming_shutdown(incoming, ended).await?)
}

#[derive(Clone, Debug)]
struct Noop {
    /// One permit for each job that could be claimed.
    ready: Arc<Semaphore>,
    body: Bytes,
}

type Reply<T> = Result<Response<T>, Status>;

impl Noop {
    /// As many as there are, waiting for the first.
    async fn take(&self, most: usize) -> Vec<pb::Job> {
        let Ok(first) = self.ready.acquire().await else { return Vec::new() };
        first.forget();
        let more = self.ready.forget_permits(most - 1);
        (0..=more).map(|_| self.job()).collect()
    }

    fn job(&self) -> pb::Job {
        pb::Job {
            job_id: ID.into(),
            queue: super::load::QUEUE.into(),
            r#type: "bench".into(),
            body: Some(job::Body::Data(self.body.clone())),
            content_type: "application/octet-stream".into(),
            attempt: 1,
            max_retries: 3,
            lease: LEASE.into(),
            lease_duration: Some(prost_types::Duration { seconds: 30, nanos: 0 }),
            lease_expires_at: Some(TIME),
            enqueued_at: Some(TIME),
            deliveries: 1,
            ..pb::Job::default()
        }
    }

    fn settle(&self, request: &pb::SettleRequest) -> pb::SettleResponse {
        // What failed is there again at once.
        self.ready.add_permits(request.nacks.len());
        let ack = |_| pb::AckResult { outcome: Some(ack_result::Outcome::Ok(Default::default())) };
        let nack = |_| pb::NackResult { outcome: Some(nack_result::Outcome::Ok(retried())) };
        pb::SettleResponse {
            acks: request.acks.iter().map(ack).collect(),
            nacks: request.nacks.iter().map(nack).collect(),
            extensions: Vec::new(),
        }
    }

    async fn stream(
        self, mut inbox: Streaming<pb::WorkRequest>, outbox: mpsc::Sender<Result<pb::WorkResponse, Status>>,
    ) {
        let mut credits = 0;
        loop {
            let reply = tokio::select! {
                message = inbox.message() => {
                    let Ok(Some(message)) = message else { return };
                    credits += message.add_credits as usize;
                    if message.stop {
                        credits = 0;
                    }
                    let Some(settle) = message.settle else { continue };
                    let settled = Some(self.settle(&settle));
                    pb::WorkResponse { settled, settle_id: message.settle_id, ..Default::default() }
                }
                jobs = self.take(credits.min(1_000)), if credits > 0 => {
                    credits -= jobs.len();
                    pb::WorkResponse { jobs, ..Default::default() }
                }
            };
            if outbox.send(Ok(reply)).await.is_err() {
                return;
            }
        }
    }
}

const ID: &str = "01a1e278-f8f2-7000-8000-000006fb66bd";
const LEASE: &str = "AAAAAAAAAAEAAAABbXHQSCMmqU9G1fGg";
const TIME: prost_types::Timestamp = prost_types::Timestamp { seconds: 1_790_000_000, nanos: 123_000_000 };

fn enqueued() -> pb::EnqueueResponse {
    pb::EnqueueResponse {
        job_id: ID.into(),
        state: pb::JobState::Ready.into(),
        run_at: Some(TIME),
        ..pb::EnqueueResponse::default()
    }
}

fn retried() -> pb::NackResponse {
    pb::NackResponse {
        outcome: pb::NackOutcome::RetryScheduled.into(),
        attempt: 1,
        attempt_counted: true,
        retries_left: 3,
        delay: Some(prost_types::Duration { seconds: 0, nanos: 100_000_000 }),
        retry_at: Some(TIME),
        explanation: "fixed: 100ms, equal jitter → 100ms".into(),
        queue_breaker: pb::BreakerState::Closed.into(),
        ..pb::NackResponse::default()
    }
}

fn not_here<T>() -> Reply<T> {
    Err(Status::unimplemented("the no-op server does not answer this; ask one that redrive serve runs"))
}

#[tonic::async_trait]
impl api::QueueService for Noop {
    async fn enqueue(&self, _: Request<pb::EnqueueRequest>) -> Reply<pb::EnqueueResponse> {
        self.ready.add_permits(1);
        Ok(Response::new(enqueued()))
    }

    async fn enqueue_batch(&self, request: Request<pb::EnqueueBatchRequest>) -> Reply<pb::EnqueueBatchResponse> {
        let jobs = request.get_ref().jobs.len();
        self.ready.add_permits(jobs);
        let ok = |_| pb::EnqueueResult { outcome: Some(enqueue_result::Outcome::Ok(enqueued())) };
        Ok(Response::new(pb::EnqueueBatchResponse { results: (0..jobs).map(ok).collect() }))
    }

    async fn claim(&self, request: Request<pb::ClaimRequest>) -> Reply<pb::ClaimResponse> {
        let request = request.into_inner();
        let wait = request.wait.and_then(|wait| Duration::try_from(wait).ok()).unwrap_or_default();
        let most = (request.max_jobs as usize).clamp(1, 1_000);
        let jobs = tokio::time::timeout(wait, self.take(most)).await.unwrap_or_default();
        let server_time = Some(TIME);
        Ok(Response::new(pb::ClaimResponse { jobs, server_time, ..Default::default() }))
    }

    async fn ack(&self, _: Request<pb::AckRequest>) -> Reply<pb::AckResponse> {
        Ok(Response::new(pb::AckResponse::default()))
    }

    async fn nack(&self, _: Request<pb::NackRequest>) -> Reply<pb::NackResponse> {
        self.ready.add_permits(1);
        Ok(Response::new(retried()))
    }

    async fn extend(&self, _: Request<pb::ExtendRequest>) -> Reply<pb::ExtendResponse> {
        not_here()
    }

    async fn settle(&self, request: Request<pb::SettleRequest>) -> Reply<pb::SettleResponse> {
        Ok(Response::new(Self::settle(self, request.get_ref())))
    }

    type WorkStream = Pin<Box<dyn Stream<Item = Result<pb::WorkResponse, Status>> + Send>>;

    async fn work(&self, request: Request<Streaming<pb::WorkRequest>>) -> Reply<Self::WorkStream> {
        let (outbox, replies) = mpsc::channel(4);
        tokio::spawn(self.clone().stream(request.into_inner(), outbox));
        Ok(Response::new(Box::pin(ReceiverStream::new(replies))))
    }

    async fn list_dead_letters(&self, _: Request<pb::ListDeadLettersRequest>) -> Reply<pb::ListDeadLettersResponse> {
        not_here()
    }

    async fn requeue(&self, _: Request<pb::RequeueRequest>) -> Reply<pb::RequeueResponse> {
        not_here()
    }

    async fn breaker_status(&self, _: Request<pb::BreakerStatusRequest>) -> Reply<pb::BreakerStatusResponse> {
        not_here()
    }
}
