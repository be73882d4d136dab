//! The storage contract on Redis.

use super::{
    Core, RedisStorage,
    catalogue::Queue,
    clock::Sample,
    columns::{Answer, Columns, Scanned, publish, scanned_keys},
    keys::Key,
    reply::{Reply, bytes_of},
    scripts::{APPLY, READ, TAKE},
    take,
};
use crate::{
    domain::{ids::QueueName, time::Timestamp},
    store::{
        StoreError,
        redis::{
            Durability,
            connection::{Arg, Script},
        },
        storage::{Applied, Batch, Found, Read, Reads, RecordKey, Storage, Table, Take, Taken},
    },
};
use bytes::Bytes;
use std::{ops::Range, sync::Arc};
use tokio::task::JoinSet;

/// Reads in one script; more are read one part after the other.
const READS_MAX: usize = 2_000;
/// Queues that are asked at the same time.
const QUEUES_AT_ONCE: usize = 64;
/// Records of a scan in one command.
const SCANNED_AT_ONCE: usize = 500;
/// How often a queue may be made anew while one call works on it.
const ROUNDS_MAX: usize = 3;

/// What the first number of a reply means.
const DONE: i64 = 0;
const CHANGED: i64 = -1;
const OTHER_GENERATION: i64 = -2;
const TIME_IS_OFF: i64 = -3;

/// The keys of a table too large for one reply: gathered at the first page of a scan, used for the next ones.
#[derive(Clone, Debug)]
pub(super) struct ScanKeys {
    queue: QueueName,
    table: Table,
    keys: Vec<Vec<u8>>,
}

impl Core {
    /// Runs a script under the generation of the queue: what it replies, its first number apart. None: there is no such queue.
    async fn run(
        &self,
        name: &QueueName,
        script: &Script,
        keys: &[Key],
        args: impl Fn(&Queue) -> Vec<Arg>,
    ) -> Result<Option<(Arc<Queue>, i64, Reply)>, StoreError> {
        let keys = self.names.keys(name, keys);
        let mut failed = None;
        for _ in 0..ROUNDS_MAX {
            let Some(queue) = self.find(name).await? else { return Ok(None) };
            if failed.as_ref() == Some(&queue.generation) {
                // The catalogue has it, and it has not begun or is closed.
                self.catalogue.drop_known(&queue);
                return Ok(None);
            }
            let mut reply = Reply::of(self.redis.run(script, &keys, args(&queue)).await?)?;
            let first = reply.int()?;
            if first != OTHER_GENERATION {
                return Ok(Some((queue, first, reply)));
            }
            self.catalogue.drop_known(&queue);
            failed = Some(queue.generation.clone());
        }
        Err(StoreError::Unavailable(format!("the queue {name} is made anew again and again")))
    }

    /// The arguments that lib.lua reads.
    fn lib_args(&self, queue: &Queue, with_time: bool) -> Vec<Arg> {
        let expected = if with_time { self.expected_time(queue) } else { Arg::default() };
        vec![queue.generation.as_str().into(), self.time.now().millis().into(), expected]
    }

    pub(super) async fn read_part(
        &self,
        name: &QueueName,
        reads: &[Read],
    ) -> Result<Option<Vec<Answer>>, StoreError> {
        let columns = Columns::of_reads(reads);
        let sent_us = self.time.boot_us();
        let args = |queue: &Queue| {
            let mut args = vec![Arg::from(queue.generation.as_str())];
            columns.write(&mut args);
            args
        };
        let Some((queue, seconds, mut reply)) = self.run(name, &READ, columns.keys(), args).await?
        else {
            return Ok(None);
        };
        let time_us = seconds * 1_000_000 + reply.int()?;
        let received_us = self.time.boot_us();
        queue.time.heard(Sample { time_us, sent_us, received_us });
        columns.answers(reads, &mut reply).map(Some)
    }

    /// Fields of a hash that has many, gathered in steps that keep Redis from nothing else.
    async fn fields(&self, name: &QueueName, key: Key) -> Result<Vec<Vec<u8>>, StoreError> {
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

    async fn records(
        &self,
        name: &QueueName,
        key: Key,
        fields: &[Vec<u8>],
    ) -> Result<Vec<Option<Bytes>>, StoreError> {
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

impl RedisStorage {
    /// What was found in a queue may be another server's, and not confirmed yet.
    fn note_read(&mut self, queue: &QueueName) {
        let confirms = self.core.options.connection.durability != Durability::Primary;
        if confirms && !self.unconfirmed.contains(queue) {
            self.unconfirmed.insert(queue.clone());
        }
    }

    /// Waits until all that this handle has found in these queues is as durable as the operator asks: that of a queue that it has
    /// written to since is.
    pub async fn confirm_reads(
        &mut self,
        of: impl Fn(&QueueName) -> bool,
    ) -> Result<(), StoreError> {
        for queue in self.unconfirmed.drain().filter(of) {
            self.core.redis.confirm(&self.core.names.key(&queue, Key::State)).await?;
        }
        Ok(())
    }

    /// A page of records by key.
    async fn scan(
        &mut self,
        name: &QueueName,
        read: &Read,
        scanned: Scanned,
    ) -> Result<Found, StoreError> {
        let Read::Scan(table, after, limit) = read else { return Ok(Found::Scanned(Vec::new())) };
        let key = Key::table(*table);
        let kept = self.scan.take();
        let keys = match (scanned, kept) {
            (Scanned::Keys(keys), _) => keys,
            (Scanned::TooMany, Some(kept))
                if after.is_some() && kept.queue == *name && kept.table == *table =>
            {
                kept.keys
            }
            (Scanned::TooMany, _) => scanned_keys(*table, self.core.fields(name, key).await?),
        };
        let from = after.as_ref().map_or(0, |after| {
            let after = after.bytes();
            keys.partition_point(|key| *key <= after)
        });
        let mut records = Vec::new();
        for some in keys[from..].chunks(SCANNED_AT_ONCE.min(*limit).max(1)) {
            if records.len() >= *limit {
                break;
            }
            let found = self.core.records(name, key, some).await?;
            let known = some
                .iter()
                .zip(found)
                .filter_map(|(key, record)| Some((RecordKey::read(*table, key)?, record?)));
            let more: Vec<(RecordKey, Bytes)> = known.collect();
            records.extend(more);
        }
        records.truncate(*limit);
        self.scan = Some(ScanKeys { queue: name.clone(), table: *table, keys });
        Ok(Found::Scanned(records))
    }
}

impl Reads for RedisStorage {
    fn now(&self) -> Timestamp {
        self.core.time.now()
    }

    async fn read(
        &mut self,
        queue: &QueueName,
        reads: &[Read],
    ) -> Result<Option<Vec<Found>>, StoreError> {
        self.core.readable()?;
        self.note_read(queue);
        let mut all = Vec::with_capacity(reads.len());
        // Whether there is such a queue is an answer, too.
        let parts = reads.chunks(READS_MAX).chain(reads.is_empty().then_some(reads));
        for part in parts {
            let Some(answers) = self.core.read_part(queue, part).await? else { return Ok(None) };
            for (read, answer) in part.iter().zip(answers) {
                all.push(match answer {
                    Answer::Found(found) => found,
                    Answer::Scan(scanned) => self.scan(queue, read, scanned).await?,
                });
            }
        }
        Ok(Some(all))
    }

    async fn queues(
        &mut self,
        after: Option<&QueueName>,
        limit: usize,
    ) -> Result<Vec<QueueName>, StoreError> {
        self.core.names_after(after, limit).await
    }

    async fn holders(
        &mut self,
        table: Table,
        key: &RecordKey,
    ) -> Result<Vec<QueueName>, StoreError> {
        let queues = self.core.names_after(None, usize::MAX).await?;
        let mut holders = Vec::new();
        for some in queues.chunks(QUEUES_AT_ONCE) {
            let mut asked = JoinSet::new();
            for name in some {
                let (core, name, field) = (self.core.clone(), name.clone(), key.bytes());
                asked.spawn(async move {
                    let has = core.has(&name, Key::table(table), &field).await?;
                    Ok::<_, StoreError>(has.then_some(name))
                });
            }
            while let Some(answer) = asked.join_next().await {
                let ended = |_| StoreError::Unavailable("the server shuts down".into());
                holders.extend(answer.map_err(ended)??);
            }
        }
        holders.sort();
        Ok(holders)
    }
}

impl Storage for RedisStorage {
    async fn apply(&mut self, queue: &QueueName, batch: &Batch) -> Result<Applied, StoreError> {
        let core = self.core.clone();
        core.writable()?;
        let name = queue;
        let columns = Columns::of_batch(batch);
        let args = |queue: &Queue| {
            let mut args = core.lib_args(queue, columns.promotes());
            args.push(publish(batch.publish));
            columns.write(&mut args);
            args
        };
        let done = core.run(queue, &APPLY, columns.keys(), args).await?;
        let Some((queue, first, mut reply)) = done else { return Ok(Applied::NoQueue) };
        match first {
            DONE => {
                // Its confirmation is that of all before it.
                if !batch.writes.is_empty() {
                    self.unconfirmed.remove(name);
                }
                columns.done(&mut reply).map(Applied::Done)
            }
            TIME_IS_OFF => {
                core.sample_time(&queue).await?;
                Ok(Applied::Changed(Vec::new()))
            }
            _ => {
                self.note_read(name);
                columns.changed(batch, &mut reply)
            }
        }
    }

    async fn take(
        &mut self,
        queue: &QueueName,
        take: &Take<'_>,
    ) -> Result<Option<Taken>, StoreError> {
        let core = &self.core;
        core.writable()?;
        let args = |queue: &Queue| {
            let mut args = core.lib_args(queue, true);
            take::args(take, &mut args);
            args
        };
        let taken = core.run(queue, &TAKE, &take::keys(), args).await?;
        let Some((queue, first, mut reply)) = taken else { return Ok(None) };
        if first == TIME_IS_OFF {
            core.sample_time(&queue).await?;
        }
        match first {
            CHANGED | TIME_IS_OFF => Ok(Some(Taken { changed: true, ..Taken::default() })),
            _ => take::taken(&mut reply).map(Some),
        }
    }

    async fn register(&mut self, queue: &QueueName, max: usize) -> Result<bool, StoreError> {
        self.core.register_queue(queue, max).await
    }

    async fn forget(
        &mut self,
        queue: &QueueName,
        unused_since: Timestamp,
    ) -> Result<bool, StoreError> {
        self.core.forget_queue(queue, unused_since).await
    }

    async fn numbers(&mut self, count: u64) -> Result<Range<u64>, StoreError> {
        self.core.take_numbers(count).await
    }
}
