//! The names of everything in Redis. All keys of a queue share one hash tag, so that they are in one slot; the registry
//! of queues has a tag that no queue can have.

use crate::domain::ids::QueueName;

/// Each key of a queue by one letter, in the order in which every script gets them.
///
/// ```text
/// s state      HASH  number, counters, pause, breakers     j jobs       HASH  number → record
/// b bodies     HASH  number → a large body                 x extras     HASH  number → own id, key, deadline
/// r ready      ZSET  in the order of handing out           w scheduled  ZSET  by due time
/// l leased     ZSET  number by when to look at it          o leases     HASH  number → lease
/// p progress   HASH  number → what it has been through     h history    HASH  number and sequence → attempt
/// d dead       ZSET  number by order of death              v overflow   ZSET  those of them that are overflow
/// g deaths     HASH  number → how it died                  t types      HASH  type of error → dead letters
/// i ids        HASH  own id → number                       k keys       HASH  key → number
/// f finished   ZSET  keys of done jobs by when they end    e deadlines  ZSET  number by deadline
/// c claims     HASH  request id → numbers                  m moving     HASH  number → queue it is bound for
/// a arrived    ZSET  marks of moves by when they came      n moved      HASH  number → queue it went to
/// y moves      ZSET  number by when it went                u probes     ZSET  number by when it was handed out
/// z completed  ZSET  number by when it was done            q results    HASH  number → what its Ack carried
/// ```
///
/// What the breaker of the work counts is in the state, too (`tally.rs`): it goes with the queue, and needs no key of its own.
const LETTERS: &[u8] = b"sjbxrwlophdvgtikfecmanyuzq";

/// What the keys of one store begin with.
#[derive(Clone, Debug)]
pub(super) struct Namespace(String);

/// The keys of one queue.
#[derive(Clone, Debug)]
pub(super) struct QueueKeys(Vec<Vec<u8>>);

impl Namespace {
    pub(super) fn new(prefix: &str) -> Self {
        Self(prefix.to_owned())
    }

    pub(super) fn queue(&self, name: &QueueName) -> QueueKeys {
        let key = |letter: &u8| format!("{}:{{{name}}}:{}", self.0, *letter as char).into_bytes();
        QueueKeys(LETTERS.iter().map(key).collect())
    }

    /// Names to numbers, numbers to names, the last number given, and the counters of forgotten queues.
    pub(super) fn registry(&self) -> [Vec<u8>; 4] {
        ["names", "numbers", "last", "forgotten"].map(|part| self.of_registry(part))
    }

    /// The next number for a job.
    pub(super) fn next_number(&self) -> Vec<u8> {
        self.of_registry("next")
    }

    /// The servers that are there.
    pub(super) fn servers(&self) -> Vec<u8> {
        self.of_registry("servers")
    }

    /// The channels on which scripts tell of their queues: each has the name of the queue's state.
    pub(super) fn channels(&self) -> String {
        format!("{}:{{*}}:s", self.0)
    }

    /// Heard by all who hear of queues, and told by nobody.
    pub(super) fn of_no_queue(&self) -> String {
        format!("{}:{{~nobody}}:s", self.0)
    }

    pub(super) fn queue_of_channel(&self, channel: &[u8]) -> Option<QueueName> {
        let channel = std::str::from_utf8(channel).ok()?;
        let name = channel.strip_prefix(self.0.as_str())?.strip_prefix(":{")?;
        QueueName::parse(name.strip_suffix("}:s")?)
    }

    /// The answer to a call that may come again.
    pub(super) fn reply(&self, call: &str, request: &str) -> Vec<u8> {
        format!("{}:~{call}:{request}", self.0).into_bytes()
    }

    fn of_registry(&self, part: &str) -> Vec<u8> {
        format!("{}:{{~queues}}:{part}", self.0).into_bytes()
    }
}

impl QueueKeys {
    pub(super) fn all(&self) -> &[Vec<u8>] {
        &self.0
    }

    /// The key of this letter.
    pub(super) fn of(&self, letter: u8) -> &[u8] {
        let at = LETTERS.iter().position(|other| *other == letter);
        at.map_or(&[], |at| self.0[at].as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_of_a_queue_have_its_tag_and_no_queue_has_that_of_the_registry() {
        let name = QueueName::parse("emails").unwrap();
        let keys = Namespace::new("rd").queue(&name);
        assert!(keys.all().iter().all(|key| key.starts_with(b"rd:{emails}:")));
        assert_eq!(keys.of(b'r'), b"rd:{emails}:r");
        assert!(QueueName::parse("~queues").is_none());
        let names = Namespace::new("rd");
        assert_eq!(names.queue_of_channel(keys.of(b's')), Some(name));
        assert_eq!(names.queue_of_channel(b"other:{emails}:s"), None);
        assert_eq!(names.queue_of_channel(names.of_no_queue().as_bytes()), None);
    }
}
