//! The names of everything in Redis. All keys of a queue share one hash tag, so they are in one slot; the catalogue has a tag
//! that no queue can have.
//!
//! ```text
//! ns:{queue}:s       HASH  state: generation, sequence of deaths, used, and each Version under the 2 bytes of its group
//! ns:{queue}:<x>     HASH  a table by its letter: key → record
//! ns:{queue}:<name>  ZSET  an index by its name: member by score; `marks` too
//! ns:{queue}:totals, types, succeeded  HASH  counters
//! ns:{~catalogue}:c, n, s   the catalogue, the names of the queues in order, the servers
//! ```

use crate::{
    domain::ids::QueueName,
    store::storage::{Index, Table},
};

/// What the keys of one store begin with.
#[derive(Clone, Debug)]
pub(super) struct Namespace(String);

/// One key of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    /// Holds the table `Version`, too.
    State,
    Table(Table),
    Index(Index),
    Totals,
    ErrorTypes,
    Succeeded,
    Marks,
}

/// What a queue that is not used may have.
const MAY_REMAIN: [Key; 8] = [
    Key::State,
    Key::Table(Table::Queue),
    Key::Table(Table::Breaker),
    Key::Table(Table::Outcomes),
    Key::Totals,
    Key::ErrorTypes,
    Key::Succeeded,
    Key::Marks,
];

impl Key {
    pub(super) fn table(table: Table) -> Self {
        if table == Table::Version { Self::State } else { Self::Table(table) }
    }

    /// All of them, those first that a queue that is not used may have; and how many these are.
    pub(super) fn all() -> (Vec<Self>, usize) {
        let tables = Table::ALL.into_iter().map(Self::table);
        let rest = tables.chain(Index::ALL.into_iter().map(Self::Index));
        let mut all = MAY_REMAIN.to_vec();
        all.extend(rest.filter(|key| !MAY_REMAIN.contains(key)));
        (all, MAY_REMAIN.len())
    }
}

impl Namespace {
    pub(super) fn new(prefix: &str) -> Self {
        Self(prefix.to_owned())
    }

    pub(super) fn key(&self, queue: &QueueName, key: Key) -> Vec<u8> {
        let start = format!("{}:{{{queue}}}:", self.0);
        match key {
            Key::State => start + "s",
            Key::Table(table) => format!("{start}{}", table.letter()),
            Key::Index(index) => start + index.name(),
            Key::Totals => start + "totals",
            Key::ErrorTypes => start + "types",
            Key::Succeeded => start + "succeeded",
            Key::Marks => start + "marks",
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_key_has_its_own_name_under_the_tag_of_its_queue() {
        let (names, emails) = (Namespace::new("rd"), QueueName::parse("emails").unwrap());
        let (all, may_remain) = Key::all();
        let keys = names.keys(&emails, &all);
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
        assert!(keys.iter().all(|key| key.starts_with(b"rd:{emails}:")));
        assert_eq!(keys.len(), 1 + 15 + 11 + 4);
        assert_eq!(all[may_remain..].len(), 12 + 11);
        assert_eq!(names.queue_of_channel(&keys[0]), Some(emails));
        assert_eq!(names.queue_of_channel(b"other:{emails}:s"), None);
        assert_eq!(names.queue_of_channel(names.of_no_queue().as_bytes()), None);
    }
}
