//! Random reads.

use super::values::{self, Seed, pick};
use redrive::domain::Timestamp;
use redrive::store::storage::{Index, Member, Read, Table};

pub(super) fn read(seed: Seed, queue: u8, start: Timestamp) -> Read {
    let [kind, a, b, c, d] = seed;
    let (table, index) = (pick(&Table::ALL, a), pick(&Index::ALL, a));
    let entry = values::entry(index, queue, start, [b, c, d]);
    let limit = usize::from(d % 4);
    match kind % 6 {
        0 => Read::Record(table, values::key(table, queue, b, c)),
        1 => Read::Score(index, entry.member),
        2 | 3 => Read::Range {
            index,
            after: (b % 3 > 0).then_some(entry),
            up_to: (c % 3 > 0).then_some(()).and_then(|()| match index {
                // Every entry has the score 0.
                Index::Ready | Index::Keyed => None,
                Index::LeasedByGroup => Some(u64::from(c % 4)),
                _ => Some(values::time(start, c / 3).millis()),
            }),
            limit,
            reverse: kind % 2 == 1,
        },
        4 => match values::entry(pick(&[Index::Ready, Index::Keyed], a), queue, start, [b, c, d]).member {
            Member::Position(position) => Read::Ahead(position, limit),
            _ => unreachable!("members of `Ready` and `Keyed` are positions"),
        },
        _ => {
            let after = (b % 3 > 0).then(|| values::key(table, queue, b, c));
            Read::Scan(table, after, limit)
        }
    }
}
