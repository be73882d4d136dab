//! Reads and batches as the scripts get them: columns of arguments, each of one kind and for one key.

use super::keys::{ERROR_TYPES, Key, STATE, field, key_in};
use super::reply::{Reply, bytes_of, int_of, score_of, unexpected};
use crate::domain::Timestamp;
use crate::store::Result;
use crate::store::storage::{
    Applied, Batch, Counter, CounterGroup, Done, Entry, Fence, Found, Index, Len, Mark, Member, Publish, Read,
    RecordKey, Table, Was, Write,
};
use bytes::Bytes;
use redis::{RedisWrite, ToRedisArgs, Value};

/// Arguments of one column: Lua's `unpack` fails near 8,000.
const COLUMN_MAX: usize = 4_000;
/// Fields of the state that are fenced with one look at it.
const STATE_MAX: usize = 1_000;
/// Of each index, in one script.
pub(super) const PROMOTED_MAX: usize = 1_000;
/// Scores are doubles, which hold whole numbers up to this one. Times and numbers of jobs have 48 bits.
pub(super) const SCORE_MAX: u64 = 1 << 53;

/// One argument of a script.
pub(super) type Arg = Vec<u8>;

pub(super) fn decimal(number: u64) -> Arg {
    number.to_string().into_bytes()
}

pub(super) fn score(score: u64) -> Arg {
    decimal(score.min(SCORE_MAX))
}

/// The last part that a record of this table usually has: 10 first and 40 last attempts or events, the first and the last
/// failure.
/// To look for all 256 would cost every Ack 50 µs; that a queue has others is noted in its state.
fn last_part(table: Table) -> u8 {
    if table == Table::Failure { 1 } else { 50 }
}

#[derive(Debug, Default)]
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
#[derive(Debug, Default)]
pub(super) struct Columns {
    pub(super) keys: Vec<Key>,
    /// Fields of the state that are read, or fenced whole.
    state: Column,
    /// Other fields of it that are numbers: what is added, and what they rise to.
    added: Vec<(Arg, i64)>,
    raised: Vec<(Arg, u64)>,
    /// How many of the columns are fences.
    fences: usize,
    columns: Vec<Column>,
}

impl Columns {
    /// `keys`: those that the script has in fixed positions.
    fn new(keys: &[Key]) -> Self {
        Self { keys: keys.to_vec(), ..Self::default() }
    }

    fn key_position(&mut self, key: Key) -> usize {
        let known = self.keys.iter().position(|other| *other == key);
        known.unwrap_or_else(|| {
            self.keys.push(key);
            self.keys.len() - 1
        })
    }

    /// A key that is named in an argument.
    fn key_argument(&mut self, key: Key) -> Arg {
        decimal(self.key_position(key) as u64 + 1)
    }

    fn alone(&mut self, kind: &'static str, key: Key, args: Vec<Arg>, of: usize) {
        let key = self.key_position(key);
        self.columns.push(Column { kind, key, args, of: vec![of], ..Column::default() });
    }

    /// The column of this kind and key that has room for `more` arguments.
    fn joined(&mut self, kind: &'static str, key: Key, more: usize) -> &mut Column {
        let key = self.key_position(key);
        let fits = |column: &Column| {
            let length = column.args.len() + column.wanted.len() + more;
            column.kind == kind && column.key == key && length <= COLUMN_MAX
        };
        let at = self.columns.iter().position(fits).unwrap_or_else(|| {
            self.columns.push(Column { kind, key, ..Column::default() });
            self.columns.len() - 1
        });
        &mut self.columns[at]
    }

    fn join<const N: usize>(&mut self, kind: &'static str, key: Key, args: [Arg; N]) {
        self.joined(kind, key, N).args.extend(args);
    }
}

impl ToRedisArgs for Columns {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        let counts = [self.state.args.len(), self.added.len(), self.raised.len(), self.fences];
        let mut numbers: Vec<u8> = counts.into_iter().flat_map(|count| (count as u16).to_be_bytes()).collect();
        for column in &self.columns {
            let length = column.args.len() + column.wanted.len();
            numbers.push(column.key as u8 + 1);
            numbers.extend((length as u16).to_be_bytes());
        }
        out.write_arg(&numbers);
        let (added, raised) = (self.added.iter(), self.raised.iter());
        self.state.args.iter().for_each(|field| out.write_arg(field));
        added
            .clone()
            .map(|(field, _)| field)
            .chain(raised.clone().map(|(field, _)| field))
            .for_each(|field| out.write_arg(field));
        self.state.wanted.iter().for_each(|record| out.write_arg(record));
        added.for_each(|(_, delta)| out.write_arg_fmt(delta));
        raised.for_each(|(_, to)| out.write_arg_fmt(to));
        for column in &self.columns {
            out.write_arg(column.kind.as_bytes());
            column.args.iter().chain(&column.wanted).for_each(|arg| out.write_arg(arg));
        }
    }
}

fn key_of(len: Len) -> (Key, &'static str) {
    match len {
        Len::Table(table) => (Key::table(table), "HLEN"),
        Len::Index(index) => (Key::Index(index), "ZCARD"),
    }
}

/// In the state.
fn total(at: u8) -> Vec<u8> {
    vec![b't', b':', at]
}

fn succeeded(epoch: u32) -> Vec<u8> {
    [b"s", &epoch.to_be_bytes()[..]].concat()
}

fn mark(mark: Mark) -> Vec<u8> {
    match mark {
        Mark::LastSuccess(epoch) => [b"m", &epoch.to_be_bytes()[..]].concat(),
        Mark::LastClaim => b"c".into(),
    }
}

/// The number of a field, at first 0.
fn of<N: Default>(numbers: &mut Vec<(Arg, N)>, field: Arg) -> &mut N {
    let known = numbers.iter().position(|(other, _)| *other == field);
    let at = known.unwrap_or_else(|| {
        numbers.push((field, N::default()));
        numbers.len() - 1
    });
    &mut numbers[at].1
}

// ---- reads ----

/// A read's answer, or what it takes to get it.
#[derive(Debug)]
pub(super) enum Answer {
    Found(Found),
    /// The keys of a table; none: there are too many for one reply.
    Keys(Option<Vec<Vec<u8>>>),
}

impl Columns {
    pub(super) fn of_reads(reads: &[Read]) -> Self {
        let mut columns = Self::new(&[STATE]);
        for (at, read) in reads.iter().enumerate() {
            match read {
                Read::Record(table, key) => columns.ask("HMGET", Key::table(*table), field(*table, key), at),
                Read::Score(index, member) => columns.ask("ZMSCORE", Key::Index(*index), member.bytes(*index), at),
                Read::Mark(which) => columns.ask("HMGET", STATE, mark(*which), at),
                Read::Range { index, after, up_to, limit, reverse } => {
                    let bound = up_to.map_or_else(Arg::default, score);
                    let mut args = vec![decimal(u64::from(*reverse)), decimal(*limit as u64), bound];
                    if let Some(after) = after {
                        args.extend([score(after.score), after.member.bytes(*index)]);
                    }
                    columns.alone("RANGE", Key::Index(*index), args, at);
                }
                Read::Ahead(position, _) => {
                    let member = Member::Position(*position).bytes(Index::Ready);
                    let args = vec!["-".into(), [b"(", &member[..]].concat()];
                    columns.alone("ZLEXCOUNT", Key::Index(Index::Ready), args, at);
                }
                // There are other tables in the same hash.
                Read::Len(Len::Table(table)) if Key::table(*table) != Key::Table(*table) => {
                    columns.alone("SCAN", Key::table(*table), Vec::new(), at);
                }
                Read::Len(len) => {
                    let (key, command) = key_of(*len);
                    columns.alone(command, key, Vec::new(), at);
                }
                Read::Counters(CounterGroup::Totals) => {
                    (0..Counter::TOTALS).for_each(|which| columns.ask("HMGET", STATE, total(which), at));
                }
                Read::Counters(CounterGroup::ErrorTypes) => columns.alone("HGETALL", ERROR_TYPES, Vec::new(), at),
                Read::Counters(CounterGroup::Succeeded(epoch)) => columns.ask("HMGET", STATE, succeeded(*epoch), at),
                Read::Scan(table, ..) => columns.alone("SCAN", Key::table(*table), Vec::new(), at),
            }
        }
        columns
    }

    /// For one of the commands that answer with a list, in the order of its fields.
    fn ask(&mut self, kind: &'static str, key: Key, field: Vec<u8>, at: usize) {
        let column = if key == STATE { &mut self.state } else { self.joined(kind, key, 1) };
        column.args.push(field);
        column.of.push(at);
    }

    /// The answers in the order asked.
    pub(super) fn answers(&self, reads: &[Read], reply: &mut Reply) -> Result<Vec<Answer>> {
        let mut answers = Vec::new();
        answers.resize_with(reads.len(), || Answer::Keys(None));
        for column in [&self.state].into_iter().chain(&self.columns) {
            for (nth, at) in column.of.iter().enumerate() {
                let found = answer(&reads[*at], reply.value()?, column.args.get(nth))?;
                match (&mut answers[*at], found) {
                    (Answer::Found(Found::Counters(all)), Answer::Found(Found::Counters(more))) => all.extend(more),
                    (answer, found) => *answer = found,
                }
            }
        }
        Ok(answers)
    }
}

/// `field`: that was asked for, where it was one.
fn answer(read: &Read, value: Value, field: Option<&Arg>) -> Result<Answer> {
    Ok(Answer::Found(match read {
        Read::Record(..) => Found::Record(bytes_of(value)?),
        Read::Score(..) | Read::Mark(_) => Found::Score(score_of(&value)?),
        Read::Range { index, reverse, .. } => {
            let mut entries = Reply::of(value)?.rest(|found| {
                let member = Member::read(*index, &found.bytes()?.unwrap_or_default());
                Ok(Entry { score: found.score_up()?, member: member.ok_or_else(unexpected)? })
            })?;
            if *reverse {
                entries.reverse();
            }
            Found::Entries(entries)
        }
        Read::Ahead(_, most) => Found::Number(int_of(&value)?.cast_unsigned().min(*most as u64)),
        Read::Len(Len::Table(table)) if matches!(value, Value::Array(_)) => {
            Found::Number(keys_of(*table, value)?.len() as u64)
        }
        Read::Len(_) => Found::Number(int_of(&value)?.cast_unsigned()),
        Read::Counters(CounterGroup::ErrorTypes) => Found::Counters(error_types(value)?),
        Read::Counters(_) if value == Value::Nil => Found::Counters(Vec::new()),
        Read::Counters(group) => {
            let counter = match (group, field.and_then(|field| field.last())) {
                (CounterGroup::Succeeded(epoch), _) => Counter::Succeeded(*epoch),
                (_, which) => Counter::Total(*which.ok_or_else(unexpected)?),
            };
            Found::Counters(vec![(counter, int_of(&value)?)])
        }
        Read::Scan(..) if matches!(value, Value::Int(_)) => return Ok(Answer::Keys(None)),
        Read::Scan(table, ..) => return Ok(Answer::Keys(Some(keys_of(*table, value)?))),
    }))
}

fn keys_of(table: Table, value: Value) -> Result<Vec<Vec<u8>>> {
    let fields = Reply::of(value)?.rest(Reply::bytes)?;
    Ok(scanned_keys(table, fields.into_iter().flatten().map(Vec::from)))
}

/// In order, of these fields of its hash.
pub(super) fn scanned_keys(table: Table, fields: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let mut keys: Vec<_> = fields.into_iter().filter_map(|field| key_in(table, &field)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

fn error_types(value: Value) -> Result<Vec<(Counter, i64)>> {
    let mut counters = Reply::of(value)?.rest(|found| {
        let (text, count) = (found.text()?, found.int()?);
        Ok((Counter::ErrorType(text.into()), count))
    })?;
    counters.sort_unstable();
    Ok(counters)
}

// ---- batches ----

/// In the positions that lib.lua names.
pub(super) const FIXED: [Key; 4] =
    [STATE, Key::Index(Index::Ready), Key::Index(Index::Scheduled), Key::Index(Index::Retrying)];

impl Columns {
    pub(super) fn of_batch(batch: &Batch) -> Self {
        let mut columns = Self::new(&FIXED);
        for (at, fence) in batch.fences.iter().enumerate() {
            columns.fence(at, fence);
        }
        columns.fences = columns.columns.len();
        for write in &batch.writes {
            columns.writing(write);
        }
        columns
    }

    fn fence(&mut self, at: usize, fence: &Fence) {
        let whole = |bytes: &Bytes| Some(bytes.to_vec());
        let (kind, key, field, wanted) = match fence {
            Fence::Begins(table, key, bytes) => ("BEGINS", Key::table(*table), field(*table, key), whole(bytes)),
            Fence::Tell(table, key, bytes) => ("TELL", Key::table(*table), field(*table, key), whole(bytes)),
            Fence::Is(table, key, bytes) => ("IS", Key::table(*table), field(*table, key), whole(bytes)),
            Fence::Absent(table, key) => ("ABSENT", Key::table(*table), field(*table, key), None),
            Fence::At(index, entry) => ("AT", Key::Index(*index), entry.member.bytes(*index), Some(score(entry.score))),
            Fence::Room { of, minus, add, limit } => {
                let (key, command) = key_of(*of);
                let mut args = vec![decimal(*add), decimal(*limit), command.into()];
                for len in *minus {
                    let (key, command) = key_of(*len);
                    args.extend([command.into(), self.key_argument(key)]);
                }
                return self.alone("ROOM", key, args, at);
            }
        };
        // Of the state, what is empty stands for what is absent.
        let of_state = match (kind, &wanted) {
            ("IS", Some(record)) => !record.is_empty(),
            (kind, _) => kind == "ABSENT",
        };
        let column = match key == STATE && of_state && self.state.args.len() < STATE_MAX {
            true => &mut self.state,
            false => self.joined(kind, key, 2),
        };
        let empty = (column.kind.is_empty() && wanted.is_none()).then(Arg::default);
        column.args.push(field);
        column.wanted.extend(wanted.or(empty));
        column.of.push(at);
    }

    fn writing(&mut self, write: &Write) {
        match write {
            Write::Put(table, key, record) => {
                self.join("HSET", Key::table(*table), [field(*table, key), record.to_vec()]);
                if matches!(key, RecordKey::Part(_, part) if *part > last_part(*table)) {
                    self.join("HSET", STATE, ["parts".into(), decimal(u64::from(u8::MAX))]);
                }
            }
            Write::PutLease { number, expires_at, record } => {
                let key = RecordKey::Number(*number).bytes();
                self.join("HSET", Key::Table(Table::Lease), [key.clone(), record.to_vec()]);
                self.join("ZADD", Key::Index(Index::Leased), [score(expires_at.millis()), key]);
            }
            Write::Delete(table, key) => {
                self.join("HDEL", Key::table(*table), [field(*table, key)]);
                if *table == Table::Lease {
                    self.join("ZREM", Key::Index(Index::Leased), [key.bytes()]);
                }
            }
            Write::DeleteParts(table, number) => {
                let kind = match table {
                    Table::Failure => "FAILURES",
                    Table::Event => "EVENTS",
                    _ => "ATTEMPTS",
                };
                let column = self.joined(kind, Key::table(*table), 2);
                if column.args.is_empty() {
                    column.args.push(decimal(u64::from(last_part(*table))));
                }
                column.args.push(RecordKey::Number(*number).bytes());
            }
            Write::Insert(index, entry) => {
                self.join("ZADD", Key::Index(*index), [score(entry.score), entry.member.bytes(*index)]);
            }
            Write::Remove(index, entry) => self.join("ZREM", Key::Index(*index), [entry.member.bytes(*index)]),
            Write::Extend { number, expires_at } => {
                let key = RecordKey::Number(*number).bytes();
                self.join("EXTEND", Key::Index(Index::Leased), [score(expires_at.millis()), key]);
            }
            Write::AppendDead { index, number, record } => {
                let (index, key) = (self.key_argument(Key::Index(*index)), RecordKey::Number(*number).bytes());
                self.join("APPEND", Key::Table(Table::Dead), [index, key, record.to_vec()]);
            }
            Write::Add(Counter::ErrorType(text), delta) => {
                self.join("ADD", ERROR_TYPES, [text.as_bytes().to_vec(), delta.to_string().into_bytes()]);
            }
            Write::Add(Counter::Total(which), delta) => *of(&mut self.added, total(*which)) += delta,
            Write::Add(Counter::Succeeded(epoch), delta) => *of(&mut self.added, succeeded(*epoch)) += delta,
            Write::Raise(which, to) => {
                let raised = of(&mut self.raised, mark(*which));
                *raised = to.millis().min(SCORE_MAX).max(*raised);
            }
            Write::Promote(limit) => {
                let limit = (*limit).min(PROMOTED_MAX) as u64;
                self.alone("PROMOTE", STATE, vec![decimal(limit)], 0);
            }
        }
    }

    /// What apply.lua says, its first number apart.
    pub(super) fn done(&self, reply: &mut Reply) -> Result<Done> {
        let (ready, promoted) = (reply.count()?, reply.count()? as usize);
        let mut done = Done { ready, promoted, ..Done::default() };
        let mut told = Vec::new();
        for Column { kind, args, of, .. } in &self.columns {
            match *kind {
                "TELL" => {
                    for at in of {
                        told.push((*at, reply.bytes()?.unwrap_or_default()));
                    }
                }
                "EXTEND" => {
                    for _ in 0..args.len() / 2 {
                        done.raised.push(Timestamp::from_millis(reply.score()?.unwrap_or_default()));
                    }
                }
                "APPEND" => {
                    for _ in 0..args.len() / 3 {
                        done.deaths.push(reply.count()?);
                    }
                }
                _ => {}
            }
        }
        told.sort_unstable_by_key(|(at, _)| *at);
        done.told = told.into_iter().map(|(_, record)| record).collect();
        Ok(done)
    }

    /// Which fences failed, and what they found.
    pub(super) fn changed(&self, batch: &Batch, reply: &mut Reply) -> Result<Applied> {
        let columns = [&self.state].into_iter().chain(&self.columns);
        let order: Vec<usize> = columns.flat_map(|column| &column.of).copied().collect();
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

pub(super) fn publish(publish: Publish) -> &'static str {
    match publish {
        Publish::Never => "never",
        Publish::IfFirst => "first",
        Publish::Always => "always",
    }
}
