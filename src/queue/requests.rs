//! Calls with a request id. The `Request` record of a bulk call is its journal: every batch of the call expects the journal as the
//! batch before it left it, and puts it as it is afterwards. So a call that is repeated after a crash goes on where it stood,
//! calls that are made twice at the same time share one answer, and each reports exactly what it did.

use super::answers::ask_known;
use super::encoding::{FORMAT, Read, Reader, Unknown, open, put_id, put_list, put_place, put_u48, put_u64, seal};
use super::facts::record_fence;
use super::records;
use super::refusal::{Refusal, Result};
use super::state_changes::Changes;
use crate::domain::{JobId, QueueName, Timestamp};
use crate::queue::{Deaths, REPLY_KEPT, RequestId, SkipReason};
use crate::store::storage::{self, Entry, Index, Member, Reads, RecordKey, Table};
use bytes::Bytes;

/// How far a bulk call is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BulkProgress {
    pub(crate) finished: bool,
    /// Jobs that it has done its work on.
    pub(crate) count: u64,
    /// The same, where the answer names them.
    pub(crate) ids: Vec<JobId>,
    pub(crate) skipped: Vec<(JobId, SkipReason)>,
    pub(crate) has_more: bool,
    /// What it has still to look at; what going on meets.
    pub(crate) left: Deaths,
    /// Dead letters that it has looked at.
    pub(crate) looked_at: u64,
    /// Bytes of bodies that it has read.
    pub(crate) bytes: u64,
    /// Jobs that are on their way to another queue: what becomes of them is not in the counts yet.
    pub(crate) moving: Vec<(u64, JobId)>,
}

impl BulkProgress {
    /// Dead letters that it has chosen; named ones are chosen in the order of their names.
    pub(crate) fn handled(&self) -> usize {
        usize::try_from(self.count).unwrap_or(usize::MAX) + self.skipped.len() + self.moving.len()
    }
}

/// Their places are their codes.
const SKIP_REASONS: [SkipReason; 4] =
    [SkipReason::JobNotFound, SkipReason::KeyTaken, SkipReason::IdTaken, SkipReason::DataCorrupt];

fn encode(asked: &[u8; 32], expires_at: Timestamp, progress: &BulkProgress, unknown: &Unknown) -> Bytes {
    let mut out = Vec::with_capacity(96 + 17 * progress.ids.len());
    out.push(FORMAT);
    out.extend_from_slice(asked);
    put_u48(&mut out, expires_at.millis());
    out.push(u8::from(progress.finished) | u8::from(progress.has_more) << 1);
    let numbers = [progress.count, progress.left.after, progress.left.up_to, progress.looked_at, progress.bytes];
    for number in numbers {
        put_u64(&mut out, number);
    }
    put_list(&mut out, &progress.ids, put_id);
    put_list(&mut out, &progress.skipped, |out, (id, reason)| {
        put_id(out, id);
        put_place(out, &SKIP_REASONS, reason);
    });
    put_list(&mut out, &progress.moving, |out, (number, id)| {
        put_u64(out, *number);
        put_id(out, id);
    });
    unknown.put(&mut out);
    seal(out).into()
}

fn decode(record: &[u8]) -> Read<([u8; 32], Timestamp, BulkProgress, Unknown)> {
    let mut read = open(record)?;
    let asked = read.array()?;
    let expires_at = Timestamp::from_millis(read.u48()?);
    let flags = read.u8()?;
    let progress = BulkProgress {
        finished: flags & 1 != 0,
        has_more: flags & 2 != 0,
        count: read.u64()?,
        left: Deaths { after: read.u64()?, up_to: read.u64()? },
        looked_at: read.u64()?,
        bytes: read.u64()?,
        ids: read.list(Reader::id)?,
        skipped: read.list(|read| Ok((read.id()?, read.place(&SKIP_REASONS)?)))?,
        moving: read.list(|read| Ok((read.u64()?, read.id()?)))?,
    };
    let unknown = read.fields(|_, _| Ok(false))?;
    Ok((asked, expires_at, progress, unknown))
}

/// Its entry in `Expires`.
pub(crate) fn expiry(table: Table, key: RecordKey, at: Timestamp) -> Entry {
    Entry { score: at.millis(), member: Member::Record(table, key) }
}

/// The journal of one call; of a call without a request id nothing is written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journal {
    request: Option<(RecordKey, [u8; 32])>,
    /// As it was read or last written.
    record: Option<Bytes>,
    /// Its entry in `Expires`.
    expires_at: Option<Timestamp>,
    unknown: Unknown,
}

impl Journal {
    /// `call`: whose request ids they are. With how far the call is, if it has begun.
    pub(crate) async fn find<S: Reads>(
        store: &mut S, queue: &QueueName, call: &str, request: Option<&RequestId>,
    ) -> Result<(Self, Option<BulkProgress>)> {
        let Some(request) = request else { return Ok((Self::default(), None)) };
        let key = RecordKey::Text(format!("{call}:{}", request.id).into());
        let read = storage::Read::Record(Table::Request, key.clone());
        let record = ask_known(store, queue, &[read]).await?.record();
        let mut journal = Self { request: Some((key, request.asked)), record, ..Self::default() };
        let Some(record) = &journal.record else { return Ok((journal, None)) };
        let Some((asked, expires_at, progress, unknown)) = records::readable(decode(record))? else {
            // A damaged record answers that nothing more was done, which is so.
            return Ok((journal, Some(BulkProgress { finished: true, ..BulkProgress::default() })));
        };
        (journal.expires_at, journal.unknown) = (Some(expires_at), unknown);
        if expires_at <= store.now() {
            return Ok((journal, None));
        }
        if asked == request.asked { Ok((journal, Some(progress))) } else { Err(Refusal::RequestIdTaken.into()) }
    }

    /// The first fence of a batch, where the journal is kept.
    pub(crate) fn fence(&self, changes: &mut Changes) {
        if let Some((key, _)) = &self.request {
            changes.fence(record_fence(Table::Request, key.clone(), self.record.as_ref()));
        }
    }

    /// Puts the journal as it is after the batch; returns it for the next one.
    pub(crate) fn put(&self, changes: &mut Changes, progress: &BulkProgress, now: Timestamp) -> Self {
        let Some((key, asked)) = &self.request else { return Self::default() };
        let expires_at = now.after(REPLY_KEPT);
        let entry = |at| expiry(Table::Request, key.clone(), at);
        if self.expires_at != Some(expires_at) {
            if let Some(at) = self.expires_at {
                changes.remove(Index::Expires, entry(at));
            }
            changes.insert(Index::Expires, entry(expires_at));
        }
        let record = encode(asked, expires_at, progress, &self.unknown);
        changes.put(Table::Request, key.clone(), record.clone());
        Self { record: Some(record), expires_at: Some(expires_at), ..self.clone() }
    }

    /// Whether another call with the same request id has gone on meanwhile: the journal's is the first fence.
    pub(crate) fn is_overtaken(&self, failed: &[(usize, storage::Was)]) -> bool {
        self.request.is_some() && failed.iter().any(|(at, _)| *at == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::encoding::Unreadable::Damaged;

    #[test]
    fn a_journal_reads_back_and_a_damaged_one_is_noticed() {
        let progress = BulkProgress {
            finished: true,
            count: 2,
            ids: vec![JobId::parse("a"), JobId::parse("0198f7c0-0000-7000-8000-000000000000")],
            skipped: SKIP_REASONS.map(|reason| (JobId::parse("s"), reason)).into(),
            has_more: true,
            left: Deaths { after: 3, up_to: 1 << 40 },
            looked_at: 7,
            bytes: 1 << 33,
            moving: vec![(9, JobId::parse("m"))],
        };
        assert_eq!(progress.handled(), 7);
        let expires_at = Timestamp::from_millis(1_800_000_000_000);
        let mut bytes = encode(&[7; 32], expires_at, &progress, &Unknown::default()).to_vec();
        assert_eq!(decode(&bytes), Ok(([7; 32], expires_at, progress, Unknown::default())));
        bytes[40] ^= 1;
        assert_eq!(decode(&bytes), Err(Damaged));
    }
}
