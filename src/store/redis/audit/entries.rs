//! From the other side: whatever names a job must lead to one that is there, and that knows of it.

use super::{Audit, PAGE};
use crate::store::{
    AuditProgress, Check, StoreError,
    redis::{
        connection::Arg,
        record::{NUMBER_BYTES, Number},
        registry::Queue,
        reply::Reply,
        scripts::AUDIT_ENTRIES,
    },
};

/// Bodies are large, and a scan tells them, too.
const BODIES_PAGE: usize = 4;

/// A key of a queue whose entries name jobs.
struct Key {
    letter: u8,
    sorted: bool,
    check: Check,
    /// One entry, for people.
    one: &'static str,
}

const fn hash(letter: u8, check: Check, one: &'static str) -> Key {
    Key { letter, sorted: false, check, one }
}

const fn sorted(letter: u8, check: Check, one: &'static str) -> Key {
    Key { letter, sorted: true, check, one }
}

const KEYS: [Key; 18] = [
    sorted(b'r', Check::Places, "a place in READY"),
    sorted(b'w', Check::Places, "a place in SCHEDULED"),
    sorted(b'l', Check::Places, "a place in LEASED"),
    hash(b'o', Check::Places, "a lease"),
    sorted(b'd', Check::Places, "a place in DEAD"),
    sorted(b'v', Check::Places, "a place in the overflow"),
    hash(b'g', Check::Places, "a death"),
    sorted(b'z', Check::Places, "a place in COMPLETED"),
    hash(b'm', Check::Places, "a move to another queue"),
    sorted(b'e', Check::Indexes, "a deadline"),
    hash(b'i', Check::Indexes, "an id"),
    hash(b'k', Check::Indexes, "an idempotency key"),
    sorted(b'f', Check::Indexes, "the end of an idempotency key"),
    hash(b'x', Check::Indexes, "an id, a key or a deadline"),
    hash(b'p', Check::Indexes, "progress"),
    hash(b'h', Check::Indexes, "a part of the history"),
    hash(b'b', Check::Indexes, "a body"),
    hash(b'q', Check::Indexes, "a result"),
];

impl Key {
    /// The job that an entry names, for people.
    fn job(&self, entry: &[u8]) -> String {
        match self.letter {
            b'i' | b'k' | b'f' => format!("({})", String::from_utf8_lossy(entry)),
            b'h' => format!("job {}", Number::read(&entry[..entry.len().min(NUMBER_BYTES)]).0),
            b'w' => format!("job {}", Number::read(&entry[..entry.len().saturating_sub(1)]).0),
            _ => format!("job {}", Number::read(entry).0),
        }
    }
}

impl Audit<'_> {
    pub(super) async fn entries(&mut self, queue: &Queue) -> Result<(), StoreError> {
        for key in &KEYS {
            let mut cursor = Vec::from(*b"0");
            loop {
                let (next, entries) = self.scan(queue, key, &cursor).await?;
                self.leads(queue, key, &entries).await?;
                (self.tell)(AuditProgress { step: key.one, done: self.report.records, of: None });
                cursor = next;
                if cursor == b"0" {
                    break;
                }
            }
        }
        Ok(())
    }

    /// A page of members or fields, and where the next begins.
    async fn scan(
        &self,
        queue: &Queue,
        key: &Key,
        cursor: &[u8],
    ) -> Result<(Vec<u8>, Vec<Vec<u8>>), StoreError> {
        let count = if key.letter == b'b' { BODIES_PAGE } else { PAGE };
        self.scan_page(queue, key.letter, key.sorted, cursor, count).await
    }

    pub(super) async fn scan_page(
        &self,
        queue: &Queue,
        letter: u8,
        sorted: bool,
        cursor: &[u8],
        count: usize,
    ) -> Result<(Vec<u8>, Vec<Vec<u8>>), StoreError> {
        let name = queue.keys.of(letter);
        let mut command = redis::cmd(if sorted { "ZSCAN" } else { "HSCAN" });
        command.arg(name).arg(cursor).arg("COUNT").arg(count);
        let mut reply = Reply::of(self.core.redis.command(name, command).await?)?;
        let next = reply.bytes()?;
        let mut pairs = reply.list()?;
        let mut entries = Vec::new();
        while pairs.left() > 0 {
            entries.push(pairs.bytes()?);
            pairs.bytes()?;
        }
        Ok((next, entries))
    }

    async fn leads(
        &mut self,
        queue: &Queue,
        key: &Key,
        entries: &[Vec<u8>],
    ) -> Result<(), StoreError> {
        for entries in entries.chunks(PAGE) {
            let letter = [key.letter];
            let mut args = vec![Arg::from(&letter[..])];
            args.extend(entries.iter().map(|entry| Arg::from(&entry[..])));
            let (_, mut reply) = self.core.run(&AUDIT_ENTRIES, queue, args).await?;
            for entry in entries {
                let (one, job) = (key.one, key.job(entry));
                match reply.int()? {
                    0 => {}
                    1 => {
                        let what = format!("{one} leads to {job}, which is not there");
                        self.found(key.check, queue, what);
                    }
                    _ => self.found(key.check, queue, format!("{one} leads to {job}, wrongly")),
                }
            }
        }
        Ok(())
    }
}
