//! `redrive bench`: a load generator over the real API, and the no-op server that shows what the wire allows.
//!
//! A client like any other: it knows the contract and nothing of what is behind it. `load` makes one round of load,
//! `target` starts what is measured, `noop` is the ceiling, `report` says what came out.

mod args;
mod load;
mod noop;
mod plan;
mod report;
mod target;
mod timings;
mod usage;

pub use args::{BenchArgs, HELP};
pub use noop::{NoopArgs, run as run_noop};
pub use plan::Mode;

use crate::grpc::pb::admin_service_client::AdminServiceClient;
use crate::grpc::pb::{self, enqueue_result};
use load::{Client, Round};
use plan::Plan;
use report::{Figures, Measured, Process, Rates, Report, ServerFacts};
use std::io::{self, IsTerminal, Write};
use std::iter;
use std::time::Duration;
use target::Target;
use timings::KINDS;
use tokio::signal::unix::{SignalKind, signal};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{flag}: {why}")]
    Flag { flag: String, why: String },
    #[error("cannot start a server to measure: {0}")]
    Start(String),
    #[error(
        "cannot reach a server at {address}: {why}\nstart one with redrive serve, or leave out --address to measure one of its own"
    )]
    Connect { address: String, why: String },
    #[error("{call} was not answered as it should be: {why}")]
    Answer { call: &'static str, why: String },
    #[error("the load generator broke: {0}")]
    Broken(String),
    #[error("interrupted: nothing was measured")]
    Interrupted,
}

impl Error {
    /// The flags are the cause.
    pub fn is_of_flags(&self) -> bool {
        matches!(self, Self::Flag { .. })
    }
}

/// Measures, and prints what came out.
pub fn run(args: &BenchArgs) -> Result<(), Error> {
    let plan = args.load.clone().checked()?;
    if args.rounds == 0 {
        return Err(args::bad("--rounds", "it must be at least 1"));
    }
    let broken = |error: io::Error| Error::Broken(error.to_string());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let report = runtime.map_err(broken)?.block_on(async {
        let mut told_to_end = signal(SignalKind::terminate()).map_err(broken)?;
        // Leaving this block ends the servers and removes what they kept.
        tokio::select! {
            report = measure(args, plan) => report,
            _ = tokio::signal::ctrl_c() => Err(Error::Interrupted),
            _ = told_to_end.recv() => Err(Error::Interrupted),
        }
    });
    say("");
    let report = report?;
    let text = if args.output == "json" { report.json() } else { report.table() };
    // `| head` may have gone.
    let _ = io::stdout().lock().write_all(text.as_bytes());
    Ok(())
}

async fn measure(args: &BenchArgs, plan: Plan) -> Result<Report, Error> {
    let redrive = match &args.address {
        Some(address) => Target::running(address, args.pid),
        None => Target::server(args)?,
    };
    let redrive = Subject::connect(redrive, &plan).await?;
    let ceiling = match args.ceiling {
        true => Some(Subject::connect(Target::ceiling(&plan)?, &plan).await?),
        false => None,
    };
    let server = facts(&redrive.target).await?;
    fill(&redrive.clients, &plan).await?;
    if !args.warmup.is_zero() {
        say("warming up");
        let plan = Plan { jobs: None, duration: Some(args.warmup), ..plan.clone() };
        for subject in iter::once(&redrive).chain(&ceiling) {
            Round::new(&plan).run(&subject.clients).await?;
        }
    }
    let mut rounds = Vec::with_capacity(args.rounds);
    for number in 1..=args.rounds {
        say(&format!("round {number} of {}", args.rounds));
        let figures = redrive.measure(&plan).await?;
        let ceiling = match &ceiling {
            Some(ceiling) => Some(ceiling.measure(&plan).await?),
            None => None,
        };
        rounds.push(Measured::new(figures, ceiling));
    }
    if redrive.target.started.is_none() || server.engine != "embedded" {
        drain(&redrive.clients).await?;
    }
    let slow = "this is a debug build, several times slower than cargo build --release";
    let remarks = cfg!(debug_assertions).then_some(slow).into_iter().collect();
    let median = Rates::median(&rounds);
    Ok(Report { version: env!("CARGO_PKG_VERSION"), load: plan, remarks, server, rounds, median })
}

/// A server, and the connections to it.
struct Subject {
    target: Target,
    clients: Vec<Client>,
}

impl Subject {
    async fn connect(target: Target, plan: &Plan) -> Result<Self, Error> {
        let clients = load::connect(&target.address, plan.connections).await?;
        Ok(Self { target, clients })
    }

    async fn measure(&self, plan: &Plan) -> Result<Figures, Error> {
        let usage = || self.target.pid.and_then(usage::of);
        let (before, own_before) = (usage(), usage::of(std::process::id()));
        let round = Round::new(plan);
        let took = round.run(&self.clients).await?;
        let (after, own_after) = (usage(), usage::of(std::process::id()));
        let jobs = round.acked();
        let per_job = |cpu: Duration| cpu.as_secs_f64() * 1e6 / jobs as f64;
        let process = before.zip(after).map(|(before, after)| {
            let cpu = after.cpu.saturating_sub(before.cpu);
            Process {
                cpu_us_per_job: per_job(cpu),
                cores: cpu.as_secs_f64() / took.as_secs_f64(),
                rss_bytes: after.rss_bytes,
                peak_rss_bytes: after.peak_rss_bytes,
            }
        });
        let own = own_before.zip(own_after);
        Ok(Figures {
            jobs,
            seconds: took.as_secs_f64(),
            jobs_per_second: jobs as f64 / took.as_secs_f64(),
            failed_attempts: round.failed(),
            times: KINDS.map(|(kind, name, _)| (name, round.timings.spread(kind))).into(),
            process,
            client_cpu_us_per_job: own.map(|(before, after)| per_job(after.cpu.saturating_sub(before.cpu))),
        })
    }
}

async fn facts(target: &Target) -> Result<ServerFacts, Error> {
    let address = target.address.clone();
    let admin = AdminServiceClient::connect(format!("http://{address}")).await;
    let mut admin = admin.map_err(|error| load::unreachable(&address, &error))?;
    let info = admin.get_server_info(pb::GetServerInfoRequest::default()).await;
    let info = load::answered("GetServerInfo", info)?;
    Ok(ServerFacts {
        address,
        started: target.started.is_some(),
        version: info.version,
        engine: info.engine,
        durability: info.durability,
    })
}

/// Jobs in one call that fills or empties the queue.
const LOT: usize = 1_000;

/// Puts the backlog in place, from several callers at once so that they share the fsyncs.
async fn fill(clients: &[Client], plan: &Plan) -> Result<(), Error> {
    let lot = LOT.min((3 << 20) / (plan.payload + 128)).max(1);
    let mut left = plan.backlog as usize;
    while left > 0 {
        say(&format!("{left} jobs of the backlog to go"));
        let mut calls = tokio::task::JoinSet::new();
        for client in clients {
            let mut client = client.clone();
            let jobs = load::jobs::backlog(plan.payload, left.min(lot));
            left -= jobs.len();
            let request = pb::EnqueueBatchRequest { jobs };
            calls.spawn(async move { client.enqueue_batch(request).await });
        }
        for answer in calls.join_all().await {
            let answer = load::answered("EnqueueBatch", answer)?;
            let ok = |result: &pb::EnqueueResult| matches!(result.outcome, Some(enqueue_result::Outcome::Ok(_)));
            if !answer.results.iter().all(ok) {
                let why = "the queue does not take the backlog".into();
                return Err(Error::Answer { call: "EnqueueBatch", why });
            }
        }
    }
    Ok(())
}

/// Leaves nothing behind where it would stay.
async fn drain(clients: &[Client]) -> Result<(), Error> {
    let Some(mut client) = clients.first().cloned() else { return Ok(()) };
    say("taking away what is left");
    loop {
        let claim =
            pb::ClaimRequest { queues: vec![load::QUEUE.into()], max_jobs: LOT as u32, ..pb::ClaimRequest::default() };
        let jobs = load::answered("Claim", client.claim(claim).await)?.jobs;
        if jobs.is_empty() {
            return Ok(());
        }
        let ack = |job: pb::Job| pb::AckRequest { lease: job.lease, ..pb::AckRequest::default() };
        let acks = jobs.into_iter().map(ack).collect();
        let settle = pb::SettleRequest { acks, ..pb::SettleRequest::default() };
        load::answered("Settle", client.settle(settle).await)?;
    }
}

/// What takes a while, on a terminal in place of what stood there; nothing elsewhere.
fn say(text: &str) {
    if io::stderr().is_terminal() {
        let _ = write!(io::stderr().lock(), "\r\x1b[K{text}");
    }
}
