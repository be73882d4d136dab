//! The load of one round: flags, each checked.

use super::Error;
use super::args::bad;
use crate::domain::duration;
use clap::{Args, ValueEnum, builder::ArgPredicate};
use serde::Serialize;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Enqueue, Claim and Ack, one job in each
    Unary,
    /// EnqueueBatch, Claim and Settle of many jobs
    Batch,
    /// EnqueueBatch, and Work streams
    Stream,
}

#[derive(Clone, Debug, Args, Serialize)]
pub(super) struct Plan {
    /// How callers talk to the server
    #[arg(long, value_name = "MODE", default_value = "unary")]
    pub(super) mode: Mode,
    /// Callers that only enqueue; 0: every worker enqueues its own jobs [default: 0; stream: 4]
    #[arg(long, value_name = "N", hide_default_value = true)]
    #[arg(default_value = "0", default_value_if("mode", "stream", "4"))]
    pub(super) producers: usize,
    /// Callers that claim and ack, or streams [default: unary 64, batch 16, stream 4]
    #[arg(long, visible_alias = "callers", value_name = "N", hide_default_value = true)]
    #[arg(default_value = "64", default_value_ifs([("mode", "batch", "16"), ("mode", "stream", "4")]))]
    pub(super) workers: usize,
    /// Connections that they share
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(super) connections: usize,
    /// Bytes of each job's body
    #[arg(long, value_name = "BYTES", default_value_t = 256)]
    pub(super) payload: usize,
    /// The share of attempts that fail, 0 to 0.9; such jobs are retried after 50 ms to 100 ms
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub(super) fail_rate: f64,
    /// Jobs that wait in the queue before the measuring begins, and all the time
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) backlog: u64,
    /// Jobs in each call of modes batch and stream
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(super) batch: usize,
    /// Jobs that each stream may have out
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub(super) window: usize,
    /// How many jobs producers may be ahead of workers [default: twice what the workers can hold]
    // Where there is a backlog, also workers of producers.
    #[arg(long, value_name = "N")]
    pub(super) ahead: Option<u64>,
    /// Jobs in each round [default: as many as the duration allows]
    #[arg(long, value_name = "N", conflicts_with = "duration")]
    pub(super) jobs: Option<u64>,
    /// How long jobs are enqueued in each round [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = duration::parse, hide_default_value = true)]
    #[arg(default_value = "5s", default_value_if("jobs", ArgPredicate::IsPresent, None))]
    #[serde(rename = "duration_seconds", serialize_with = "seconds")]
    pub(super) duration: Option<Duration>,
    /// At most so many jobs a second, to measure below capacity [default: as fast as it goes]
    #[arg(long, value_name = "N")]
    pub(super) rate: Option<f64>,
    /// Give every job an idempotency key of its own
    #[arg(long)]
    pub(super) keys: bool,
}

fn seconds<S: serde::Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    time.map(|time| time.as_secs_f64()).serialize(to)
}

/// The limits of a server with built-in values: more than these it would refuse or cut.
const BATCH_MAX: usize = 1_000;
const BATCH_BYTES_MAX: usize = 4 << 20;
const PAYLOAD_MAX: usize = 1 << 20;

impl Plan {
    /// With what follows from other flags filled in.
    pub(super) fn checked(mut self) -> Result<Self, Error> {
        if self.mode == Mode::Unary {
            self.batch = 1;
        }
        let held = if self.mode == Mode::Stream { self.window } else { self.batch };
        let ahead = self.ahead.unwrap_or((2 * self.workers * held) as u64);
        self.ahead = Some(ahead.max(self.batch as u64));
        let at_least_one = "it must be at least 1";
        let large = self.batch > BATCH_MAX || self.batch * (self.payload + 128) > BATCH_BYTES_MAX;
        let problems = [
            (self.workers == 0, "--workers", at_least_one),
            (self.connections == 0, "--connections", at_least_one),
            (self.batch == 0, "--batch", at_least_one),
            (self.window == 0, "--window", at_least_one),
            (
                self.mode == Mode::Stream && self.producers == 0,
                "--producers",
                "streams only work: mode stream needs at least 1",
            ),
            (self.jobs == Some(0), "--jobs", at_least_one),
            (
                !(0.0..=0.9).contains(&self.fail_rate),
                "--fail-rate",
                "it must be from 0 to 0.9, or the jobs never get done",
            ),
            (self.rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0), "--rate", "it must be more than 0"),
            (self.payload > PAYLOAD_MAX, "--payload", "a body has at most 1048576 bytes"),
            (large, "--batch", "a call takes at most 1000 jobs and 4 MiB together"),
        ];
        match problems.into_iter().find(|(wrong, ..)| *wrong) {
            Some((_, flag, why)) => Err(bad(flag, why)),
            None => Ok(self),
        }
    }
}
