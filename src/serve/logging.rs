//! Where log lines go: standard error, as text for people or JSON for programs.

use super::Error;
use crate::config::{Log, LogFormat};
use std::io::{self, IsTerminal};
use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::EnvFilter;

/// Writes what is left when dropped.
pub(super) struct Flush(#[expect(dead_code, reason = "it is there to be dropped")] WorkerGuard);

pub(super) fn start(log: &Log) -> Result<Flush, Error> {
    let terminal = io::stderr().is_terminal();
    // A reader that does not keep up must not hold up the store: lines that do not fit any more are left out.
    let (writer, flush) = tracing_appender::non_blocking(io::stderr());
    let lines = tracing_subscriber::fmt().with_env_filter(filter(log)?).with_writer(writer);
    let started = match log.format {
        LogFormat::Auto if !terminal => lines.json().flatten_event(true).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
        // Left alone on a terminal, because there NO_COLOR decides.
        _ if terminal => lines.try_init(),
        _ => lines.with_ansi(false).try_init(),
    };
    // A program that embeds the server may have a log already.
    drop(started);
    Ok(Flush(flush))
}

fn filter(log: &Log) -> Result<EnvFilter, Error> {
    let directives = log.filter();
    EnvFilter::try_new(&directives).map_err(|error| Error::LogFilter { directives, why: error.to_string() })
}
