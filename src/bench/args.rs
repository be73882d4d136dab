//! What `redrive bench` can be asked for.

use super::{Error, plan::Plan};
use crate::config::Durability;
use crate::domain::duration;
use clap::Args;
use std::{path::PathBuf, time::Duration};

pub const HELP: &str = "\
Without --address it starts a server of its own, a second process on a fresh directory, and removes
both at the end. A job's life is enqueue, claim, ack; jobs/s counts whole lives.

  redrive bench                                        # 64 callers, three unary calls per job
  redrive bench --workers 256 --ceiling --rounds 5     # beside a server that does nothing
  redrive bench --mode batch --workers 16              # 100 jobs in each call
  redrive bench --mode stream -o json                  # EnqueueBatch and Work streams
  redrive bench --address 127.0.0.1:7433 --pid 4711    # a server that runs already

Figures of one machine say little about another, and on a busy one they vary: compare what was
measured in one run, best as a ratio to --ceiling.";

#[derive(Clone, Debug, Args)]
pub struct BenchArgs {
    /// A server that runs already; its queue redrive-bench is used [default: one of its own]
    #[arg(long, value_name = "HOST:PORT")]
    pub address: Option<String>,
    /// With --address: the server's process on this machine, for its CPU time and memory
    #[arg(long, value_name = "PID", requires = "address")]
    pub pid: Option<u32>,
    #[command(flatten)]
    pub(super) load: Plan,
    /// Run the load for so long before measuring
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = duration::parse)]
    pub warmup: Duration,
    /// Where the server of its own keeps jobs: embedded, or the address of a Redis for them
    #[arg(long, value_name = "ENGINE", default_value = "embedded", conflicts_with = "address")]
    pub engine: String,
    /// What is certain when the server of its own answers [default: fsync]
    #[arg(long, value_name = "LEVEL", conflicts_with = "address")]
    pub durability: Option<Durability>,
    /// Where the server of its own gets its directory, on a disk like the real one [default: .]
    #[arg(long, value_name = "DIR", conflicts_with = "address")]
    pub data: Option<PathBuf>,
    /// Measure a server of the same contract that does nothing, in turn, and print the ratio
    #[arg(long)]
    pub ceiling: bool,
    /// Measure so many times, and print the median
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub rounds: usize,
    /// A table for people or JSON for programs
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    #[arg(value_parser = ["table", "json"])]
    pub output: String,
    /// Flags for the server of its own, after --
    #[arg(last = true, value_name = "SERVE FLAGS", conflicts_with = "address")]
    pub serve: Vec<String>,
}

/// A flag whose value cannot be measured with.
pub(super) fn bad(flag: &str, why: impl Into<String>) -> Error {
    Error::Flag { flag: flag.to_owned(), why: why.into() }
}
