//! The records of `Move`.

use super::super::answers::{ask, numbered};
use super::super::encoding::Unreadable::Damaged;
use super::super::encoding::{FORMAT, Read as ReadResult, Unknown, open, put_field, put_text, put_u48, put_u64, seal};
use super::super::records::read_if;
use super::super::requests::expiry;
use super::super::state_changes::Changes;
use crate::domain::{QueueName, Timestamp};
use crate::queue::SkipReason;
use crate::store::Result;
use crate::store::storage::{Entry, Index, Reads, RecordKey, Table};
use bytes::Bytes;

const REASON_TAG: u8 = 1;

/// A record of `Move`. At the source it has the job's number there as its key, and at the target the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::queue) struct MoveRecord {
    /// At the source where it goes, at the target where it comes from.
    pub(super) other: QueueName,
    /// From then on the sweep completes what has begun, or removes the record.
    pub(super) due: Timestamp,
    pub(in crate::queue) step: Step,
    /// The caller's, at the source until it has left.
    pub(super) reason: String,
    pub(super) unknown: Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::queue) enum Step {
    /// At the source: it is bound for the other queue. With the dead letter that it is.
    Begun { keep_attempts: bool, index: Index, death: u64 },
    /// At the source: it has left.
    Left,
    /// At the target: it has arrived.
    Arrived,
    /// At the target: it could not arrive.
    Refused(SkipReason),
}

impl MoveRecord {
    fn bytes(&self) -> Bytes {
        let code = match self.step {
            Step::Begun { .. } => 1,
            Step::Left => 2,
            Step::Arrived => 3,
            Step::Refused(_) => 4,
        };
        let mut out = Vec::with_capacity(64);
        out.extend_from_slice(&[FORMAT, code]);
        put_u48(&mut out, self.due.millis());
        put_text(&mut out, self.other.as_str());
        match self.step {
            Step::Begun { keep_attempts, index, death } => {
                out.push(u8::from(keep_attempts) | u8::from(index == Index::Overflow) << 1);
                put_u64(&mut out, death);
            }
            Step::Refused(reason) => out.push(u8::from(reason == SkipReason::KeyTaken)),
            Step::Left | Step::Arrived => {}
        }
        if !self.reason.is_empty() {
            put_field(&mut out, REASON_TAG, self.reason.as_bytes());
        }
        self.unknown.put(&mut out);
        seal(out).into()
    }

    pub(super) fn read(record: &[u8]) -> ReadResult<Self> {
        let mut read = open(record)?;
        let code = read.u8()?;
        let due = Timestamp::from_millis(read.u48()?);
        let other = QueueName::parse(&read.text()?).ok_or(Damaged)?;
        let step = match code {
            1 => {
                let flags = read.u8()?;
                let index = if flags & 2 != 0 { Index::Overflow } else { Index::Dead };
                Step::Begun { keep_attempts: flags & 1 != 0, index, death: read.u64()? }
            }
            2 => Step::Left,
            3 => Step::Arrived,
            4 => Step::Refused(if read.u8()? == 1 { SkipReason::KeyTaken } else { SkipReason::IdTaken }),
            _ => return Err(Damaged),
        };
        let mut reason = String::new();
        let unknown = read.fields(|tag, value| {
            if tag == REASON_TAG {
                reason = value.rest_text()?;
            }
            Ok(tag == REASON_TAG)
        })?;
        Ok(Self { other, due, step, reason, unknown })
    }

    /// Its entry in `Expires`.
    pub(super) fn entry(&self, number: u64) -> Entry {
        expiry(Table::Move, RecordKey::Number(number), self.due)
    }

    /// In place of `before`.
    pub(super) fn put(&self, number: u64, before: Option<&Self>, changes: &mut Changes) {
        if let Some(before) = before {
            changes.remove(Index::Expires, before.entry(number));
        }
        changes.put(Table::Move, RecordKey::Number(number), self.bytes());
        changes.insert(Index::Expires, self.entry(number));
    }

    pub(super) fn delete(&self, number: u64, changes: &mut Changes) {
        changes.remove(Index::Expires, self.entry(number));
        changes.delete(Table::Move, RecordKey::Number(number));
    }
}

/// The records of these moves as they are in a queue; none where there is none, or a damaged one.
pub(super) async fn moves<S: Reads>(
    store: &mut S, queue: &QueueName, numbers: &[u64],
) -> Result<Vec<Option<(MoveRecord, Bytes)>>> {
    let reads: Vec<_> = numbers.iter().map(|number| numbered(Table::Move, *number)).collect();
    let mut found = ask(store, queue, &reads).await?;
    numbers.iter().map(|_| read_move(found.record())).collect()
}

pub(in crate::queue) fn read_move(record: Option<Bytes>) -> Result<Option<(MoveRecord, Bytes)>> {
    Ok(read_if(record.as_ref(), MoveRecord::read)?.zip(record))
}

/// Whether a dead letter of this queue is already in the one that it is bound for: then it is to be seen there alone. `record`:
/// of `Move` under its number here.
pub(crate) async fn is_moved_away<S: Reads>(store: &mut S, number: u64, record: &Bytes) -> Result<bool> {
    let Some(MoveRecord { other, step: Step::Begun { .. }, .. }) = read_if(Some(record), MoveRecord::read)? else {
        return Ok(false);
    };
    let mark = moves(store, &other, &[number]).await?;
    Ok(matches!(&mark[..], [Some((mark, _))] if mark.step == Step::Arrived))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_moves_read_back() {
        let due = Timestamp::from_millis(1_800_000_000_000);
        for step in [
            Step::Begun { keep_attempts: true, index: Index::Dead, death: 7 },
            Step::Begun { keep_attempts: false, index: Index::Overflow, death: 7 },
            Step::Left,
            Step::Arrived,
            Step::Refused(SkipReason::IdTaken),
            Step::Refused(SkipReason::KeyTaken),
        ] {
            for reason in ["", "the API is back"] {
                let other = QueueName::parse("other").unwrap();
                let record = MoveRecord { other, due, step, reason: reason.to_owned(), unknown: Unknown::default() };
                assert_eq!(record.entry(9).score, due.millis());
                assert_eq!(MoveRecord::read(&record.bytes()), Ok(record));
            }
        }
        assert_eq!(MoveRecord::read(b""), Err(Damaged));
    }
}
