//! What a job costs Redis: the commands that it takes, and the time that Redis spends in scripts for it.
//!
//!     cargo bench --bench redis_cost
//!
//! Takes jobs through the verbs of the store at several sizes of call, and reads `INFO commandstats`. Commands are counted
//! in scripts and out; the time of a script has that of the commands in it. Then one Nack per call from many callers at
//! once, on one queue. Each round has a redis-server of its own. Of commands and scripts, which no machine changes, the
//! mean is printed; of times and rates the best, for whatever else runs makes them only worse.

#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on stops")]

#[allow(dead_code, reason = "the suite uses the rest of it")]
#[path = "../tests/store/redis_server.rs"]
mod redis_server;
mod subjects;

use redis_server::Server;
use redrive::domain::{Lease, Limits, NewJob, QueueName, Settings};
use redrive::env::{SystemClock, instant};
use redrive::queue::EnqueueOutcome;
use redrive::queue::hosts::redis::RedisStore;
use redrive::queue::{Ack, Claim, Nack, Settlements, Share};
use redrive::queue::{Host, Queues};
use redrive::store::redis::Options;
use redrive::store::redis::connection::Address;
use std::{sync::Arc, time::Duration};

const ROUNDS: usize = 7;
/// Of one part; each size of call divides it.
const JOBS: usize = 3_000;
const BATCHES: [usize; 3] = [1, 25, 100];
const CALLERS: usize = 64;
/// Longer than a run.
const LONG: Duration = Duration::from_secs(3_600);

/// For each job.
#[derive(Clone, Copy, Debug)]
struct Cost {
    commands: f64,
    scripts: f64,
    script_us: f64,
    jobs_per_second: f64,
}

#[tokio::main]
async fn main() {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push(round().await);
    }
    println!("{:<50}{:>10}{:>10}{:>12}{:>10}", "per job", "commands", "scripts", "script µs", "jobs/s");
    for (at, (part, _)) in rounds[0].iter().enumerate() {
        let figures = |of: fn(&Cost) -> f64| rounds.iter().map(move |parts| of(&parts[at].1));
        println!(
            "{part:<50}{:>10.2}{:>10.2}{:>12.1}{:>10.0}",
            figures(|cost| cost.commands).sum::<f64>() / ROUNDS as f64,
            figures(|cost| cost.scripts).sum::<f64>() / ROUNDS as f64,
            figures(|cost| cost.script_us).fold(f64::MAX, f64::min),
            figures(|cost| cost.jobs_per_second).fold(0.0, f64::max),
        );
    }
}

/// Every part, on a Redis that nothing was in.
async fn round() -> Vec<(String, Cost)> {
    let server = Server::start();
    let store = Arc::new(open(server.address()).await);
    let mut redis = redis::Client::open(server.address()).unwrap().get_connection().unwrap();
    let mut costs = Vec::new();
    for keyed in [false, true] {
        for batch in BATCHES {
            let with = format!("{batch} per call{}", if keyed { ", with keys" } else { "" });
            let mut work = Work::begin(&store, &format!("{batch}-{keyed}"), keyed).await;
            let life = async {
                for _ in 0..JOBS / batch {
                    work.enqueue(batch).await;
                    let leases = work.claim(batch).await;
                    work.ack(leases).await;
                }
            };
            costs.push((format!("enqueue, claim and ack, {with}"), cost(&mut redis, life).await));
            let enqueue = async {
                for _ in 0..JOBS / batch {
                    work.enqueue(batch).await;
                }
            };
            costs.push((format!("enqueue, {with}"), cost(&mut redis, enqueue).await));
            let fail = async {
                for _ in 0..JOBS / batch {
                    let leases = work.claim(batch).await;
                    work.nack(leases).await;
                }
            };
            costs.push((format!("claim and nack, {with}"), cost(&mut redis, fail).await));
        }
    }
    let mut work = Work::begin(&store, "callers", false).await;
    let mut leases = Vec::new();
    for _ in 0..JOBS / 100 {
        work.enqueue(100).await;
        leases.extend(work.claim(100).await);
    }
    let part = format!("nack, 1 per call, {CALLERS} callers");
    costs.push((part, cost(&mut redis, nack_at_once(work, &leases)).await));
    store.close().await;
    costs
}

async fn open(address: &str) -> RedisStore {
    let options = Options::new(Address::parse(address).unwrap());
    let (clock, setup) = (Arc::new(SystemClock::new()), subjects::setup(settings()));
    let queues = Limits::default().queues;
    let store = RedisStore::open_redis(options, queues, false, clock, setup);
    store.await.unwrap()
}

/// Each caller has its share of the leases and nacks one after the other.
async fn nack_at_once<H: Host>(work: Work<H>, leases: &[Lease]) {
    let callers: Vec<_> = leases
        .chunks(leases.len().div_ceil(CALLERS))
        .map(|own| {
            let (work, own) = (work.clone(), own.to_vec());
            tokio::spawn(async move {
                for lease in own {
                    work.nack(vec![lease]).await;
                }
            })
        })
        .collect();
    assert_eq!(callers.len(), CALLERS);
    for caller in callers {
        caller.await.unwrap();
    }
}

// ---- what Redis says ----

async fn cost(redis: &mut redis::Connection, part: impl Future<Output = ()>) -> Cost {
    redis::cmd("CONFIG").arg("RESETSTAT").exec(redis).unwrap();
    let began = instant();
    part.await;
    let took = began.elapsed();
    let stats: String = redis::cmd("INFO").arg("commandstats").query(redis).unwrap();
    let (mut commands, mut scripts, mut script_us) = (0, 0, 0);
    for line in stats.lines() {
        let Some((name, figures)) = line.strip_prefix("cmdstat_").and_then(|l| l.split_once(':')) else {
            continue;
        };
        // Asked by this program.
        if name == "info" || name.starts_with("config") {
            continue;
        }
        commands += figure(figures, "calls=");
        if name.starts_with("eval") || name.starts_with("fcall") {
            scripts += figure(figures, "calls=");
            script_us += figure(figures, "usec=");
        }
    }
    let per_job = |count: u64| count as f64 / JOBS as f64;
    Cost {
        commands: per_job(commands),
        scripts: per_job(scripts),
        script_us: per_job(script_us),
        jobs_per_second: JOBS as f64 / took.as_secs_f64(),
    }
}

fn figure(figures: &str, name: &str) -> u64 {
    let found = figures.split(',').find_map(|figure| figure.strip_prefix(name));
    found.unwrap().parse().unwrap()
}

// ---- what is done ----

fn settings() -> Settings {
    let mut settings = Settings::default();
    let defaults = Arc::make_mut(&mut settings.defaults);
    // The breaker counts what fails, but does not open.
    defaults.breaker.failure_threshold = u32::MAX;
    // What has failed does not come due while others are claimed.
    defaults.policy.base_delay = LONG;
    defaults.policy.max_delay = LONG * 2;
    settings
}

/// Calls on one queue, through the contract alone.
struct Work<H> {
    store: Arc<Queues<H>>,
    queue: QueueName,
    keyed: bool,
    jobs: u64,
}

impl<H> Clone for Work<H> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), queue: self.queue.clone(), ..*self }
    }
}

impl<H: Host> Work<H> {
    /// The queue is there, its scripts are known, and a job has been done in it.
    async fn begin(store: &Arc<Queues<H>>, queue: &str, keyed: bool) -> Self {
        let queue = QueueName::parse(queue).unwrap();
        let mut work = Self { store: store.clone(), queue, keyed, jobs: 0 };
        work.enqueue(2).await;
        let leases = work.claim(1).await;
        work.ack(leases).await;
        let leases = work.claim(1).await;
        work.nack(leases).await;
        work
    }

    fn new_job(&mut self) -> NewJob {
        self.jobs += 1;
        let key = self.keyed.then(|| format!("order-{}", self.jobs));
        NewJob { queue: self.queue.clone(), key, ..subjects::new_job() }
    }

    async fn enqueue(&mut self, jobs: usize) {
        let jobs = (0..jobs).map(|_| self.new_job()).collect();
        let added = self.store.enqueue(jobs).await.unwrap();
        assert!(added.iter().all(|added| added.as_ref().is_ok_and(|job| job.outcome == EnqueueOutcome::Added)));
    }

    async fn claim(&self, jobs: usize) -> Vec<Lease> {
        let claim = Claim {
            shares: vec![Share { queue: self.queue.clone(), first: usize::MAX }],
            max_jobs: jobs,
            max_bytes: usize::MAX,
            lease_duration: Some(LONG),
            worker_id: "worker-1".into(),
            request_id: String::new(),
            settle: Settlements::default(),
        };
        let claimed = self.store.claim(claim).await.unwrap().jobs.delivered();
        assert_eq!(claimed.len(), jobs, "so many are ready");
        claimed.into_iter().map(|job| job.delivery.lease).collect()
    }

    async fn ack(&self, leases: Vec<Lease>) {
        let ack = |lease| Ack { lease, note: String::new(), result: Default::default(), breaker_key: String::new() };
        let acks = leases.into_iter().map(ack).collect();
        self.settle(Settlements { acks, ..Settlements::default() }).await;
    }

    async fn nack(&self, leases: Vec<Lease>) {
        let outcome = subjects::failure();
        let nack = |lease| Nack { lease, outcome: outcome.clone(), checkpoint: String::new() };
        let nacks = leases.into_iter().map(nack).collect();
        self.settle(Settlements { nacks, ..Settlements::default() }).await;
    }

    async fn settle(&self, settlements: Settlements) {
        let settled = self.store.settle(settlements).await.unwrap();
        assert!(settled.acks.iter().all(Result::is_ok) && settled.nacks.iter().all(Result::is_ok));
    }
}
