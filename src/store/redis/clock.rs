//! Store time on Redis: TIME of the node that holds the catalogue, as a lower bound, plus an offset kept in the catalogue.
//!
//! Each sample says what TIME was somewhere between sending and receiving; since then, time has passed here as it has there.
//! A server that sees TIME jump against its boot clock changes the offset so that store time runs on, by compare-and-set;
//! the offset then goes back to zero by 1 % of the time that passes. So a jump of Redis' clock releases nothing early, and
//! all servers, those that start later included, have the same store time.

use super::lock;
use crate::{domain::time::Timestamp, env::Clock};
use std::{
    fmt,
    sync::{Arc, Mutex},
};

/// Clocks that are set right by small steps are followed.
const JUMP_MIN_US: i64 = 250_000;
/// The most by which the rates of two clocks differ.
const DRIFT_PPM: i64 = 500;
/// How fast an offset goes back to zero.
const SLEW_PERCENT: i64 = 1;
/// So long another server may overrule an offset.
const OVERRULED_WITHIN_US: i64 = 10_000_000;

/// Where store time comes from.
#[derive(Clone)]
pub enum TimeSource {
    /// From Redis.
    Redis,
    /// From this function, as tests do; scripts then compare no TIME.
    Given(Arc<dyn Fn() -> Timestamp + Send + Sync>),
}

impl fmt::Debug for TimeSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Redis => "Redis",
            Self::Given(_) => "Given",
        })
    }
}

/// One reply with TIME in it; all in microseconds, the last two of the boot clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) time_us: i64,
    pub(super) sent_us: i64,
    pub(super) received_us: i64,
}

/// What a node's TIME is ahead of the boot clock: a lower bound.
#[derive(Clone, Copy, Debug)]
struct Bound {
    ahead_us: i64,
    of_us: i64,
    round_trip_us: i64,
}

impl Bound {
    fn of(sample: Sample) -> Self {
        Self {
            ahead_us: sample.time_us - sample.received_us,
            of_us: sample.received_us,
            round_trip_us: (sample.received_us - sample.sent_us).max(0),
        }
    }

    /// The better of two, where the clocks did not jump between them. An old one is worth less, as clocks drift.
    fn with(self, sample: Sample) -> Self {
        let new = Self::of(sample);
        let drift = (new.of_us - self.of_us).max(0) * DRIFT_PPM / 1_000_000;
        let kept = (self.ahead_us - drift).min(sample.time_us - sample.sent_us);
        if new.ahead_us >= kept {
            return new;
        }
        let round_trip_us = self.round_trip_us.min(new.round_trip_us);
        Self { ahead_us: kept, round_trip_us, ..new }
    }

    /// The clocks did not jump between the two.
    fn fits(self, sample: Sample) -> bool {
        let said = self.ahead_us + sample.received_us;
        let earliest = sample.time_us - self.round_trip_us - JUMP_MIN_US;
        let latest = sample.time_us + Self::of(sample).round_trip_us + JUMP_MIN_US;
        (earliest..=latest).contains(&said)
    }
}

/// What TIME of one node should say.
#[derive(Debug, Default)]
pub(super) struct NodeTime(Mutex<Option<Bound>>);

impl NodeTime {
    pub(super) fn heard(&self, sample: Sample) {
        let mut bound = lock(&self.0);
        *bound = Some(match *bound {
            Some(known) if known.fits(sample) => known.with(sample),
            _ => Bound::of(sample),
        });
    }

    pub(super) fn expected_ms(&self, boot_us: i64) -> Option<u64> {
        lock(&self.0).map(|bound| expected_ms(bound, boot_us))
    }
}

/// The bound is half a round trip behind, and the command takes another half to get there.
fn expected_ms(bound: Bound, boot_us: i64) -> u64 {
    ((boot_us + bound.ahead_us + bound.round_trip_us).max(0) / 1_000).cast_unsigned()
}

/// As the catalogue holds it: at that TIME the offset was this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offset {
    offset_us: i64,
    at_us: i64,
}

impl Offset {
    /// One that is missing or cannot be read is none.
    pub(super) fn read(text: &str) -> Self {
        let parts = text.split_once(' ').and_then(|(offset, at)| {
            Some(Self { offset_us: offset.parse().ok()?, at_us: at.parse().ok()? })
        });
        parts.unwrap_or_default()
    }

    fn at(self, time_us: i64) -> i64 {
        let back = (time_us - self.at_us).max(0) * SLEW_PERCENT / 100;
        self.offset_us.signum() * (self.offset_us.abs() - back).max(0)
    }
}

impl fmt::Display for Offset {
    /// Empty for none, as a catalogue without one reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return Ok(());
        }
        write!(f, "{} {}", self.offset_us, self.at_us)
    }
}

/// An offset to be put in place of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Proposal {
    pub(super) from: Offset,
    pub(super) to: Offset,
}

/// Store time as far as a server knows it between two samples.
#[derive(Debug)]
pub(super) struct StoreTime {
    source: TimeSource,
    local: Arc<dyn Clock>,
    known: Mutex<Known>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    bound: Option<Bound>,
    offset: Offset,
    /// The offset that this server put there last.
    proposed: Option<Offset>,
    /// The last answer: the next is not earlier.
    told: Timestamp,
}

impl Known {
    fn store_us(&self, boot_us: i64) -> i64 {
        let time_us = self.bound.map_or(0, |bound| boot_us + bound.ahead_us);
        time_us + self.offset.at(time_us)
    }
}

impl StoreTime {
    pub(super) fn new(source: TimeSource, local: Arc<dyn Clock>) -> Self {
        Self { source, local, known: Mutex::default() }
    }

    pub(super) fn now(&self) -> Timestamp {
        if let TimeSource::Given(given) = &self.source {
            return given();
        }
        let boot_us = self.boot_us();
        let mut known = lock(&self.known);
        let now_ms = (known.store_us(boot_us).max(0) / 1_000).cast_unsigned();
        known.told = known.told.max(Timestamp::from_millis(now_ms));
        known.told
    }

    pub(super) fn is_given(&self) -> bool {
        matches!(self.source, TimeSource::Given(_))
    }

    /// Of this machine, to be handed back with the reply.
    pub(super) fn boot_us(&self) -> i64 {
        self.local.read().boot_us.cast_signed()
    }

    /// What TIME of the catalogue's node should say. None: it is not known, or not compared.
    pub(super) fn expected_ms(&self) -> Option<u64> {
        let boot_us = self.boot_us();
        lock(&self.known).bound.map(|bound| expected_ms(bound, boot_us))
    }

    /// Another store is another time.
    pub(super) fn reset(&self) {
        *lock(&self.known) = Known::default();
    }

    /// Takes a sample of the catalogue's node, and the offset that the catalogue has. Where the two and what was known do not
    /// fit, a new offset is to be put there, under which store time runs on.
    pub(super) fn heard(&self, sample: Sample, found: Offset) -> Option<Proposal> {
        let mut known = lock(&self.known);
        let Some(bound) = known.bound else {
            known.bound = Some(Bound::of(sample));
            known.offset = found;
            return None;
        };
        let before_us = known.store_us(sample.received_us);
        let jumped = !bound.fits(sample);
        let bound = if jumped { Bound::of(sample) } else { bound.with(sample) };
        known.bound = Some(bound);
        let apart_us = sample.time_us + found.at(sample.time_us) - before_us;
        let fits = apart_us.abs() <= JUMP_MIN_US + 2 * bound.round_trip_us;
        let changed = found != known.offset;
        let overruled = changed && known.proposed == Some(known.offset);
        if fits || !jumped && !changed || overruled {
            let settled = known.proposed.is_some_and(|proposed| {
                proposed != found || sample.time_us - proposed.at_us > OVERRULED_WITHIN_US
            });
            if settled {
                known.proposed = None;
            }
            known.offset = found;
            return None;
        }
        let to = Offset { offset_us: before_us - sample.time_us, at_us: sample.time_us };
        known.offset = to;
        known.proposed = None;
        Some(Proposal { from: found, to })
    }

    /// What the catalogue has after a proposal.
    pub(super) fn proposed(&self, proposal: Proposal, found: Offset) {
        let mut known = lock(&self.known);
        known.offset = found;
        known.proposed = (found == proposal.to).then_some(found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::ManualClock;
    use std::time::Duration;

    const HOURS_2: i64 = 7_200_000_000;

    /// A server, and a Redis whose clock it samples.
    struct Fixture {
        local: Arc<ManualClock>,
        time: StoreTime,
    }

    impl Fixture {
        fn new() -> Self {
            let local = Arc::new(ManualClock::at(Duration::from_secs(5)));
            Self { time: StoreTime::new(TimeSource::Redis, local.clone()), local }
        }

        /// Samples a Redis that is so much ahead of the boot clock; a proposal goes into the catalogue.
        fn hear(&self, ahead_us: i64, catalogue: &mut Offset) {
            let sent_us = self.time.boot_us();
            self.local.advance(Duration::from_millis(2));
            let time_us = self.time.boot_us() + ahead_us;
            self.local.advance(Duration::from_millis(2));
            let sample = Sample { time_us, sent_us, received_us: self.time.boot_us() };
            if let Some(proposal) = self.time.heard(sample, *catalogue) {
                if *catalogue == proposal.from {
                    *catalogue = proposal.to;
                }
                self.time.proposed(proposal, *catalogue);
            }
        }

        fn ahead_ms(&self) -> i64 {
            self.time.now().millis().cast_signed() - self.time.boot_us() / 1_000
        }
    }

    #[test]
    fn store_time_is_a_lower_bound_of_time_and_runs_on() {
        let (server, mut catalogue) = (Fixture::new(), Offset::default());
        for _ in 0..20 {
            server.hear(1_000_000_000, &mut catalogue);
            assert!((999_995..=1_000_000).contains(&server.ahead_ms()), "{}", server.ahead_ms());
            server.local.advance(Duration::from_secs(1));
        }
        assert_eq!(catalogue, Offset::default());
        // A small step is followed.
        server.hear(1_000_100_000, &mut catalogue);
        assert!(server.ahead_ms() >= 1_000_095);
    }

    #[test]
    fn a_jump_becomes_an_offset_that_all_servers_share_and_goes_back_slowly() {
        for jump in [HOURS_2, -HOURS_2] {
            let (one, other, mut catalogue) = (Fixture::new(), Fixture::new(), Offset::default());
            let base = 100_000_000_000;
            one.hear(base, &mut catalogue);
            other.hear(base, &mut catalogue);
            one.hear(base + jump, &mut catalogue);
            other.hear(base + jump, &mut catalogue);
            let late = Fixture::new();
            late.hear(base + jump, &mut catalogue);
            for server in [&one, &other, &late] {
                assert!((server.ahead_ms() - base / 1_000).abs() < 100, "{}", server.ahead_ms());
            }
            assert_eq!(Offset::read(&catalogue.to_string()), catalogue);
            // After 100 s, one second of it is gone.
            one.local.advance(Duration::from_secs(100));
            one.hear(base + jump, &mut catalogue);
            let gone_ms = (one.ahead_ms() - base / 1_000) * jump.signum();
            assert!((900..1_100).contains(&gone_ms), "{gone_ms}");
        }
    }

    #[test]
    fn a_server_whose_own_clock_stood_still_is_overruled() {
        let (one, paused, mut catalogue) = (Fixture::new(), Fixture::new(), Offset::default());
        let base = 100_000_000_000;
        one.hear(base, &mut catalogue);
        paused.hear(base, &mut catalogue);
        // Redis goes on for 30 s, and so does `one`; the boot clock of `paused` does not.
        one.local.advance(Duration::from_secs(30));
        paused.hear(base + 30_000_000, &mut catalogue);
        assert_ne!(catalogue, Offset::default());
        one.hear(base, &mut catalogue);
        let now = catalogue;
        for _ in 0..5 {
            paused.hear(base + 30_000_000, &mut catalogue);
            one.hear(base, &mut catalogue);
        }
        assert_eq!(catalogue, now, "they do not contradict each other for ever");
        assert!((one.ahead_ms() - base / 1_000).abs() < 50, "{}", one.ahead_ms());
        assert!((paused.ahead_ms() - base / 1_000 - 30_000).abs() < 50, "{}", paused.ahead_ms());
    }
}
