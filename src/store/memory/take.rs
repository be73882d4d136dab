//! The first of `Ready` and `Keyed` become leases.

use super::queue_data::QueueData;
use crate::domain::{Rng, Timestamp};
use crate::store::storage::{
    Entry, FAILURES, Head, Index, JobHead, Measures, Member, Meter, NO_GROUP, Position, ReadyJobs, RecordKey, Rules,
    Table, Take, Taken, TakenJob, Version, WHOLE_QUEUE,
};
use std::convert::Infallible;

impl Measures for QueueData {
    type Error = Infallible;

    fn leased(&self, group: u16) -> u64 {
        let (all, by_group) = (self.index(Index::Leased), self.index(Index::LeasedByGroup));
        match group {
            WHOLE_QUEUE => all.len() as u64,
            NO_GROUP => (all.len() - by_group.len()) as u64,
            group => by_group.count(Entry::number(group.into(), 0)..Entry::number(u64::from(group) + 1, 0), usize::MAX),
        }
    }

    fn probes(&mut self) -> Result<Vec<Entry>, Infallible> {
        Ok(self.index(Index::Probe).iter().collect())
    }

    fn meter(&self, group: u16) -> Option<Meter> {
        self.meter(group)
    }
}

impl ReadyJobs for QueueData {
    fn version(&self, group: u16) -> Version {
        self.version(group)
    }

    fn head(&self, after: Option<Head>) -> Option<Head> {
        self.heads.after(after)
    }

    fn has_head(&self, group: u16) -> bool {
        self.heads.has(group)
    }

    fn positions(&mut self, group: u16, after: Option<&Position>, limit: usize) -> Result<Vec<Position>, Infallible> {
        Ok(Self::positions(self, group, after, limit))
    }
}

impl QueueData {
    /// `lease_room`: so many leases more may the store have.
    pub(super) fn take(&mut self, take: &Take<'_>, lease_room: usize, now: Timestamp) -> Taken {
        let Ok(rules) = Rules::allow(take, self, now);
        let Some(mut rules) = rules else { return Taken { changed: vec![WHOLE_QUEUE], ..Taken::default() } };
        let mut taken = Taken { promoted: self.promote(take.promote, now), ..Taken::default() };
        let Ok(line) = rules.line(self);
        let mut rng = Rng::new(take.lease.seed);
        let mut bytes_left = take.bytes;
        for chosen in line {
            if taken.jobs.len() >= lease_room {
                taken.leases_full = true;
                break;
            }
            let position = chosen.position;
            let (number, key) = (position.number, RecordKey::Number(position.number));
            let of_old = |table, key| self.record(table, &key).filter(|_| position.has_history()).cloned();
            let job = self.record(Table::Job, &key).cloned();
            let history = of_old(Table::History, key.clone());
            let head = JobHead::read(job.as_deref(), history.as_deref());
            let exempt = take.first_fits && taken.jobs.is_empty();
            if head.size > bytes_left && !exempt {
                taken.bytes_full = true;
                break;
            }
            bytes_left = bytes_left.saturating_sub(head.size);
            let lease = take.lease_on(&chosen, &head, rng.next_u64());
            let failure = |part| of_old(Table::Failure, RecordKey::Part(number, part));
            let last_failure = FAILURES.into_iter().find_map(failure);
            let body = self.record(Table::Body, &key).filter(|_| lease.has_body).cloned();
            self.index_mut(position.ready_index()).remove(&Member::Position(position));
            self.derive_head(position.group);
            self.put_lease(number, take.lease.expires_at, lease.record);
            if take.is_probe(&chosen) {
                let member = Member::Probe { epoch: chosen.epoch, number };
                let score = take.lease.started_at.millis();
                self.index_mut(Index::Probe).insert(&Entry { score, member });
            }
            rules.took(&chosen);
            let (lease, attempt) = (lease.fence, lease.attempt);
            taken.jobs.push(TakenJob { number, lease, attempt, position, job, history, last_failure, body });
        }
        if taken.promoted > 0 || !taken.jobs.is_empty() {
            self.mark_used(now);
        }
        if taken.jobs.len() < take.jobs {
            let first = [Index::Scheduled, Index::Retrying].map(|index| self.index(index).iter().next());
            taken.next_due = first.into_iter().flatten().map(|entry| Timestamp::from_millis(entry.score)).min();
        }
        taken.ready = self.ready();
        taken.changed = std::mem::take(&mut rules.changed);
        let Ok((stops, meters)) = rules.end(self, taken.ready, now);
        taken.stops = stops;
        meters.into_iter().for_each(|(group, meter)| self.put_meter(group, meter));
        taken
    }
}
