//! `Take` as take.lua gets it, and what it replies.

use super::columns::{Arg, FIXED, PROMOTED_MAX, decimal, score};
use super::keys::Key;
use super::reply::{Reply, unexpected};
use crate::domain::{Rng, Timestamp};
use crate::store::Result;
use crate::store::storage::{
    Index, LEASE_FENCE, Meter, NO_GROUP, Position, RecordKey, Stop, StoppedBy, Table, Take, Taken, TakenJob,
};
use bytes::Bytes;

/// In one script.
const JOBS_MAX: usize = 1_000;

/// In the positions that take.lua names, behind those of lib.lua.
pub(super) const KEYS: [Key; 10] = [
    FIXED[0],
    FIXED[1],
    FIXED[2],
    FIXED[3],
    Key::Table(Table::Lease),
    Key::Index(Index::Leased),
    Key::Index(Index::Probe),
    Key::Table(Table::Job),
    Key::Table(Table::History),
    Key::Table(Table::Body),
];

/// Those behind the first three.
pub(super) fn args(take: &Take<'_>) -> [Arg; 15] {
    let (rule, lease) = (&take.groups[0], &take.lease);
    let jobs = take.jobs.min(JOBS_MAX);
    let mut rng = Rng::new(lease.seed);
    let nonces: Vec<u8> = (0..jobs).flat_map(|_| rng.next_u64().to_be_bytes()).collect();
    let pass_over = rule.pass_over.map(|number| RecordKey::Number(number).bytes());
    let probes = rule.probes.as_ref();
    let mut start = RecordKey::Number(lease.started_at.millis()).bytes();
    start.extend(lease.duration_ms.to_be_bytes());
    [
        decimal(jobs as u64),
        decimal(take.bytes as u64),
        decimal(u64::from(take.first_fits)),
        decimal(take.promote.min(PROMOTED_MAX) as u64),
        take.whole.version.bytes().into(),
        rule.version.bytes().into(),
        decimal(u64::from(rule.flags)),
        pass_over.unwrap_or_default(),
        probes.map(|probes| decimal(probes.most)).unwrap_or_default(),
        probes.map(|probes| score(probes.started_after.millis())).unwrap_or_default(),
        score(lease.started_at.millis()),
        start,
        score(lease.expires_at.millis()),
        nonces,
        lease.tail.into(),
    ]
}

/// What take.lua says, its first number apart.
pub(super) fn taken(take: &Take<'_>, now: Timestamp, reply: &mut Reply) -> Result<Taken> {
    let mut taken = Taken {
        ready: reply.count()?,
        promoted: reply.count()? as usize,
        next_due: reply.maybe_time()?,
        bytes_full: reply.int()? == 1,
        ..Taken::default()
    };
    if let (Some(oldest), Some(probes)) = (reply.maybe_time()?, take.groups[0].probes) {
        let until = Some(oldest.after(now.since(probes.started_after)));
        taken.stops.push(Stop { group: NO_GROUP, by: StoppedBy::Probes, until });
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

fn read_head(head: &Bytes) -> Option<([u8; LEASE_FENCE], u32, Position)> {
    let (lease, rest) = head.split_first_chunk()?;
    let (attempt, position) = rest.split_first_chunk()?;
    Some((*lease, u32::from_be_bytes(*attempt), Position::read(position)?))
}

/// As take.lua packs it: six doubles and the epoch.
pub(super) fn read_meter(packed: &[u8]) -> Option<Meter> {
    let (doubles, epoch) = packed.split_last_chunk()?;
    let numbers = doubles.as_chunks().0.iter().map(|number| f64::from_be_bytes(*number));
    let [at, tokens, ramp_tokens, empty_at, held_at, most_leased] = numbers.collect::<Vec<_>>().try_into().ok()?;
    let [at, empty_at, held_at] = [at, empty_at, held_at].map(|time| Timestamp::from_millis(time as u64));
    let (most_leased, epoch) = (most_leased as u64, u32::from_be_bytes(*epoch));
    Some(Meter { at, tokens, ramp_tokens, empty_at, held_at, most_leased, epoch })
}
