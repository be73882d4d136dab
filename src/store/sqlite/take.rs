//! The first of `Ready` become leases, within the limits that are handed in.

use super::{
    rows::{self, Column},
    storage::{SqliteStorage, Written},
};
use crate::{
    domain::{chance::Dice, ids::QueueName, time::Timestamp},
    store::storage::{
        Index, LEASE_FENCE, LEASE_TAIL, Len, Member, NO_GROUP, Position, Probes, RecordKey, Table,
        Take, Taken, TakenJob, Version, WHOLE_QUEUE, flag,
    },
};
use bytes::{Buf, BufMut, Bytes};
use rusqlite::Result;

/// The parts of a job's `Failure`.
const FIRST_FAILURE: u8 = 0;
const LAST_FAILURE: u8 = 1;

/// A row of the joined statement.
struct Candidate {
    position: Position,
    job: Option<Bytes>,
}

impl SqliteStorage<'_> {
    pub(super) fn take_now(&mut self, name: &QueueName, take: &Take<'_>) -> Result<Option<Taken>> {
        let Some(at) = self.queue(name) else { return Ok(None) };
        if self.version(at, WHOLE_QUEUE) != take.whole
            || self.version(at, NO_GROUP) != take.rule.version
        {
            return Ok(Some(Taken { changed: true, ..Taken::default() }));
        }
        let mut taken = Taken { promoted: self.promote(at, take.promote)?, ..Taken::default() };
        let mut most = take.jobs;
        if let Some(probes) = take.rule.probes {
            let (left, oldest) = self.probes_left(at, probes, take.rule.version.epoch)?;
            most = most.min(left);
            taken.oldest_probe = oldest.filter(|_| left == 0);
        }
        if most > 0 && self.cache.queues[at].sums.ready() > 0 {
            self.take_first(at, take, most, &mut taken)?;
        }
        if !taken.jobs.is_empty() {
            self.wrote(at, Written::Changes);
        } else if taken.promoted > 0 {
            self.wrote(at, Written::Repeatable);
        }
        if taken.jobs.len() < take.jobs {
            taken.next_due = self.next_due(at)?;
        }
        taken.ready = self.cache.queues[at].sums.ready();
        Ok(Some(taken))
    }

    fn version(&self, at: usize, group: u16) -> Version {
        let record = self.cache.queues[at].records.get(&(Table::Version, RecordKey::Group(group)));
        Version::read(record.map(|record| &record[..]))
    }

    /// How many probes may start, and when the first of those that run has started.
    fn probes_left(
        &self,
        at: usize,
        probes: Probes,
        epoch: u32,
    ) -> Result<(usize, Option<Timestamp>)> {
        let is_one =
            |member: &Member| matches!(member, Member::Probe { epoch: of, .. } if *of == epoch);
        let entries = self.reader(at).range(Index::Probe, None, None, usize::MAX, false)?;
        let starts = entries.iter().filter(|entry| is_one(&entry.member));
        let mut starts = starts
            .map(|entry| Timestamp::from_millis(entry.score))
            .filter(|start| *start > probes.started_after)
            .peekable();
        let oldest = starts.peek().copied();
        let left = probes.most.saturating_sub(starts.count() as u64);
        Ok((usize::try_from(left).unwrap_or(usize::MAX), oldest))
    }

    fn take_first(
        &mut self,
        at: usize,
        take: &Take<'_>,
        most: usize,
        taken: &mut Taken,
    ) -> Result<()> {
        let lease_room = take.max_leases.saturating_sub(self.cache.leases());
        let (candidates, passed_over) = self.candidates(at, take, most, lease_room, taken)?;
        let mut leases: Vec<(u64, Bytes)> = Vec::with_capacity(candidates.len());
        let mut rng = Dice::new(take.lease.seed);
        let mut bytes_left = take.bytes;
        taken.jobs.reserve(candidates.len());
        for candidate in candidates {
            let exempt = take.first_fits && taken.jobs.is_empty();
            let Some((job, record)) =
                self.lease(at, take, candidate, &mut rng, &mut bytes_left, exempt)?
            else {
                taken.bytes_full = true;
                taken.leases_full = false;
                break;
            };
            leases.push((job.number, record));
            taken.jobs.push(job);
        }
        self.remove_first(at, &taken.jobs, passed_over)?;
        let expiry = take.lease.expires_at.millis();
        self.put_leases(at, &leases, |(number, record)| (*number, expiry, record))?;
        if take.rule.probes.is_some() {
            let (epoch, start) = (take.rule.version.epoch, take.lease.started_at.millis());
            let probe = |number| Member::Probe { epoch, number }.bytes(Index::Probe);
            let probes = leases.iter().map(|(number, _)| (start, Column::Bytes(probe(*number))));
            self.insert_entries(at, Index::Probe, &probes.collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// The first positions with their jobs, by one statement; whether one of them was passed over.
    fn candidates(
        &mut self,
        at: usize,
        take: &Take<'_>,
        most: usize,
        lease_room: usize,
        taken: &mut Taken,
    ) -> Result<(Vec<Candidate>, bool)> {
        let queue = &self.cache.queues[at];
        let (slot, ready) = (queue.id << 16, queue.sums.ready());
        let pass_over = take.rule.pass_over.filter(|_| ready > 1);
        let limit = most.saturating_add(pass_over.is_some().into());
        let mut candidates = Vec::with_capacity(limit.min(usize::try_from(ready).unwrap_or(0)));
        let mut passed_over = false;
        // Rows are copied until the bytes are used up; History, which counts too, comes later.
        let mut bytes_left = take.bytes;
        let mut found = self.sql.first_ready.query([slot, queue.id, rows::limit(limit)])?;
        while let Some(row) = found.next()? {
            let position = rows::read_ready(slot, row.get(0)?, row.get(1)?);
            if Some(position.number) == pass_over {
                passed_over = true;
                continue;
            }
            if candidates.len() >= most {
                break;
            }
            if candidates.len() >= lease_room {
                taken.leases_full = true;
                break;
            }
            let job = row.get_ref(2)?.as_blob_or_null()?;
            let size = job.map_or(0, |job| head(job).0);
            let is_last = size > bytes_left;
            bytes_left = bytes_left.saturating_sub(size);
            candidates.push(Candidate { position, job: job.map(Bytes::copy_from_slice) });
            if is_last && candidates.len() > 1 {
                break;
            }
        }
        Ok((candidates, passed_over))
    }

    /// None: it does not fit into the bytes that are left.
    fn lease(
        &mut self,
        at: usize,
        take: &Take<'_>,
        candidate: Candidate,
        rng: &mut Dice,
        bytes_left: &mut usize,
        exempt: bool,
    ) -> Result<Option<(TakenJob, Bytes)>> {
        let Candidate { position, job, .. } = candidate;
        let number = position.number;
        let key = RecordKey::Number(number);
        let history =
            if position.has_history() { self.record(at, Table::History, &key)? } else { None };
        let (job_size, job_traits) = job.as_deref().map_or((0, 0), head);
        let (history_size, history_traits, deliveries, tries) =
            history.as_deref().map_or((0, 0, 0, 0), history_head);
        let size = job_size.saturating_add(history_size);
        if size > *bytes_left && !exempt {
            return Ok(None);
        }
        *bytes_left = bytes_left.saturating_sub(size);

        let flags = take.rule.flags | job_traits | history_traits;
        let attempt = tries.saturating_add(1);
        let mut lease = [0; LEASE_FENCE];
        let mut out = &mut lease[..];
        out.put_u32(deliveries.saturating_add(1));
        out.put_u64(rng.roll());
        out.put_u8(flags);
        out.put_u32(take.rule.version.epoch);
        out.put_uint(take.lease.started_at.millis(), 6);
        out.put_u32(take.lease.duration_ms);
        let mut record = Vec::with_capacity(LEASE_TAIL + take.lease.tail.len());
        record.put_slice(&lease);
        record.put_u32(attempt);
        record.put_slice(&position.bytes());
        record.put_slice(take.lease.tail);

        let last_failure = match position.has_history() {
            true => {
                match self.record(at, Table::Failure, &RecordKey::Part(number, LAST_FAILURE))? {
                    None => {
                        self.record(at, Table::Failure, &RecordKey::Part(number, FIRST_FAILURE))?
                    }
                    last => last,
                }
            }
            false => None,
        };
        let has_body = flags & flag::BODY != 0;
        let body = if has_body { self.record(at, Table::Body, &key)? } else { None };
        let job = TakenJob { number, lease, attempt, position, job, history, last_failure, body };
        Ok(Some((job, record.into())))
    }

    fn remove_first(&mut self, at: usize, jobs: &[TakenJob], passed_over: bool) -> Result<()> {
        let Some(last) = jobs.last() else { return Ok(()) };
        let queue = &mut self.cache.queues[at];
        let mut removed = 0;
        if passed_over {
            for job in jobs {
                removed +=
                    self.sql.delete_ready.execute(rows::ready_row(queue.id, &job.position))?;
            }
        } else {
            removed =
                self.sql.delete_first_ready.execute(rows::ready_row(queue.id, &last.position))?;
        }
        queue.sums.subtract(Len::Index(Index::Ready), removed);
        Ok(())
    }
}

/// Size and traits of a `Job`. Of a damaged one: zeros.
fn head(mut job: &[u8]) -> (usize, u8) {
    match (job.try_get_u32(), job.try_get_u8()) {
        (Ok(size), Ok(traits)) => (size as usize, traits),
        _ => (0, 0),
    }
}

/// Size, traits, deliveries and tries of a `History`.
fn history_head(mut history: &[u8]) -> (usize, u8, u32, u32) {
    let size = history.try_get_u32();
    let traits = history.try_get_u8();
    match (size, traits, history.try_get_u32(), history.try_get_u32()) {
        (Ok(size), Ok(traits), Ok(deliveries), Ok(tries)) => {
            (size as usize, traits, deliveries, tries)
        }
        _ => (0, 0, 0, 0),
    }
}
