//! How soon a server with a million waiting jobs hands out the first one, and what memory it has then.
//!
//!     cargo bench --bench open
//!
//! Fills a store, starts the real server on it, and claims: in peace, and after a SIGKILL.

mod subjects;

use redrive::{env::instant, grpc::pb, grpc::pb::queue_service_client::QueueServiceClient};
use std::{fs, path::Path, time::Duration};
use subjects::{Subject, server::Server};

const WAITING: usize = 1_000_000;
const FIRST_CLAIM_MAX: Duration = Duration::from_millis(100);
const MEMORY_MAX_MB: u64 = 100;
const ROUNDS: usize = 5;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let room = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("there is room");
    let data = room.path().to_owned();
    // It has a runtime of its own.
    let filled = std::thread::spawn(move || fill(&data)).join();
    filled.expect("the store is filled");
    let mut took = Vec::new();
    for round in 1..=ROUNDS {
        let began = instant();
        let server = Server::start("--data", &room.path().display().to_string());
        claim(&server.address).await;
        let first = began.elapsed();
        // Some work, so that what it needs for that is in memory too.
        for _ in 0..100 {
            claim(&server.address).await;
        }
        let memory = memory_mb(server.process.id());
        println!("round {round}   first claim {first:>8.1?} after the start   memory {memory} MB");
        assert!(memory < MEMORY_MAX_MB, "{memory} MB, and under {MEMORY_MAX_MB} are wanted");
        took.push(first);
        // It is killed: the next start reads what is in the log.
    }
    took.sort_unstable();
    let median = took[took.len() / 2];
    println!("{WAITING} jobs waiting: first claim {median:.1?} after the start, median of {ROUNDS}");
    assert!(median < FIRST_CLAIM_MAX, "{median:.1?}, and under {FIRST_CLAIM_MAX:?} are wanted");
}

fn fill(data: &Path) {
    let mut subject = Subject::open(data);
    for _ in 0..WAITING / 1_000 {
        subject.enqueue(1_000);
    }
    subject.close();
}

async fn claim(address: &str) {
    let mut client = QueueServiceClient::connect(address.to_owned()).await.expect("it answers");
    let queues = vec![subjects::queue().to_string()];
    let claim = pb::ClaimRequest { queues, ..Default::default() };
    let reply = client.claim(claim).await.expect("it is handed out").into_inner();
    assert_eq!(reply.jobs.len(), 1);
}

fn memory_mb(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|peak| peak.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.expect("the system tells") * 1024 / 1_000_000
}
