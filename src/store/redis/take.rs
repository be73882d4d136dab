//! `Take` as take.lua gets it, and what it replies.

use super::{
    columns::{FIXED, PROMOTED_MAX, score},
    keys::Key,
    reply::{Read as Replied, Reply, unexpected},
};
use crate::{
    domain::chance::Dice,
    store::{
        redis::connection::Arg,
        storage::{Index, LEASE_FENCE, Position, RecordKey, Table, Take, Taken, TakenJob},
    },
};
use bytes::Bytes;

/// In one script.
const JOBS_MAX: usize = 1_000;

pub(super) fn keys() -> Vec<Key> {
    let mut keys = FIXED.to_vec();
    keys.extend([
        Key::Table(Table::Lease),
        Key::Index(Index::Leased),
        Key::Index(Index::Probe),
        Key::Table(Table::Job),
        Key::Table(Table::History),
        Key::Table(Table::Failure),
        Key::Table(Table::Body),
    ]);
    keys
}

/// Those behind the first three.
pub(super) fn args(take: &Take<'_>, out: &mut Vec<Arg>) {
    let (rule, lease) = (&take.rule, &take.lease);
    let jobs = take.jobs.min(JOBS_MAX);
    let mut rng = Dice::new(lease.seed);
    let nonces: Vec<u8> = (0..jobs).flat_map(|_| rng.roll().to_be_bytes()).collect();
    let pass_over = rule.pass_over.map(|number| RecordKey::Number(number).bytes());
    let (most, started_after) = match rule.probes {
        Some(probes) => (Arg::from(probes.most), score(probes.started_after.millis())),
        None => (Arg::default(), Arg::default()),
    };
    let mut start = RecordKey::Number(lease.started_at.millis()).bytes();
    start.extend(lease.duration_ms.to_be_bytes());
    out.extend([
        (jobs as u64).into(),
        (take.bytes as u64).into(),
        take.first_fits.into(),
        (take.promote.min(PROMOTED_MAX) as u64).into(),
        take.whole.bytes()[..].into(),
        rule.version.bytes()[..].into(),
        u64::from(rule.flags).into(),
        pass_over.unwrap_or_default().into(),
        most,
        started_after,
        score(lease.started_at.millis()),
        start.into(),
        score(lease.expires_at.millis()),
        nonces.into(),
        lease.tail.into(),
    ]);
}

/// What take.lua says, its first number apart.
pub(super) fn taken(reply: &mut Reply) -> Replied<Taken> {
    let mut taken = Taken {
        ready: reply.count()?,
        promoted: reply.count()? as usize,
        next_due: reply.maybe_time()?,
        bytes_full: reply.int()? == 1,
        oldest_probe: reply.maybe_time()?,
        ..Taken::default()
    };
    taken.jobs.reserve(reply.left() / 5);
    while reply.left() > 0 {
        let head = reply.bytes()?.unwrap_or_default();
        let (job, history) = (reply.bytes()?, reply.bytes()?);
        let (last_failure, body) = (reply.bytes()?, reply.bytes()?);
        let (lease, attempt, position) = read_head(&head).ok_or_else(unexpected)?;
        let number = position.number;
        taken.jobs.push(TakenJob {
            number,
            lease,
            attempt,
            position,
            job,
            history,
            last_failure,
            body,
        });
    }
    Ok(taken)
}

fn read_head(head: &Bytes) -> Option<([u8; LEASE_FENCE], u32, Position)> {
    let (lease, rest) = head.split_first_chunk()?;
    let (attempt, position) = rest.split_first_chunk()?;
    Some((*lease, u32::from_be_bytes(*attempt), Position::read(position)?))
}
