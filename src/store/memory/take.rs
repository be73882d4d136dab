//! The first of `Ready` become leases.

use super::queue_data::QueueData;
use crate::domain::{Rng, Timestamp};
use crate::store::storage::{
    Entry, FAILURES, Index, JobHead, Member, NO_GROUP, Position, RecordKey, Table, Take, Taken, TakenJob, Version,
    WHOLE_QUEUE,
};

impl QueueData {
    /// `lease_room`: so many leases more may the store have.
    pub(super) fn take(&mut self, take: &Take<'_>, lease_room: usize, now: Timestamp) -> Taken {
        let version = |group| Version::read(self.record(Table::Version, &RecordKey::Group(group)).map(AsRef::as_ref));
        if version(WHOLE_QUEUE) != take.whole || version(NO_GROUP) != take.rule.version {
            return Taken { changed: true, ..Taken::default() };
        }
        let mut taken = Taken { promoted: self.promote(take.promote, now), ..Taken::default() };
        let mut most = take.jobs;
        if let Some(probes) = take.rule.probes {
            let (left, oldest) = probes.left(take.rule.version.epoch, self.index(Index::Probe).iter());
            most = most.min(left);
            taken.oldest_probe = oldest.filter(|_| left == 0);
        }
        let mut rng = Rng::new(take.lease.seed);
        let mut bytes_left = take.bytes;
        for position in self.first_ready(take.rule.pass_over, most) {
            if taken.jobs.len() >= lease_room {
                taken.leases_full = true;
                break;
            }
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
            let lease = take.lease_on(&position, &head, rng.next_u64());
            let failure = |part| of_old(Table::Failure, RecordKey::Part(number, part));
            let last_failure = FAILURES.into_iter().find_map(failure);
            let body = self.record(Table::Body, &key).filter(|_| lease.has_body).cloned();
            self.index_mut(Index::Ready).remove(&Member::Position(position));
            self.put_lease(number, take.lease.expires_at, lease.record);
            if take.rule.probes.is_some() {
                let member = Member::Probe { epoch: take.rule.version.epoch, number };
                let score = take.lease.started_at.millis();
                self.index_mut(Index::Probe).insert(&Entry { score, member });
            }
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
        taken.ready = self.index(Index::Ready).len() as u64;
        taken
    }

    /// The first positions of `Ready`, without the job that is passed over while there are others.
    fn first_ready(&self, pass_over: Option<u64>, most: usize) -> Vec<Position> {
        let ready = self.index(Index::Ready);
        let pass_over = pass_over.filter(|_| ready.len() > 1);
        let positions = ready.iter().filter_map(|entry| match entry.member {
            Member::Position(position) => Some(position),
            _ => None,
        });
        positions.filter(|position| Some(position.number) != pass_over).take(most).collect()
    }
}
