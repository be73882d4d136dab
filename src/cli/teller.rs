//! Progress of what takes long.

use crate::env::{Clock, SystemClock};
use std::io::{self, IsTerminal, Write};

/// A line about progress comes no more often than this.
const TELL_EVERY_US: u64 = 1_000_000;

/// Tells on standard error how far it is, once it takes long enough to wonder.
#[derive(Debug)]
pub(super) struct Teller {
    /// Who tells.
    what: &'static str,
    clock: SystemClock,
    last_us: u64,
    on_terminal: bool,
}

impl Teller {
    pub(super) fn new(what: &'static str) -> Self {
        let clock = SystemClock::new();
        let last_us = clock.read().boot_us;
        Self { what, clock, last_us, on_terminal: io::stderr().is_terminal() }
    }

    pub(super) fn tell(&mut self, step: &str, done: u64, of: Option<u64>) {
        let now = self.clock.read().boot_us;
        if now.saturating_sub(self.last_us) < TELL_EVERY_US {
            return;
        }
        self.last_us = now;
        let what = self.what;
        let of = of.map_or_else(String::new, |of| format!(" of {of}"));
        let (begin, end) = if self.on_terminal { ("\r\x1b[K", "") } else { ("", "\n") };
        // Whoever watched may have gone; the work goes on.
        let _ = write!(io::stderr().lock(), "{begin}{what}: {step} {done}{of}{end}");
    }

    /// Leaves no half line on a terminal.
    pub(super) fn done(&self) {
        if self.on_terminal {
            let _ = write!(io::stderr().lock(), "\r\x1b[K");
        }
    }
}
