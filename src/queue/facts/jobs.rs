//! A job, a delivery that ends, and what the ends of deliveries depend on.

use super::{OutcomeFacts, QueueFacts};
use crate::domain::{Lease, Progress, QueueName, Sameness, Spec, Timestamp};
use crate::queue::answers::{Answers, ask, ask_if_there, numbered};
use crate::queue::records::{self, History, LeaseRecord, Whereabouts, read_if};
use crate::store::Result;
use crate::store::storage::{Entry, Fence, Index, Member, Read, Reads, RecordKey, Table, epoch_of, flag, group_of};
use bytes::Bytes;

/// A job as its records are.
#[derive(Clone, Debug)]
pub(crate) struct JobFacts {
    pub(crate) number: u64,
    /// All of it but its body; a stand-in where it cannot be read.
    pub(crate) spec: Spec,
    /// Of Job and History.
    pub(crate) traits: u8,
    pub(crate) history: Option<History>,
    /// There is a record, readable or not.
    pub(crate) has_history: bool,
    /// Of its breaker key, as its record says: its history knows better.
    job_group: u16,
    /// The record of the job is there.
    pub(crate) exists: bool,
    /// Of a job with a key.
    pub(crate) sameness: Option<Sameness>,
}

impl JobFacts {
    pub(crate) fn of(number: u64, job: Option<&Bytes>, history: Option<&Bytes>) -> Result<Self> {
        let (spec, sameness, job_group) = records::job_with_rest(number, job)?;
        let bits = |record: Option<&Bytes>| record.map_or(0, |it| records::traits(it));
        let past = read_if(history, records::read_history)?;
        let history_bits = match (history, &past) {
            (None, _) => 0,
            (Some(_), Some(_)) => flag::HISTORY,
            // Of a damaged one it is not known whether there are events.
            (Some(_), None) => flag::HISTORY | flag::LOOK,
        };
        Ok(Self {
            number,
            spec,
            traits: bits(job) | bits(history) | history_bits,
            history: past,
            has_history: history.is_some(),
            job_group,
            exists: job.is_some(),
            sameness,
        })
    }

    pub(crate) fn reads(number: u64) -> [Read; 2] {
        [Table::Job, Table::History].map(|table| numbered(table, number))
    }

    pub(crate) fn found(number: u64, found: &mut Answers) -> Result<Self> {
        let (job, history) = (found.record(), found.record());
        Self::of(number, job.as_ref(), history.as_ref())
    }

    /// What it has been through, unless it is fresh.
    pub(crate) fn past(&self) -> Option<&Progress> {
        self.history.as_ref().map(|history| &history.progress)
    }

    /// The same; of a fresh job nothing.
    pub(crate) fn progress(&self) -> Progress {
        self.past().cloned().unwrap_or_default()
    }

    /// Its history to be written again.
    pub(crate) fn next_history(&self, progress: Progress) -> History {
        let rank = records::rank(self.spec.priority);
        match &self.history {
            Some(before) => {
                let (learnt_key, unknown) = (before.learnt_key.clone(), before.unknown.clone());
                History { progress, rank, learnt_key, unknown, ..*before }
            }
            None => History { progress, rank, group: self.job_group, ..History::default() },
        }
    }

    /// Where it waits or runs: of its breaker key.
    pub(crate) fn group(&self) -> u16 {
        self.history.as_ref().map_or(self.job_group, |history| history.group)
    }

    /// The breaker key that a failure named last, or else the one that it was enqueued with.
    pub(crate) fn breaker_key(&self) -> Option<&str> {
        let learnt = self.history.as_ref().and_then(|history| history.learnt_key.as_deref());
        learnt.or(self.spec.breaker_key.as_deref())
    }

    /// Where it is, unless it is leased. One that waits is there or, once it was promoted, in `Ready`.
    pub(crate) fn whereabouts(&self, now: Timestamp) -> (Whereabouts, Timestamp) {
        match &self.history {
            Some(history) => (history.whereabouts, history.at),
            None if self.spec.run_at > now => (Whereabouts::Scheduled, self.spec.run_at),
            // It may have been scheduled when it was enqueued.
            None if self.spec.run_at > self.spec.enqueued_at => (Whereabouts::Scheduled, self.spec.run_at),
            None => (Whereabouts::Ready, self.spec.run_at),
        }
    }

    pub(crate) fn rank(&self) -> u8 {
        self.history.as_ref().map_or_else(|| records::rank(self.spec.priority), |history| history.rank)
    }
}

/// A delivery that ends, and its job.
#[derive(Clone, Debug)]
pub(crate) struct LeaseFacts {
    pub(crate) lease: LeaseRecord,
    pub(crate) record: Bytes,
    /// In `Leased`.
    pub(crate) score: u64,
    pub(crate) job: JobFacts,
}

impl LeaseFacts {
    pub(crate) fn reads(number: u64) -> [Read; 4] {
        let [job, history] = JobFacts::reads(number);
        [numbered(Table::Lease, number), Read::Score(Index::Leased, Member::Number(number)), job, history]
    }

    /// The lease that is out and its job; an error is the job alone.
    pub(crate) fn found(queue: &QueueName, number: u64, found: &mut Answers) -> Result<Result<Self, JobFacts>> {
        let (record, score) = (found.record(), found.score().unwrap_or_default());
        let job = JobFacts::found(number, found)?;
        let lease = read_if(record.as_ref(), |it| records::read_lease(queue, number, it))?;
        Ok(match (lease, record) {
            (Some(lease), Some(record)) => Ok(Self { lease, record, score, job }),
            _ => Err(job),
        })
    }

    /// None: it is not out, or not under this token.
    pub(crate) async fn read<S: Reads>(store: &mut S, lease: &Lease) -> Result<Option<Self>> {
        let mut found = ask(store, &lease.queue, &Self::reads(lease.number)).await?;
        let facts = Self::found(&lease.queue, lease.number, &mut found)?;
        Ok(facts.ok().filter(|facts| facts.lease.lease.fence() == lease.fence()))
    }

    /// Progress while it is out: the delivery that runs is counted.
    pub(crate) fn progress(&self) -> Progress {
        let mut progress = self.job.progress();
        progress.deliveries = self.lease.lease.delivery;
        let returned = self.lease.tail.returned.min(progress.tries);
        progress.tries -= returned;
        progress.uncounted += returned;
        if returned > 0 {
            progress.uncounted_since.get_or_insert(self.lease.lease.started_at);
        }
        // What the lease says becomes an event as it ends.
        progress.events += u32::from(self.lease.tail.cancel_requested.is_some());
        progress.cancel_requested |= self.lease.tail.cancel_requested.is_some();
        progress
    }

    /// The history of its job, to be written as this delivery ends.
    pub(crate) fn next_history(&self, progress: Progress) -> History {
        History { nonce: self.lease.lease.nonce, ..self.job.next_history(progress) }
    }

    /// Holds while the lease is as it was read.
    pub(crate) fn fence(&self) -> Fence {
        let key = RecordKey::Number(self.job.number);
        Fence::Is(Table::Lease, key, self.record.clone())
    }

    /// Holds while its end is the one that was read: an Extend changes nothing else.
    pub(crate) fn expiry_fence(&self) -> Fence {
        Fence::At(Index::Leased, Entry::number(self.score, self.job.number))
    }
}

/// What the ends of deliveries depend on.
pub(crate) struct DeliveryFacts {
    pub(crate) queue: QueueFacts,
    pub(crate) outcomes: OutcomeFacts,
    /// In the order asked; none: it is not out.
    pub(crate) leases: Vec<Option<LeaseFacts>>,
}

impl DeliveryFacts {
    /// `group`: whose breaker hears of them. `leases`: the numbers of their jobs, and their epochs. None: there is no such queue.
    pub(crate) async fn read<S: Reads>(
        store: &mut S, queue: &QueueName, group: u16, leases: impl Iterator<Item = (u64, u32)> + Clone + Send,
    ) -> Result<Option<Self>> {
        // Epochs grow, and outcomes of an earlier one count nowhere.
        let of_group = leases.clone().map(|(_, epoch)| epoch).filter(|epoch| group_of(*epoch) == group);
        let epoch = of_group.max().unwrap_or_else(|| epoch_of(group, 0));
        let own = QueueFacts::reads(group).into_iter().chain(OutcomeFacts::reads(epoch));
        let reads: Vec<_> = own.chain(leases.clone().flat_map(|(number, _)| LeaseFacts::reads(number))).collect();
        let Some(mut found) = ask_if_there(store, queue, &reads).await? else { return Ok(None) };
        let facts = QueueFacts::found(group, &mut found)?;
        let outcomes = OutcomeFacts::found(&facts, epoch, &mut found, store.now())?;
        let leases = leases.map(|(number, _)| Ok(LeaseFacts::found(queue, number, &mut found)?.ok()));
        Ok(Some(Self { queue: facts, outcomes, leases: leases.collect::<Result<_>>()? }))
    }
}
