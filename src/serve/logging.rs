//! Where log lines go: standard error, as text for people or JSON for programs.

use super::Error;
use crate::config::{Log, LogFormat, LogLevel};
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
    // Somebody who embeds the server may have a log already.
    drop(started);
    Ok(Flush(flush))
}

fn filter(log: &Log) -> Result<EnvFilter, Error> {
    let directives = directives(log);
    EnvFilter::try_new(&directives)
        .map_err(|error| Error::LogFilter { directives, why: error.to_string() })
}

/// The libraries below say nothing that helps below a warning.
fn directives(log: &Log) -> String {
    match (&log.directives, log.level) {
        (Some(directives), _) => directives.clone(),
        (None, LogLevel::Error) => "error".into(),
        (None, level) => format!("warn,redrive={}", level.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(level: LogLevel, directives: Option<&str>) -> Log {
        Log { format: LogFormat::Auto, level, directives: directives.map(str::to_owned) }
    }

    #[test]
    fn the_level_is_that_of_redrive_not_of_its_libraries() {
        assert_eq!(directives(&log(LogLevel::Debug, None)), "warn,redrive=debug");
        assert_eq!(directives(&log(LogLevel::Error, None)), "error");
    }

    #[test]
    fn rust_log_goes_over_the_level() {
        assert_eq!(directives(&log(LogLevel::Info, Some("h2=trace"))), "h2=trace");
    }

    #[test]
    fn directives_that_cannot_be_read_are_refused_by_name() {
        let error = filter(&log(LogLevel::Info, Some("redrive=loud"))).unwrap_err().to_string();
        assert!(error.starts_with("RUST_LOG=\"redrive=loud\" cannot be read: "), "{error}");
        for level in LogLevel::WORDS.into_iter().filter_map(LogLevel::parse) {
            assert!(filter(&log(level, None)).is_ok());
        }
    }
}
