//! What `redrive bench` can be asked for.

use super::{Error, plan::Mode};
use crate::config::Durability;
use clap::{
    Args,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
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
    /// How callers talk to the server
    #[arg(long, value_name = "MODE", default_value = "unary", value_parser = mode())]
    pub mode: Mode,
    /// Callers that only enqueue; 0: every worker enqueues its own jobs [default: 0; stream: 4]
    #[arg(long, value_name = "N")]
    pub producers: Option<usize>,
    /// Callers that claim and ack, or streams [default: unary 64, batch 16, stream 4]
    #[arg(long, visible_alias = "callers", value_name = "N")]
    pub workers: Option<usize>,
    /// Connections that they share
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub connections: usize,
    /// Bytes of each job's body
    #[arg(long, value_name = "BYTES", default_value_t = 256)]
    pub payload: usize,
    /// The share of attempts that fail, 0 to 0.9; such jobs are retried after 50 ms to 100 ms
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub fail_rate: f64,
    /// Jobs that wait in the queue before the measuring begins, and all the time
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub backlog: u64,
    /// Jobs in each call of modes batch and stream
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub batch: usize,
    /// Jobs that each stream may have out
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub window: usize,
    /// How many jobs producers may be ahead of workers [default: twice what the workers can hold]
    #[arg(long, value_name = "N")]
    pub ahead: Option<u64>,
    /// Jobs in each round [default: as many as the duration allows]
    #[arg(long, value_name = "N", conflicts_with = "duration")]
    pub jobs: Option<u64>,
    /// How long jobs are enqueued in each round [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub duration: Option<Duration>,
    /// At most so many jobs a second, to measure below capacity [default: as fast as it goes]
    #[arg(long, value_name = "N")]
    pub rate: Option<f64>,
    /// Run the load for so long before measuring
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = time)]
    pub warmup: Duration,
    /// Give every job an idempotency key of its own
    #[arg(long)]
    pub keys: bool,
    /// Where the server of its own keeps jobs: embedded, or the address of a Redis for them
    #[arg(long, value_name = "ENGINE", default_value = "embedded", conflicts_with = "address")]
    pub engine: String,
    /// What is certain when the server of its own answers [default: fsync]
    #[arg(long, value_name = "LEVEL", value_parser = crate::cli::durability)]
    #[arg(conflicts_with = "address")]
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

fn mode() -> impl TypedValueParser<Value = Mode> {
    let unary = PossibleValue::new("unary").help("Enqueue, Claim and Ack, one job in each");
    let batch = PossibleValue::new("batch").help("EnqueueBatch, Claim and Settle of many jobs");
    let stream = PossibleValue::new("stream").help("EnqueueBatch, and Work streams");
    PossibleValuesParser::new([unary, batch, stream])
        .try_map(|word| Mode::parse(&word).ok_or_else(|| format!("{word:?} is not allowed here")))
}

fn time(text: &str) -> Result<Duration, String> {
    crate::domain::duration::parse(text)
}

/// A flag whose value cannot be measured with.
pub(super) fn bad(flag: &str, why: impl Into<String>) -> Error {
    Error::Flag { flag: flag.to_owned(), why: why.into() }
}
