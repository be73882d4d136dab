//! What is measured: the flags with their defaults filled in, each checked.

use super::{
    Error,
    args::{BenchArgs, bad},
};
use serde::Serialize;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Unary,
    Batch,
    Stream,
}

impl Mode {
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "unary" => Some(Self::Unary),
            "batch" => Some(Self::Batch),
            "stream" => Some(Self::Stream),
            _ => None,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Unary => "unary",
            Self::Batch => "batch",
            Self::Stream => "stream",
        }
    }

    fn workers(self) -> usize {
        match self {
            Self::Unary => 64,
            Self::Batch => 16,
            Self::Stream => 4,
        }
    }
}

/// The load of one round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Plan {
    pub(super) mode: Mode,
    /// None: the workers enqueue.
    pub(super) producers: usize,
    pub(super) workers: usize,
    pub(super) connections: usize,
    pub(super) payload: usize,
    pub(super) fail_rate: f64,
    pub(super) backlog: u64,
    /// Jobs in each call.
    pub(super) batch: usize,
    /// Jobs that each stream may have out.
    pub(super) window: usize,
    /// How far producers may be ahead of workers, and where there is a backlog workers of producers.
    pub(super) ahead: u64,
    pub(super) jobs: Option<u64>,
    #[serde(rename = "duration_seconds", serialize_with = "seconds")]
    pub(super) duration: Option<Duration>,
    pub(super) rate: Option<f64>,
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
    pub(super) fn new(args: &BenchArgs) -> Result<Self, Error> {
        let mode = args.mode;
        let batch = if mode == Mode::Unary { 1 } else { args.batch };
        let workers = args.workers.unwrap_or_else(|| mode.workers());
        let producers = args.producers.unwrap_or(if mode == Mode::Stream { 4 } else { 0 });
        let holds = if mode == Mode::Stream { args.window } else { batch };
        let ahead = args.ahead.unwrap_or((2 * workers * holds) as u64).max(batch as u64);
        let duration = match (args.jobs, args.duration) {
            (None, None) => Some(Duration::from_secs(5)),
            (_, duration) => duration,
        };
        let plan = Self {
            mode,
            producers,
            workers,
            connections: args.connections,
            payload: args.payload,
            fail_rate: args.fail_rate,
            backlog: args.backlog,
            batch,
            window: args.window,
            ahead,
            jobs: args.jobs,
            duration,
            rate: args.rate,
            keys: args.keys,
        };
        plan.check(args)?;
        Ok(plan)
    }

    fn check(&self, args: &BenchArgs) -> Result<(), Error> {
        let counts = [
            ("--workers", self.workers),
            ("--connections", self.connections),
            ("--batch", self.batch),
            ("--window", self.window),
            ("--rounds", args.rounds),
        ];
        for (flag, count) in counts {
            if count == 0 {
                return Err(bad(flag, "it must be at least 1"));
            }
        }
        if self.mode == Mode::Stream && self.producers == 0 {
            return Err(bad("--producers", "streams only work: mode stream needs at least 1"));
        }
        if self.jobs == Some(0) {
            return Err(bad("--jobs", "it must be at least 1"));
        }
        if !(0.0..=0.9).contains(&self.fail_rate) {
            return Err(bad("--fail-rate", "it must be from 0 to 0.9, or the jobs never get done"));
        }
        if self.rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
            return Err(bad("--rate", "it must be more than 0"));
        }
        if self.payload > PAYLOAD_MAX {
            return Err(bad("--payload", "a body has at most 1048576 bytes"));
        }
        if self.batch > BATCH_MAX || self.batch * (self.payload + 128) > BATCH_BYTES_MAX {
            return Err(bad("--batch", "a call takes at most 1000 jobs and 4 MiB together"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn plan(line: &str) -> Result<Plan, String> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        let args = Line::try_parse_from(words).expect("flags that clap takes").args;
        Plan::new(&args).map_err(|error| error.to_string())
    }

    #[test]
    fn each_mode_has_its_own_defaults() {
        let unary = plan("").unwrap();
        assert_eq!((unary.producers, unary.workers, unary.batch), (0, 64, 1));
        assert_eq!((unary.jobs, unary.duration), (None, Some(Duration::from_secs(5))));
        let batch = plan("--mode batch --jobs 10").unwrap();
        assert_eq!((batch.producers, batch.workers, batch.batch), (0, 16, 100));
        assert_eq!((batch.jobs, batch.duration), (Some(10), None));
        let stream = plan("--mode stream").unwrap();
        assert_eq!((stream.producers, stream.workers, stream.ahead), (4, 4, 8_000));
    }

    #[test]
    fn what_cannot_be_measured_is_refused_by_the_name_of_its_flag() {
        for (line, flag) in [
            ("--workers 0", "--workers"),
            ("--rounds 0", "--rounds"),
            ("--mode stream --producers 0", "--producers"),
            ("--jobs 0", "--jobs"),
            ("--fail-rate 1", "--fail-rate"),
            ("--fail-rate NaN", "--fail-rate"),
            ("--rate 0", "--rate"),
            ("--payload 2000000", "--payload"),
            ("--mode batch --batch 1001", "--batch"),
            ("--mode batch --batch 1000 --payload 10000", "--batch"),
        ] {
            let error = plan(line).unwrap_err();
            assert!(error.starts_with(flag), "{line}: {error}");
        }
    }
}
