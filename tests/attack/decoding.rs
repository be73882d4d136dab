//! Requests that are short on the wire and long in memory.

use crate::beside::peak_memory;
use crate::by_hand::{ByHand, framed};
use crate::server::{LONG, Launch, config_file, scratch};
use bytes::Bytes;
use prost::Message;
use prost_types::{ListValue, Value, value::Kind};
use redrive::grpc::pb::{
    AckRequest, ClaimRequest, EnqueueRequest, GetServerInfoRequest, SettleRequest, WorkHello, WorkRequest,
    enqueue_request::Body,
};

const MIB: usize = 1 << 20;
/// What such a call may take, in MB.
const MORE_MAX: u64 = 120;

/// This field, so often that the message has so many bytes.
fn repeated(field: &[u8], bytes: usize) -> Vec<u8> {
    field.repeat(bytes / field.len())
}

/// A field that holds a message or a text.
fn within(number: u8, message: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    prost::encoding::encode_varint(message.len() as u64, &mut bytes);
    bytes.extend_from_slice(message);
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_many_small_parts_is_refused_before_it_takes_memory() {
    let data = scratch();
    let server = Launch::on(data.path()).start();
    let six = 6 * MIB - 64;
    let hello = WorkRequest {
        hello: Some(WorkHello { queues: vec!["q".into()], ..WorkHello::default() }),
        ..WorkRequest::default()
    };
    let weights: Vec<u8> = (0..six / 10)
        .flat_map(|number| within(3, &[&within(1, format!("{number:06}").as_bytes())[..], &[]].concat()))
        .collect();
    let attacks = [
        ("EnqueueBatch", repeated(&[0x0a, 0], six)),
        ("Enqueue", within(3, &within(6, &repeated(&[0x0a, 0], six)))),
        ("Settle", repeated(&[0x12, 0], six)),
        ("Claim", within(10, &repeated(&[0x0a, 0], six))),
        ("Claim", weights),
        ("Work", [hello.encode_to_vec(), repeated(&[0x22, 0], six)].concat()),
    ];
    for (method, message) in attacks {
        let before = peak_memory(&server);
        let client = ByHand::connect(&server).await;
        let trailers = client.call(&format!("QueueService/{method}"), framed(&message)).await;
        assert_eq!(trailers["redrive-reason"], "INVALID_FIELD", "{method}: {trailers:?}");
        let more = peak_memory(&server) - before;
        assert!(more <= MORE_MAX, "{method} took {more} MB");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_takes_its_length_from_the_first_byte_on() {
    let data = scratch();
    let server = Launch::on(data.path()).start();
    let before = peak_memory(&server);
    let begun: Bytes = [&[0][..], &(5_u32 << 20).to_be_bytes(), &[1]].concat().into();
    let mut calls = Vec::new();
    let producer = ByHand::connect(&server).await;
    for _ in 0..200 {
        calls.push(producer.begin("QueueService/Enqueue", begun.clone()).await);
    }
    server.log_line("\"limit\":\"message_bytes\"");
    // What settles is not refused, but ends its connection in the end.
    let mut settles = Vec::new();
    for _ in 0..10 {
        let worker = ByHand::connect(&server).await;
        for _ in 0..20 {
            settles.push(worker.begin("QueueService/Settle", begun.clone()).await);
        }
    }
    for (response, _out) in settles {
        response.await.unwrap_err();
    }
    server.log_line("message_bytes_per_connection");
    // Others are served as soon as the last of it is gone.
    let served = async { while server.admin().await.get_server_info(GetServerInfoRequest {}).await.is_err() {} };
    tokio::time::timeout(LONG, served).await.unwrap();
    let more = peak_memory(&server) - before;
    assert!(more <= MORE_MAX, "it took {more} MB");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_limits_allow_is_decoded() {
    let data = scratch();
    let server = Launch::on(data.path()).start();
    let mut client = server.queue().await.max_encoding_message_size(16 * MIB);
    // As much JSON as a body may have: as text it has 1 MiB less a byte, on the wire 5.5.
    let one = Value { kind: Some(Kind::NumberValue(1.0)) };
    let list = Value { kind: Some(Kind::ListValue(ListValue { values: vec![one; MIB / 2 - 1] })) };
    let job =
        EnqueueRequest { queue: "q".into(), r#type: "t".into(), body: Some(Body::Json(list)), ..Default::default() };
    client.enqueue(job).await.unwrap();
    // What is over the limits by less than memory is at stake hears by how much.
    let acks = vec![AckRequest::default(); 20_000];
    let refused = client.settle(SettleRequest { acks, ..SettleRequest::default() }).await.unwrap_err();
    assert!(refused.message().contains("at most 1000 items, not 20000"), "{refused:?}");
    let weights = (0..20_000).map(|number| (number.to_string(), 1)).collect();
    let claim = ClaimRequest { queues: vec!["q".into()], weights, ..ClaimRequest::default() };
    let refused = client.claim(claim).await.unwrap_err();
    assert!(refused.message().contains("20000 fields are wrong"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_decoded_once_it_is_complete() {
    let data = scratch();
    let config = config_file(data.path(), "[limits]\nrequest_timeout = \"1s\"\n");
    let server = Launch::on(data.path()).arg("--config").arg(config).start();
    let before = peak_memory(&server);
    let client = ByHand::connect(&server).await;
    // Decoded, each takes twenty times as much.
    let json = within(3, &within(6, &repeated(&[0x0a, 0], MIB)));
    let mut calls = Vec::new();
    for more in [&[][..], &[0], &[0, 0, 0, 0, 1]].iter().cycle().take(9) {
        let bytes = [&framed(&json)[..], more].concat();
        calls.push(client.begin("QueueService/Enqueue", bytes.into()).await);
    }
    for (response, _out) in calls {
        let trailers = response.await.unwrap();
        assert_ne!(trailers.headers()["grpc-status"], "0", "{trailers:?}");
    }
    let more = peak_memory(&server) - before;
    assert!(more <= 60, "it took {more} MB");
}
