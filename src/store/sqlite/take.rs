//! The first of `Ready` become leases, within the limits that are handed in.

use super::pending::LeaseRow;
use super::rows;
use super::schema::READY;
use super::storage::{SqliteStorage, Written, look_at};
use crate::domain::{QueueName, Rng};
use crate::store::storage::{
    FAILURES, Found, Index, JobHead, Len, Member, NO_GROUP, Position, RecordKey, Table, Take, Taken, TakenJob, Version,
    WHOLE_QUEUE,
};
use bytes::Bytes;
use rusqlite::Result;

/// A position with its job.
type Candidate = (Position, Option<Bytes>);
/// The first ones, and whether another was passed over.
type Candidates = (Vec<Candidate>, bool);

impl SqliteStorage<'_> {
    pub(super) fn take_now(&mut self, name: &QueueName, take: &Take<'_>) -> Result<Option<Taken>> {
        let Some(at) = self.queue(name) else { return Ok(None) };
        let record = |group| self.cache.record(at, Table::Version, &RecordKey::Group(group));
        let version = |group| Version::read(record(group).map(|record| &record[..]));
        if version(WHOLE_QUEUE) != take.whole || version(NO_GROUP) != take.rule.version {
            return Ok(Some(Taken { changed: true, ..Taken::default() }));
        }
        let mut taken = Taken { promoted: self.promote(at, take.promote)?, ..Taken::default() };
        let mut most = take.jobs;
        if let Some(probes) = take.rule.probes {
            let started = self.reader(at).range(Index::Probe, None, None, usize::MAX, false)?;
            let (left, oldest) = probes.left(take.rule.version.epoch, started.into_iter());
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

    fn take_first(&mut self, at: usize, take: &Take<'_>, most: usize, taken: &mut Taken) -> Result<()> {
        let (jobs, has_gap) = self.candidates(at, take, most, &mut taken.leases_full)?;
        let expiry = take.lease.expires_at.millis();
        let mut leases: Vec<LeaseRow> = Vec::with_capacity(jobs.len());
        let mut rng = Rng::new(take.lease.seed);
        let mut bytes_left = take.bytes;
        taken.jobs.reserve(jobs.len());
        let mut histories = self.histories(at, &jobs)?.into_iter();
        for (position, job) in jobs {
            let (number, key) = (position.number, RecordKey::Number(position.number));
            let history = histories.next().and_then(Found::record);
            let head = JobHead::read(job.as_deref(), history.as_deref());
            let exempt = take.first_fits && taken.jobs.is_empty();
            if head.size > bytes_left && !exempt {
                taken.bytes_full = true;
                taken.leases_full = false;
                break;
            }
            bytes_left = bytes_left.saturating_sub(head.size);
            let lease = take.lease_on(&position, &head, rng.next_u64());
            let last_failure = if position.has_history() { self.last_failure(at, number)? } else { None };
            let body = if lease.has_body { self.record(at, Table::Body, &key)? } else { None };
            let (lease, attempt, record) = (lease.fence, lease.attempt, lease.record);
            taken.jobs.push(TakenJob { number, lease, attempt, position, job, history, last_failure, body });
            leases.push((number, expiry, record));
        }
        self.remove_first(at, &taken.jobs, has_gap)?;
        if take.rule.probes.is_some() {
            let (epoch, start) = (take.rule.version.epoch, take.lease.started_at.millis());
            let member = |number| Member::Probe { epoch, number }.bytes(Index::Probe);
            let probes = leases.iter().map(|(number, ..)| (start.cast_signed(), member(*number).into()));
            self.insert_entries(at, Index::Probe, &probes.collect::<Vec<_>>())?;
        }
        self.put_leases(at, leases)
    }

    fn candidates(&mut self, at: usize, take: &Take<'_>, most: usize, full: &mut bool) -> Result<Candidates> {
        let lease_room = take.max_leases.saturating_sub(self.cache.leases.len());
        let queue = &self.cache.queues[at];
        let (slot, ready) = (rows::slot(queue.id, Index::Ready), queue.sums.ready());
        let pass_over = take.rule.pass_over.filter(|_| ready > 1);
        let limit = most.saturating_add(pass_over.is_some().into());
        let (mut jobs, mut has_gap) = (Vec::with_capacity(limit.min(usize::try_from(ready).unwrap_or(0))), false);
        // Rows are copied until the bytes are used up; History, which counts too, comes later.
        let mut bytes_left = take.bytes;
        let mut found = self.sql.first_ready.query([slot, queue.id, rows::limit(limit)])?;
        while let Some(row) = found.next()? {
            let position = rows::read_position(Index::Ready, [row.get(0)?, row.get(1)?]);
            if Some(position.number) == pass_over {
                has_gap = true;
                continue;
            }
            let count = jobs.len();
            if count >= most.min(lease_room) {
                *full = count < most;
                break;
            }
            let job = row.get_ref(2)?.as_blob_or_null()?;
            let size = JobHead::read(job, None).size;
            jobs.push((position, job.map(Bytes::copy_from_slice)));
            if size > bytes_left && count > 0 {
                break;
            }
            bytes_left = bytes_left.saturating_sub(size);
        }
        Ok((jobs, has_gap))
    }

    /// Of all jobs, or none where no job has one.
    fn histories(&mut self, at: usize, jobs: &[Candidate]) -> Result<Vec<Found>> {
        let old = jobs.iter().enumerate().filter(|(_, (position, _))| position.has_history());
        let wanted = old.map(|(place, (position, _))| (Table::History, position.number.cast_signed(), place));
        let mut wanted: Vec<_> = wanted.collect();
        let mut found = vec![Found::Record(None); if wanted.is_empty() { 0 } else { jobs.len() }];
        self.read_rows(at, &mut wanted, &mut found)?;
        Ok(found)
    }

    fn last_failure(&mut self, at: usize, number: u64) -> Result<Option<Bytes>> {
        let [last, first] = FAILURES.map(|part| rows::part_row(number, part));
        let columns = (first, last, self.cache.queues[at].id);
        look_at(&mut self.sql.last_failure, columns, |record| record.map(Bytes::copy_from_slice))
    }

    fn remove_first(&mut self, at: usize, jobs: &[TakenJob], has_gap: bool) -> Result<()> {
        let queue = &mut self.cache.queues[at];
        let slot = rows::slot(queue.id, Index::Ready);
        let sql = &mut self.sql.indexes[READY];
        let (one_by_one, statement) = if has_gap {
            (jobs, &mut sql.delete)
        } else {
            (&jobs[jobs.len().saturating_sub(1)..], &mut sql.delete_first)
        };
        let mut removed = 0;
        for job in one_by_one {
            let [score, member] = rows::position_row(Index::Ready, &job.position);
            removed += statement.execute([slot, score, member])?;
        }
        queue.sums.subtract(Len::Index(Index::Ready), removed);
        Ok(())
    }
}
