//! Connections end after a while, so that load moves on; no call notices.

use crate::beside::job;
use crate::raw::{Raw, Seen};
use crate::server::{LONG, Launch, Server, config_file, scratch};
use prost::Message;
use redrive::grpc::pb::{
    AckRequest, AckResponse, ClaimRequest, ClaimResponse, EnqueueResponse, GetServerInfoRequest, GetStatsRequest,
    SettleRequest, WorkHello, WorkRequest, WorkResponse,
};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tonic::Status;

fn aging(limits: &str) -> (Server, TempDir) {
    let data = scratch();
    let config = config_file(data.path(), &format!("[limits]\n{limits}"));
    (Launch::on(data.path()).arg("--config").arg(config).start(), data)
}

/// A client as HTTP/2 wants it: none of its calls begins on a connection that is being left, and one that the server says it has
/// not looked at is sent again on the next.
struct Client {
    server: SocketAddr,
    raw: Raw,
    connections: usize,
}

impl Client {
    async fn connect(server: SocketAddr) -> Self {
        Self { server, raw: Raw::connect(server, 1 << 20).await.unwrap(), connections: 1 }
    }

    async fn call<T: Message + Default>(&mut self, method: &str, request: &impl Message) -> T {
        loop {
            if self.raw.seen().goaway.is_some() {
                (self.raw, self.connections) =
                    (Raw::connect(self.server, 1 << 20).await.unwrap(), self.connections + 1);
            }
            let not_looked_at = |seen: &Seen, stream| seen.last_stream.is_some_and(|last| stream > last);
            let Ok(stream) = self.raw.call(method, request).await else {
                assert!(self.raw.seen().goaway.is_some(), "closed without a word");
                continue;
            };
            let is_ended = |seen: &Seen| seen.streams.get(&stream).is_some_and(|heard| heard.ended);
            let wanted = |seen: &Seen| is_ended(seen) || not_looked_at(seen, stream) || seen.closed;
            assert!(self.raw.wait_for(LONG, wanted).await, "{method} is not answered");
            let mut seen = self.raw.seen();
            if not_looked_at(&seen, stream) {
                continue;
            }
            let heard = seen.streams.remove(&stream).filter(|heard| heard.ended && heard.reset.is_none());
            let heard = heard.unwrap_or_else(|| panic!("{method} was accepted and is not answered"));
            return T::decode(&heard.data[5..]).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_aged_out_under_load_without_one_failed_call() {
    let (server, _data) = aging("connection_age = \"1s\"\n");
    let mut workers = Vec::new();
    for number in 0..4 {
        let mut client = Client::connect(server.address).await;
        let queue = format!("q{number}");
        workers.push(tokio::spawn(async move {
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(4) {
                client.call::<EnqueueResponse>("QueueService/Enqueue", &job(&queue, 10)).await;
                let claim = ClaimRequest { queues: vec![queue.clone()], ..ClaimRequest::default() };
                for job in client.call::<ClaimResponse>("QueueService/Claim", &claim).await.jobs {
                    let ack = AckRequest { lease: job.lease, ..AckRequest::default() };
                    assert!(!client.call::<AckResponse>("QueueService/Ack", &ack).await.already_gone);
                }
            }
            client.connections
        }));
    }
    for worker in workers {
        let connections = worker.await.expect("no call fails");
        assert!((3..=6).contains(&connections), "{connections}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_that_was_accepted_is_answered_and_what_is_open_after_the_grace_is_cut() {
    let (server, _data) = aging("connection_age = \"1s\"\nconnection_age_grace = \"3s\"\n");
    let began = Instant::now();
    let raw = Raw::connect(server.address, 1 << 20).await.unwrap();
    let half = raw.open("QueueService/Enqueue").await.unwrap();
    let wait = Some(prost_types::Duration { seconds: 2, nanos: 0 });
    let patient = ClaimRequest { queues: vec!["none".into()], wait, ..ClaimRequest::default() };
    let poll = raw.call("QueueService/Claim", &patient).await.unwrap();
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let raw = raw.clone();
            tokio::spawn(async move {
                let mut streams = Vec::new();
                while raw.seen().goaway.is_none() {
                    let Ok(stream) = raw.call("AdminService/GetServerInfo", &GetServerInfoRequest {}).await else {
                        break;
                    };
                    raw.wait_for(LONG, |seen| {
                        seen.streams.get(&stream).is_some_and(|heard| heard.ended) || seen.goaway.is_some()
                    })
                    .await;
                    streams.push(stream);
                }
                streams
            })
        })
        .collect();
    assert!(raw.wait_for(LONG, |seen| seen.goaway.is_some()).await);
    let aged = began.elapsed();
    assert!((850..2_000).contains(&aged.as_millis()), "{aged:?}");
    assert!(raw.wait_for(LONG, |seen| seen.closed).await);
    let cut = began.elapsed() - aged;
    assert!((2_700..6_000).contains(&cut.as_millis()), "{cut:?}");
    let ended = |stream: u32| raw.seen().streams.get(&stream).is_some_and(|heard| heard.ended && heard.reset.is_none());
    assert_eq!(raw.seen().goaway.as_ref().map(|(code, _)| *code), Some(0));
    assert!(ended(poll), "a Claim that waited");
    assert!(!ended(half));
    for caller in callers {
        let streams = caller.await.unwrap();
        let last = raw.seen().last_stream.unwrap();
        for stream in streams.into_iter().filter(|stream| *stream <= last) {
            assert!(ended(stream), "{stream} of {last} was accepted");
        }
    }
}

struct Stream {
    say: mpsc::Sender<WorkRequest>,
    replies: tonic::Streaming<WorkResponse>,
}

impl Stream {
    async fn open(server: &Server, credits: u32) -> Self {
        let (say, messages) = mpsc::channel(100);
        let hello = WorkHello { queues: vec!["q".into()], ..WorkHello::default() };
        say.send(WorkRequest { hello: Some(hello), add_credits: credits, ..WorkRequest::default() }).await.unwrap();
        let messages = tokio_stream::wrappers::ReceiverStream::new(messages);
        let replies = server.queue().await.work(messages).await.unwrap().into_inner();
        Self { say, replies }
    }

    async fn hear(&mut self) -> Result<Option<WorkResponse>, Status> {
        tokio::time::timeout(LONG, self.replies.message()).await.expect("it says something")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_moves_on_with_its_stream_and_no_job_notices() {
    const JOBS: usize = 200;
    let (server, _data) = aging("connection_age = \"1s\"\n");
    let mut producer = Client::connect(server.address).await;
    let producing = tokio::spawn(async move {
        let mut every = tokio::time::interval(Duration::from_millis(20));
        for _ in 0..JOBS {
            every.tick().await;
            producer.call::<EnqueueResponse>("QueueService/Enqueue", &job("q", 10)).await;
        }
    });
    let (mut stream, mut done, mut streams) = (Stream::open(&server, 10).await, 0, 1);
    while done < JOBS {
        let (mut open, mut drains) = (0, false);
        while !drains || open > 0 {
            let Some(reply) = stream.hear().await.unwrap() else { break };
            drains |= reply.drain;
            open += reply.jobs.len();
            let settled = reply.settled.map_or(0, |settled| settled.acks.len());
            (open, done) = (open - settled, done + settled);
            if done == JOBS {
                break;
            }
            let acks: Vec<_> =
                reply.jobs.into_iter().map(|job| AckRequest { lease: job.lease, ..AckRequest::default() }).collect();
            if !acks.is_empty() {
                let add_credits = acks.len() as u32;
                let settle = Some(SettleRequest { acks, ..SettleRequest::default() });
                stream.say.send(WorkRequest { settle, add_credits, ..WorkRequest::default() }).await.unwrap();
            }
        }
        if done < JOBS {
            (stream, streams) = (Stream::open(&server, 10).await, streams + 1);
        }
    }
    producing.await.unwrap();
    assert!((3..=7).contains(&streams), "{streams}");
    let stats = server.admin().await.get_stats(GetStatsRequest::default()).await.unwrap().into_inner();
    assert_eq!((stats.completed, stats.failed_attempts, stats.lease_expired), (JOBS as u64, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_has_the_grace_to_drain() {
    let (server, _data) = aging("connection_age = \"1s\"\nconnection_age_grace = \"3s\"\n");
    server.queue().await.enqueue(job("q", 10)).await.unwrap();
    let mut stream = Stream::open(&server, 1).await;
    let mut drained = None;
    // The job is never settled.
    while let Some(reply) = stream.hear().await.unwrap() {
        if reply.drain {
            drained = Some(Instant::now());
        }
    }
    // It was told a moment before it heard.
    let took = drained.expect("it is told to drain").elapsed();
    assert!((2_700..5_000).contains(&took.as_millis()), "{took:?}");
}
