//! Frames that carry nothing, headers that do not end, requests that do not come.

use crate::beside::job;
use crate::raw::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, HEADERS, PING, REFUSED_STREAM, RST_STREAM, Raw,
    SETTINGS, Seen, WINDOW_UPDATE, call_headers, frame, header_block, message,
};
use crate::server::{LONG, Launch, Server, config_file, scratch};
use redrive::grpc::frames::{Frames, Head};
use redrive::grpc::pb::{ClaimRequest, GetServerInfoRequest, WorkRequest};
use tempfile::TempDir;
use tokio::io::AsyncReadExt;

const LIMITS: &str = "[limits]\ncontrol_frames_per_second = 1000\npreface_timeout = \"1s\"\nrequest_timeout = \"1s\"\n";

fn limited() -> (Server, TempDir) {
    let data = scratch();
    let config = config_file(data.path(), LIMITS);
    (Launch::on(data.path()).arg("--config").arg(config).start(), data)
}

/// It is told why and ended, and the server serves on.
async fn assert_ended(server: &Server, raw: &Raw, why: &str) {
    assert!(raw.wait_for(LONG, |seen| seen.closed).await, "it still has its connection");
    let goaway = raw.seen().goaway.clone();
    assert_eq!(goaway, Some((ENHANCE_YOUR_CALM, why.into())));
    server.admin().await.get_server_info(GetServerInfoRequest {}).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_frames_that_carry_nothing_ends_the_connection() {
    let (server, _data) = limited();
    let ping = frame(PING, 0, 0, &[7; 8]);
    let settings = frame(SETTINGS, 0, 0, &[]);
    let reset = [frame(HEADERS, END_HEADERS, 0, &call_headers("QueueService/Work")), frame(RST_STREAM, 0, 0, &[0; 4])];
    for (name, flood) in [("PING", ping), ("SETTINGS", settings), ("DATA", Vec::new()), ("RST_STREAM", reset.concat())]
    {
        let raw = Raw::connect(server.address, 65_535).await.unwrap();
        let mut bytes = Vec::new();
        match name {
            "DATA" => {
                let stream = raw.open("QueueService/Work").await.unwrap();
                bytes = frame(DATA, 0, stream, &[]).repeat(2_000);
            }
            "RST_STREAM" => {
                for stream in (1..4_000).step_by(2) {
                    let mut pair = flood.clone();
                    let reset_at = pair.len() - 13;
                    pair[5..9].copy_from_slice(&u32::to_be_bytes(stream));
                    pair[reset_at + 5..reset_at + 9].copy_from_slice(&u32::to_be_bytes(stream));
                    bytes.extend(pair);
                }
            }
            _ => bytes.extend(flood.repeat(2_000)),
        }
        // It may be ended before all of it is written.
        let _ = raw.send(&bytes).await;
        if name == "PING" {
            assert_ended(&server, &raw, "more than 1000 frames in a second that carry nothing").await;
        } else {
            // HTTP/2's own guard may be quicker with these; ended it is.
            assert!(raw.wait_for(LONG, |seen| seen.closed).await, "{name}");
        }
    }
    let line = server.log_line("control_frames_per_second");
    assert!(line.contains("127.0.0.1"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn window_updates_for_no_data_are_such_frames_and_those_for_data_are_not() {
    let (server, _data) = limited();
    let raw = Raw::connect(server.address, 65_535).await.unwrap();
    // It may be ended before all of it is written.
    let _ = raw.send(&frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()).repeat(5_000)).await;
    assert_ended(&server, &raw, "more than 1000 frames in a second that carry nothing").await;

    let mut producer = server.queue().await;
    for _ in 0..40 {
        producer.enqueue(job("large", 1 << 20)).await.unwrap();
    }
    let raw = Raw::connect(server.address, 65_535).await.unwrap();
    let claim = ClaimRequest { queues: vec!["large".into()], max_jobs: 3, ..ClaimRequest::default() };
    // 2,500 frames of data, of which each is answered with two updates.
    for _ in 0..14 {
        let stream = raw.call("QueueService/Claim", &claim).await.unwrap();
        assert!(raw.wait_for(LONG, |seen| seen.streams.get(&stream).is_some_and(|heard| heard.ended)).await);
    }
    assert!(!raw.seen().closed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_without_a_word_is_closed() {
    let (server, _data) = limited();
    let mut silent = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let mut said = Vec::new();
    tokio::time::timeout(LONG, silent.read_to_end(&mut said)).await.expect("it still has its connection").unwrap();
    server.log_line("preface_timeout");
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_that_are_too_long_are_refused() {
    let data = scratch();
    let config = config_file(data.path(), "[limits]\nheader_bytes = 2048\n");
    let server = Launch::on(data.path()).arg("--config").arg(config).start();
    let raw = Raw::connect(server.address, 65_535).await.unwrap();
    let long = [call_headers("QueueService/Claim"), header_block(&[("x", &"y".repeat(100))]).repeat(20)].concat();
    let (first, rest) = long.split_at(1_000);
    raw.send(&[frame(HEADERS, 0, 1, first), frame(CONTINUATION, END_HEADERS, 1, rest)].concat()).await.unwrap();
    // 431, which HTTP/2 says itself, or an end.
    let refused = |seen: &Seen| seen.closed || seen.streams.get(&1).is_some_and(|heard| heard.headers > 0);
    assert!(raw.wait_for(LONG, refused).await);
    let line = server.log_line("header_bytes");
    assert!(line.contains("2048"), "{line}");
    server.admin().await.get_server_info(GetServerInfoRequest {}).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_has_so_many_calls() {
    let data = scratch();
    let config = config_file(data.path(), "[limits]\ncalls_per_connection = 4\n");
    let server = Launch::on(data.path()).arg("--config").arg(config).start();
    let raw = Raw::connect(server.address, 65_535).await.unwrap();
    // As if it had not heard how many it may have.
    for _ in 0..4 {
        raw.open("QueueService/Enqueue").await.unwrap();
    }
    let refused = raw.open("QueueService/Enqueue").await.unwrap();
    let reset = |seen: &Seen| seen.closed || seen.streams.get(&refused).is_some_and(|heard| heard.reset.is_some());
    assert!(raw.wait_for(LONG, reset).await);
    assert_eq!(raw.seen().streams.get(&refused).and_then(|heard| heard.reset), Some(REFUSED_STREAM));
    server.log_line("calls_per_connection");
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_that_do_not_end_end_the_connection() {
    let (server, _data) = limited();
    let raw = Raw::connect(server.address, 65_535).await.unwrap();
    // Settings that are acknowledged in between would be another fault.
    assert!(raw.wait_for(LONG, |seen| seen.settings >= 2).await);
    raw.send(&frame(HEADERS, 0, 1, &call_headers("QueueService/Claim"))).await.unwrap();
    assert_ended(&server, &raw, "the headers of a call were not complete within 1s").await;
    server.log_line("preface_timeout");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_does_not_come_is_answered() {
    let (server, _data) = limited();
    let raw = Raw::connect(server.address, 65_535).await.unwrap();
    let (none, half) = (raw.open("QueueService/Claim").await.unwrap(), raw.open("QueueService/Enqueue").await.unwrap());
    raw.send(&frame(DATA, 0, half, &[0, 0, 0, 1, 0, 1, 2, 3])).await.unwrap();
    let hello = raw.open("QueueService/Work").await.unwrap();
    for stream in [none, half, hello] {
        assert!(
            raw.wait_for(LONG, |seen| seen.streams.get(&stream).is_some_and(|heard| heard.ended)).await,
            "{stream}"
        );
    }
    server.log_line("\"limit\":\"request_timeout\"");
    // A stream that has said its hello stays.
    let working = raw.open("QueueService/Work").await.unwrap();
    raw.send(&frame(DATA, 0, working, &message(&hello_of("q")))).await.unwrap();
    assert!(raw.wait_for(LONG, |seen| seen.streams.get(&working).is_some_and(|heard| !heard.data.is_empty())).await);
    assert!(!raw.seen().streams[&working].ended);
    raw.send(&frame(DATA, END_STREAM, working, &[])).await.unwrap();
    assert!(raw.wait_for(LONG, |seen| seen.streams[&working].ended).await);
}

fn hello_of(queue: &str) -> WorkRequest {
    let hello = redrive::grpc::pb::WorkHello { queues: vec![queue.into()], ..Default::default() };
    WorkRequest { hello: Some(hello), add_credits: 1, ..WorkRequest::default() }
}

#[test]
fn heads_are_found_however_the_bytes_are_cut() {
    let frames =
        [frame(DATA, END_STREAM, 5, &[9; 300]), frame(PING, 0, 0, &[1; 8]), frame(HEADERS, END_HEADERS, 7, b"")];
    let bytes = [b"PRI".to_vec(), frames.concat()].concat();
    let expected = [(300, DATA, 5), (8, PING, 0), (0, HEADERS, 7)];
    for size in [1, 2, 8, 9, 10, 11, 100, bytes.len()] {
        let (mut following, mut heads) = (Frames::after(3), Vec::new());
        for piece in bytes.chunks(size) {
            following.pass(piece, |head: Head| heads.push((head.length, head.kind, head.stream)));
        }
        assert_eq!(heads, expected, "in pieces of {size}");
    }
    // The end of a request is no empty frame.
    let end = Head { length: 0, kind: DATA, flags: END_STREAM, stream: 1 };
    assert!(!end.is_control() && Head { flags: 0, ..end }.is_control());
}
