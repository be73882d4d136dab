//! `Take` as take.lua gets it, and what it replies.

use super::columns::{Arg, PROMOTED_MAX, decimal, fixed, score};
use super::keys::{Key, METERS};
use super::reply::{Reply, unexpected};
use crate::domain::{Rng, Timestamp};
use crate::store::Result;
use crate::store::storage::{
    Index, LEASE_FENCE, Meter, NO_GROUP, Position, Rate, RecordKey, Rule, Stop, StoppedBy, Table, Take, Taken, TakenJob,
};
use bytes::Bytes;

/// In one script.
const JOBS_MAX: usize = 1_000;

/// In the positions that lease.lua names, behind those of the library.
const LEASE: [Key; 5] = [
    Key::Table(Table::Lease),
    Key::Index(Index::Leased),
    Key::Table(Table::Job),
    Key::Table(Table::History),
    Key::Table(Table::Body),
];
/// Behind them, in take_groups.lua.
const GROUPS: [Key; 3] = [Key::Index(Index::Probe), Key::Index(Index::LeasedByGroup), METERS];

pub(super) fn keys(has_groups: bool) -> Vec<Key> {
    let more: &[Key] = if has_groups { &GROUPS } else { &[] };
    [fixed(has_groups), &LEASE, more].concat()
}

/// It has other rules than one without limits, for jobs without a group.
pub(super) fn concerns_groups(take: &Take<'_>) -> bool {
    let plain = |rule: &Rule| rule.group == NO_GROUP && rule.is_free() && rule.pass_over.is_none();
    !take.whole.is_free() || !matches!(take.groups, [rule] if plain(rule))
}

/// Those behind the first three.
pub(super) fn args(take: &Take<'_>) -> Vec<Arg> {
    let lease = &take.lease;
    let jobs = take.jobs.min(JOBS_MAX);
    let mut rng = Rng::new(lease.seed);
    let nonces: Vec<u8> = (0..jobs).flat_map(|_| rng.next_u64().to_be_bytes()).collect();
    let mut start = RecordKey::Number(lease.started_at.millis()).bytes();
    start.extend(lease.duration_ms.to_be_bytes());
    let mut args = vec![
        decimal(jobs as u64),
        decimal(take.bytes as u64),
        decimal(u64::from(take.first_fits)),
        decimal(take.promote.min(PROMOTED_MAX) as u64),
        score(lease.started_at.millis()),
        start,
        score(lease.expires_at.millis()),
        nonces,
        lease.tail.into(),
    ];
    args.extend([&take.whole].into_iter().chain(take.groups).map(packed_rule));
    args
}

/// Group 2 bytes, version 13, flags 1, number to pass over 6 (zero: none); with limits eight doubles (infinite: none): most leased,
/// most probes, of those started after, tokens per second and most of them of its rate and of its ramp, patience of the ramp.
fn packed_rule(rule: &Rule) -> Arg {
    let mut out = rule.group.to_be_bytes().to_vec();
    out.extend(rule.version.bytes());
    out.push(rule.flags);
    // No job has the number 0.
    out.extend(RecordKey::Number(rule.pass_over.unwrap_or(0)).bytes());
    if !rule.is_free() {
        let none = Rate { per_second: f64::INFINITY, burst: f64::INFINITY };
        let (rate, ramp) = (rule.rate.unwrap_or(none), rule.ramp.map_or(none, |ramp| ramp.rate));
        let limits = [
            rule.leased.map_or(f64::INFINITY, |most| most as f64),
            rule.probes.map_or(f64::INFINITY, |probes| probes.most as f64),
            rule.probes.map_or(0.0, |probes| probes.started_after.millis() as f64),
            rate.per_second,
            rate.burst,
            ramp.per_second,
            ramp.burst,
            rule.ramp.map_or(0.0, |ramp| ramp.patience_ms as f64),
        ];
        out.extend(limits.into_iter().flat_map(f64::to_be_bytes));
    }
    out
}

/// What take.lua says, its first number apart.
pub(super) fn taken(reply: &mut Reply) -> Result<Taken> {
    let mut taken = Taken {
        ready: reply.count()?,
        promoted: reply.count()? as usize,
        next_due: reply.maybe_time()?,
        bytes_full: reply.int()? == 1,
        ..Taken::default()
    };
    if let Some(mut groups) = reply.maybe_list()? {
        taken.changed = groups.rest(group)?;
    }
    if let Some(mut stops) = reply.maybe_list()? {
        taken.stops = stops.rest(stop)?;
    }
    taken.jobs.reserve(reply.left() / 5);
    while reply.left() > 0 {
        let head = reply.bytes()?.unwrap_or_default();
        let (job, history) = (reply.bytes()?, reply.bytes()?);
        let (last_failure, body) = (reply.bytes()?, reply.bytes()?);
        let (lease, attempt, position) = read_head(&head).ok_or_else(unexpected)?;
        let number = position.number;
        taken.jobs.push(TakenJob { number, lease, attempt, position, job, history, last_failure, body });
    }
    Ok(taken)
}

fn stop(reply: &mut Reply) -> Result<Stop> {
    let (group, by) = (group(reply)?, reply.int()?);
    let by = match by {
        1 => StoppedBy::Leased,
        2 => StoppedBy::Probes,
        3 => StoppedBy::Rate,
        _ => StoppedBy::Ramp,
    };
    Ok(Stop { group, by, until: reply.maybe_time()? })
}

fn group(reply: &mut Reply) -> Result<u16> {
    u16::try_from(reply.int()?).map_err(|_| unexpected())
}

fn read_head(head: &Bytes) -> Option<([u8; LEASE_FENCE], u32, Position)> {
    let (lease, rest) = head.split_first_chunk()?;
    let (attempt, position) = rest.split_first_chunk()?;
    Some((*lease, u32::from_be_bytes(*attempt), Position::read(position)?))
}

/// As take.lua packs it: six doubles, then epoch and random of the version.
pub(super) fn read_meter(packed: &[u8]) -> Option<Meter> {
    let (packed, random) = packed.split_last_chunk()?;
    let (doubles, epoch) = packed.split_last_chunk()?;
    let numbers = doubles.as_chunks().0.iter().map(|number| f64::from_be_bytes(*number));
    let [at, tokens, ramp_tokens, empty_at, held_at, most_leased] = numbers.collect::<Vec<_>>().try_into().ok()?;
    let [at, empty_at, held_at] = [at, empty_at, held_at].map(|time| Timestamp::from_millis(time as u64));
    let (most_leased, epoch) = (most_leased as u64, u32::from_be_bytes(*epoch));
    Some(Meter { at, tokens, ramp_tokens, empty_at, held_at, most_leased, epoch, random: *random })
}
