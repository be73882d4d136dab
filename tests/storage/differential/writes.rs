//! Random batches, such as verbs could make: no record is written twice, no job waits twice or while it is leased, and
//! what is removed from an index is removed by the score that it has.

use super::dump::Dump;
use super::values::{self, Seed, pick};
use bytes::Bytes;
use redrive::domain::Timestamp;
use redrive::store::storage::{Batch, Counter, Fence, Index, Len, Mark, Member, Publish, RecordKey, Table, Write};
use std::collections::BTreeSet;

const DEPTH_MINUS: &[Len] = &[Len::Index(Index::Completed), Len::Table(Table::Dead)];

/// Of writes: removals are 0 to 4 and 19, so that a seed is either a removal or something else.
const KINDS: u8 = 20;

/// What a take looks at.
const TAKEN: [Table; 4] = [Table::Job, Table::History, Table::Failure, Table::Body];

/// Makes batches for one queue.
pub(super) struct Batches<'a> {
    pub(super) queue: u8,
    pub(super) start: Timestamp,
    /// What it holds.
    pub(super) known: &'a Dump,
}

/// What a batch does already.
struct Draft {
    records: BTreeSet<(Table, RecordKey)>,
    parts: BTreeSet<(Table, u64)>,
    inserted: BTreeSet<(Index, Member)>,
    removed: BTreeSet<(Index, Member)>,
    extended: BTreeSet<u64>,
    leased: BTreeSet<u64>,
    waiting: BTreeSet<u64>,
}

impl Batches<'_> {
    pub(super) fn batch(&self, fences: &[Seed], writes: &[Seed], keep_outcomes: bool) -> Batch {
        let mut fenced = BTreeSet::new();
        let fences = fences.iter().filter_map(|seed| self.fence(*seed, &mut fenced)).collect();
        let waiting = self.known.waiting().filter_map(|(_, entry)| entry.member.job());
        let mut draft = Draft {
            records: BTreeSet::new(),
            parts: BTreeSet::new(),
            inserted: BTreeSet::new(),
            removed: BTreeSet::new(),
            extended: BTreeSet::new(),
            leased: self.known.leased().collect(),
            waiting: waiting.collect(),
        };
        // Removals stand first.
        let removals: Vec<_> = writes.iter().filter_map(|seed| self.removal(*seed, &mut draft)).collect();
        let mut others: Vec<_> = writes.iter().flat_map(|seed| self.additions(*seed, &mut draft)).collect();
        others.retain(|write| keep_outcomes || !is_of_outcomes(write));
        let promote = writes.iter().find(|seed| seed[0] % KINDS == 15);
        others.extend(promote.map(|seed| Write::Promote(usize::from(seed[1] % 4))));
        let publish = pick(&[Publish::Never, Publish::IfFirst, Publish::Always], removals.len() as u8);
        Batch { fences, writes: removals.into_iter().chain(others).collect(), publish }
    }

    fn number(&self, by: u8) -> u64 {
        values::number(self.queue, by)
    }

    fn removal(&self, seed: Seed, draft: &mut Draft) -> Option<Write> {
        let [kind, a, b, c, d] = seed;
        match kind % KINDS {
            0 | 1 | 19 => {
                let ends_lease = kind % KINDS == 19;
                let table = if ends_lease { Table::Lease } else { pick(&Table::ALL, a) };
                let key = values::key(table, self.queue, b, c);
                if !draft.records.insert((table, key.clone())) {
                    return None;
                }
                if let (Table::Lease, RecordKey::Number(number)) = (table, &key) {
                    draft.leased.remove(number);
                }
                Some(Write::Delete(table, key))
            }
            2 => {
                let (table, number) = (pick(&[Table::Attempt, Table::Event, Table::Failure], a), self.number(b));
                let mut written = draft.records.iter();
                let is_written =
                    written.any(|(of, key)| *of == table && matches!(key, RecordKey::Part(of, _) if *of == number));
                (!is_written && draft.parts.insert((table, number))).then_some(Write::DeleteParts(table, number))
            }
            3 | 4 => {
                let index = pick(&Index::ALL, a);
                if index == Index::Leased {
                    return None;
                }
                let mut entry = values::entry(index, self.queue, self.start, [b, c, d]);
                let job = entry.member.job();
                // Rather one that is there.
                let mut waiting = self.known.waiting();
                if let Some((_, there)) = waiting.find(|(of, there)| *of == index && there.member.job() == job) {
                    entry = there.clone();
                }
                entry.score = self.known.score(index, &entry.member).unwrap_or(entry.score);
                if !draft.removed.insert((index, entry.member.clone())) {
                    return None;
                }
                if let (Member::Position(position), Some(_)) = (&entry.member, self.known.score(index, &entry.member)) {
                    draft.waiting.remove(&position.number);
                }
                Some(Write::Remove(index, entry))
            }
            _ => None,
        }
    }

    fn additions(&self, seed: Seed, draft: &mut Draft) -> Vec<Write> {
        match seed[0] % KINDS {
            9 | 10 | 16..=18 => self.job(seed, draft),
            _ => self.addition(seed, draft).into_iter().collect(),
        }
    }

    /// A job that waits, with the records that a take looks for.
    fn job(&self, seed: Seed, draft: &mut Draft) -> Vec<Write> {
        let [_, a, b, c, d] = seed;
        let index = pick(&[Index::Ready, Index::Ready, Index::Scheduled, Index::Retrying], b);
        let entry = values::entry(index, self.queue, self.start, [a, c, d]);
        let Member::Position(position) = entry.member else { return vec![] };
        let number = position.number;
        if draft.leased.contains(&number) || !draft.waiting.insert(number) {
            return vec![];
        }
        draft.inserted.insert((index, entry.member.clone()));
        let mut writes = vec![Write::Insert(index, entry)];
        for table in TAKEN {
            let key = values::key(table, self.queue, a, b);
            let parts_go = draft.parts.contains(&(table, number));
            if !parts_go && draft.records.insert((table, key.clone())) {
                writes.push(Write::Put(table, key, values::record(table, b, c)));
            }
        }
        writes
    }

    fn addition(&self, seed: Seed, draft: &mut Draft) -> Option<Write> {
        let [kind, a, b, c, d] = seed;
        let (number, time) = (self.number(a), values::time(self.start, c));
        match kind % KINDS {
            5 | 6 => {
                let table = pick(&Table::ALL, a);
                let key = values::key(table, self.queue, b, c);
                let allowed = match (table, &key) {
                    (Table::Dead, _) => false,
                    (Table::Lease, RecordKey::Number(number)) => draft.leased.contains(number),
                    (_, RecordKey::Part(number, _)) => !draft.parts.contains(&(table, *number)),
                    _ => true,
                };
                (allowed && draft.records.insert((table, key.clone())))
                    .then(|| Write::Put(table, key, values::record(table, c, d)))
            }
            7 => {
                let free = !draft.waiting.contains(&number) && !draft.extended.contains(&number);
                let key = (Table::Lease, RecordKey::Number(number));
                if !free || !draft.records.insert(key) {
                    return None;
                }
                draft.leased.insert(number);
                let record = values::record(Table::Lease, b, d);
                Some(Write::PutLease { number, expires_at: time, record })
            }
            8 => {
                let key = RecordKey::Number(number);
                let there = self.known.record(Table::Lease, &key).is_some();
                let rewritten = draft.records.contains(&(Table::Lease, key));
                (there && !rewritten && draft.extended.insert(number))
                    .then_some(Write::Extend { number, expires_at: time })
            }
            11 => {
                let index = pick(&Index::ALL, a);
                if matches!(index, Index::Leased | Index::Dead | Index::Overflow) {
                    return None;
                }
                let entry = values::entry(index, self.queue, self.start, [b, c, d]);
                if let Member::Position(position) = &entry.member {
                    let number = position.number;
                    if draft.leased.contains(&number) || !draft.waiting.insert(number) {
                        return None;
                    }
                }
                let name = (index, entry.member.clone());
                let score = self.known.score(index, &entry.member).filter(|_| !draft.removed.contains(&name));
                // With another score the caller removes it first.
                let by_caller = matches!(index, Index::FinishedKey | Index::Expires);
                let allowed = !by_caller || score.is_none_or(|score| score == entry.score);
                (allowed && draft.inserted.insert(name)).then_some(Write::Insert(index, entry))
            }
            12 => {
                let index = pick(&[Index::Dead, Index::Overflow], b);
                let (key, member) = (RecordKey::Number(number), Member::Number(number));
                let is_there = self.known.record(Table::Dead, &key).is_some()
                    || [Index::Dead, Index::Overflow].iter().any(|index| self.known.score(*index, &member).is_some());
                let record = values::record(Table::Dead, c, d);
                (!is_there && draft.records.insert((Table::Dead, key))).then_some(Write::AppendDead {
                    index,
                    number,
                    record,
                })
            }
            13 => {
                let error_type = Counter::ErrorType(pick(&["timeout", "io"], b).into());
                let succeeded = Counter::Succeeded(u32::from(b % 2));
                let counter = pick(&[Counter::Total(b % 3), error_type, succeeded], a);
                Some(Write::Add(counter, i64::from(c % 5) - 2))
            }
            14 => Some(Write::Raise(Mark::LastSuccess(u32::from(a % 2)), time)),
            _ => None,
        }
    }

    fn fence(&self, seed: Seed, fenced: &mut BTreeSet<(Table, RecordKey)>) -> Option<Fence> {
        let [kind, a, b, c, d] = seed;
        let holds = d % 8 > 0;
        match kind % 4 {
            0 | 1 => {
                let table = pick(&Table::ALL, a);
                let key = values::key(table, self.queue, b, c);
                if !fenced.insert((table, key.clone())) {
                    return None;
                }
                Some(match self.known.record(table, &key) {
                    None if holds => Fence::Absent(table, key),
                    None => pick(&[Fence::Begins, Fence::Tell, Fence::Is], c)(table, key, Bytes::new()),
                    Some(_) if d % 16 == 4 => Fence::Absent(table, key),
                    Some(record) => {
                        let mut part = record.to_vec();
                        if !holds {
                            part.push(7);
                        } else if c % 3 < 2 {
                            part.truncate(usize::from(d));
                        }
                        pick(&[Fence::Begins, Fence::Tell, Fence::Is], c)(table, key, part.into())
                    }
                })
            }
            2 => {
                let index = pick(&Index::ALL, a);
                let mut entry = values::entry(index, self.queue, self.start, [b, c, d]);
                let score = self.known.score(index, &entry.member);
                if index != Index::Ready && holds {
                    entry.score = score.unwrap_or(entry.score);
                }
                // Most of them would fail: the member is often not there.
                (score.is_some() || !holds).then_some(Fence::At(index, entry))
            }
            _ => {
                let (of, minus) = match a % 4 {
                    0 => (Len::Table(Table::Job), DEPTH_MINUS),
                    _ => (pick(&values::lengths(), b), &[][..]),
                };
                let less: u64 = minus.iter().map(|of| self.known.len(*of)).sum();
                // Only damage makes it less than nothing.
                let len = self.known.len(of).checked_sub(less)?;
                let add = u64::from(c % 4);
                let limit = (len + add).checked_sub(u64::from(!holds))?;
                Some(Fence::Room { of, minus, add, limit })
            }
        }
    }
}

/// An engine may lose it in a restart.
fn is_of_outcomes(write: &Write) -> bool {
    matches!(write, Write::Put(Table::Outcomes, ..) | Write::Add(Counter::Succeeded(_), _) | Write::Raise(..))
}
