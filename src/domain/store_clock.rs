//! The embedded store's clock: boot time counts, wall time only steers.
//!
//! The store keeps its time, the boot id and the boot clock with every commit. Within one boot, also over a restart of
//! the process, elapsed boot time is added to what was kept, so a wall-clock jump neither releases a retry early nor ends
//! a lease. After a reboot the boot clock says nothing about the time between, so the later of kept and wall is taken.

use super::time::Timestamp;

/// What the machine's clocks say at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Microseconds since the Unix epoch.
    pub wall_us: u64,
    /// Microseconds since boot, sleep included.
    pub boot_us: u64,
    pub boot_id: BootId,
}

/// Differs from boot to boot.
pub type BootId = u128;

/// What the store writes with each commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    pub time_us: u64,
    pub boot_us: u64,
    pub boot_id: BootId,
}

/// Store time moves toward wall time by at most this share of elapsed time.
const STEERING_SHARE: u64 = 100;

/// So much time is gathered before the clock is steered, however often it is asked.
const STEERED_EVERY_US: u64 = 10_000;

#[derive(Clone, Debug)]
pub struct StoreClock {
    last: Kept,
    /// Time passed since it was steered.
    unsteered_us: u64,
}

impl StoreClock {
    pub fn start(kept: Option<Kept>, reading: Reading) -> Self {
        let time_us = match kept {
            None => reading.wall_us,
            Some(kept) if kept.boot_id == reading.boot_id => {
                kept.time_us + reading.boot_us.saturating_sub(kept.boot_us)
            }
            Some(kept) => kept.time_us.max(reading.wall_us),
        };
        let last = Kept { time_us, boot_us: reading.boot_us, boot_id: reading.boot_id };
        Self { last, unsteered_us: 0 }
    }

    /// Store time at this reading. Never earlier than the last answer.
    pub fn now(&mut self, reading: Reading) -> Timestamp {
        let elapsed = reading.boot_us.saturating_sub(self.last.boot_us);
        let undisturbed = self.last.time_us + elapsed;
        self.unsteered_us += elapsed;
        let most = match self.unsteered_us {
            ..STEERED_EVERY_US => 0,
            gathered => {
                self.unsteered_us = 0;
                gathered / STEERING_SHARE
            }
        };
        let steered = if reading.wall_us >= undisturbed {
            undisturbed + (reading.wall_us - undisturbed).min(most)
        } else {
            // Not more than has passed since the last answer, or time would run backwards.
            undisturbed - (undisturbed - reading.wall_us).min(most).min(elapsed)
        };
        self.last.time_us = steered;
        self.last.boot_us = self.last.boot_us.max(reading.boot_us);
        Timestamp::from_millis(steered / 1_000)
    }

    /// To be written with the commit.
    pub fn kept(&self) -> Kept {
        self.last
    }
}
