//! Random takes.

use super::dump::Dump;
use super::values::{self, GROUPS, Seed, TICK, pick};
use crate::fixture::OwnedTake;
use redrive::domain::{Rng, Timestamp};
use redrive::store::storage::{
    LeaseTemplate, NO_GROUP, Probes, Ramp, Rate, RecordKey, Rule, Table, Version, WHOLE_QUEUE, flag,
};

/// Makes rules for one take.
struct Rules<'a> {
    rng: Rng,
    queue: u8,
    known: &'a Dump,
    now: Timestamp,
    /// Meters are compared.
    metered: bool,
}

impl Rules<'_> {
    /// Below this.
    fn draw(&mut self, most: u8) -> u8 {
        (self.rng.next_u64() % u64::from(most)) as u8
    }

    fn one_in<T>(&mut self, chance: u8, some: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.draw(chance) == 0).then(|| some(self))
    }

    fn rate(&mut self) -> Rate {
        let per_second = pick(&[0.0, 0.5, 5.5, 33.0, 100.0, 1000.0], self.draw(6));
        Rate { per_second, burst: pick(&[1.0, 2.5, 4.0], self.draw(3)) }
    }

    /// As it is, mostly.
    fn version(&mut self, group: u16) -> Version {
        let record = self.known.record(Table::Version, &RecordKey::Group(group));
        let mut version = Version::read(record.map(AsRef::as_ref));
        match self.draw(24) {
            0 => version.epoch += 1,
            1 => version.random[7] ^= 1,
            _ => {}
        }
        version
    }

    fn probes(&mut self) -> Probes {
        let before = u64::from(self.draw(4)) * TICK;
        Probes { most: self.draw(3).into(), started_after: Timestamp::from_millis(self.now.millis() - before) }
    }

    fn rule(&mut self, group: u16) -> Rule {
        let probes = self.one_in(4, Self::probes).filter(|_| group != WHOLE_QUEUE);
        let patience_ms = u64::from(self.draw(4)) * TICK;
        let metered = self.metered;
        Rule {
            group,
            version: self.version(group),
            flags: if probes.is_some() { flag::PROBE } else { self.draw(2) * 128 },
            pass_over: self.one_in(3, |rules| values::number(rules.queue, rules.draw(12))),
            leased: self.one_in(3, |rules| rules.draw(6).into()),
            probes,
            rate: self.one_in(4, Self::rate).filter(|_| metered),
            ramp: self.one_in(3, |rules| Ramp { rate: rules.rate(), patience_ms }).filter(|_| metered),
        }
    }

    /// Without limits, as most takes are.
    fn plain(&mut self, group: u16) -> Rule {
        Rule { group, version: self.version(group), ..Rule::default() }
    }
}

pub(super) fn take(
    seed: Seed, queue: u8, known: &Dump, now: Timestamp, metered: bool, bounds_leases: bool,
) -> OwnedTake {
    let [a, b, c, d, e] = seed;
    let seed = u64::from_be_bytes([a, b, c, d, e, a, b, c]);
    let mut rules = Rules { rng: Rng::new(seed), queue, known, now, metered };
    let whole = if a % 2 == 0 { rules.plain(WHOLE_QUEUE) } else { rules.rule(WHOLE_QUEUE) };
    let rule = if b % 3 == 0 { rules.plain(NO_GROUP) } else { rules.rule(NO_GROUP) };
    let mut others = Vec::new();
    for group in GROUPS.into_iter().skip(1) {
        others.extend(rules.one_in(2, |rules| rules.rule(group)));
    }
    let lease = LeaseTemplate {
        started_at: now,
        expires_at: Timestamp::from_millis(now.millis() + u64::from(e % 8) * TICK),
        duration_ms: u32::from(e),
        seed,
        tail: [&b""[..], b"tail"][usize::from(e % 2)],
    };
    OwnedTake {
        whole,
        rule,
        others,
        jobs: usize::from(1 + a / 16 % 8),
        bytes: if d % 3 > 0 { 1 << 20 } else { usize::from(e) },
        first_fits: b % 2 == 0,
        promote: usize::from(e / 8 % 4),
        lease,
        max_leases: if bounds_leases && c % 4 == 1 { usize::from(e % 6) } else { 1_000_000 },
    }
}
