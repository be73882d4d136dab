//! Five rounds of each attack beside clients that must not notice. `script/attack` runs them and shows what they print.

use crate::beside::{Beside, job, memory};
use crate::by_hand::{ByHand, framed};
use crate::raw::{
    CONTINUATION, DATA, END_HEADERS, HEADERS, PING, RST_STREAM, Raw, SETTINGS, WINDOW_UPDATE, call_headers, frame,
    header_block,
};
use crate::server::{Launch, Server, config_file, scratch};
use crate::{foreign, unread};
use bytes::Bytes;
use prost::Message;
use redrive::grpc::pb::{AckRequest, ClaimRequest, ListQueuesRequest, SettleRequest};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(5);
/// What a repeated attack may take more than the first, in MB.
const MORE_MAX: u64 = 20;
const P99_MAX: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    UnreadClaims,
    UnreadLists,
    NoHello,
    IdleConnections,
    Preface,
    Waits,
    Names,
    HalfRequests,
    Batches,
    ForgedSettles,
    Headers,
    Pings,
    Settings,
    Resets,
    EmptyData,
    WindowUpdates,
    QueueNames,
    Reflection,
    Watch,
}

const ALL: [Attack; 19] = [
    Attack::UnreadClaims,
    Attack::UnreadLists,
    Attack::NoHello,
    Attack::IdleConnections,
    Attack::Preface,
    Attack::Waits,
    Attack::Names,
    Attack::HalfRequests,
    Attack::Batches,
    Attack::ForgedSettles,
    Attack::Headers,
    Attack::Pings,
    Attack::Settings,
    Attack::Resets,
    Attack::EmptyData,
    Attack::WindowUpdates,
    Attack::QueueNames,
    Attack::Reflection,
    Attack::Watch,
];

fn wait() -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds: 30, nanos: 0 })
}

impl Attack {
    fn connections(self) -> usize {
        match self {
            Self::UnreadClaims | Self::UnreadLists => 100,
            Self::IdleConnections | Self::Preface => 400,
            Self::NoHello | Self::Waits | Self::Names | Self::HalfRequests | Self::Reflection | Self::Watch => 40,
            _ => 4,
        }
    }

    /// The limit that it is to reach; none: HTTP/2's own guards are quicker, or it costs a client more than the server.
    fn limit(self) -> Option<&'static str> {
        Some(match self {
            Self::UnreadClaims | Self::UnreadLists | Self::HalfRequests | Self::Reflection => "message_bytes",
            Self::NoHello | Self::Waits | Self::Watch => "waits_per_peer",
            Self::IdleConnections | Self::Preface => "connections_per_peer",
            Self::Names => "waits",
            Self::Headers => "header_bytes",
            Self::Pings | Self::WindowUpdates => "control_frames_per_second",
            Self::QueueNames => "new_queues_per_minute",
            Self::Batches | Self::ForgedSettles | Self::Settings | Self::Resets | Self::EmptyData => return None,
        })
    }

    /// What one connection does each time that it has its turn. False: it has done all it can.
    async fn act(self, raw: &Raw, turn: u32, lease: &str) -> io::Result<bool> {
        let stream = 2 * turn + 1;
        match self {
            Self::UnreadClaims => Self::call(raw, turn, 60, "QueueService/Claim", &unread::short_claim()).await,
            Self::UnreadLists => {
                Self::call(raw, turn, 250, "AdminService/ListQueues", &ListQueuesRequest::default()).await
            }
            Self::NoHello => Self::open(raw, turn, "QueueService/Work").await,
            Self::Waits => {
                let claim = ClaimRequest { queues: vec!["none".into()], wait: wait(), ..ClaimRequest::default() };
                Self::call(raw, turn, 250, "QueueService/Claim", &claim).await
            }
            Self::Names => {
                let queues = (0..100).map(|_| format!("made-up-{:060}", redrive::env::random::<u64>())).collect();
                let claim = ClaimRequest { queues, wait: wait(), ..ClaimRequest::default() };
                Self::call(raw, turn, 250, "QueueService/Claim", &claim).await
            }
            Self::HalfRequests => {
                // As much as the connection's window takes, and no more.
                let half = [&[0, 0, 32, 0, 0][..], &[1; 4_000]].concat();
                Self::open(raw, turn, "QueueService/Enqueue").await?;
                raw.send(&frame(DATA, 0, stream, &half)).await.map(|()| turn < 250)
            }
            Self::ForgedSettles => {
                let forged = |number: u32| {
                    let lease = format!("{}{number:04}", &lease[..lease.len() - 4]);
                    AckRequest { lease, ..AckRequest::default() }
                };
                let settle = SettleRequest { acks: (0..1_000).map(forged).collect(), ..SettleRequest::default() };
                let stream = raw.call("QueueService/Settle", &settle).await?;
                let answered =
                    |seen: &crate::raw::Seen| seen.closed || seen.streams.get(&stream).is_some_and(|heard| heard.ended);
                Ok(raw.wait_for(ROUND, answered).await)
            }
            Self::Headers => {
                let long = header_block(&[("x", &"y".repeat(100))]).repeat(150);
                if turn == 0 {
                    raw.send(&frame(HEADERS, 0, 1, &call_headers("QueueService/Claim"))).await?;
                }
                raw.send(&frame(CONTINUATION, 0, 1, &long)).await.map(|()| true)
            }
            Self::Pings => raw.send(&frame(PING, 0, 0, &[0; 8]).repeat(1_000)).await.map(|()| true),
            Self::Settings => raw.send(&frame(SETTINGS, 0, 0, &[]).repeat(1_000)).await.map(|()| true),
            Self::WindowUpdates => {
                raw.send(&frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()).repeat(1_000)).await.map(|()| true)
            }
            Self::Resets => {
                let open = frame(HEADERS, END_HEADERS, stream, &call_headers("QueueService/Work"));
                raw.send(&[open, frame(RST_STREAM, 0, stream, &[0; 4])].concat()).await.map(|()| true)
            }
            Self::EmptyData => {
                if turn == 0 {
                    raw.open("QueueService/Work").await?;
                }
                raw.send(&frame(DATA, 0, 1, &[]).repeat(1_000)).await.map(|()| true)
            }
            Self::QueueNames => {
                let name = format!("made-up-{}", redrive::env::random::<u64>());
                raw.call("QueueService/Enqueue", &job(&name, 1)).await.map(|_| turn < 200)
            }
            Self::IdleConnections | Self::Preface | Self::Batches | Self::Reflection | Self::Watch => Ok(false),
        }
    }

    async fn call(raw: &Raw, turn: u32, most: u32, method: &str, request: &impl Message) -> io::Result<bool> {
        raw.call(method, request).await.map(|_| turn < most)
    }

    async fn open(raw: &Raw, turn: u32, method: &str) -> io::Result<bool> {
        raw.open(method).await.map(|_| turn < 250)
    }

    /// Those that are done with whole messages.
    async fn by_hand(self, client: ByHand, until: Instant) {
        let mut open = Vec::new();
        for turn in 0_u32.. {
            if Instant::now() >= until {
                return;
            }
            match self {
                Self::Batches => {
                    // Jobs of two bytes, and JSON that takes as much memory as a request may.
                    let (method, message) = match turn.is_multiple_of(2) {
                        true => ("QueueService/EnqueueBatch", [0x0a, 0].repeat(3_000_000)),
                        false => {
                            let json = nested(0x32, &[0x0a, 2, 8, 0].repeat(780_000));
                            ("QueueService/Enqueue", [vec![0x1a], json].concat())
                        }
                    };
                    if client.try_call(method, framed(&message)).await.is_none() {
                        return;
                    }
                }
                _ if turn >= 250 => {
                    tokio::time::sleep(until.saturating_duration_since(Instant::now())).await;
                    return;
                }
                Self::Reflection => {
                    let asks: Bytes = foreign::symbol("redrive.v1.QueueService").repeat(2).into();
                    let Some(call) = client.try_begin(foreign::REFLECTION, asks).await else { return };
                    open.push(call);
                }
                _ => {
                    let Some(call) = client.try_begin(foreign::WATCH, framed(&[])).await else { return };
                    open.push(call);
                }
            }
        }
    }

    /// One client of the attack: it connects again when it is thrown out.
    async fn client(self, address: SocketAddr, lease: String, until: Instant) {
        let window = if matches!(self, Self::UnreadClaims | Self::UnreadLists) { 0 } else { 65_535 };
        while Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            match self {
                Self::Preface => {
                    let Ok(mut silent) = TcpStream::connect(address).await else { continue };
                    let mut said = Vec::new();
                    let _ = tokio::time::timeout(left, silent.read_to_end(&mut said)).await;
                    continue;
                }
                Self::Batches | Self::Reflection | Self::Watch => {
                    let window = if self == Self::Batches { 65_535 } else { 0 };
                    if let Some(client) = ByHand::try_connect(address, window).await {
                        self.by_hand(client, until).await;
                    }
                    continue;
                }
                _ => {}
            }
            let Ok(raw) = Raw::connect(address, window).await else { continue };
            let (mut turn, mut goes_on) = (0, true);
            while Instant::now() < until && !raw.seen().closed {
                goes_on = goes_on && self.act(&raw, turn, &lease).await.unwrap_or(false);
                turn += 1;
                if !goes_on {
                    raw.wait_for(until.saturating_duration_since(Instant::now()), |seen| seen.closed).await;
                }
            }
            raw.close().await;
        }
    }

    /// The most memory that the server used.
    async fn run(self, server: &Server, lease: &str) -> u64 {
        let until = Instant::now() + ROUND;
        let attack = |_| tokio::spawn(self.client(server.address, lease.to_owned(), until));
        let clients: Vec<_> = (0..self.connections()).map(attack).collect();
        let mut most = 0;
        while Instant::now() < until {
            most = most.max(memory(server));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for client in clients {
            client.await.unwrap();
        }
        most
    }
}

/// A field that holds a message.
fn nested(tag: u8, message: &[u8]) -> Vec<u8> {
    let length = |bytes: usize| {
        let mut varint = Vec::new();
        prost::encoding::encode_varint(bytes as u64, &mut varint);
        varint
    };
    let inner = [&[tag][..], &length(message.len()), message].concat();
    [&length(inner.len())[..], &inner].concat()
}

async fn rounds(attack: Attack) -> Result<(), String> {
    let data = scratch();
    // So that idle connections reach the bound with the file descriptors that a test has.
    let config = config_file(data.path(), "[limits]\nconnections = 300\nconnections_per_peer = 290\n");
    let server = Launch::on(data.path()).arg("--config").arg(config).start();
    if matches!(attack, Attack::UnreadClaims) {
        unread::fill(&server).await;
    }
    let mut client = server.queue().await;
    client.enqueue(job("forged", 1)).await.unwrap();
    let claim = ClaimRequest { queues: vec!["forged".into()], ..ClaimRequest::default() };
    let lease = client.claim(claim).await.unwrap().into_inner().jobs.remove(0).lease;
    drop(client);
    let beside = Beside::start(&server).await;
    tokio::time::sleep(ROUND).await;
    let quiet = beside.p99().await;
    let (mut p99, mut used) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let beside = Beside::start(&server).await;
        used.push(attack.run(&server, &lease).await);
        p99.push(beside.p99().await);
    }
    p99.sort();
    let median = p99[ROUNDS / 2];
    let (first, later) = (used[0], used[1..].iter().max().copied().unwrap());
    let name = format!("{attack:?}");
    let limit = attack.limit().unwrap_or_default();
    println!(
        "{name:16} p99 {quiet:9.1?} quiet, {median:9.1?} beside it; {first:4} MB in the first round, {later:4} MB later  {limit}"
    );
    let slow = median > P99_MAX.max(3 * quiet);
    let grows = later > first + MORE_MAX;
    let unbounded = attack.limit().is_some_and(|limit| server.log_lines(&format!("\"limit\":\"{limit}\"")) == 0);
    if slow || grows || unbounded {
        return Err(format!("{name}: slow {slow}, grows {grows}, reaches no limit {unbounded}"));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes ten minutes; script/attack runs it"]
async fn five_rounds_of_each_attack() {
    let asked = std::env::var("REDRIVE_ATTACK").unwrap_or_default();
    let mut failed = Vec::new();
    for attack in ALL.into_iter().filter(|attack| format!("{attack:?}").contains(&asked)) {
        failed.extend(rounds(attack).await.err());
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
