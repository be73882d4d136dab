//! The client that must not notice: jobs of its own at a fixed rate, each enqueued, claimed and acknowledged.

use crate::server::Server;
use redrive::grpc::pb::{AckRequest, ClaimRequest, EnqueueRequest, enqueue_request::Body};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};

const EVERY: Duration = Duration::from_millis(20);

pub(crate) struct Beside {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Vec<Duration>>,
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
    pub(crate) async fn start(server: &Server) -> Self {
        let mut client = server.queue().await;
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let (mut took, mut every) = (Vec::new(), tokio::time::interval(EVERY));
            while stopped.try_recv().is_err() {
                every.tick().await;
                let began = Instant::now();
                client.enqueue(job("beside", 100)).await.expect("an Enqueue beside the attack");
                let claim = ClaimRequest { queues: vec!["beside".into()], ..ClaimRequest::default() };
                let claimed = client.claim(claim).await.expect("a Claim beside the attack").into_inner();
                for job in claimed.jobs {
                    let ack = AckRequest { lease: job.lease, ..AckRequest::default() };
                    client.ack(ack).await.expect("an Ack beside the attack");
                }
                took.push(began.elapsed());
            }
            took
        });
        Self { stop, task }
    }

    /// Ends it; how long the slowest of a hundred rounds took.
    pub(crate) async fn p99(self) -> Duration {
        let _ = self.stop.send(());
        let mut took = self.task.await.expect("no call beside the attack fails");
        assert!(took.len() >= 10, "it was served {} times", took.len());
        took.sort();
        took[took.len() * 99 / 100]
    }
}
