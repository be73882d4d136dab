//! Connections end after a while, so that load moves on; no call notices.

use crate::beside::job;
use crate::raw::{Raw, Seen};
use crate::server::{LONG, Launch, Server, config_file, scratch};
use prost::Message;
use redrive::grpc::pb::{
    AckRequest, AckResponse, ClaimRequest, ClaimResponse, EnqueueResponse, WorkHello, WorkRequest,
};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tempfile::TempDir;

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
async fn a_stream_is_told_to_drain_and_cut_when_it_does_not() {
    let (server, _data) = aging("connection_age = \"1s\"\nconnection_age_grace = \"2s\"\n");
    let mut client = server.queue().await;
    client.enqueue(job("q", 10)).await.unwrap();
    let (say, messages) = tokio::sync::mpsc::channel(4);
    let hello = WorkHello { queues: vec!["q".into()], ..WorkHello::default() };
    say.send(WorkRequest { hello: Some(hello), add_credits: 1, ..WorkRequest::default() }).await.unwrap();
    let messages = tokio_stream::wrappers::ReceiverStream::new(messages);
    let mut replies = client.work(messages).await.unwrap().into_inner();
    let (mut jobs, mut drained) = (0, false);
    // The job is never settled: the stream does not drain.
    let end = loop {
        match tokio::time::timeout(LONG, replies.message()).await.expect("it is cut") {
            Ok(Some(reply)) => {
                jobs += reply.jobs.len();
                drained |= reply.drain;
            }
            end => break end,
        }
    };
    assert!(jobs == 1 && drained, "{jobs} jobs, {drained}");
    assert!(end.is_err(), "its connection was cut: {end:?}");
}
