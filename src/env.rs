//! The one place that reads clocks and randomness. Everything else is handed what it needs.

use crate::domain::{BootId, Reading};
use crate::lock::lock;
use rand::RngExt;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

/// The machine's clocks.
pub trait Clock: std::fmt::Debug + Send + Sync + 'static {
    fn read(&self) -> Reading;
}

/// The real ones: wall time, time since boot (sleep included), and which boot this is.
#[derive(Debug)]
pub struct SystemClock {
    boot_id: BootId,
}

impl SystemClock {
    pub fn new() -> Self {
        // Where the system does not tell, every start counts as a boot: store time is then max(kept, wall).
        let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .ok()
            .and_then(|id| BootId::from_str_radix(&id.trim().replace('-', ""), 16).ok())
            .unwrap_or_else(random);
        Self { boot_id }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    fn read(&self) -> Reading {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let boot = Duration::new(boot.tv_sec.cast_unsigned(), boot.tv_nsec as u32);
        Reading { wall_us: micros(wall), boot_us: micros(boot), boot_id: self.boot_id }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A clock that stands still until it is moved.
#[derive(Debug)]
pub struct ManualClock(Mutex<Reading>);

impl ManualClock {
    pub fn at(wall: Duration) -> Self {
        Self(Mutex::new(Reading { wall_us: micros(wall), boot_us: 1_000_000, boot_id: 1 }))
    }

    /// Time passes.
    pub fn advance(&self, by: Duration) {
        self.change(|reading| {
            reading.wall_us += micros(by);
            reading.boot_us += micros(by);
        });
    }

    /// The wall clock is set; no time passes.
    pub fn jump_wall(&self, seconds: i64) {
        self.change(|reading| {
            reading.wall_us = reading.wall_us.saturating_add_signed(seconds * 1_000_000);
        });
    }

    /// The machine starts again: the boot clock begins at zero.
    pub fn reboot(&self) {
        self.change(|reading| {
            reading.boot_id += 1;
            reading.boot_us = 0;
        });
    }

    fn change(&self, change: impl FnOnce(&mut Reading)) {
        change(&mut lock(&self.0));
    }
}

impl Clock for ManualClock {
    fn read(&self) -> Reading {
        *lock(&self.0)
    }
}

/// For measuring how long something takes.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn instant() -> Instant {
    Instant::now()
}

/// A random number of the system's generator.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub fn random<T>() -> T
where
    rand::distr::StandardUniform: rand::distr::Distribution<T>,
{
    rand::rng().random()
}
