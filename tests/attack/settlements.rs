//! Settlements that are short on the wire and have long answers, which are not read.

use crate::beside::{job, peak_memory};
use crate::by_hand::{ByHand, framed};
use crate::raw::Raw;
use crate::server::{LONG, Launch, config_file, scratch};
use bytes::Bytes;
use prost::Message;
use redrive::grpc::pb::{
    AckRequest, ClaimRequest, GetServerInfoRequest, NackRequest, SettleRequest, WorkHello, WorkRequest, WorkResponse,
};
use tokio::sync::mpsc;

/// Two bytes each; the answer to one has several hundred.
fn forged() -> SettleRequest {
    SettleRequest { nacks: vec![NackRequest::default(); 1_000], ..SettleRequest::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_streams_do_not_read_take_little_memory() {
    let data = scratch();
    let server = Launch::on(data.path()).start();
    let hello = WorkHello { queues: vec!["q".into()], ..WorkHello::default() };
    let hello = framed(&WorkRequest { hello: Some(hello), ..WorkRequest::default() }.encode_to_vec());
    let settle = framed(&WorkRequest { settle: Some(forged()), ..WorkRequest::default() }.encode_to_vec());
    let said: Bytes = [hello, settle.repeat(100).into()].concat().into();
    let before = peak_memory(&server);
    let (mut streams, mut connections) = (Vec::new(), Vec::new());
    for _ in 0..15 {
        let client = ByHand::with_window(&server, 0).await;
        streams.push(client.begin("QueueService/Work", said.clone()).await);
        connections.push(client);
    }
    // All that is taken in has been taken in when each has its first answer under way.
    for (response, _out) in &mut streams {
        response.await.unwrap();
    }
    let mut other = server.admin().await;
    for _ in 0..100 {
        other.get_server_info(GetServerInfoRequest {}).await.unwrap();
    }
    let more = peak_memory(&server) - before;
    assert!(more <= 60, "it took {more} MB");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_streams_that_stand_still_are_sent_counts() {
    let data = scratch();
    let config = config_file(data.path(), "[limits]\nmessage_bytes = 33554432\n");
    let server = Launch::on(data.path()).arg("--config").arg(config).start();
    let hello = WorkHello { queues: vec!["q".into()], ..WorkHello::default() };
    let hello = framed(&WorkRequest { hello: Some(hello), ..WorkRequest::default() }.encode_to_vec());
    let one = SettleRequest { nacks: vec![NackRequest::default()], ..SettleRequest::default() };
    let settle = framed(&WorkRequest { settle: Some(one), ..WorkRequest::default() }.encode_to_vec());
    // A field that nothing is known of.
    let padding = framed(&[&[0x7a, 0xff, 0x7f][..], &[0; (1 << 14) - 1]].concat());
    // The answers stand still, and then what comes; as much of it as the window of a connection has.
    let said: Bytes = [hello, settle.repeat(10).into(), padding.repeat(100).into()].concat().into();
    let mut streams = Vec::new();
    for _ in 0..40 {
        let client = ByHand::with_window(&server, 0).await;
        streams.push((client.begin("QueueService/Work", said.clone()).await, client));
    }
    server.log_line("message_bytes_per_connection");
    let served = async { while server.admin().await.get_server_info(GetServerInfoRequest {}).await.is_err() {} };
    tokio::time::timeout(LONG, served).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_settles_when_there_is_no_room_for_anything_else() {
    let data = scratch();
    let limits = "[limits]\nmessage_bytes = 33554432\nmessage_bytes_per_connection = 4194304\n";
    let config = config_file(data.path(), limits);
    let server = Launch::on(data.path()).arg("--config").arg(config).start();
    let mut producer = server.queue().await;
    producer.enqueue(job("q", 10)).await.unwrap();
    let claim = ClaimRequest { queues: vec!["q".into()], ..ClaimRequest::default() };
    let lease = producer.claim(claim).await.unwrap().into_inner().jobs.remove(0).lease;

    let client = ByHand::connect(&server).await;
    let (answers, mut out) = client.begin("QueueService/Work", Bytes::new()).await;
    let hello = WorkHello { queues: vec!["q".into()], ..WorkHello::default() };
    let said = WorkRequest { hello: Some(hello), ..WorkRequest::default() };
    out.send_data(framed(&said.encode_to_vec()), false).unwrap();
    let mut answers = answers.await.unwrap().into_body();
    // Requests that do not end have all the room of this connection.
    let (answered, mut first) = mpsc::channel(100);
    let mut halves = Vec::new();
    for _ in 0..64 {
        let (response, half) = client.begin("QueueService/Enqueue", framed(&[1; 64 << 10]).slice(..1_000)).await;
        halves.push(half);
        let answered = answered.clone();
        tokio::spawn(async move { answered.send(response.await.ok()?).await.ok() });
    }
    let refused = tokio::time::timeout(LONG, first.recv()).await.unwrap().unwrap();
    assert_eq!(refused.headers()["redrive-reason"], "OVERLOADED");
    let notes = AckRequest { lease, note: "n".repeat(1_000), result: vec![7; 62 << 10].into(), ..Default::default() };
    let settle = Some(SettleRequest { acks: vec![notes], ..SettleRequest::default() });
    let said = WorkRequest { settle, settle_id: 7, ..WorkRequest::default() };
    out.send_data(framed(&said.encode_to_vec()), false).unwrap();
    let answer = tokio::time::timeout(LONG, answers.data()).await.unwrap().expect("an answer").unwrap();
    let answer = WorkResponse::decode(&answer[5..]).unwrap();
    assert_eq!((answer.settle_id, answer.settled.map(|settled| settled.acks.len())), (7, Some(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_to_what_a_claim_settles_count_like_its_jobs() {
    let data = scratch();
    let server = Launch::on(data.path()).start();
    let mut client = server.queue().await;
    for _ in 0..150 {
        client.enqueue(job("q", 10)).await.unwrap();
    }
    let raw = Raw::connect(server.address, 0).await.unwrap();
    let claim =
        ClaimRequest { queues: vec!["q".into()], max_jobs: 1, settle: Some(forged()), ..ClaimRequest::default() };
    for _ in 0..150 {
        let stream = raw.call("QueueService/Claim", &claim).await.unwrap();
        assert!(raw.wait_for(LONG, |seen| seen.streams.contains_key(&stream)).await);
    }
    // A refusal has its end in its headers, which no window holds back. The others have 100 KB each.
    let refused = raw.seen().streams.values().filter(|heard| heard.ended).count();
    assert!((30..=70).contains(&refused), "{refused} of 150 are refused");
    server.log_line("message_bytes");
}
