//! Reads and batches as the scripts get them: columns of arguments, each of one kind and for one key.

use super::{
    keys::Key,
    reply::{Read as Replied, Reply, bytes_of, unexpected},
};
use crate::{
    domain::time::Timestamp,
    store::{
        redis::connection::Arg,
        storage::{
            Applied, Batch, Counter, CounterGroup, Done, Entry, Fence, Found, Index, Len, Mark,
            Member, Publish, Read, RecordKey, Table, Was, Write,
        },
    },
};
use redis::Value;

/// Arguments of one column: Lua's `unpack` fails near 8,000.
const COLUMN_MAX: usize = 4_000;
/// Of each index, in one script.
pub(super) const PROMOTED_MAX: usize = 1_000;
/// Scores are doubles, which hold whole numbers up to this one. Times and numbers of jobs have 48 bits.
pub(super) const SCORE_MAX: u64 = 1 << 53;

pub(super) fn score(score: u64) -> Arg {
    score.min(SCORE_MAX).into()
}

/// The last part that a record of this table usually has: 10 first and 40 last attempts, the first and the last failure.
/// To look for all 256 would cost every Ack 50 µs; that a queue has others is noted in its state.
fn last_part(table: Table) -> u8 {
    if table == Table::Failure { 1 } else { 50 }
}

#[derive(Debug)]
struct Column {
    kind: &'static str,
    key: usize,
    args: Vec<Arg>,
    /// Of a fence on several records: what each is compared with.
    wanted: Vec<Arg>,
    /// The places of what was asked.
    of: Vec<usize>,
}

/// Columns and the keys that they name by position.
#[derive(Debug)]
pub(super) struct Columns {
    keys: Vec<Key>,
    columns: Vec<Column>,
}

impl Columns {
    /// `keys`: those that the script has in fixed positions.
    fn new(keys: &[Key]) -> Self {
        Self { keys: keys.to_vec(), columns: Vec::new() }
    }

    fn position(&mut self, key: Key) -> usize {
        let known = self.keys.iter().position(|other| *other == key);
        known.unwrap_or_else(|| {
            self.keys.push(key);
            self.keys.len() - 1
        })
    }

    fn alone(&mut self, kind: &'static str, key: Key, args: Vec<Arg>, of: usize) {
        let key = self.position(key);
        self.columns.push(Column { kind, key, args, wanted: Vec::new(), of: vec![of] });
    }

    /// The column of this kind and key that has room for `more` arguments.
    fn joined(&mut self, kind: &'static str, key: Key, more: usize) -> &mut Column {
        let key = self.position(key);
        let fits = |column: &Column| {
            let length = column.args.len() + column.wanted.len() + more;
            column.kind == kind && column.key == key && length <= COLUMN_MAX
        };
        let at = self.columns.iter().position(fits).unwrap_or_else(|| {
            let (args, wanted, of) = (Vec::new(), Vec::new(), Vec::new());
            self.columns.push(Column { kind, key, args, wanted, of });
            self.columns.len() - 1
        });
        &mut self.columns[at]
    }

    fn join<const N: usize>(&mut self, kind: &'static str, key: Key, args: [Arg; N]) {
        self.joined(kind, key, N).args.extend(args);
    }

    pub(super) fn keys(&self) -> &[Key] {
        &self.keys
    }

    pub(super) fn write(&self, out: &mut Vec<Arg>) {
        for column in &self.columns {
            let length = (column.args.len() + column.wanted.len()) as u64;
            out.extend([column.kind.into(), (column.key as u64 + 1).into(), length.into()]);
            out.extend(column.args.iter().chain(&column.wanted).cloned());
        }
    }
}

fn key_of(len: Len) -> (Key, &'static str) {
    match len {
        Len::Table(table) => (Key::table(table), "HLEN"),
        Len::Index(index) => (Key::Index(index), "ZCARD"),
    }
}

fn counter(counter: &Counter) -> (Key, Vec<u8>) {
    match counter {
        Counter::Total(at) => (Key::Totals, vec![*at]),
        Counter::ErrorType(text) => (Key::ErrorTypes, text.as_bytes().to_vec()),
        Counter::Succeeded(epoch) => (Key::Succeeded, epoch.to_be_bytes().to_vec()),
    }
}

fn mark(mark: Mark) -> Vec<u8> {
    match mark {
        Mark::LastSuccess(epoch) => [b"s", &epoch.to_be_bytes()[..]].concat(),
    }
}

// ---- reads ----

/// What `SCAN` found: the keys, or that there are too many for one reply.
#[derive(Debug)]
pub(super) enum Scanned {
    Keys(Vec<Vec<u8>>),
    TooMany,
}

/// A read's answer, or what it takes to get it.
#[derive(Debug)]
pub(super) enum Answer {
    Found(Found),
    Scan(Scanned),
}

impl Columns {
    pub(super) fn of_reads(reads: &[Read]) -> Self {
        let mut columns = Self::new(&[Key::State]);
        for (at, read) in reads.iter().enumerate() {
            match read {
                Read::Record(table, key) => {
                    let column = columns.joined("HMGET", Key::table(*table), 1);
                    column.args.push(key.bytes().into());
                    column.of.push(at);
                }
                Read::Score(index, member) => {
                    let column = columns.joined("ZMSCORE", Key::Index(*index), 1);
                    column.args.push(member.bytes(*index).into());
                    column.of.push(at);
                }
                Read::Mark(which) => {
                    let column = columns.joined("ZMSCORE", Key::Marks, 1);
                    column.args.push(mark(*which).into());
                    column.of.push(at);
                }
                Read::Range { index, after, up_to, limit, reverse } => {
                    let bound = up_to.map_or_else(Arg::default, score);
                    let mut args = vec![Arg::from(*reverse), (*limit as u64).into(), bound];
                    if let Some(after) = after {
                        args.extend([score(after.score), after.member.bytes(*index).into()]);
                    }
                    columns.alone("RANGE", Key::Index(*index), args, at);
                }
                Read::Ahead(position, _) => {
                    let member = Member::Position(*position).bytes(Index::Ready);
                    let args = vec!["-".into(), [b"(", &member[..]].concat().into()];
                    columns.alone("ZLEXCOUNT", Key::Index(Index::Ready), args, at);
                }
                Read::Len(Len::Table(Table::Version)) => {
                    columns.alone("SCAN", Key::State, Vec::new(), at);
                }
                Read::Len(len) => {
                    let (key, command) = key_of(*len);
                    columns.alone(command, key, Vec::new(), at);
                }
                Read::Counters(group) => {
                    let (key, command, args) = match group {
                        CounterGroup::Totals => (Key::Totals, "HGETALL", Vec::new()),
                        CounterGroup::ErrorTypes => (Key::ErrorTypes, "HGETALL", Vec::new()),
                        CounterGroup::Succeeded(epoch) => {
                            let (key, field) = counter(&Counter::Succeeded(*epoch));
                            (key, "HMGET", vec![field.into()])
                        }
                    };
                    columns.alone(command, key, args, at);
                }
                Read::Scan(table, ..) => {
                    columns.alone("SCAN", Key::table(*table), Vec::new(), at);
                }
            }
        }
        columns
    }

    /// The answers in the order asked.
    pub(super) fn answers(&self, reads: &[Read], reply: &mut Reply) -> Replied<Vec<Answer>> {
        let mut answers: Vec<Option<Answer>> = Vec::new();
        answers.resize_with(reads.len(), || None);
        for column in &self.columns {
            let value = reply.value()?;
            if let [only] = column.of[..]
                && !matches!(reads[only], Read::Record(..) | Read::Score(..) | Read::Mark(_))
            {
                answers[only] = Some(answer(&reads[only], value)?);
                continue;
            }
            let mut found = Reply::of(value)?;
            for at in &column.of {
                let found = match reads[*at] {
                    Read::Record(..) => Found::Record(found.bytes()?),
                    _ => Found::Score(found.score()?),
                };
                answers[*at] = Some(Answer::Found(found));
            }
        }
        answers.into_iter().map(|answer| answer.ok_or_else(unexpected)).collect()
    }
}

fn answer(read: &Read, value: Value) -> Replied<Answer> {
    Ok(Answer::Found(match read {
        Read::Range { index, reverse, .. } => {
            let mut found = Reply::of(value)?;
            let mut entries = Vec::with_capacity(found.left() / 2);
            while found.left() > 0 {
                let member = Member::read(*index, &found.bytes()?.unwrap_or_default());
                let score = found.score_up()?;
                entries.push(Entry { score, member: member.ok_or_else(unexpected)? });
            }
            if *reverse {
                entries.reverse();
            }
            Found::Entries(entries)
        }
        Read::Ahead(_, most) => {
            Found::Number((super::reply::int_of(&value)?.cast_unsigned()).min(*most as u64))
        }
        Read::Len(Len::Table(table)) if !matches!(value, Value::Int(_)) => {
            Found::Number(keys_of(*table, value)?.len() as u64)
        }
        Read::Len(_) => Found::Number(super::reply::int_of(&value)?.cast_unsigned()),
        Read::Counters(group) => Found::Counters(counters(*group, value)?),
        Read::Scan(table, ..) => {
            if matches!(value, Value::Int(_)) {
                return Ok(Answer::Scan(Scanned::TooMany));
            }
            return Ok(Answer::Scan(Scanned::Keys(keys_of(*table, value)?)));
        }
        Read::Record(..) | Read::Score(..) | Read::Mark(_) => return Err(unexpected()),
    }))
}

fn keys_of(table: Table, value: Value) -> Replied<Vec<Vec<u8>>> {
    let mut found = Reply::of(value)?;
    let mut keys = Vec::with_capacity(found.left());
    while found.left() > 0 {
        keys.extend(found.bytes()?.map(Vec::from));
    }
    Ok(scanned_keys(table, keys))
}

/// In order; the state has other fields than versions.
pub(super) fn scanned_keys(table: Table, mut keys: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    keys.retain(|key| table != Table::Version || key.len() == 2);
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn counters(group: CounterGroup, value: Value) -> Replied<Vec<(Counter, i64)>> {
    let mut found = Reply::of(value)?;
    if let CounterGroup::Succeeded(epoch) = group {
        let count = match found.value()? {
            Value::Nil => return Ok(Vec::new()),
            count => super::reply::int_of(&count)?,
        };
        return Ok(vec![(Counter::Succeeded(epoch), count)]);
    }
    let mut counters = Vec::with_capacity(found.left() / 2);
    while found.left() > 0 {
        let (field, count) = (found.bytes()?.unwrap_or_default(), found.int()?);
        let counter = match group {
            CounterGroup::Totals => Counter::Total(*field.first().ok_or_else(unexpected)?),
            _ => Counter::ErrorType(std::str::from_utf8(&field).map_err(|_| unexpected())?.into()),
        };
        counters.push((counter, count));
    }
    counters.sort_unstable();
    Ok(counters)
}

// ---- batches ----

/// In the positions that lib.lua names.
pub(super) const FIXED: [Key; 4] = [
    Key::State,
    Key::Index(Index::Ready),
    Key::Index(Index::Scheduled),
    Key::Index(Index::Retrying),
];

impl Columns {
    pub(super) fn of_batch(batch: &Batch) -> Self {
        let mut columns = Self::new(&FIXED);
        for (at, fence) in batch.fences.iter().enumerate() {
            columns.fence(at, fence);
        }
        for write in &batch.writes {
            columns.writing(write);
        }
        columns
    }

    /// It has a write that TIME is compared for.
    pub(super) fn promotes(&self) -> bool {
        self.columns.iter().any(|column| column.kind == "PROMOTE")
    }

    fn fence(&mut self, at: usize, fence: &Fence) {
        let (kind, key, field, wanted) = match fence {
            Fence::Begins(table, key, bytes) => ("BEGINS", table, key, Some(bytes)),
            Fence::Tell(table, key, bytes) => ("TELL", table, key, Some(bytes)),
            Fence::Is(table, key, bytes) => ("IS", table, key, Some(bytes)),
            Fence::Absent(table, key) => ("ABSENT", table, key, None),
            Fence::At(index, entry) => {
                let column = self.joined("AT", Key::Index(*index), 2);
                column.args.push(entry.member.bytes(*index).into());
                column.wanted.push(score(entry.score));
                column.of.push(at);
                return;
            }
            Fence::Room { of, minus, add, limit } => {
                let (key, command) = key_of(*of);
                let mut args = vec![Arg::from(*add), (*limit).into(), command.into()];
                for len in *minus {
                    let (key, command) = key_of(*len);
                    let position = self.position(key) as u64 + 1;
                    args.extend([command.into(), position.into()]);
                }
                self.alone("ROOM", key, args, at);
                return;
            }
        };
        let column = self.joined(kind, Key::table(*key), 2);
        column.args.push(field.bytes().into());
        column.wanted.extend(wanted.map(|bytes| Arg::from(&bytes[..])));
        column.of.push(at);
    }

    fn writing(&mut self, write: &Write) {
        match write {
            Write::Put(table, key, record) => {
                self.join("HSET", Key::table(*table), [key.bytes().into(), Arg::from(&record[..])]);
                if matches!(key, RecordKey::Part(_, part) if *part > last_part(*table)) {
                    self.join("HSET", Key::State, ["parts".into(), u64::from(u8::MAX).into()]);
                }
            }
            Write::PutLease { number, expires_at, record } => {
                let key = RecordKey::Number(*number).bytes();
                let record = Arg::from(&record[..]);
                self.join("HSET", Key::Table(Table::Lease), [key.clone().into(), record]);
                let expiry = score(expires_at.millis());
                self.join("ZADD", Key::Index(Index::Leased), [expiry, key.into()]);
            }
            Write::Delete(table, key) => {
                self.join("HDEL", Key::table(*table), [key.bytes().into()]);
                if *table == Table::Lease {
                    self.join("ZREM", Key::Index(Index::Leased), [key.bytes().into()]);
                }
            }
            Write::DeleteParts(table, number) => {
                let column = self.joined("PARTS", Key::table(*table), 2);
                if column.args.is_empty() {
                    column.args.push(u64::from(last_part(*table)).into());
                }
                column.args.push(RecordKey::Number(*number).bytes().into());
            }
            Write::Insert(index, entry) => {
                let member = entry.member.bytes(*index).into();
                self.join("ZADD", Key::Index(*index), [score(entry.score), member]);
            }
            Write::Remove(index, entry) => {
                self.join("ZREM", Key::Index(*index), [entry.member.bytes(*index).into()]);
            }
            Write::Extend { number, expires_at } => {
                let key = RecordKey::Number(*number).bytes().into();
                let expiry = score(expires_at.millis());
                self.join("EXTEND", Key::Index(Index::Leased), [expiry, key]);
            }
            Write::AppendDead { index, number, record } => {
                let position = Arg::from(self.position(Key::Index(*index)) as u64 + 1);
                let key = RecordKey::Number(*number).bytes().into();
                self.join(
                    "APPEND",
                    Key::Table(Table::Dead),
                    [position, key, Arg::from(&record[..])],
                );
            }
            Write::Add(which, delta) => {
                let (key, field) = counter(which);
                self.join("ADD", key, [field.into(), delta.to_string().as_str().into()]);
            }
            Write::Raise(which, to) => {
                self.join("RAISE", Key::Marks, [score(to.millis()), mark(*which).into()]);
            }
            Write::Promote(limit) => {
                let limit = (*limit).min(PROMOTED_MAX) as u64;
                self.alone("PROMOTE", Key::State, vec![limit.into()], 0);
            }
        }
    }

    /// What apply.lua says, its first number apart.
    pub(super) fn done(&self, reply: &mut Reply) -> Replied<Done> {
        let (ready, promoted) = (reply.count()?, reply.count()? as usize);
        let (mut told, mut raised, mut deaths) = (reply.list()?, reply.list()?, reply.list()?);
        let mut done = Done { ready, promoted, ..Done::default() };
        let mut records = Vec::with_capacity(told.left());
        for column in self.columns.iter().filter(|column| column.kind == "TELL") {
            for at in &column.of {
                records.push((*at, told.bytes()?.unwrap_or_default()));
            }
        }
        records.sort_unstable_by_key(|(at, _)| *at);
        done.told = records.into_iter().map(|(_, record)| record).collect();
        while raised.left() > 0 {
            let end = raised.score()?.unwrap_or_default();
            done.raised.push(Timestamp::from_millis(end));
        }
        while deaths.left() > 0 {
            done.deaths.push(deaths.count()?);
        }
        Ok(done)
    }

    /// Which fences failed, and what they found.
    pub(super) fn changed(&self, batch: &Batch, reply: &mut Reply) -> Replied<Applied> {
        let order: Vec<usize> =
            self.columns.iter().flat_map(|column| &column.of).copied().collect();
        let mut failed = Vec::with_capacity(reply.left() / 2);
        while reply.left() > 0 {
            let at = *order.get(reply.count()? as usize).ok_or_else(unexpected)?;
            let was = match batch.fences.get(at).ok_or_else(unexpected)? {
                Fence::At(..) => Was::Score(reply.score()?),
                Fence::Room { .. } => Was::Len(reply.int()?.max(0).cast_unsigned()),
                _ => Was::Record(bytes_of(reply.value()?)?),
            };
            failed.push((at, was));
        }
        failed.sort_unstable_by_key(|(at, _)| *at);
        Ok(Applied::Changed(failed))
    }
}

pub(super) fn publish(publish: Publish) -> Arg {
    match publish {
        Publish::Never => "never",
        Publish::IfFirst => "first",
        Publish::Always => "always",
    }
    .into()
}
