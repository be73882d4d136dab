//! How long a job takes from one server to a worker who waits at another: from the call of Enqueue to the job in hand.
//!
//!     cargo bench --bench hop
//!
//! Starts two real servers on a Redis of its own, on loopback. Meant for an idle machine.

use redrive::grpc::pb::{self, queue_service_client::QueueServiceClient};
use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tonic::transport::Channel;

const HOPS: usize = 500;
const P99_MAX: Duration = Duration::from_millis(25);
const QUEUE: &str = "hop";

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs it until one of its lines has what is looked for, which is handed back.
fn start(command: &mut Command, find: impl Fn(&str) -> Option<String>) -> (Process, String) {
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it can be run");
    let mut lines = BufReader::new(child.stdout.take().expect("it has an output")).lines();
    let found = lines.by_ref().map_while(Result::ok).find_map(|line| find(&line));
    // Whoever cannot write its log any more may stop.
    std::thread::spawn(move || lines.for_each(drop));
    (Process(child), found.expect("it says that it runs"))
}

fn redis() -> (Process, String) {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = free.expect("there is a free port").port().to_string();
    let mut command = Command::new("redis-server");
    command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    let ready = |line: &str| line.contains("Ready to accept").then(String::new);
    let (process, _) = start(&mut command, ready);
    (process, format!("redis://127.0.0.1:{port}"))
}

async fn server(redis: &str) -> (Process, QueueServiceClient<Channel>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--redis", redis]);
    let address = |line: &str| line.trim().strip_prefix("gRPC").map(|at| at.trim().to_owned());
    let (process, address) = start(&mut command, address);
    let client = QueueServiceClient::connect(format!("http://{address}")).await;
    (process, client.expect("the server answers"))
}

fn job() -> pb::EnqueueRequest {
    pb::EnqueueRequest { queue: QUEUE.into(), r#type: "t".into(), ..Default::default() }
}

/// Waits for one job and acknowledges it; says when it came.
async fn work(client: &mut QueueServiceClient<Channel>) -> Instant {
    let claim = pb::ClaimRequest {
        queues: vec![QUEUE.into()],
        wait: Some(Duration::from_secs(30).try_into().expect("it fits")),
        ..Default::default()
    };
    let reply = client.claim(claim).await.expect("it is handed out").into_inner();
    let came = now();
    let lease = reply.jobs.first().expect("there is a job").lease.clone();
    let ack = pb::AckRequest { lease, ..Default::default() };
    client.ack(ack).await.expect("it is done");
    came
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (_redis, redis) = redis();
    let ((_a, mut producer), (_b, mut worker)) = (server(&redis).await, server(&redis).await);
    producer.enqueue(job()).await.expect("it is added");
    work(&mut worker).await;
    let mut took = Vec::with_capacity(HOPS);
    while took.len() < HOPS {
        // By then the worker waits; how long it has done so makes no difference.
        let pause = Duration::from_millis(10 + took.len() as u64 % 7);
        let producing = async {
            tokio::time::sleep(pause).await;
            let sent = now();
            producer.enqueue(job()).await.expect("it is added");
            sent
        };
        let (came, sent) = tokio::join!(work(&mut worker), producing);
        took.push(came.saturating_duration_since(sent));
    }
    took.sort_unstable();
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
    println!("{HOPS} jobs from one server to a worker waiting at another, Redis on loopback:");
    println!("  p50 {:?}   p90 {:?}   p99 {:?}   max {:?}", at(0.5), at(0.9), at(0.99), at(1.0));
    assert!(at(0.99) < P99_MAX, "p99 is {:?}, and should be under {P99_MAX:?}", at(0.99));
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures")]
fn now() -> Instant {
    Instant::now()
}
