//! Progress of what takes long.

use crate::env::{Clock, SystemClock};
use std::io::{self, IsTerminal, Write};

/// A line about progress comes no more often than this.
const REPORT_EVERY_US: u64 = 1_000_000;

/// Reports progress on standard error, once a command takes long.
#[derive(Debug)]
pub(super) struct Progress {
    /// The command that runs.
    what: &'static str,
    clock: SystemClock,
    last_us: u64,
    on_terminal: bool,
}

impl Progress {
    pub(super) fn new(what: &'static str) -> Self {
        let clock = SystemClock::new();
        let last_us = clock.read().boot_us;
        Self { what, clock, last_us, on_terminal: io::stderr().is_terminal() }
    }

    pub(super) fn report(&mut self, step: &str, done: u64, of: Option<u64>) {
        let now = self.clock.read().boot_us;
        if now.saturating_sub(self.last_us) < REPORT_EVERY_US {
            return;
        }
        self.last_us = now;
        let what = self.what;
        let of = of.map_or_else(String::new, |of| format!(" of {of}"));
        let (begin, end) = if self.on_terminal { ("\r\x1b[K", "") } else { ("", "\n") };
        // A closed standard error must not stop the work.
        let _ = write!(io::stderr().lock(), "{begin}{what}: {step} {done}{of}{end}");
    }

    /// Leaves no half line on a terminal.
    pub(super) fn done(&self) {
        if self.on_terminal {
            let _ = write!(io::stderr().lock(), "\r\x1b[K");
        }
    }
}
