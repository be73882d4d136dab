//! The breaker of the dead letters: a new one that finds no room is overflow, and after some of these in a row room is
//! not looked for until `probe_at`.

use super::{super::settings::BreakerSettings, super::time::Timestamp, Breaker, BreakerState, Outage};

/// Whether a new dead letter is overflow, and what that did to the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverflowDecision {
    pub overflow: bool,
    /// The breaker has changed and must be kept.
    pub changed: bool,
}

const FULL: &str = "the dead letters are full (dead_letters.max_entries)";

impl Breaker {
    /// A job dies. `full_in_a_row`: how many before it found no room, one after the other.
    pub fn dead_letter(
        &mut self, full: bool, full_in_a_row: &mut u32, settings: &BreakerSettings, now: Timestamp,
    ) -> OverflowDecision {
        let state = self.state(settings, now);
        if state == BreakerState::Open {
            return OverflowDecision { overflow: true, changed: false };
        }
        *full_in_a_row = if full { full_in_a_row.saturating_add(1) } else { 0 };
        let nothing_opens_it = self.forced.is_some() || settings.disabled;
        let changed = match state {
            _ if nothing_opens_it => false,
            BreakerState::HalfOpen if full => self.open_full(now, settings),
            BreakerState::HalfOpen => self.found_room(settings, now),
            _ if *full_in_a_row >= settings.failure_threshold => self.open_full(now, settings),
            _ => false,
        };
        if changed && self.outage.is_some() {
            *full_in_a_row = 0;
        }
        OverflowDecision { overflow: full, changed }
    }

    /// Dead letters left, and there is room. True: that closed it.
    pub fn room_made(&mut self, now: Timestamp) -> bool {
        let closes = self.outage.is_some() && self.forced.is_none();
        if closes {
            self.close_full(now);
        }
        closes
    }

    fn open_full(&mut self, now: Timestamp, settings: &BreakerSettings) -> bool {
        let since = self.outage.as_ref().map_or(now, |outage| outage.since);
        let probe_at = now.after(settings.recovery_timeout);
        self.outage =
            Some(Box::new(Outage { since, down_since: since, opened_at: now, probe_at, ..Outage::default() }));
        self.trips += 1;
        FULL.clone_into(&mut self.last_error);
        self.transit(BreakerState::Open, FULL.to_owned(), now);
        true
    }

    fn close_full(&mut self, now: Timestamp) {
        self.outage = None;
        self.transit(BreakerState::Closed, String::new(), now);
    }

    fn found_room(&mut self, settings: &BreakerSettings, now: Timestamp) -> bool {
        if let Some(outage) = &mut self.outage {
            outage.successes += 1;
            if outage.successes >= settings.success_threshold {
                self.close_full(now);
            }
        }
        true
    }
}
