//! Five rounds of each attack beside a client that must not notice. `script/attack` runs them and shows what they print.

use crate::beside::{Beside, job, memory};
use crate::raw::{DATA, END_HEADERS, HEADERS, PING, RST_STREAM, Raw, SETTINGS, call_headers, frame};
use crate::server::{Launch, Server, config_file, scratch};
use crate::unread;
use prost::Message;
use redrive::grpc::pb::{ClaimRequest, ListQueuesRequest};
use std::time::{Duration, Instant};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(5);
/// What a repeated attack may take more than the first, in MB.
const MORE_MAX: u64 = 20;
const P99_MAX: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug)]
enum Attack {
    UnreadClaims,
    UnreadLists,
    NoHello,
    IdleConnections,
    Waits,
    HalfRequests,
    Pings,
    Settings,
    Resets,
    EmptyData,
    QueueNames,
}

const ALL: [Attack; 11] = [
    Attack::UnreadClaims,
    Attack::UnreadLists,
    Attack::NoHello,
    Attack::IdleConnections,
    Attack::Waits,
    Attack::HalfRequests,
    Attack::Pings,
    Attack::Settings,
    Attack::Resets,
    Attack::EmptyData,
    Attack::QueueNames,
];

impl Attack {
    fn connections(self) -> usize {
        match self {
            Self::UnreadClaims | Self::UnreadLists => 100,
            Self::IdleConnections => 400,
            Self::NoHello | Self::Waits | Self::HalfRequests => 40,
            _ => 4,
        }
    }

    /// What one connection does each time that it has its turn. False: it has done all it can.
    async fn act(self, raw: &Raw, turn: u32) -> std::io::Result<bool> {
        let stream = 2 * turn + 1;
        match self {
            Self::IdleConnections => Ok(false),
            Self::UnreadClaims => Self::call(raw, turn, 60, "QueueService/Claim", &unread::short_claim()).await,
            Self::UnreadLists => {
                Self::call(raw, turn, 250, "AdminService/ListQueues", &ListQueuesRequest::default()).await
            }
            Self::NoHello => Self::open(raw, turn, "QueueService/Work").await,
            Self::Waits => {
                let wait = Some(prost_types::Duration { seconds: 30, nanos: 0 });
                let claim = ClaimRequest { queues: vec!["none".into()], wait, ..ClaimRequest::default() };
                Self::call(raw, turn, 250, "QueueService/Claim", &claim).await
            }
            Self::HalfRequests => {
                // As much as the connection's window takes, and no more.
                let half = [&[0, 0, 32, 0, 0][..], &[1; 4_000]].concat();
                Self::open(raw, turn, "QueueService/Enqueue").await?;
                raw.send(&frame(DATA, 0, stream, &half)).await.map(|()| turn < 250)
            }
            Self::Pings => raw.send(&frame(PING, 0, 0, &[0; 8]).repeat(1_000)).await.map(|()| true),
            Self::Settings => raw.send(&frame(SETTINGS, 0, 0, &[]).repeat(1_000)).await.map(|()| true),
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
        }
    }

    async fn call(raw: &Raw, turn: u32, most: u32, method: &str, request: &impl Message) -> std::io::Result<bool> {
        raw.call(method, request).await.map(|_| turn < most)
    }

    async fn open(raw: &Raw, turn: u32, method: &str) -> std::io::Result<bool> {
        raw.open(method).await.map(|_| turn < 250)
    }

    /// One client of the attack: it connects again when it is thrown out.
    async fn client(self, address: std::net::SocketAddr, until: Instant) {
        let window = if matches!(self, Self::UnreadClaims | Self::UnreadLists) { 0 } else { 65_535 };
        while Instant::now() < until {
            let Ok(raw) = Raw::connect(address, window).await else { continue };
            let (mut turn, mut goes_on) = (0, true);
            while Instant::now() < until && !raw.seen().closed {
                goes_on = goes_on && self.act(&raw, turn).await.unwrap_or(false);
                turn += 1;
                if !goes_on {
                    raw.wait_for(until.saturating_duration_since(Instant::now()), |seen| seen.closed).await;
                }
            }
            raw.close().await;
        }
    }

    /// The most memory that the server used.
    async fn run(self, server: &Server) -> u64 {
        let until = Instant::now() + ROUND;
        let attack = |_| tokio::spawn(self.client(server.address, until));
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

async fn rounds(attack: Attack) -> Result<(), String> {
    let data = scratch();
    // So that idle connections reach the bound with the file descriptors that a test has.
    let config = config_file(data.path(), "[limits]\nconnections = 300\nconnections_per_peer = 290\n");
    let server = Launch::on(data.path()).arg("--config").arg(config).start();
    if matches!(attack, Attack::UnreadClaims) {
        unread::fill(&server).await;
    }
    let beside = Beside::start(&server).await;
    tokio::time::sleep(ROUND).await;
    let quiet = beside.p99().await;
    let (mut p99, mut used) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let beside = Beside::start(&server).await;
        used.push(attack.run(&server).await);
        p99.push(beside.p99().await);
    }
    p99.sort();
    let median = p99[ROUNDS / 2];
    let (first, later) = (used[0], used[1..].iter().max().copied().unwrap());
    let name = format!("{attack:?}");
    println!(
        "{name:16} p99 {quiet:9.1?} quiet, {median:9.1?} beside it; {first:4} MB in the first round, {later:4} MB later"
    );
    let slow = median > P99_MAX.max(3 * quiet);
    let grows = later > first + MORE_MAX;
    if slow || grows { Err(format!("{name}: slow {slow}, grows {grows}")) } else { Ok(()) }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes six minutes; script/attack runs it"]
async fn five_rounds_of_each_attack() {
    let asked = std::env::var("REDRIVE_ATTACK").unwrap_or_default();
    let mut failed = Vec::new();
    for attack in ALL.into_iter().filter(|attack| format!("{attack:?}").contains(&asked)) {
        failed.extend(rounds(attack).await.err());
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
