//! Store time on Redis: TIME of the node that holds the catalogue, as a lower bound, plus an offset kept in the catalogue.
//!
//! Each sample says what TIME was somewhere between sending and receiving; since then, time has passed here as it has there.
//! A server that sees TIME jump against its boot clock changes the offset so that store time runs on, by compare-and-set;
//! the offset then goes back to zero by 1 % of the time that passes. So a jump of Redis' clock releases nothing early, and
//! all servers, those that start later included, have the same store time.

use super::lock;
use crate::{domain::Timestamp, env::Clock};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

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

/// One reply with TIME in it; all in microseconds, the last two of the boot clock.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub time_us: i64,
    pub sent_us: i64,
    pub received_us: i64,
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

    /// What is known after a sample, and whether the clocks jumped before it. Else the better of the two bounds counts; an old
    /// one is worth less, as clocks drift.
    fn after(known: Option<Self>, sample: Sample) -> (Self, bool) {
        let new = Self::of(sample);
        let Some(old) = known else { return (new, false) };
        let said = old.ahead_us + sample.received_us;
        let earliest = sample.time_us - old.round_trip_us - JUMP_MIN_US;
        let latest = sample.time_us + new.round_trip_us + JUMP_MIN_US;
        let jumped = !(earliest..=latest).contains(&said);
        let drift = (new.of_us - old.of_us).max(0) * DRIFT_PPM / 1_000_000;
        let kept = (old.ahead_us - drift).min(sample.time_us - sample.sent_us);
        if jumped || new.ahead_us >= kept {
            return (new, jumped);
        }
        let round_trip_us = old.round_trip_us.min(new.round_trip_us);
        (Self { ahead_us: kept, round_trip_us, ..new }, false)
    }

    /// The bound is half a round trip behind, and the command takes another half to get there.
    fn expected_ms(self, boot_us: i64) -> u64 {
        ((boot_us + self.ahead_us + self.round_trip_us).max(0) / 1_000).cast_unsigned()
    }
}

/// What TIME of one node should say.
#[derive(Debug, Default)]
pub(super) struct NodeTime(Mutex<Option<Bound>>);

impl NodeTime {
    pub(super) fn observe(&self, sample: Sample) {
        let mut bound = lock(&self.0);
        *bound = Some(Bound::after(*bound, sample).0);
    }

    pub(super) fn expected_ms(&self, boot_us: i64) -> Option<u64> {
        lock(&self.0).map(|bound| bound.expected_ms(boot_us))
    }
}

/// As the catalogue holds it: at that TIME the offset was this.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offset {
    offset_us: i64,
    at_us: i64,
}

impl Offset {
    /// One that is missing or cannot be read is none.
    pub fn read(text: &str) -> Self {
        let numbers = text.split_once(' ').and_then(|(offset, at)| Some((offset.parse().ok()?, at.parse().ok()?)));
        numbers.map_or_else(Self::default, |(offset_us, at_us)| Self { offset_us, at_us })
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

/// Store time as far as a server knows it between two samples.
pub struct StoreTime {
    source: TimeSource,
    local: Arc<dyn Clock>,
    known: Mutex<Known>,
    jumps: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    bound: Option<Bound>,
    offset: Offset,
    /// The offset that this server put there last.
    proposed: Option<Offset>,
    /// The last answer: the next is not earlier.
    latest: Timestamp,
}

impl Known {
    fn store_us(&self, boot_us: i64) -> i64 {
        let time_us = self.bound.map_or(0, |bound| boot_us + bound.ahead_us);
        time_us + self.offset.at(time_us)
    }
}

impl StoreTime {
    pub fn new(source: TimeSource, local: Arc<dyn Clock>) -> Self {
        Self { source, local, known: Mutex::default(), jumps: AtomicU64::new(0) }
    }

    pub fn now(&self) -> Timestamp {
        if let TimeSource::Given(given) = &self.source {
            return given();
        }
        let boot_us = self.boot_us();
        let mut known = lock(&self.known);
        let now_ms = (known.store_us(boot_us).max(0) / 1_000).cast_unsigned();
        known.latest = known.latest.max(Timestamp::from_millis(now_ms));
        known.latest
    }

    /// How often the clocks of Redis and this machine have jumped apart.
    pub fn jumps(&self) -> u64 {
        self.jumps.load(Ordering::Relaxed)
    }

    pub(super) fn is_given(&self) -> bool {
        matches!(self.source, TimeSource::Given(_))
    }

    /// A reply with TIME in it is here now.
    pub(super) fn sample(&self, sent_us: i64, time_us: i64) -> Sample {
        Sample { time_us, sent_us, received_us: self.boot_us() }
    }

    /// Of this machine.
    pub fn boot_us(&self) -> i64 {
        self.local.read().boot_us.cast_signed()
    }

    /// What TIME of the catalogue's node should say. None: it is not known, or not compared.
    pub(super) fn expected_ms(&self) -> Option<u64> {
        let boot_us = self.boot_us();
        lock(&self.known).bound.map(|bound| bound.expected_ms(boot_us))
    }

    /// Takes a sample of the catalogue's node, and the offset that the catalogue has. Where the two and what was known do not
    /// fit, a new offset is to be put there in place of it, under which store time runs on.
    pub fn observe(&self, sample: Sample, found: Offset) -> Option<Offset> {
        let mut known = lock(&self.known);
        let (is_first, before_us) = (known.bound.is_none(), known.store_us(sample.received_us));
        let (bound, jumped) = Bound::after(known.bound, sample);
        known.bound = Some(bound);
        self.jumps.fetch_add(u64::from(jumped), Ordering::Relaxed);
        let apart_us = sample.time_us + found.at(sample.time_us) - before_us;
        let fits = apart_us.abs() <= JUMP_MIN_US + 2 * bound.round_trip_us;
        let changed = found != known.offset;
        let overruled = changed && known.proposed == Some(known.offset);
        if is_first || fits || !jumped && !changed || overruled {
            let is_open = |own: &Offset| *own == found && sample.time_us - own.at_us <= OVERRULED_WITHIN_US;
            known.proposed = known.proposed.filter(is_open);
            known.offset = found;
            return None;
        }
        let to = Offset { offset_us: before_us - sample.time_us, at_us: sample.time_us };
        known.offset = to;
        known.proposed = None;
        Some(to)
    }

    /// What the catalogue has after a proposal.
    pub fn proposed(&self, to: Offset, found: Offset) {
        let mut known = lock(&self.known);
        known.offset = found;
        known.proposed = (found == to).then_some(found);
    }
}
