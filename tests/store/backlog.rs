//! A Redis of its own with a long line of jobs, and what it tells of the work that they are.

use crate::{builders::*, recorded_events::RecordedEvents, redis_server::Server};
use redrive::domain::Limits;
use redrive::env::SystemClock;
use redrive::queue::hosts::redis::RedisStore;
use redrive::queue::{Nack, Settlements};
use redrive::queue::{Setup, Subscribers};
use redrive::store::redis::Options;
use redrive::store::redis::connection::Address;
use std::sync::Arc;

/// Of a job with a body of 200 bytes and no key.
pub(crate) const BYTES_PER_JOB: usize = 600;
const BODY_BYTES: usize = 200;
/// What no script should take, in microseconds.
const SLOW_US: usize = 5_000;

pub(crate) struct Backlog {
    store: RedisStore,
    redis: redis::Connection,
    _server: Server,
}

/// Calls of scripts, and those of them that took too long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calls {
    pub(crate) all: usize,
    pub(crate) slow: usize,
}

impl Calls {
    /// Of a thousand calls.
    pub(crate) fn slow_of_1000(self) -> f64 {
        1_000.0 * self.slow as f64 / self.all.max(1) as f64
    }
}

impl Backlog {
    pub(crate) async fn open() -> Self {
        let server = Server::start();
        let address = Address::parse(server.address()).unwrap();
        let options = Options { heartbeat: false, ..Options::new(address) };
        let max_queues = Limits::default().queues;
        let clock = Arc::new(SystemClock::new());
        let subscribers = Subscribers::default().with(Arc::new(RecordedEvents::default()));
        let setup = Setup { subscribers, ..Setup::default() };
        let store = RedisStore::open_redis(options, max_queues, false, clock, setup).await.unwrap();
        let mut redis = redis::Client::open(server.address()).unwrap().get_connection().unwrap();
        let slow = redis::cmd("CONFIG")
            .arg("SET")
            .arg(&["slowlog-log-slower-than", &SLOW_US.to_string()])
            .arg(&["slowlog-max-len", "100000"])
            .exec(&mut redis);
        slow.unwrap();
        Self { store, redis, _server: server }
    }

    /// Adds jobs, a thousand with each call.
    pub(crate) async fn grow(&self, jobs: usize) {
        let body = "x".repeat(BODY_BYTES);
        for begun in (0..jobs).step_by(1_000) {
            let some = vec![job("q").body(&body); (jobs - begun).min(1_000)];
            for added in self.store.enqueue(some).await.unwrap() {
                added.unwrap();
            }
        }
    }

    fn info(&mut self, section: &str) -> String {
        redis::cmd("INFO").arg(section).query(&mut self.redis).unwrap()
    }

    pub(crate) fn used_memory(&mut self) -> usize {
        let info = self.info("memory");
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        line.expect("Redis tells it").trim().parse().unwrap()
    }

    /// Commands that Redis has carried out, inside scripts and out.
    fn commands(&mut self) -> usize {
        let stats = self.info("commandstats");
        stats.lines().filter(|line| !line.starts_with("cmdstat_info")).filter_map(calls).sum()
    }

    pub(crate) fn calls(&mut self) -> Calls {
        let stats = self.info("commandstats");
        let scripts = stats.lines().filter(|line| line.starts_with("cmdstat_evalsha"));
        let all = scripts.filter_map(calls).sum();
        let slow = redis::cmd("SLOWLOG").arg("LEN").query(&mut self.redis).unwrap();
        Calls { all, slow }
    }

    /// The commands that it takes to enqueue one, to claim ten, and to dead_letter one.
    pub(crate) async fn commands_of_one_round(&mut self) -> [usize; 3] {
        let mut counts = [0; 3];
        let before = self.commands();
        self.grow(1).await;
        counts[0] = self.commands() - before;
        let before = self.commands();
        let jobs = self.store.claim(claim_of(&["q"], 10)).await.unwrap().jobs.delivered();
        assert_eq!(jobs.len(), 10);
        counts[1] = self.commands() - before;
        let before = self.commands();
        let lease = jobs[0].delivery.lease.clone();
        let nacks = vec![Nack { lease, outcome: permanent(), checkpoint: String::new() }];
        let settlements = Settlements { nacks, ..Settlements::default() };
        self.store.settle(settlements).await.unwrap();
        counts[2] = self.commands() - before;
        counts
    }
}

/// Of a line of `commandstats`.
fn calls(line: &str) -> Option<usize> {
    line.split_once("calls=")?.1.split_once(',')?.0.parse().ok()
}
