//! Calls that wait, and what is sent on streams.

use crate::beside::job;
use crate::by_hand::ByHand;
use crate::raw::Raw;
use crate::server::{LONG, Launch, Server, config_file, scratch};
use redrive::grpc::pb::{AckRequest, ClaimRequest, GetStatsRequest, SettleRequest, WorkHello, WorkRequest};
use std::{future::Future, pin::Pin, task::Poll};
use tonic::{Code, Status};
use tonic_types::StatusExt;

fn claim(seconds: i64) -> ClaimRequest {
    let wait = Some(prost_types::Duration { seconds, nanos: 0 });
    ClaimRequest { queues: vec!["q".into()], wait, ..ClaimRequest::default() }
}

#[track_caller]
fn assert_reason(status: &Status, code: Code, reason: &str) {
    let details = status.get_error_details();
    let found = details.error_info().map(|info| info.reason.as_str());
    assert_eq!((status.code(), found), (code, Some(reason)), "{status:?}");
}

async fn open_waits(server: &Server, raw: &Raw, count: usize) {
    for _ in 0..count {
        raw.call("QueueService/Claim", &claim(30)).await.unwrap();
    }
    // Answered on the same connection afterwards: those before it have been taken in.
    let after = raw.call("QueueService/Claim", &ClaimRequest { wait: None, ..claim(0) }).await.unwrap();
    assert!(raw.wait_for(LONG, |seen| seen.streams.get(&after).is_some_and(|heard| heard.ended)).await);
    assert!(!server.stderr().contains("waits"), "too early");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_beyond_the_waits_of_all_is_refused_and_has_settled() {
    let data = scratch();
    let config = config_file(data.path(), "[limits]\nwaits = 3\nwaits_per_peer = 3\n");
    let server = Launch::on(data.path()).arg("--config").arg(config).start();
    let mut client = server.queue().await;
    client.enqueue(job("q", 10)).await.unwrap();
    let lease = client.claim(ClaimRequest { wait: None, ..claim(0) }).await.unwrap().into_inner().jobs.remove(0).lease;
    let raw = Raw::connect(server.address, 65_535).await.unwrap();
    open_waits(&server, &raw, 3).await;

    let acks = vec![AckRequest { lease, ..AckRequest::default() }];
    let settle = Some(SettleRequest { acks, ..SettleRequest::default() });
    let refused = client.claim(ClaimRequest { settle, ..claim(30) }).await.unwrap_err();
    assert_reason(&refused, Code::ResourceExhausted, "OVERLOADED");
    assert!(refused.message().contains("was settled"), "{refused:?}");
    assert!(refused.get_error_details().retry_info().is_some());
    let stats = server.admin().await.get_stats(GetStatsRequest::default()).await.unwrap().into_inner();
    assert_eq!(stats.completed, 1);
    // Work is refused for the same reason, with a text about it.
    let (_say, messages) = tokio::sync::mpsc::channel(1);
    let refused = client.work(tokio_stream::wrappers::ReceiverStream::new(messages)).await.unwrap_err();
    assert_reason(&refused, Code::ResourceExhausted, "OVERLOADED");
    assert!(refused.message().contains("Work streams"), "{refused:?}");
    // Who does not wait is served.
    client.claim(ClaimRequest { wait: None, ..claim(0) }).await.unwrap();
    assert!(server.log_line("\"limit\":\"waits\"").contains("3 of them waiting"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_has_so_many_waits_and_still_settles() {
    let data = scratch();
    let config = config_file(data.path(), "[limits]\nwaits_per_connection = 2\n");
    let server = Launch::on(data.path()).arg("--config").arg(config).start();
    let mut client = server.queue().await;
    client.enqueue(job("jobs", 10)).await.unwrap();
    let jobs = ClaimRequest { queues: vec!["jobs".into()], ..ClaimRequest::default() };
    let lease = client.claim(jobs).await.unwrap().into_inner().jobs.remove(0).lease;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let mut client = client.clone();
        waiting.push(tokio::spawn(async move { client.claim(claim(5)).await }));
    }
    // Two wait and one is refused, the one that came last.
    let (first, rest) = first_done(waiting).await;
    assert_reason(&first.unwrap_err(), Code::ResourceExhausted, "OVERLOADED");
    client.ack(AckRequest { lease, ..AckRequest::default() }).await.unwrap();
    for waits in rest {
        waits.await.unwrap().unwrap();
    }
}

type Waiting<T> = Vec<tokio::task::JoinHandle<T>>;

/// The first that is done, and the others.
async fn first_done<T>(mut tasks: Waiting<T>) -> (T, Waiting<T>) {
    let (done, at) = std::future::poll_fn(|cx| {
        for (at, task) in tasks.iter_mut().enumerate() {
            if let Poll::Ready(done) = Pin::new(task).poll(cx) {
                return Poll::Ready((done.unwrap(), at));
            }
        }
        Poll::Pending
    })
    .await;
    drop(tasks.remove(at));
    (done, tasks)
}

async fn refusal_of(server: &Server, messages: Vec<WorkRequest>) -> Status {
    let mut client = server.queue().await.max_encoding_message_size(64 << 20);
    let mut replies = match client.work(tokio_stream::iter(messages)).await {
        Ok(replies) => replies.into_inner(),
        Err(refusal) => return refusal,
    };
    loop {
        match replies.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the stream ended with OK"),
            Err(refusal) => return refusal,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_on_a_stream_is_refused_as_such() {
    let data = scratch();
    let server = Launch::on(data.path()).start();
    let hello = WorkHello { queues: vec!["q".into()], ..WorkHello::default() };
    let hello = WorkRequest { hello: Some(hello), ..WorkRequest::default() };
    let oversized = WorkRequest { started: vec!["x".repeat(10 << 20)], ..WorkRequest::default() };
    for messages in [vec![oversized.clone()], vec![hello.clone(), oversized]] {
        let refusal = refusal_of(&server, messages).await;
        assert_reason(&refusal, Code::InvalidArgument, "BODY_TOO_LARGE");
    }
    // Rubbish, which no library of gRPC sends.
    for rubbish in [&[0, 0, 0, 0, 3, 0xff, 0xff, 0xff][..], &[9, 0, 0, 0, 1, 0]] {
        let trailers = ByHand::connect(&server).await.trailers("QueueService/Work", rubbish.into()).await;
        assert_eq!(trailers["grpc-status"], "3", "{trailers:?}");
        assert_eq!(trailers["redrive-reason"], "INVALID_FIELD");
    }
}
