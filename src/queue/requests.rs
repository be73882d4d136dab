//! Calls with a request id. The `Request` record of a bulk call is its journal: every batch of the call expects the journal as the
//! batch before it left it, and puts it as it is afterwards. So a call that is repeated after a crash goes on where it stood,
//! calls that are made twice at the same time share one answer, and each reports exactly what it did.

use super::{
    encoding::{FORMAT, Read, Reader, Unreadable::Damaged, open, put_id, put_u48, put_u64, seal},
    facts::record_fence,
    records,
    state_changes::Changes,
};
use crate::{
    domain::{
        ids::{JobId, QueueName},
        time::Timestamp,
    },
    store::{
        Deaths, REPLY_KEPT, RequestId, SkipReason, StoreError,
        storage::{self, Entry, Found, Index, Member, Reads, RecordKey, Table},
    },
};
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

#[derive(Clone, Debug, PartialEq, Eq)]
struct RequestRecord {
    asked: [u8; 32],
    expires_at: Timestamp,
    progress: BulkProgress,
}

fn skip_code(reason: SkipReason) -> u8 {
    match reason {
        SkipReason::JobNotFound => 1,
        SkipReason::KeyTaken => 2,
        SkipReason::IdTaken => 3,
        SkipReason::DataCorrupt => 4,
    }
}

fn skip_of(code: u8) -> Read<SkipReason> {
    Ok(match code {
        1 => SkipReason::JobNotFound,
        2 => SkipReason::KeyTaken,
        3 => SkipReason::IdTaken,
        4 => SkipReason::DataCorrupt,
        _ => return Err(Damaged),
    })
}

impl RequestRecord {
    fn bytes(&self) -> Bytes {
        let progress = &self.progress;
        let mut out = Vec::with_capacity(96 + 17 * progress.ids.len());
        out.push(FORMAT);
        out.extend_from_slice(&self.asked);
        put_u48(&mut out, self.expires_at.millis());
        out.push(u8::from(progress.finished) | u8::from(progress.has_more) << 1);
        let numbers = [
            progress.count,
            progress.left.after,
            progress.left.up_to,
            progress.looked_at,
            progress.bytes,
        ];
        for number in numbers {
            put_u64(&mut out, number);
        }
        put_u64(&mut out, progress.ids.len() as u64);
        for id in &progress.ids {
            put_id(&mut out, id);
        }
        put_u64(&mut out, progress.skipped.len() as u64);
        for (id, reason) in &progress.skipped {
            put_id(&mut out, id);
            out.push(skip_code(*reason));
        }
        put_u64(&mut out, progress.moving.len() as u64);
        for (number, id) in &progress.moving {
            put_u64(&mut out, *number);
            put_id(&mut out, id);
        }
        seal(out).into()
    }

    /// What follows is a newer server's.
    fn read(record: &[u8]) -> Read<Self> {
        let mut read = open(record)?;
        let asked = read.array()?;
        let expires_at = Timestamp::from_millis(read.u48()?);
        let flags = read.u8()?;
        let count = read.u64()?;
        let left = Deaths { after: read.u64()?, up_to: read.u64()? };
        let (looked_at, bytes) = (read.u64()?, read.u64()?);
        let ids = list(&mut read, |read| read.id())?;
        let skipped = list(&mut read, |read| Ok((read.id()?, skip_of(read.u8()?)?)))?;
        let moving = list(&mut read, |read| Ok((read.u64()?, read.id()?)))?;
        let (finished, has_more) = (flags & 1 != 0, flags & 2 != 0);
        let progress = BulkProgress {
            finished,
            count,
            ids,
            skipped,
            has_more,
            left,
            looked_at,
            bytes,
            moving,
        };
        Ok(Self { asked, expires_at, progress })
    }
}

fn list<T>(read: &mut Reader<'_>, mut one: impl FnMut(&mut Reader<'_>) -> Read<T>) -> Read<Vec<T>> {
    let count = read.u64()?;
    (0..count).map(|_| one(read)).collect()
}

/// What is known of a call.
pub(crate) enum Earlier {
    /// It has not begun, or is not finished. `progress` is none where it has not begun.
    Open(Journal, Option<BulkProgress>),
    /// It was carried out.
    Answered(BulkProgress),
    /// Another call had the request id.
    Another,
}

/// The journal of one call; of a call without a request id nothing is written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journal {
    request: Option<(RecordKey, [u8; 32])>,
    /// As it was read or last written.
    record: Option<Bytes>,
    /// Its entry in `Expires`.
    expires_at: Option<Timestamp>,
}

impl Journal {
    /// `call`: whose request ids they are. None: there is no such queue, if it was looked at.
    pub(crate) async fn find<S: Reads>(
        store: &mut S,
        queue: &QueueName,
        call: &str,
        request: Option<&RequestId>,
    ) -> Result<Option<Earlier>, StoreError> {
        let Some(request) = request else {
            return Ok(Some(Earlier::Open(Self::default(), None)));
        };
        let key = RecordKey::Text(format!("{call}:{}", request.id).into());
        let read = storage::Read::Record(Table::Request, key.clone());
        let Some(mut found) = store.read(queue, &[read]).await? else { return Ok(None) };
        let request_key = Some((key, request.asked));
        let Some(record) = found.pop().and_then(Found::record) else {
            let journal = Self { request: request_key, record: None, expires_at: None };
            return Ok(Some(Earlier::Open(journal, None)));
        };
        let Some(earlier) = records::readable(RequestRecord::read(&record))? else {
            // A damaged record answers that nothing more was done, which is so.
            return Ok(Some(Earlier::Answered(BulkProgress::default())));
        };
        let expires_at = Some(earlier.expires_at);
        let journal = Self { request: request_key, record: Some(record), expires_at };
        Ok(Some(if earlier.expires_at <= store.now() {
            Earlier::Open(journal, None)
        } else if earlier.asked != request.asked {
            Earlier::Another
        } else if earlier.progress.finished {
            Earlier::Answered(earlier.progress)
        } else {
            Earlier::Open(journal, Some(earlier.progress))
        }))
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.request.is_some()
    }

    /// The first fence of a batch, where the journal is kept.
    pub(crate) fn fence(&self, changes: &mut Changes) {
        if let Some((key, _)) = &self.request {
            changes.fence(record_fence(Table::Request, key.clone(), self.record.as_ref()));
        }
    }

    /// Puts the journal as it is after the batch; returns it for the next one.
    pub(crate) fn put(
        &self,
        changes: &mut Changes,
        progress: &BulkProgress,
        now: Timestamp,
    ) -> Self {
        let Some((key, asked)) = &self.request else { return self.clone() };
        let expires_at = now.after(REPLY_KEPT);
        let entry = |at: Timestamp| {
            let member = Member::Record(Table::Request, key.clone());
            Entry { score: at.millis(), member }
        };
        if self.expires_at != Some(expires_at) {
            if let Some(at) = self.expires_at {
                changes.remove(Index::Expires, entry(at));
            }
            changes.insert(Index::Expires, entry(expires_at));
        }
        let record = RequestRecord { asked: *asked, expires_at, progress: progress.clone() };
        let bytes = record.bytes();
        changes.put(Table::Request, key.clone(), bytes.clone());
        let request = self.request.clone();
        Self { request, record: Some(bytes), expires_at: Some(expires_at) }
    }

    /// Whether another call with the same request id has gone on meanwhile: the journal's is the first fence.
    pub(crate) fn is_overtaken(&self, failed: &[(usize, storage::Was)]) -> bool {
        self.is_kept() && failed.iter().any(|(at, _)| *at == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_reads_back_and_a_damaged_one_is_noticed() {
        let reasons = [
            SkipReason::JobNotFound,
            SkipReason::KeyTaken,
            SkipReason::IdTaken,
            SkipReason::DataCorrupt,
        ];
        let progress = BulkProgress {
            finished: true,
            count: 2,
            ids: vec![JobId::parse("a"), JobId::parse("0198f7c0-0000-7000-8000-000000000000")],
            skipped: reasons.map(|reason| (JobId::parse("s"), reason)).into(),
            has_more: true,
            left: Deaths { after: 3, up_to: 1 << 40 },
            looked_at: 7,
            bytes: 1 << 33,
            moving: vec![(9, JobId::parse("m"))],
        };
        let expires_at = Timestamp::from_millis(1_800_000_000_000);
        let record = RequestRecord { asked: [7; 32], expires_at, progress };
        let mut bytes = record.bytes().to_vec();
        assert_eq!(RequestRecord::read(&bytes), Ok(record.clone()));
        assert_eq!(record.progress.handled(), 7);
        bytes[40] ^= 1;
        assert_eq!(RequestRecord::read(&bytes), Err(Damaged));
    }
}
