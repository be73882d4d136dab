//! Reads and batches as the scripts get them: columns of arguments, each of one kind and for one key.

mod batches;

pub(super) use batches::{concerns_groups, fixed, publish};

use super::keys::{ERROR_TYPES, HEADS, Key, METERS, STATE, field, key_in};
use super::reply::{Reply, bytes_of, int_of, score_of, unexpected};
use super::take;
use crate::domain::Timestamp;
use crate::store::Result;
use crate::store::storage::{
    Applied, Batch, Counter, CounterGroup, Done, Entry, Fence, Found, Index, Len, Mark, Member, NO_GROUP, OutcomeSums,
    Publish, Read, RecordKey, Table, WHOLE_QUEUE, Was, Write, lease_group,
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
    /// Of epochs: what is added, and when the last success was.
    sums: Vec<(u32, OutcomeSums, Timestamp)>,
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
        let counts = [self.state.args.len(), self.added.len(), self.raised.len(), self.sums.len(), self.fences];
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
        self.sums.iter().for_each(|(epoch, ..)| out.write_arg(&sums_field(*epoch)));
        self.state.wanted.iter().for_each(|record| out.write_arg(record));
        added.for_each(|(_, delta)| out.write_arg_fmt(delta));
        raised.for_each(|(_, to)| out.write_arg_fmt(to));
        self.sums.iter().for_each(|(_, sums, last)| out.write_arg(&packed_sums(sums, *last)));
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

fn sums_field(epoch: u32) -> Vec<u8> {
    [b"s", &epoch.to_be_bytes()[..]].concat()
}

/// Numbers of Lua.
fn packed_sums(sums: &OutcomeSums, last: Timestamp) -> Vec<u8> {
    let OutcomeSums { succeeded, retried, took_ms, ln_took } = *sums;
    let numbers = [succeeded as f64, retried as f64, took_ms as f64, ln_took as f64, last.millis() as f64];
    numbers.into_iter().flat_map(f64::to_be_bytes).collect()
}

fn read_sums(packed: &[u8]) -> Option<(OutcomeSums, Timestamp)> {
    let numbers = packed.as_chunks().0.iter().map(|number| f64::from_be_bytes(*number));
    let [succeeded, retried, took_ms, ln_took, last] = numbers.collect::<Vec<_>>().try_into().ok()?;
    let [succeeded, retried, took_ms, last] = [succeeded, retried, took_ms, last].map(|number| number as u64);
    let sums = OutcomeSums { succeeded, retried, took_ms, ln_took: ln_took as i64 };
    Some((sums, Timestamp::from_millis(last)))
}

fn mark(mark: Mark) -> Vec<u8> {
    match mark {
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
                Read::Sums(epoch) => columns.ask("HMGET", STATE, sums_field(*epoch), at),
                Read::Meter(group) => columns.ask("HMGET", METERS, group.to_be_bytes().into(), at),
                Read::Range { index, after, up_to, limit, reverse } => {
                    let bound = up_to.map_or_else(Arg::default, score);
                    let mut args = vec![decimal(u64::from(*reverse)), decimal(*limit as u64), bound];
                    if let Some(after) = after {
                        args.extend([score(after.score), after.member.bytes(*index)]);
                    }
                    columns.alone("RANGE", Key::Index(*index), args, at);
                }
                Read::Ahead(position, _) => {
                    let index = position.ready_index();
                    let member = Member::Position(*position).bytes(index);
                    let first = match index {
                        Index::Ready => "-".into(),
                        _ => [b"[", &member[..2]].concat(),
                    };
                    let args = vec![first, [b"(", &member[..]].concat()];
                    columns.alone("ZLEXCOUNT", Key::Index(index), args, at);
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
        Read::Counters(CounterGroup::Totals) => {
            let which = field.and_then(|field| field.last()).ok_or_else(unexpected)?;
            Found::Counters(vec![(Counter::Total(*which), int_of(&value)?)])
        }
        Read::Sums(_) => match bytes_of(value)? {
            Some(packed) => {
                let (sums, last) = read_sums(&packed).ok_or_else(unexpected)?;
                Found::Sums(sums, Some(last))
            }
            None => Found::Sums(OutcomeSums::default(), None),
        },
        Read::Meter(_) => {
            let packed = bytes_of(value)?;
            Found::Meter(packed.map(|packed| take::read_meter(&packed).ok_or_else(unexpected)).transpose()?)
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
