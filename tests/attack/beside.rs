//! The clients that must not notice: jobs of their own at a fixed rate, each enqueued, handed out and acknowledged.

use crate::server::Server;
use redrive::grpc::pb::queue_service_client::QueueServiceClient;
use redrive::grpc::pb::{
    AckRequest, ClaimRequest, EnqueueRequest, Job, SettleRequest, WorkHello, WorkRequest, enqueue_request::Body,
};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};

const EVERY: Duration = Duration::from_millis(20);

pub(crate) struct Beside {
    stop: watch::Sender<bool>,
    tasks: [JoinHandle<Vec<Duration>>; 3],
}

/// The server's memory, in MB.
pub(crate) fn memory(server: &Server) -> u64 {
    of_status(server, "VmRSS")
}

/// The most that it had so far.
pub(crate) fn peak_memory(server: &Server) -> u64 {
    of_status(server, "VmHWM")
}

fn of_status(server: &Server, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// Another address than that of a connection which names none.
pub(crate) const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// A connection from there.
pub(crate) async fn from(address: IpAddr, server: &Server) -> Channel {
    let server = Endpoint::from_shared(format!("http://{}", server.address)).unwrap();
    server.local_address(Some(address)).connect().await.unwrap()
}

pub(crate) fn job(queue: &str, bytes: usize) -> EnqueueRequest {
    EnqueueRequest {
        queue: queue.into(),
        r#type: "t".into(),
        body: Some(Body::Data(vec![b'x'; bytes].into())),
        ..EnqueueRequest::default()
    }
}

impl Beside {
    /// Three workers from another address: one that asks, one that waits for its answer, and one with a stream.
    pub(crate) async fn start(server: &Server) -> Self {
        let channel = from(ELSEWHERE, server).await;
        let (stop, stopped) = watch::channel(false);
        let asks = tokio::spawn(asks(channel.clone(), stopped.clone()));
        let waits = tokio::spawn(waits(channel.clone(), stopped.clone()));
        let streams = tokio::spawn(streams(channel, stopped));
        Self { stop, tasks: [asks, waits, streams] }
    }

    /// Ends it; how long the slowest of a hundred rounds took.
    pub(crate) async fn p99(self) -> Duration {
        self.stop.send_replace(true);
        let mut took = Vec::new();
        for task in self.tasks {
            took.extend(task.await.expect("no call beside the attack fails"));
        }
        assert!(took.len() >= 10, "it was served {} times", took.len());
        took.sort();
        took[took.len() * 99 / 100]
    }
}

fn claim(queue: &str, seconds: i64) -> ClaimRequest {
    let wait = Some(prost_types::Duration { seconds, nanos: 0 });
    ClaimRequest { queues: vec![queue.into()], wait, ..ClaimRequest::default() }
}

fn acks(jobs: Vec<Job>) -> Vec<AckRequest> {
    jobs.into_iter().map(|job| AckRequest { lease: job.lease, ..AckRequest::default() }).collect()
}

/// Enqueues, claims and acknowledges, one after the other.
async fn asks(channel: Channel, stopped: watch::Receiver<bool>) -> Vec<Duration> {
    let mut client = QueueServiceClient::new(channel);
    let (mut took, mut every) = (Vec::new(), tokio::time::interval(EVERY));
    while !*stopped.borrow() {
        every.tick().await;
        let began = Instant::now();
        client.enqueue(job("asked", 100)).await.expect("an Enqueue beside the attack");
        let claimed = client.claim(claim("asked", 0)).await.expect("a Claim beside the attack").into_inner();
        for ack in acks(claimed.jobs) {
            client.ack(ack).await.expect("an Ack beside the attack");
        }
        took.push(began.elapsed());
    }
    took
}

/// From an Enqueue to the job at a Claim that waits.
async fn waits(channel: Channel, stopped: watch::Receiver<bool>) -> Vec<Duration> {
    let mut client = QueueServiceClient::new(channel);
    let (mut took, mut every) = (Vec::new(), tokio::time::interval(5 * EVERY));
    while !*stopped.borrow() {
        let mut worker = client.clone();
        let waiting = tokio::spawn(async move { worker.claim(claim("waited", 20)).await });
        every.tick().await;
        let began = Instant::now();
        client.enqueue(job("waited", 100)).await.expect("an Enqueue beside the attack");
        let claimed = waiting.await.unwrap().expect("a Claim that waits beside the attack").into_inner();
        took.push(began.elapsed());
        let settle = SettleRequest { acks: acks(claimed.jobs), ..SettleRequest::default() };
        client.settle(settle).await.expect("a Settle beside the attack");
    }
    took
}

/// From an Enqueue to the job on a stream.
async fn streams(channel: Channel, stopped: watch::Receiver<bool>) -> Vec<Duration> {
    let mut client = QueueServiceClient::new(channel);
    let (say, messages) = mpsc::channel(10);
    let hello = WorkHello { queues: vec!["streamed".into()], ..WorkHello::default() };
    say.send(WorkRequest { hello: Some(hello), add_credits: 1, ..WorkRequest::default() }).await.unwrap();
    let replies = client.work(tokio_stream::wrappers::ReceiverStream::new(messages)).await;
    let mut replies = replies.expect("a stream beside the attack").into_inner();
    let (mut took, mut every) = (Vec::new(), tokio::time::interval(5 * EVERY));
    while !*stopped.borrow() {
        every.tick().await;
        let began = Instant::now();
        client.enqueue(job("streamed", 100)).await.expect("an Enqueue beside the attack");
        let jobs = loop {
            let reply = replies.message().await.expect("a stream beside the attack").expect("it goes on");
            if !reply.jobs.is_empty() {
                break reply.jobs;
            }
        };
        took.push(began.elapsed());
        let settle = Some(SettleRequest { acks: acks(jobs), ..SettleRequest::default() });
        say.send(WorkRequest { settle, add_credits: 1, ..WorkRequest::default() }).await.unwrap();
    }
    took
}
