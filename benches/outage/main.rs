//! An outage in real time: the real server, real workers, a downstream that slows, falls over and is down for a while.
//!
//!     script/outage [--scenario NAME] [--engine embedded|redis|bullmq|asynq]
//!
//! If a scenario says nothing else: 10,000 jobs at 40/s, 20 slots. The downstream serves 200 calls/s in 20 ms, takes 40 ms above
//! that, and over 300 calls in one second it falls: 503 for 5 s, longer while over 200/s arrive. It is down from second 20 to 140.
//! Prints one row, and what is not held; `target/outage` gets the calls of each second. Redis: three servers on one Redis.

mod downstream;
mod peers;
mod plans;
#[allow(dead_code, reason = "the suite uses the rest of it")]
#[path = "../../tests/store/redis_server.rs"]
mod redis_server;
#[path = "../subjects/mod.rs"]
mod subjects;

use downstream::{Failed, Service};
use plans::{Keys, Plan, Scenario};
use redrive::grpc::pb;
use redrive::grpc::pb::admin_service_client::AdminServiceClient;
use redrive::grpc::pb::queue_service_client::QueueServiceClient;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use subjects::server::Server;
use tonic::transport::Channel;

const QUEUE: &str = "payments";
/// Claims of one connection.
const SLOTS_OF_A_CHANNEL: usize = 50;

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Engine {
    Embedded,
    Redis,
    /// BullMQ with five attempts, exponential backoff from a second.
    Bullmq,
    /// asynq with its defaults.
    Asynq,
}

#[derive(clap::Parser, Debug)]
struct Args {
    #[arg(long, value_enum, default_value = "outage")]
    scenario: Scenario,
    #[arg(long, value_enum, default_value = "embedded")]
    engine: Engine,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures")]
fn now() -> Instant {
    Instant::now()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic")
}

struct World {
    begin: Instant,
    plan: Plan,
    services: Vec<Mutex<Service>>,
    work: Mutex<Work>,
}

/// What became of the jobs so far.
#[derive(Default)]
struct Work {
    /// When each was enqueued, in seconds.
    enqueued: Vec<f64>,
    done: usize,
    /// Attempts that were counted against those that are done.
    counted: u64,
    /// Of those that are done: when they were enqueued, how long that took in milliseconds, and by which downstream.
    waits: Vec<(f64, u64, usize)>,
    /// When less than a second's worth of jobs was left, after the outage.
    drained: Option<f64>,
}

impl World {
    fn at(&self) -> f64 {
        now().duration_since(self.begin).as_secs_f64()
    }

    fn call(&self, target: usize) -> (Duration, Option<Failed>) {
        lock(&self.services[target]).call(self.at())
    }

    fn up_again(&self) -> f64 {
        let ends = self.plan.downstreams.iter().map(|downstream| downstream.down.1);
        ends.filter(|end| *end < f64::MAX).fold(0.0, f64::max)
    }

    fn poison(&self) -> usize {
        self.plan.jobs.checked_div(self.plan.poison).unwrap_or(0)
    }

    fn is_poison(&self, number: usize) -> bool {
        self.plan.poison > 0 && number % self.plan.poison == self.plan.poison / 2
    }

    fn over(&self) -> bool {
        self.at() > self.plan.end || lock(&self.work).done >= self.plan.jobs - self.poison()
    }

    fn done(&self, number: usize, attempt: u32) {
        let (at, target) = (self.at(), number % self.services.len());
        let mut work = lock(&self.work);
        work.done += 1;
        work.counted += u64::from(attempt - 1);
        let enqueued = work.enqueued[number];
        work.waits.push((enqueued, ((at - enqueued) * 1e3) as u64, target));
        let left = (at * self.plan.rate).min(self.plan.jobs as f64) - work.done as f64 - self.poison() as f64;
        let (up_again, rate) = (self.up_again(), self.plan.rate);
        if up_again > 0.0 && at > up_again && left < rate {
            work.drained.get_or_insert(at - up_again);
        }
    }
}

/// One slot: claims a job, calls the downstream, reports what it said.
async fn work(world: Arc<World>, mut client: QueueServiceClient<Channel>) {
    while !world.over() {
        let wait = Some(Duration::from_secs(2).try_into().expect("it fits"));
        let lease_duration = Some(Duration::from_secs(60).try_into().expect("it fits"));
        let queues = vec![QUEUE.into()];
        let claim = pb::ClaimRequest { queues, max_jobs: 1, wait, lease_duration, ..Default::default() };
        let Ok(reply) = client.claim(claim).await else { continue };
        for job in reply.into_inner().jobs {
            let Some(pb::job::Body::Text(number)) = &job.body else { panic!("a job of another program") };
            let number: usize = number.parse().expect("a number");
            let target = number % world.services.len();
            let (takes, mut failed) = world.call(target);
            tokio::time::sleep(takes).await;
            if world.is_poison(number) {
                failed = Some(("InternalServerError", 500));
            }
            let lease = job.lease;
            let Some((error_type, http_status)) = failed else {
                let ack = pb::AckRequest { lease, ..Default::default() };
                client.ack(ack).await.expect("its lease is out");
                world.done(number, job.attempt);
                continue;
            };
            let breaker_key = if world.plan.keys == Keys::None { String::new() } else { key(target) };
            let error = pb::Failure { r#type: error_type.into(), http_status, breaker_key, ..Default::default() };
            let nack = pb::NackRequest { lease, error: Some(error), ..Default::default() };
            client.nack(nack).await.expect("its lease is out");
        }
    }
}

fn key(target: usize) -> String {
    format!("api-{target}")
}

async fn produce(world: Arc<World>, mut client: QueueServiceClient<Channel>) {
    for number in 0..world.plan.jobs {
        let due = Duration::from_secs_f64(number as f64 / world.plan.rate);
        tokio::time::sleep(due.saturating_sub(now().duration_since(world.begin))).await;
        let target = number % world.services.len();
        let breaker_key = if world.plan.keys == Keys::Given { key(target) } else { String::new() };
        let body = Some(pb::enqueue_request::Body::Text(number.to_string()));
        let (queue, r#type) = (QUEUE.into(), "charge".into());
        let job = pb::EnqueueRequest { queue, r#type, body, breaker_key, ..Default::default() };
        let at = world.at();
        lock(&world.work).enqueued.push(at);
        client.enqueue(job).await.expect("it is added");
    }
}

fn main() -> ExitCode {
    let args = <Args as clap::Parser>::parse();
    let plan = Plan::of(args.scenario, args.engine == Engine::Redis);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(run(&args, plan))
}

async fn run(args: &Args, plan: Plan) -> ExitCode {
    let redis = (args.engine != Engine::Embedded).then(redis_server::Server::start);
    let services = plan.downstreams.iter().cloned().map(|it| Mutex::new(Service::new(it))).collect();
    let (begin, mut work) = (now(), Work::default());
    let peer: Option<&[&str]> = match args.engine {
        Engine::Embedded | Engine::Redis => None,
        Engine::Bullmq => Some(&["node", "bench/peers/bullmq/outage.mjs"]),
        Engine::Asynq => Some(&["target/outage/asynq"]),
    };
    if peer.is_some() {
        work.enqueued = (0..plan.jobs).map(|number| number as f64 / plan.rate).collect();
    }
    let mut world = World { begin, plan, services, work: Mutex::new(work) };
    let (world, dead, trips) = match (peer, &redis) {
        (Some(program), Some(redis)) => {
            world.begin = now();
            let world = Arc::new(world);
            let downstream = peers::serve(world.clone()).await;
            let (done, dead) = peers::run(program, redis.address(), &downstream, &world).await;
            lock(&world.work).done = done;
            (world, dead, 0)
        }
        _ => live_through(world, redis.as_ref()).await,
    };
    report(args, &world, dead, trips)
}

/// Says how many jobs died, and how often a breaker opened.
async fn live_through(mut world: World, redis: Option<&redis_server::Server>) -> (Arc<World>, u64, u32) {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("redrive.toml");
    std::fs::write(&config, format!("[queues.{QUEUE}]\n{}", world.plan.config)).expect("a file");
    let config = config.to_str().expect("a path");
    let data = directory.path().join("data");
    let servers: Vec<_> = match redis {
        Some(redis) => (0..3).map(|_| Server::configured("--redis", redis.address(), config)).collect(),
        None => vec![Server::configured("--data", data.to_str().expect("a path"), config)],
    };
    let mut channels = Vec::new();
    for at in 0..servers.len().max(world.plan.slots.div_ceil(SLOTS_OF_A_CHANNEL)) {
        let address = servers[at % servers.len()].address.clone();
        let channel = Channel::from_shared(address).expect("an address").connect().await;
        channels.push(channel.expect("the server answers"));
    }
    world.begin = now();
    let world = Arc::new(world);
    let client = |at: usize| QueueServiceClient::new(channels[at % channels.len()].clone());
    let mut tasks: Vec<_> = (0..world.plan.slots).map(|slot| tokio::spawn(work(world.clone(), client(slot)))).collect();
    tasks.push(tokio::spawn(produce(world.clone(), client(0))));
    for task in tasks {
        task.await.expect("no panic");
    }
    // Poison has its retries still.
    let mut dead = 0;
    let mut admin = AdminServiceClient::new(channels[0].clone());
    let patience = world.at() + if world.poison() > 0 { 30.0 } else { 0.0 };
    loop {
        let stats = pb::GetStatsRequest { queue: QUEUE.into() };
        dead = dead.max(admin.get_stats(stats).await.expect("stats").into_inner().dead_lettered);
        if dead >= world.poison() as u64 || world.at() > patience {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        let claim = pb::ClaimRequest { queues: vec![QUEUE.into()], max_jobs: 100, ..Default::default() };
        for job in client(0).claim(claim).await.expect("an answer").into_inner().jobs {
            let error =
                Some(pb::Failure { r#type: "InternalServerError".into(), http_status: 500, ..Default::default() });
            let nack = pb::NackRequest { lease: job.lease, error, ..Default::default() };
            client(0).nack(nack).await.expect("its lease is out");
        }
    }
    let status = client(0).breaker_status(pb::BreakerStatusRequest::default()).await.expect("an answer").into_inner();
    let work = status.breakers.iter().filter(|breaker| breaker.name.starts_with("queue:"));
    (world, dead, work.map(|breaker| breaker.trips).sum())
}

fn percentile(waits: impl Iterator<Item = u64>) -> Option<u64> {
    let mut waits: Vec<u64> = waits.collect();
    waits.sort_unstable();
    waits.get(waits.len() * 99 / 100).copied()
}

fn report(args: &Args, world: &World, dead: u64, trips: u32) -> ExitCode {
    let (plan, work) = (&world.plan, lock(&world.work));
    let services: Vec<_> = world.services.iter().map(lock).collect();
    let sum = |of: fn(&Service) -> u32| services.iter().map(|service| of(service)).sum::<u32>();
    let (failed, falls) = (sum(|service| service.failed), sum(|service| service.falls));
    let peak = services.iter().map(|service| service.peak).max().unwrap_or(0);
    let first_success = services[0].first_success;
    let peer = matches!(args.engine, Engine::Bullmq | Engine::Asynq);
    let drained = if peer { drained_by_calls(world, &services[0]) } else { work.drained };
    // Of jobs whose downstream is well, before and from the outage on.
    let last = services.len() - 1;
    let from = plan.downstreams[0].down.0.min(plan.end / 2.0);
    let well = |before: bool| {
        let waits = work.waits.iter().filter(|(at, _, target)| *target == last && (*at < from) == before);
        percentile(waits.map(|(_, wait, _)| *wait))
    };
    let (usual, p99) = (well(true).unwrap_or(0), well(false).unwrap_or(0));
    let name = |value: &dyn std::fmt::Debug| format!("{value:?}");
    let seconds = |value: Option<f64>| value.map_or_else(|| "–".into(), |value| format!("{value:.1} s"));
    let or_dash = |shown: bool, text: String| if shown { text } else { "–".into() };
    println!(
        "| scenario | engine | done | dead | attempts counted | failed calls | falls | peak calls/s | first success | drained | p99 of what is well, before |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    println!(
        "| {} | {} | {} | {dead} | {} | {failed} | {falls} | {peak} | {} | {} | {} |",
        name(&args.scenario),
        name(&args.engine),
        work.done,
        or_dash(!peer, work.counted.to_string()),
        seconds(first_success.filter(|_| world.up_again() > 0.0)),
        seconds(drained),
        or_dash(plan.bounds.well_above_usual.is_some() || plan.poison > 0, format!("{p99} ms, {usual} ms")),
    );
    write_figures(args, world, &services);
    if peer {
        return ExitCode::SUCCESS;
    }
    let (bounds, poison) = (&plan.bounds, world.poison());
    let within = |value: Option<f64>, bound: Option<f64>| bound.is_none_or(|most| value.is_some_and(|it| it <= most));
    let holds = [
        (work.done == plan.jobs - poison, "all jobs are done"),
        (dead == poison as u64, "no job is dead, but all poison is"),
        (bounds.counted.is_none_or(|most| work.counted <= most), "no attempt was counted"),
        (failed <= bounds.failed, "few calls failed"),
        (falls <= bounds.falls, "it was not knocked over"),
        (bounds.peak.is_none_or(|most| peak <= most), "the peak is bounded"),
        (within(first_success, bounds.first_success), "the first success comes soon"),
        (within(drained, bounds.drained), "the backlog is gone in time"),
        (bounds.well_above_usual.is_none_or(|more| p99 <= usual * 6 / 5 + more), "the others did not notice"),
        (bounds.trips.is_none_or(|most| trips <= most), "the breaker stayed shut"),
    ];
    let mut code = ExitCode::SUCCESS;
    for (_, bound) in holds.iter().filter(|(holds, _)| !holds) {
        println!("NOT HELD: {bound}");
        code = ExitCode::FAILURE;
    }
    code
}

/// Of a peer no more is seen than its calls.
fn drained_by_calls(world: &World, service: &Service) -> Option<f64> {
    let (plan, up_again) = (&world.plan, world.up_again());
    let mut served = 0.0;
    let drained = service.seconds.iter().enumerate().find(|(second, (ok, _))| {
        served += f64::from(*ok);
        let at = *second as f64 + 1.0;
        at > up_again && (at * plan.rate).min(plan.jobs as f64) - served < plan.rate
    });
    drained.map(|(second, _)| second as f64 + 1.0 - up_again)
}

/// For the plot: the scenario, then second, served and failed calls.
fn write_figures(args: &Args, world: &World, services: &[MutexGuard<'_, Service>]) {
    let mut text = String::new();
    let length = services.iter().map(|service| service.seconds.len()).max().unwrap_or(0);
    for second in 0..length {
        let calls = services.iter().filter_map(|service| service.seconds.get(second));
        let (served, failed) = calls.fold((0, 0), |(all, more), (ok, bad)| (all + ok, more + bad));
        writeln!(text, "{second} {served} {failed}").expect("it fits");
    }
    let (from, to) = world.plan.downstreams[0].down;
    let from_to = if to < f64::MAX { format!("# {from} {to}\n") } else { String::new() };
    let name = format!("{:?}-{:?}.dat", args.scenario, args.engine).to_lowercase();
    let folder = std::path::Path::new("target/outage");
    std::fs::create_dir_all(folder).expect("a folder");
    std::fs::write(folder.join(name), from_to + &text).expect("a file");
}
