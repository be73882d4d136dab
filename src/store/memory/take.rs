//! The first of `Ready` become leases.

use super::queue_data::QueueData;
use crate::{
    domain::{chance::Dice, time::Timestamp},
    store::storage::{
        Entry, Index, LEASE_FENCE, LEASE_TAIL, Member, NO_GROUP, Position, Probes, RecordKey,
        Table, Take, Taken, TakenJob, Version, WHOLE_QUEUE, flag,
    },
};
use bytes::{Buf, BufMut, Bytes};

/// Which of a job's `Failure` records are the first and the last one.
const FIRST_FAILURE: u8 = 0;
const LAST_FAILURE: u8 = 1;

/// A job in `Ready`, with what a lease on it needs.
struct Candidate {
    position: Position,
    job: Option<Bytes>,
    history: Option<Bytes>,
    job_head: JobHead,
    history_head: HistoryHead,
}

/// The bytes of a `Job` that an engine knows. Of a damaged one: zeros.
#[derive(Default)]
struct JobHead {
    size: u32,
    traits: u8,
}

/// The same of a `History`.
#[derive(Default)]
struct HistoryHead {
    size: u32,
    traits: u8,
    deliveries: u32,
    tries: u32,
}

impl QueueData {
    /// `lease_room`: so many leases more may the store have.
    pub(super) fn take(&mut self, take: &Take<'_>, lease_room: usize, now: Timestamp) -> Taken {
        if self.version(WHOLE_QUEUE) != take.whole || self.version(NO_GROUP) != take.rule.version {
            return Taken { changed: true, ..Taken::default() };
        }
        let mut taken = Taken { promoted: self.promote(take.promote, now), ..Taken::default() };
        let mut most = take.jobs;
        if let Some(probes) = take.rule.probes {
            let (left, oldest) = self.probes_left(probes, take.rule.version.epoch);
            most = most.min(left);
            taken.oldest_probe = oldest.filter(|_| left == 0);
        }
        let mut rng = Dice::new(take.lease.seed);
        let mut bytes_left = take.bytes;
        for position in self.line(take.rule.pass_over, most) {
            if taken.jobs.len() >= lease_room {
                taken.leases_full = true;
                break;
            }
            let candidate = self.candidate(position);
            let size = candidate.size();
            let exempt = take.first_fits && taken.jobs.is_empty();
            if size > bytes_left && !exempt {
                taken.bytes_full = true;
                break;
            }
            bytes_left = bytes_left.saturating_sub(size);
            taken.jobs.push(self.lease(candidate, take, rng.roll()));
        }
        if taken.promoted > 0 || !taken.jobs.is_empty() {
            self.mark_used(now);
        }
        if taken.jobs.len() < take.jobs {
            let waiting = [Index::Scheduled, Index::Retrying];
            let due = waiting.into_iter().filter_map(|index| self.index(index).first_score()).min();
            taken.next_due = due.map(Timestamp::from_millis);
        }
        taken.ready = self.index(Index::Ready).len() as u64;
        taken
    }

    fn version(&self, group: u16) -> Version {
        Version::read(self.record(Table::Version, &RecordKey::Group(group)).map(AsRef::as_ref))
    }

    /// How many probes may start, and when the first of those that run has started.
    fn probes_left(&self, probes: Probes, epoch: u32) -> (usize, Option<Timestamp>) {
        let starts: Vec<_> = self
            .index(Index::Probe)
            .iter()
            .filter(|entry| matches!(entry.member, Member::Probe { epoch: of, .. } if of == epoch))
            .map(|entry| Timestamp::from_millis(entry.score))
            .filter(|start| *start > probes.started_after)
            .collect();
        let left = probes.most.saturating_sub(starts.len() as u64);
        (usize::try_from(left).unwrap_or(usize::MAX), starts.first().copied())
    }

    /// The first positions of `Ready`, without the job that is passed over while there are others.
    fn line(&self, pass_over: Option<u64>, most: usize) -> Vec<Position> {
        let ready = self.index(Index::Ready);
        let pass_over = pass_over.filter(|_| ready.len() > 1);
        let positions = ready.iter().filter_map(|entry| match entry.member {
            Member::Position(position) => Some(position),
            _ => None,
        });
        positions.filter(|position| Some(position.number) != pass_over).take(most).collect()
    }

    fn candidate(&self, position: Position) -> Candidate {
        let key = RecordKey::Number(position.number);
        let job = self.record(Table::Job, &key).cloned();
        let history = position.has_history().then(|| self.record(Table::History, &key).cloned());
        let history = history.flatten();
        let job_head = job.as_deref().and_then(JobHead::read).unwrap_or_default();
        let history_head = history.as_deref().and_then(HistoryHead::read).unwrap_or_default();
        Candidate { position, job, history, job_head, history_head }
    }

    fn lease(&mut self, candidate: Candidate, take: &Take<'_>, nonce: u64) -> TakenJob {
        let Candidate { position, job, history, job_head, history_head } = candidate;
        let number = position.number;
        let flags = take.rule.flags | job_head.traits | history_head.traits;
        let attempt = history_head.tries.saturating_add(1);
        let epoch = take.rule.version.epoch;

        let mut lease = [0; LEASE_FENCE];
        let mut head = &mut lease[..];
        head.put_u32(history_head.deliveries.saturating_add(1));
        head.put_u64(nonce);
        head.put_u8(flags);
        head.put_u32(epoch);
        head.put_uint(take.lease.started_at.millis(), 6);
        head.put_u32(take.lease.duration_ms);

        let mut record = Vec::with_capacity(LEASE_TAIL + take.lease.tail.len());
        record.put_slice(&lease);
        record.put_u32(attempt);
        record.put_slice(&position.bytes());
        record.put_slice(take.lease.tail);

        self.index_mut(Index::Ready).remove(&Member::Position(position));
        self.put_lease(number, take.lease.expires_at, record.into());
        if take.rule.probes.is_some() {
            let member = Member::Probe { epoch, number };
            let score = take.lease.started_at.millis();
            self.index_mut(Index::Probe).insert(&Entry { score, member });
        }

        let last_failure = position.has_history().then(|| self.last_failure(number)).flatten();
        let has_body = flags & flag::BODY != 0;
        let body = self.record(Table::Body, &RecordKey::Number(number)).filter(|_| has_body);
        let body = body.cloned();
        TakenJob { number, lease, attempt, position, job, history, last_failure, body }
    }

    /// A job that failed once has the first failure alone.
    fn last_failure(&self, number: u64) -> Option<Bytes> {
        let failure = |part| self.record(Table::Failure, &RecordKey::Part(number, part));
        failure(LAST_FAILURE).or_else(|| failure(FIRST_FAILURE)).cloned()
    }
}

impl Candidate {
    fn size(&self) -> usize {
        (self.job_head.size as usize).saturating_add(self.history_head.size as usize)
    }
}

impl JobHead {
    fn read(mut record: &[u8]) -> Option<Self> {
        Some(Self { size: record.try_get_u32().ok()?, traits: record.try_get_u8().ok()? })
    }
}

impl HistoryHead {
    fn read(mut record: &[u8]) -> Option<Self> {
        Some(Self {
            size: record.try_get_u32().ok()?,
            traits: record.try_get_u8().ok()?,
            deliveries: record.try_get_u32().ok()?,
            tries: record.try_get_u32().ok()?,
        })
    }
}
