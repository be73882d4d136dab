//! The records of `Move`.

use super::super::{
    encoding::{
        FORMAT, Read as ReadResult, Unreadable::Damaged, open, put_text, put_u48, put_u64, seal,
    },
    records,
    select::DeadEntry,
    state_changes::Changes,
};
use crate::{
    domain::{ids::QueueName, time::Timestamp},
    store::{
        SkipReason, StoreError,
        storage::{Entry, Index, Member, Read, Reads, RecordKey, Table},
    },
};
use bytes::Bytes;

/// What a record of `Move` says. At the source it has the job's number there as its key, and at the target the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MoveRecord {
    /// At the source: it is bound for this queue.
    Begun(Begun),
    /// At the source: it has left for this queue.
    Left { to: QueueName, until: Timestamp },
    /// At the target: it has arrived from this queue.
    Arrived { from: QueueName, until: Timestamp },
    /// At the target: it could not arrive from this queue.
    Refused { from: QueueName, reason: SkipReason, until: Timestamp },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Begun {
    pub(super) to: QueueName,
    pub(super) keep_attempts: bool,
    /// The dead letter that it is.
    pub(super) overflow: bool,
    pub(super) death: u64,
    /// From then on the sweep completes it.
    pub(super) due: Timestamp,
}

impl Begun {
    pub(super) fn letter(&self, number: u64) -> DeadEntry {
        let index = if self.overflow { Index::Overflow } else { Index::Dead };
        DeadEntry { index, death: self.death, number }
    }
}

impl MoveRecord {
    fn bytes(&self) -> Bytes {
        let mut out = Vec::with_capacity(64);
        out.push(FORMAT);
        match self {
            Self::Begun(begun) => {
                out.push(1);
                put_u48(&mut out, begun.due.millis());
                put_text(&mut out, begun.to.as_str());
                out.push(u8::from(begun.keep_attempts) | u8::from(begun.overflow) << 1);
                put_u64(&mut out, begun.death);
            }
            Self::Left { to, until } => {
                out.push(2);
                put_u48(&mut out, until.millis());
                put_text(&mut out, to.as_str());
            }
            Self::Arrived { from, until } => {
                out.push(3);
                put_u48(&mut out, until.millis());
                put_text(&mut out, from.as_str());
            }
            Self::Refused { from, reason, until } => {
                out.push(4);
                put_u48(&mut out, until.millis());
                put_text(&mut out, from.as_str());
                out.push(u8::from(*reason == SkipReason::KeyTaken));
            }
        }
        seal(out).into()
    }

    fn read(record: &[u8]) -> ReadResult<Self> {
        let mut read = open(record)?;
        let kind = read.u8()?;
        let until = Timestamp::from_millis(read.u48()?);
        let queue = QueueName::parse(&read.text()?).ok_or(Damaged)?;
        Ok(match kind {
            1 => {
                let flags = read.u8()?;
                Self::Begun(Begun {
                    to: queue,
                    keep_attempts: flags & 1 != 0,
                    overflow: flags & 2 != 0,
                    death: read.u64()?,
                    due: until,
                })
            }
            2 => Self::Left { to: queue, until },
            3 => Self::Arrived { from: queue, until },
            4 => {
                let reason =
                    if read.u8()? == 1 { SkipReason::KeyTaken } else { SkipReason::IdTaken };
                Self::Refused { from: queue, reason, until }
            }
            _ => return Err(Damaged),
        })
    }

    /// Its entry in `Expires`.
    pub(super) fn entry(&self, number: u64) -> Entry {
        let at = match self {
            Self::Begun(begun) => begun.due,
            Self::Left { until, .. }
            | Self::Arrived { until, .. }
            | Self::Refused { until, .. } => *until,
        };
        Entry { score: at.millis(), member: Member::Record(Table::Move, RecordKey::Number(number)) }
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
    store: &mut S,
    queue: &QueueName,
    numbers: impl Iterator<Item = u64>,
) -> Result<Vec<Option<(MoveRecord, Bytes)>>, StoreError> {
    let reads: Vec<_> =
        numbers.map(|number| Read::Record(Table::Move, RecordKey::Number(number))).collect();
    let Some(found) = store.read(queue, &reads).await? else {
        return Ok(vec![None; reads.len()]);
    };
    found.into_iter().map(|found| read_move(found.record())).collect()
}

pub(super) fn read_move(record: Option<Bytes>) -> Result<Option<(MoveRecord, Bytes)>, StoreError> {
    let Some(bytes) = record else { return Ok(None) };
    Ok(records::readable(MoveRecord::read(&bytes))?.map(|record| (record, bytes)))
}

/// Whether a dead letter of this queue is already in the one that it is bound for: then it is to be seen there alone. `record`:
/// of `Move` under its number here.
pub(crate) async fn is_moved_away<S: Reads>(
    store: &mut S,
    number: u64,
    record: &Bytes,
) -> Result<bool, StoreError> {
    let Some(MoveRecord::Begun(begun)) = records::readable(MoveRecord::read(record))? else {
        return Ok(false);
    };
    let mark = moves(store, &begun.to, std::iter::once(number)).await?;
    Ok(matches!(mark.first(), Some(Some((MoveRecord::Arrived { .. }, _)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_moves_read_back() {
        let queue = || QueueName::parse("other").unwrap();
        let at = Timestamp::from_millis(1_800_000_000_000);
        let begun = Begun { to: queue(), keep_attempts: true, overflow: false, death: 7, due: at };
        let refused = |reason| MoveRecord::Refused { from: queue(), reason, until: at };
        for record in [
            MoveRecord::Begun(Begun { keep_attempts: false, overflow: true, ..begun.clone() }),
            MoveRecord::Begun(begun),
            MoveRecord::Left { to: queue(), until: at },
            MoveRecord::Arrived { from: queue(), until: at },
            refused(SkipReason::IdTaken),
            refused(SkipReason::KeyTaken),
        ] {
            let bytes = record.bytes();
            assert_eq!(record.entry(9).score, at.millis());
            assert_eq!(MoveRecord::read(&bytes), Ok(record));
        }
        assert_eq!(MoveRecord::read(b""), Err(Damaged));
    }
}
