//! From the indexes: an entry leads to a job or a record that is there and knows of it.

use super::{
    PAGE, Pass, Verification,
    moment::{Moment, agrees},
};
use crate::{
    domain::ids::QueueName,
    queue::records,
    store::{
        Check, StoreError,
        storage::{Entry, Found, Index, Len, Member, Read, Reads, RecordKey, Table, flag},
    },
};

/// What a first look at an entry reads of its job.
const FIRST_LOOK: [Table; 4] = [Table::Job, Table::History, Table::Lease, Table::Dead];

pub(super) fn range(index: Index, after: Option<Entry>, limit: usize) -> Read {
    Read::Range { index, after, up_to: None, limit, reverse: false }
}

impl<S: Reads> Verification<'_, S> {
    pub(super) async fn all_entries(&mut self, index: Index) -> Result<(), StoreError> {
        let mut pass = Pass::new(self.len(Len::Index(index)).await?);
        let mut after = None;
        while !pass.is_over {
            let found = self.read_one(range(index, after.clone(), PAGE)).await?;
            let page = found.map(Found::entries).unwrap_or_default();
            let Some(last) = page.last() else { break };
            pass.page(page.len(), PAGE);
            self.deaths_repeat(index, after.as_ref(), &page);
            after = Some(last.clone());
            match index {
                Index::FinishedKey => self.finished_keys(&page).await?,
                Index::Expires => self.expiries(&page).await?,
                _ => self.of_jobs(index, &page).await?,
            }
            self.tell(index.name(), pass.count, None);
        }
        if self.len(Len::Index(index)).await? != pass.count {
            self.recount.push(index);
        }
        Ok(())
    }

    /// A number of death is given once.
    fn deaths_repeat(&mut self, index: Index, before: Option<&Entry>, page: &[Entry]) {
        if !matches!(index, Index::Dead | Index::Overflow) {
            return;
        }
        let scores: Vec<u64> = before.into_iter().chain(page).map(|entry| entry.score).collect();
        for pair in scores.windows(2).filter(|pair| pair[0] == pair[1]) {
            let what = format!("two dead letters have the number of death {}", pair[0]);
            self.found(Check::Counts, what);
        }
    }

    async fn of_jobs(&mut self, index: Index, page: &[Entry]) -> Result<(), StoreError> {
        let jobs: Vec<(u64, &Entry)> =
            page.iter().filter_map(|entry| Some((entry.member.job()?, entry))).collect();
        let reads_of =
            |number: u64| FIRST_LOOK.map(|table| Read::Record(table, RecordKey::Number(number)));
        let reads: Vec<_> = jobs.iter().flat_map(|(number, _)| reads_of(*number)).collect();
        let mut found = self.read(&reads).await?.into_iter();
        for (number, entry) in jobs {
            let reads = reads_of(number);
            let found = found.by_ref().take(reads.len());
            let moment = Moment::of(self.queue, number, &reads, found);
            if !is_expected(self.queue, index, entry, &moment) {
                self.suspect_entry(number, index, entry.member.clone());
            }
        }
        Ok(())
    }

    async fn finished_keys(&mut self, page: &[Entry]) -> Result<(), StoreError> {
        let keys = page.iter().filter_map(|entry| match &entry.member {
            Member::Text(key) => Some((RecordKey::Text(key.clone()), entry.score)),
            _ => None,
        });
        let keys: Vec<_> = keys.collect();
        let reads: Vec<_> =
            keys.iter().map(|(key, _)| Read::Record(Table::Key, key.clone())).collect();
        let found = self.read(&reads).await?;
        for ((key, score), found) in keys.into_iter().zip(found) {
            let record = found.record().and_then(|record| records::read_key(&record).ok());
            let free_at = record.and_then(|record| record.free_at);
            if free_at.is_none_or(|at| at.millis() != score) {
                self.others.insert((Table::Key, key));
            }
        }
        Ok(())
    }

    async fn expiries(&mut self, page: &[Entry]) -> Result<(), StoreError> {
        let named = page.iter().filter_map(|entry| match &entry.member {
            Member::Record(table, key) => Some((*table, key.clone())),
            _ => None,
        });
        let named: Vec<_> = named.collect();
        let reads: Vec<_> =
            named.iter().map(|(table, key)| Read::Record(*table, key.clone())).collect();
        let found = self.read(&reads).await?;
        for (name, found) in named.into_iter().zip(found) {
            if found.record().is_none() {
                self.others.insert(name);
            }
        }
        Ok(())
    }
}

/// Whether an entry is where the records of its job say. They are not of the same moment.
fn is_expected(queue: &QueueName, index: Index, entry: &Entry, moment: &Moment) -> bool {
    let Some(job) = moment.record(Table::Job) else { return false };
    let lease = || moment.lease();
    match index {
        Index::Ready | Index::Scheduled | Index::Retrying => {
            let history = moment.history();
            moment.position().map(Member::Position).as_ref() == Some(&entry.member)
                && agrees(history.map(|it| it.whereabouts), index)
                && moment.record(Table::Lease).is_none()
        }
        Index::Leased => moment.record(Table::Lease).is_some(),
        Index::Dead | Index::Overflow => {
            let record = moment.record(Table::Dead);
            record.is_some_and(|record| records::death_of(record) == entry.score)
        }
        Index::Completed => moment.history().is_some_and(|history| {
            agrees(Some(history.whereabouts), index) && history.at.millis() == entry.score
        }),
        Index::Deadline => {
            let at = records::read_job_head(job).ok().and_then(|spec| spec.expires_at);
            at.is_some_and(|at| at.millis() == entry.score)
        }
        Index::Probe => lease().is_some_and(|it| {
            let lease = it.lease;
            let member = Member::Probe { epoch: lease.epoch, number: moment.number };
            lease.flags & flag::PROBE != 0
                && member == entry.member
                && lease.started_at.millis() == entry.score
                && lease.queue == *queue
        }),
        Index::FinishedKey | Index::Expires => true,
    }
}
