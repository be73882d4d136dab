//! The names of everything in Redis. All keys of a queue share one hash tag, so they are in one slot; the catalogue has a tag
//! that no queue can have.
//!
//! ```text
//! ns:{queue}:s       HASH  state, read with one command: generation, sequence of deaths, used, each Version under the 2 bytes of
//!                          its group, Queue `q`, Breaker `b` and Outcomes `o` and their group, totals `t:` and which, the sums
//!                          `s` of each epoch (five doubles: successes, of these retries, ms, logarithms, the last one), the
//!                          last claim `c`, `keyed` once a job had a group
//! ns:{queue}:<x>     HASH  a table by its letter: key → record; `h` has Attempt, Event (key and `e`) and Failure
//!                          (key and `f`) too
//! ns:{queue}:<name>  ZSET  an index by its name: member by score
//! ns:{queue}:types   HASH  counters
//! ns:{queue}:heads   ZSET  see `HEADS`
//! ns:{queue}:meters  HASH  group → six doubles (see `Meter`), epoch and random of the version
//! ns:{~catalogue}:c, n, s   the catalogue, the names of the queues in order, the servers
//! ```

use crate::domain::QueueName;
use crate::store::storage::{Index, RecordKey, Table};

/// What the keys of one store begin with.
#[derive(Clone, Debug)]
pub(super) struct Namespace(pub(super) String);

/// One key of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Table(Table),
    Index(Index),
    Other(&'static str),
}

pub(super) const STATE: Key = Key::Other("s");
pub(super) const ERROR_TYPES: Key = Key::Other("types");
/// The heads of the groups that are not held and have ready jobs: group by rank and time of its first position.
pub(super) const HEADS: Key = Key::Other("heads");
pub(super) const METERS: Key = Key::Other("meters");

/// What a queue that is not used may have, beside the records that are its own.
const MAY_REMAIN: [Key; 3] = [STATE, ERROR_TYPES, METERS];

impl Key {
    pub(super) fn table(table: Table) -> Self {
        match table {
            Table::Queue | Table::Version | Table::Breaker | Table::Outcomes => STATE,
            Table::Attempt | Table::Event | Table::Failure => Self::Table(Table::History),
            _ => Self::Table(table),
        }
    }

    /// All of them, those first that a queue that is not used may have; and how many these are.
    pub(super) fn all() -> (Vec<Self>, usize) {
        let (own, of_jobs): (Vec<_>, Vec<_>) = Table::ALL.into_iter().partition(|table| table.is_of_queue());
        let mut all = MAY_REMAIN.to_vec();
        all.extend(own.into_iter().map(Self::table).filter(|key| *key != STATE));
        let may_remain = all.len();
        all.push(HEADS);
        all.extend(of_jobs.into_iter().map(Self::table).chain(Index::ALL.into_iter().map(Self::Index)));
        (all, may_remain)
    }
}

/// What stands around the key of a record in its field.
fn around(table: Table) -> (&'static [u8], &'static [u8]) {
    match table {
        Table::Queue => (b"q", b""),
        Table::Breaker => (b"b", b""),
        Table::Outcomes => (b"o", b""),
        Table::Event => (b"", b"e"),
        Table::Failure => (b"", b"f"),
        _ => (b"", b""),
    }
}

/// The field of a record.
pub(super) fn field(table: Table, key: &RecordKey) -> Vec<u8> {
    let (front, back) = around(table);
    [front, &key.bytes(), back].concat()
}

/// The key of the record of this table that a field has: other tables may be in the same hash.
pub(super) fn key_in(table: Table, field: &[u8]) -> Option<Vec<u8>> {
    let (front, back) = around(table);
    let key = field.strip_prefix(front)?.strip_suffix(back)?;
    let is_of = match table {
        Table::Queue => key.is_empty(),
        Table::Version | Table::Breaker | Table::Outcomes => key.len() == 2,
        Table::History => key.len() == 6,
        Table::Attempt | Table::Event | Table::Failure => key.len() == 7,
        _ => true,
    };
    is_of.then(|| key.to_vec())
}

impl Namespace {
    pub(super) fn key(&self, queue: &QueueName, key: Key) -> Vec<u8> {
        match key {
            Key::Table(table) => format!("{}:{{{queue}}}:{}", self.0, table.letter()),
            Key::Index(index) => format!("{}:{{{queue}}}:{}", self.0, index.name()),
            Key::Other(name) => format!("{}:{{{queue}}}:{name}", self.0),
        }
        .into_bytes()
    }

    pub(super) fn keys(&self, queue: &QueueName, keys: &[Key]) -> Vec<Vec<u8>> {
        keys.iter().map(|key| self.key(queue, *key)).collect()
    }

    /// The catalogue, the names of the queues, the servers.
    pub(super) fn catalogue(&self) -> [Vec<u8>; 3] {
        ["c", "n", "s"].map(|part| format!("{}:{{~catalogue}}:{part}", self.0).into_bytes())
    }

    /// Keys of the format before this one, of which a store that is used has one.
    pub(super) fn of_old_format(&self) -> [Vec<u8>; 3] {
        ["names", "last", "next"].map(|part| format!("{}:{{~queues}}:{part}", self.0).into_bytes())
    }

    /// The channels on which scripts publish: each has the name of its queue's state.
    pub(super) fn channels(&self) -> String {
        format!("{}:{{*}}:s", self.0)
    }

    /// Every subscriber gets what is published here, and ignores it.
    pub(super) fn of_no_queue(&self) -> String {
        format!("{}:{{~none}}:s", self.0)
    }

    pub(super) fn queue_of_channel(&self, channel: &[u8]) -> Option<QueueName> {
        let channel = std::str::from_utf8(channel).ok()?;
        let name = channel.strip_prefix(self.0.as_str())?.strip_prefix(":{")?;
        QueueName::parse(name.strip_suffix("}:s")?)
    }
}
