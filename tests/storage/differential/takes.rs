//! Random takes.

use super::dump::Dump;
use super::values::{self, Seed, TICK};
use redrive::domain::Timestamp;
use redrive::store::storage::{
    LeaseTemplate, NO_GROUP, Probes, RecordKey, Rule, Table, Take, Version, WHOLE_QUEUE, flag,
};

pub(super) fn take(seed: Seed, queue: u8, known: &Dump, now: Timestamp, bounds_leases: bool) -> Take<'static> {
    let [a, b, c, d, e] = seed;
    let version = |group| {
        let record = known.record(Table::Version, &RecordKey::Group(group));
        Version::read(record.map(AsRef::as_ref))
    };
    let (mut whole, mut group) = (version(WHOLE_QUEUE), version(NO_GROUP));
    match a % 16 {
        0 => whole.epoch += 1,
        1 => group.random[7] ^= 1,
        _ => {}
    }
    let before = u64::from(d % 4) * TICK;
    let started_after = Timestamp::from_millis(now.millis() - before);
    let probes = (b % 3 == 0).then_some(Probes { most: u64::from(c % 3), started_after });
    let rule = Rule {
        version: group,
        flags: if probes.is_some() { flag::PROBE } else { 0 },
        pass_over: (c % 3 == 0).then(|| values::number(queue, d)),
        probes,
    };
    let lease = LeaseTemplate {
        started_at: now,
        expires_at: Timestamp::from_millis(now.millis() + u64::from(e % 8) * TICK),
        duration_ms: u32::from(e),
        seed: u64::from_be_bytes([a, b, c, d, e, a, b, c]),
        tail: [&b""[..], b"tail"][usize::from(e % 2)],
    };
    Take {
        whole,
        rule,
        jobs: usize::from(1 + a / 16 % 5),
        bytes: if d % 2 == 0 { 1 << 20 } else { usize::from(e) },
        first_fits: b % 2 == 0,
        promote: usize::from(e / 8 % 4),
        lease,
        max_leases: if bounds_leases && c % 4 == 1 { usize::from(e % 6) } else { 1_000_000 },
    }
}
