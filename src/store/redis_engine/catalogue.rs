//! The queues that there are, with their generations; numbers for jobs; the generation and the format of the store.
//!
//! A queue's generation is new at every making and is compared by every script on it; the store's own is compared by every
//! call to the catalogue. So a Redis that was emptied or replaced is noticed at the next call.

use super::{
    Core,
    clock::{NodeTime, Offset, Sample},
    keys::Key,
    reply::{Reply, bytes_of, int_of, unexpected},
    scripts::{CATALOGUE, QUEUE},
};
use crate::{
    domain::{ids::QueueName, time::Timestamp},
    env,
    store::{StoreError, redis::connection::Arg},
};
use std::{
    collections::HashMap,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Numbers that a server takes at once; those that it does not use are lost.
const NUMBERS_AT_ONCE: u64 = 1_000;
/// Numbers of jobs have 48 bits.
const NUMBER_MAX: u64 = (1 << 48) - 1;
/// How often a queue may be forgotten while it is registered.
const ROUNDS_MAX: usize = 10;

/// The format of the records and keys that this version writes.
const FORMAT: u32 = 1;

/// What a server must understand, and the version that does.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Format {
    min_reader: u32,
    min_writer: u32,
    version: String,
}

impl Format {
    fn ours() -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { min_reader: FORMAT, min_writer: FORMAT, version }
    }

    fn read(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ' ');
        let mut next = || parts.next();
        let (min_reader, min_writer) = (next()?.parse().ok()?, next()?.parse().ok()?);
        Some(Self { min_reader, min_writer, version: next()?.to_owned() })
    }

    fn text(&self) -> String {
        format!("{} {} {}", self.min_reader, self.min_writer, self.version)
    }
}

/// Why this server does no more with the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Halt {
    why: String,
    reads_too: bool,
}

/// One queue, as long as it has this generation.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) name: QueueName,
    pub(super) generation: String,
    /// Of the node that has the queue, in a Cluster.
    pub(super) time: NodeTime,
}

/// What this server remembers.
#[derive(Debug, Default)]
pub(super) struct Catalogue {
    queues: Mutex<HashMap<QueueName, Arc<Queue>>>,
    numbers: Mutex<Range<u64>>,
    store: Mutex<String>,
    halt: Mutex<Option<Halt>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Catalogue {
    fn known(&self, name: &QueueName) -> Option<Arc<Queue>> {
        lock(&self.queues).get(name).cloned()
    }

    fn remember(&self, name: &QueueName, generation: &str) -> Arc<Queue> {
        let mut queues = lock(&self.queues);
        if let Some(known) = queues.get(name).filter(|known| known.generation == generation) {
            return known.clone();
        }
        let (name, generation) = (name.clone(), generation.to_owned());
        let queue = Arc::new(Queue { name, generation, time: NodeTime::default() });
        queues.insert(queue.name.clone(), queue.clone());
        queue
    }

    pub(super) fn drop_known(&self, queue: &Queue) {
        let mut queues = lock(&self.queues);
        if queues.get(&queue.name).is_some_and(|known| known.generation == queue.generation) {
            queues.remove(&queue.name);
        }
    }

    fn take_numbers(&self, count: u64) -> Option<Range<u64>> {
        let mut numbers = lock(&self.numbers);
        let end = numbers.start.checked_add(count).filter(|end| *end <= numbers.end)?;
        let taken = numbers.start..end;
        numbers.start = end;
        Some(taken)
    }
}

impl Core {
    /// Fails where this server must not write.
    pub(super) fn writable(&self) -> Result<(), StoreError> {
        let halt = lock(&self.catalogue.halt).clone();
        halt.map_or(Ok(()), |halt| Err(StoreError::Unavailable(halt.why)))
    }

    /// Fails where this server must not even read.
    pub(super) fn readable(&self) -> Result<(), StoreError> {
        let halt = lock(&self.catalogue.halt).clone();
        match halt.filter(|halt| halt.reads_too) {
            Some(halt) => Err(StoreError::Unavailable(halt.why)),
            None => Ok(()),
        }
    }

    /// Why writes are refused, if they are.
    pub(super) fn halted(&self) -> Option<String> {
        lock(&self.catalogue.halt).as_ref().map(|halt| halt.why.clone())
    }

    fn halt(&self, why: String, reads_too: bool) -> StoreError {
        let halt = Halt { why: why.clone(), reads_too };
        let mut now = lock(&self.catalogue.halt);
        if now.as_ref() != Some(&halt) {
            tracing::error!("{why}");
            *now = Some(halt);
        }
        StoreError::Unavailable(why)
    }

    /// Makes the store where there is none, and takes it as it is now: the first call, and the one that ends a halt.
    pub(super) async fn open_store(&self) -> Result<(), StoreError> {
        *lock(&self.catalogue.numbers) = 0..0;
        lock(&self.catalogue.queues).clear();
        self.time.reset();
        let old = self.names.of_old_format();
        let mut command = redis::cmd("EXISTS");
        old.iter().for_each(|key| {
            command.arg(key);
        });
        if int_of(&self.redis.command(&old[0], command).await?)? > 0 {
            let why = format!(
                "the namespace {} holds jobs in the format of a version before {}, which this one \
                 does not read: empty it, or choose another namespace",
                self.options.namespace,
                env!("CARGO_PKG_VERSION")
            );
            return Err(self.halt(why, true));
        }
        let fresh = format!("{:032x}", env::random::<u128>());
        let args = vec![fresh.as_str().into(), Format::ours().text().as_str().into()];
        let sent_us = self.time.boot_us();
        let mut reply = self.ask_catalogue("open", "", args).await?;
        let time_us = reply.micros()?;
        *lock(&self.catalogue.store) = reply.text()?;
        self.check_format(&reply.text()?)?;
        *lock(&self.catalogue.halt) = None;
        let offset = Offset::read(&reply.text()?);
        self.time.heard(Sample { time_us, sent_us, received_us: self.time.boot_us() }, offset);
        Ok(())
    }

    fn check_format(&self, text: &str) -> Result<(), StoreError> {
        let Some(format) = Format::read(text) else {
            return Err(self.halt("the catalogue of the store has no format".into(), true));
        };
        let needs = |to: &str| {
            let (version, ours) = (&format.version, env!("CARGO_PKG_VERSION"));
            format!("to {to} this store takes redrive {version} or newer, and this is {ours}")
        };
        if format.min_reader > FORMAT {
            return Err(self.halt(needs("read"), true));
        }
        if format.min_writer > FORMAT {
            return Err(self.halt(needs("write to"), false));
        }
        Ok(())
    }

    async fn ask_catalogue(
        &self,
        verb: &str,
        store: &str,
        args: Vec<Arg>,
    ) -> Result<Reply, StoreError> {
        let mut all = vec![Arg::from(verb), store.into()];
        all.extend(args);
        Reply::of(self.redis.run(&CATALOGUE, &self.names.catalogue(), all).await?)
    }

    /// One verb of the catalogue: its own part of the reply. Where there is another store now, this server halts.
    pub(super) async fn catalogue(&self, verb: &str, args: Vec<Arg>) -> Result<Reply, StoreError> {
        let store = lock(&self.catalogue.store).clone();
        let sent_us = self.time.boot_us();
        let mut reply = self.ask_catalogue(verb, &store, args).await?;
        let time_us = reply.micros()?;
        self.check_store(reply.text()?.as_bytes(), &store)?;
        let formatted = self.check_format(&reply.text()?);
        let sample = Sample { time_us, sent_us, received_us: self.time.boot_us() };
        let offset = Offset::read(&reply.text()?);
        if !self.time.is_given()
            && let Some(proposal) = self.time.heard(sample, offset)
        {
            let texts = [proposal.from.to_string(), proposal.to.to_string()];
            let args = texts.iter().map(|text| text.as_str().into()).collect();
            let mut settled = self.ask_catalogue("clock", &store, args).await?;
            settled.micros()?;
            (settled.text()?, settled.text()?);
            self.time.proposed(proposal, Offset::read(&settled.text()?));
            tracing::warn!("the clock of Redis has jumped; store time runs on at its pace");
        }
        formatted.map(|()| reply)
    }

    fn check_store(&self, found: &[u8], known: &str) -> Result<(), StoreError> {
        if found == known.as_bytes() {
            return Ok(());
        }
        let how = if found.is_empty() { "was emptied" } else { "holds another store" };
        let why = format!(
            "Redis {how} since this server opened its namespace {}: nothing more is written; \
             start the server again to use what is there now",
            self.options.namespace
        );
        Err(self.halt(why, false))
    }

    /// The queue of this name. None: there is no such queue.
    pub(super) async fn find(&self, name: &QueueName) -> Result<Option<Arc<Queue>>, StoreError> {
        if let Some(queue) = self.catalogue.known(name) {
            return Ok(Some(queue));
        }
        let generation = self.generation(name).await?;
        Ok(generation.map(|generation| self.catalogue.remember(name, &generation)))
    }

    async fn generation(&self, name: &QueueName) -> Result<Option<String>, StoreError> {
        let store = lock(&self.catalogue.store).clone();
        let [key, ..] = self.names.catalogue();
        let mut command = redis::cmd("HMGET");
        command.arg(&key).arg("~store").arg(name.as_str());
        let mut found = Reply::of(self.redis.command(&key, command).await?)?;
        self.check_store(&found.bytes()?.unwrap_or_default(), &store)?;
        let generation = found.bytes()?.map(|bytes| String::from_utf8(bytes.into()));
        generation.transpose().map_err(|_| unexpected())
    }

    /// Registers a queue. False: there are `max` others.
    pub(super) async fn register_queue(
        &self,
        name: &QueueName,
        max: usize,
    ) -> Result<bool, StoreError> {
        self.writable()?;
        if self.catalogue.known(name).is_some() {
            return Ok(true);
        }
        for _ in 0..ROUNDS_MAX {
            let fresh = format!("{:016x}", env::random::<u64>());
            let args = vec![name.as_str().into(), (max as u64).into(), fresh.as_str().into()];
            let generation = self.catalogue("register", args).await?.text()?;
            if generation.is_empty() {
                return Ok(false);
            }
            let mut adopted = Reply::of(self.run_queue("adopt", name, &generation, &[]).await?)?;
            let (is_new, found) = (adopted.int()? == 1, adopted.text()?);
            if found.is_empty() {
                // It was closed and not removed: a server stopped in between.
                self.remove_closed(name, &generation).await?;
            } else if found != generation {
                // The catalogue has lost it, in a failover: the queue and its jobs are still there.
                let args = [name.as_str(), &generation, &found].map(Arg::from).to_vec();
                self.catalogue("adopt", args).await?;
            } else if !is_new || self.generation(name).await?.as_ref() == Some(&generation) {
                self.catalogue.remember(name, &generation);
                return Ok(true);
            }
        }
        Err(StoreError::Unavailable(format!("the queue {name} is forgotten again and again")))
    }

    /// Closes a queue that is not used, then removes it. False: it stays.
    pub(super) async fn forget_queue(
        &self,
        name: &QueueName,
        unused_since: Timestamp,
    ) -> Result<bool, StoreError> {
        self.writable()?;
        let Some(queue) = self.find(name).await? else { return Ok(false) };
        let must_be_empty_from = Key::all().1 as u64 + 1;
        let args = [Arg::from(unused_since.millis()), must_be_empty_from.into()];
        let closed = self.run_queue("close", name, &queue.generation, &args).await?;
        if int_of(&closed)? != 1 {
            self.catalogue.drop_known(&queue);
            return Ok(false);
        }
        self.catalogue.drop_known(&queue);
        self.remove_closed(name, &queue.generation).await?;
        Ok(true)
    }

    async fn remove_closed(&self, name: &QueueName, generation: &str) -> Result<(), StoreError> {
        self.catalogue("forget", [name.as_str(), generation].map(Arg::from).to_vec()).await?;
        self.run_queue("remove", name, generation, &[]).await.map(|_| ())
    }

    async fn run_queue(
        &self,
        verb: &str,
        name: &QueueName,
        generation: &str,
        more: &[Arg],
    ) -> Result<redis::Value, StoreError> {
        let keys = self.names.keys(name, &Key::all().0);
        let now = Arg::from(self.time.now().millis());
        let mut args = vec![Arg::from(verb), generation.into(), now];
        args.extend_from_slice(more);
        self.redis.run(&QUEUE, &keys, args).await
    }

    /// Names in their order, those after `after`.
    pub(super) async fn names_after(
        &self,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<Vec<QueueName>, StoreError> {
        self.readable()?;
        let [_, key, _] = self.names.catalogue();
        let from = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut command = redis::cmd("ZRANGE");
        command.arg(&key).arg(from).arg("+").arg("BYLEX").arg("LIMIT").arg(0).arg(limit);
        let mut found = Reply::of(self.redis.command(&key, command).await?)?;
        let mut names = Vec::with_capacity(found.left());
        while found.left() > 0 {
            names.extend(QueueName::parse(&found.text()?));
        }
        Ok(names)
    }

    /// Whether a queue's hash has this field.
    pub(super) async fn has(
        &self,
        name: &QueueName,
        key: Key,
        field: &[u8],
    ) -> Result<bool, StoreError> {
        let key = self.names.key(name, key);
        let mut command = redis::cmd("HEXISTS");
        command.arg(&key).arg(field);
        Ok(int_of(&self.redis.command(&key, command).await?)? == 1)
    }

    /// Numbers never given before. Asking twice costs some numbers and nothing else.
    pub(super) async fn take_numbers(&self, count: u64) -> Result<Range<u64>, StoreError> {
        self.writable()?;
        loop {
            if let Some(numbers) = self.catalogue.take_numbers(count) {
                return Ok(numbers);
            }
            let block = count.max(NUMBERS_AT_ONCE);
            let last = self.catalogue("numbers", vec![block.into()]).await?.count()?;
            if last > NUMBER_MAX {
                let why = "all numbers for jobs are used up";
                return Err(StoreError::Unavailable(why.into()));
            }
            *lock(&self.catalogue.numbers) = last + 1 - block..last + 1;
        }
    }

    /// Samples TIME again: that of the catalogue's node, and in a Cluster that of the queue's.
    pub(super) async fn sample_time(&self, queue: &Queue) -> Result<(), StoreError> {
        if self.redis.is_cluster() {
            let key = self.names.key(&queue.name, Key::State);
            let sent_us = self.time.boot_us();
            let mut reply = Reply::of(self.redis.command(&key, redis::cmd("TIME")).await?)?;
            let time_us = reply.micros()?;
            queue.time.heard(Sample { time_us, sent_us, received_us: self.time.boot_us() });
        }
        self.catalogue("look", Vec::new()).await.map(|_| ())
    }

    /// What TIME should say where the queue is; empty: it is not compared.
    pub(super) fn expected_time(&self, queue: &Queue) -> Arg {
        let expected = match (self.time.is_given(), self.redis.is_cluster()) {
            (true, _) => None,
            (false, false) => self.time.expected_ms(),
            (false, true) => queue.time.expected_ms(self.time.boot_us()),
        };
        expected.map_or_else(Arg::default, Arg::from)
    }

    /// Fields of a hash that has many, gathered in steps that keep Redis from nothing else.
    pub(super) async fn fields(
        &self,
        name: &QueueName,
        key: Key,
    ) -> Result<Vec<Vec<u8>>, StoreError> {
        let key = self.names.key(name, key);
        let (mut fields, mut cursor) = (Vec::new(), "0".to_owned());
        loop {
            let mut command = redis::cmd("HSCAN");
            command.arg(&key).arg(&cursor).arg("COUNT").arg(1_000);
            let mut found = Reply::of(self.redis.command(&key, command).await?)?;
            cursor = found.text()?;
            let mut page = found.list()?;
            while page.left() > 0 {
                fields.extend(page.bytes()?.map(Vec::from));
                page.value()?;
            }
            if cursor == "0" {
                return Ok(fields);
            }
        }
    }

    pub(super) async fn records(
        &self,
        name: &QueueName,
        key: Key,
        fields: &[Vec<u8>],
    ) -> Result<Vec<Option<bytes::Bytes>>, StoreError> {
        let key = self.names.key(name, key);
        let mut command = redis::cmd("HMGET");
        command.arg(&key).arg(fields);
        let mut found = Reply::of(self.redis.command(&key, command).await?)?;
        let mut records = Vec::with_capacity(fields.len());
        while found.left() > 0 {
            records.push(bytes_of(found.value()?)?);
        }
        Ok(records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_reads_back() {
        let ours = Format::ours();
        assert_eq!(Format::read(&ours.text()), Some(ours));
        assert_eq!(Format::read(""), None);
    }

    #[test]
    fn numbers_come_in_a_row_or_not_at_all() {
        let catalogue = Catalogue::default();
        assert_eq!(catalogue.take_numbers(1), None);
        *lock(&catalogue.numbers) = 1..11;
        assert_eq!(catalogue.take_numbers(4), Some(1..5));
        assert_eq!(catalogue.take_numbers(7), None);
        assert_eq!(catalogue.take_numbers(6), Some(5..11));
    }
}
