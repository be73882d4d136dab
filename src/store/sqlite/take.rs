//! The first of `Ready` and `Keyed` become leases, within the limits that are handed in.

use super::pending::LeaseRow;
use super::rows;
use super::schema::READY;
use super::storage::{SqliteStorage, Written, look_at};
use crate::domain::{QueueName, Rng};
use crate::store::storage::{
    Chosen, Entry, FAILURES, Found, Head, Index, JobHead, Len, Measures, Member, Meter, NO_GROUP, Position, ReadyJobs,
    RecordKey, Rules, Table, Take, Taken, TakenJob, Version, WHOLE_QUEUE,
};
use bytes::Bytes;
use rusqlite::Result;

/// A job that is to be taken, with its record.
type Candidate = (Chosen, Option<Bytes>);

/// One queue of a store.
struct QueueView<'v, 'c> {
    storage: &'v mut SqliteStorage<'c>,
    at: usize,
}

impl Measures for QueueView<'_, '_> {
    type Error = rusqlite::Error;

    fn leased(&self, group: u16) -> u64 {
        let queue = &self.storage.cache.queues[self.at];
        match group {
            WHOLE_QUEUE => queue.leased.len() as u64,
            NO_GROUP => (queue.leased.len() - queue.leased_by_group.len()) as u64,
            group => queue.leased_by_group.range((group.into(), 0)..(u64::from(group) + 1, 0)).count() as u64,
        }
    }

    fn probes(&mut self) -> Result<Vec<Entry>> {
        self.storage.reader(self.at).range(Index::Probe, None, None, usize::MAX, false)
    }

    fn meter(&self, group: u16) -> Option<Meter> {
        self.storage.volatile.meter(self.storage.cache.queues[self.at].id, group)
    }
}

impl ReadyJobs for QueueView<'_, '_> {
    fn version(&self, group: u16) -> Version {
        self.storage.version(self.at, group)
    }

    fn head(&self, after: Option<Head>) -> Option<Head> {
        self.storage.cache.queues[self.at].heads.as_ref()?.after(after)
    }

    fn has_head(&self, group: u16) -> bool {
        self.storage.cache.queues[self.at].heads.as_ref().is_some_and(|heads| heads.has(group))
    }

    fn positions(&mut self, group: u16, after: Option<&Position>, limit: usize) -> Result<Vec<Position>> {
        self.storage.positions(self.at, group, after, limit)
    }
}

impl SqliteStorage<'_> {
    pub(super) fn take_now(&mut self, name: &QueueName, take: &Take<'_>) -> Result<Option<Taken>> {
        let Some(at) = self.queue(name) else { return Ok(None) };
        let now = self.now;
        let Some(mut rules) = Rules::allow(take, &mut QueueView { storage: self, at }, now)? else {
            return Ok(Some(Taken { changed: vec![WHOLE_QUEUE], ..Taken::default() }));
        };
        let mut taken = Taken { promoted: self.promote(at, take.promote)?, ..Taken::default() };
        let ready = self.ready(at)?;
        let keyed = ready > self.cache.queues[at].sums.ready();
        match rules.only_without_group() {
            Some(most) if !keyed => {
                if most > 0 && ready > 0 {
                    let (jobs, has_gap) = self.candidates(at, take, most, &rules, &mut taken.leases_full)?;
                    self.lease(at, take, jobs, &mut rules, &mut taken)?;
                    self.remove_first(at, &taken.jobs, has_gap)?;
                }
            }
            _ => {
                let line = rules.line(&mut QueueView { storage: self, at })?;
                let jobs = self.with_records(at, take, line, &mut taken.leases_full)?;
                self.lease(at, take, jobs, &mut rules, &mut taken)?;
                for job in &taken.jobs {
                    self.remove(at, job.position.ready_index(), &Entry::ready(job.position))?;
                }
            }
        }
        if !taken.jobs.is_empty() {
            self.wrote(at, Written::Changes);
        } else if taken.promoted > 0 {
            self.wrote(at, Written::Repeatable);
        }
        if taken.jobs.len() < take.jobs {
            taken.next_due = self.next_due(at)?;
        }
        taken.ready = self.ready(at)?;
        taken.changed = std::mem::take(&mut rules.changed);
        let (stops, meters) = rules.end(&mut QueueView { storage: self, at }, taken.ready, now)?;
        taken.stops = stops;
        for (group, meter) in meters {
            self.volatile.put_meter(self.cache.queues[at].id, group, meter, now);
        }
        Ok(Some(taken))
    }

    /// Those of the candidates that fit become leases. Their positions stay.
    fn lease(
        &mut self, at: usize, take: &Take<'_>, jobs: Vec<Candidate>, rules: &mut Rules<'_>, taken: &mut Taken,
    ) -> Result<()> {
        let expiry = take.lease.expires_at.millis();
        let mut leases: Vec<LeaseRow> = Vec::with_capacity(jobs.len());
        let mut probes = Vec::new();
        let mut rng = Rng::new(take.lease.seed);
        let mut bytes_left = take.bytes;
        taken.jobs.reserve(jobs.len());
        let mut histories = self.histories(at, &jobs)?.into_iter();
        for (chosen, job) in jobs {
            let position = chosen.position;
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
            let lease = take.lease_on(&chosen, &head, rng.next_u64());
            let last_failure = if position.has_history() { self.last_failure(at, number)? } else { None };
            let body = if lease.has_body { self.record(at, Table::Body, &key)? } else { None };
            let (lease, attempt, record) = (lease.fence, lease.attempt, lease.record);
            taken.jobs.push(TakenJob { number, lease, attempt, position, job, history, last_failure, body });
            leases.push((number, expiry, record));
            if take.is_probe(&chosen) {
                let member = Member::Probe { epoch: chosen.epoch, number }.bytes(Index::Probe);
                probes.push((take.lease.started_at.millis().cast_signed(), member.into()));
            }
            rules.took(&chosen);
        }
        if !probes.is_empty() {
            self.insert_entries(at, Index::Probe, &probes)?;
        }
        self.put_leases(at, leases)
    }

    // ---- jobs without a group ----

    /// The first ones, and whether another was passed over.
    fn candidates(
        &mut self, at: usize, take: &Take<'_>, most: usize, rules: &Rules<'_>, full: &mut bool,
    ) -> Result<(Vec<Candidate>, bool)> {
        let lease_room = take.max_leases.saturating_sub(self.cache.leases.len());
        let queue = &self.cache.queues[at];
        let (slot, ready) = (rows::slot(queue.id, Index::Ready), queue.sums.ready());
        let pass_over = take.groups[0].pass_over.filter(|_| ready > 1);
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
            jobs.push((rules.chosen(position, 0), job.map(Bytes::copy_from_slice)));
            if size > bytes_left && count > 0 {
                break;
            }
            bytes_left = bytes_left.saturating_sub(size);
        }
        Ok((jobs, has_gap))
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

    // ---- jobs of several groups ----

    fn with_records(
        &mut self, at: usize, take: &Take<'_>, mut line: Vec<Chosen>, full: &mut bool,
    ) -> Result<Vec<Candidate>> {
        let lease_room = take.max_leases.saturating_sub(self.cache.leases.len());
        *full = line.len() > lease_room;
        line.truncate(lease_room);
        let wanted = line.iter().enumerate();
        let wanted = wanted.map(|(place, job)| (Table::Job, job.position.number.cast_signed(), place));
        let (mut wanted, mut found) = (wanted.collect::<Vec<_>>(), vec![Found::Record(None); line.len()]);
        self.read_rows(at, &mut wanted, &mut found)?;
        Ok(line.into_iter().zip(found.into_iter().map(Found::record)).collect())
    }

    fn version(&self, at: usize, group: u16) -> Version {
        let record = self.cache.record(at, Table::Version, &RecordKey::Group(group));
        Version::read(record.map(|record| &record[..]))
    }

    /// See [`ReadyJobs::positions`].
    fn positions(&mut self, at: usize, group: u16, after: Option<&Position>, limit: usize) -> Result<Vec<Position>> {
        let index = if group == NO_GROUP { Index::Ready } else { Index::Keyed };
        let slot = rows::slot(self.cache.queues[at].id, index);
        let before_all = if group == NO_GROUP { (-1, (-1).into()) } else { (group.into(), Vec::new().into()) };
        let (score, member) = after.map_or(before_all, |after| rows::position_entry(index, after));
        let statement = if group == NO_GROUP { &mut self.sql.ready_after } else { &mut self.sql.keyed_after };
        let mut found = statement.query((slot, score, member, rows::limit(limit)))?;
        let mut positions = Vec::new();
        while let Some(row) = found.next()? {
            if let Some(Entry { member: Member::Position(position), .. }) = rows::read_entry(index, row)? {
                positions.push(position);
            }
        }
        Ok(positions)
    }

    /// Entries of `Ready`, and those of `Keyed` if a group that is not held has one. A queue without groups pays nothing for them.
    pub(super) fn ready(&mut self, at: usize) -> Result<u64> {
        let sums = &self.cache.queues[at].sums;
        let (ready, keyed) = (sums.ready(), sums.len(Len::Index(Index::Keyed)));
        if keyed == 0 && self.cache.queues[at].heads.is_none() {
            return Ok(ready);
        }
        self.derive_heads(at)?;
        let has_heads = self.cache.queues[at].heads.as_ref().is_some_and(|heads| !heads.is_empty());
        Ok(if has_heads { ready + keyed } else { ready })
    }

    /// Heads follow from `Keyed` and the versions.
    fn derive_heads(&mut self, at: usize) -> Result<()> {
        let stale = match &self.cache.queues[at].heads {
            Some(_) => std::mem::take(&mut self.cache.queues[at].stale_heads).into_iter().collect(),
            None => self.groups(at)?,
        };
        let mut heads = self.cache.queues[at].heads.take().unwrap_or_default();
        for group in stale {
            let first = if group == NO_GROUP { Vec::new() } else { self.positions(at, group, None, 1)? };
            heads.set(group, &self.version(at, group), first.first());
        }
        self.cache.queues[at].heads = Some(heads);
        Ok(())
    }

    /// Those that have ready jobs.
    fn groups(&mut self, at: usize) -> Result<Vec<u16>> {
        let slot = rows::slot(self.cache.queues[at].id, Index::Keyed);
        let mut groups: Vec<u16> = Vec::new();
        loop {
            let last = groups.last().map_or(0, |group| i64::from(*group));
            let mut found = self.sql.next_group.query([slot, last])?;
            let Some(row) = found.next()? else { return Ok(groups) };
            groups.push(row.get(0)?);
        }
    }

    // ---- records ----

    /// Of all jobs, or none where no job has one.
    fn histories(&mut self, at: usize, jobs: &[Candidate]) -> Result<Vec<Found>> {
        let old = jobs.iter().enumerate().filter(|(_, (job, _))| job.position.has_history());
        let wanted = old.map(|(place, (job, _))| (Table::History, job.position.number.cast_signed(), place));
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
}
