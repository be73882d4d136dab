//! The storage contract on Redis.

use super::catalogue::Queue;
use super::columns::{Answer, Columns, concerns_groups, publish, scanned_keys};
use super::keys::{Key, STATE, field};
use super::reply::{Reply, int_of};
use super::scripts::{APPLY, APPLY_GROUPS, READ, TAKE, TAKE_GROUPS};
use super::{Core, RedisStorage, take};
use crate::domain::{QueueName, Timestamp};
use crate::store::redis::Durability;
use crate::store::redis::connection::Script;
use crate::store::storage::{
    Applied, Batch, Found, Read, Reads, RecordKey, Storage, Table, Take, Taken, WHOLE_QUEUE, Write,
};
use crate::store::{Result, StoreError};
use redis::ToRedisArgs;
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
const HAS_GROUPS: i64 = -4;

/// The keys of a table too large for one reply: gathered at the first page of a scan, used for the next ones.
#[derive(Clone, Debug)]
pub(super) struct ScanKeys {
    queue: QueueName,
    table: Table,
    keys: Vec<Vec<u8>>,
}

impl Core {
    /// Runs a script under the generation of the queue: what it replies, its first number apart. None: there is no such queue.
    /// `first`: the arguments that depend on it.
    async fn run<F: ToRedisArgs>(
        &self, name: &QueueName, script: &Script, keys: &[Key], first: impl Fn(&Queue) -> F, args: impl ToRedisArgs,
    ) -> Result<Option<(Arc<Queue>, i64, Reply)>> {
        let keys = self.names.keys(name, keys);
        let mut failed = None;
        for _ in 0..ROUNDS_MAX {
            let Some(queue) = self.find(name).await? else { return Ok(None) };
            if failed.as_ref() == Some(&queue.generation) {
                // The catalogue has it, and it has not begun or is closed.
                self.catalogue.drop_known(&queue);
                return Ok(None);
            }
            let mut reply = Reply::of(self.redis.run(script, &keys, (first(&queue), &args)).await?)?;
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
    fn lib_args(&self, queue: &Queue, with_time: bool) -> (String, u64, String) {
        let expected = if with_time { self.expected_time(queue) } else { String::new() };
        (queue.generation.clone(), self.time.now().millis(), expected)
    }

    pub(super) async fn read_part(&self, name: &QueueName, reads: &[Read]) -> Result<Option<Vec<Answer>>> {
        let columns = Columns::of_reads(reads);
        let sent_us = self.time.boot_us();
        // Only a Cluster has other nodes than that of the catalogue.
        let with_time = self.redis.is_cluster();
        let first = |queue: &Queue| (queue.generation.clone(), u8::from(with_time));
        let done = self.run(name, &READ, &columns.keys, first, &columns).await?;
        let Some((queue, time_us, mut reply)) = done else { return Ok(None) };
        if with_time {
            queue.time.observe(self.time.sample(sent_us, time_us));
        }
        columns.answers(reads, &mut reply).map(Some)
    }

    /// Fields of a hash that has many, gathered in steps that keep Redis from nothing else.
    async fn fields(&self, name: &QueueName, key: Key) -> Result<Vec<Vec<u8>>> {
        let key = self.names.key(name, key);
        let (mut fields, mut cursor) = (Vec::new(), "0".to_owned());
        loop {
            let mut command = redis::cmd("HSCAN");
            command.arg(&key).arg(&cursor).arg("COUNT").arg(1_000);
            let mut found = Reply::of(self.redis.query(&key, &command).await?)?;
            cursor = found.text()?;
            let pairs = found.list()?.rest(Reply::bytes)?;
            fields.extend(pairs.into_iter().step_by(2).flatten().map(Vec::from));
            if cursor == "0" {
                return Ok(fields);
            }
        }
    }
}

impl RedisStorage {
    /// What was found in a queue may be another server's, and not confirmed yet.
    fn note_read(&mut self, queue: &QueueName) {
        let confirms = self.core.redis.durability() != Durability::Primary;
        if confirms && !self.unconfirmed.contains(queue) {
            self.unconfirmed.insert(queue.clone());
        }
    }

    /// Waits until all that this handle has found in these queues is as durable as the operator asks: that of a queue that it has
    /// written to since is.
    pub async fn confirm_reads(&mut self, of: impl Fn(&QueueName) -> bool) -> Result<()> {
        for queue in self.unconfirmed.drain().filter(of) {
            self.core.redis.confirm(&self.core.names.key(&queue, STATE)).await?;
        }
        Ok(())
    }

    /// A page of records by key.
    async fn scan_page(&mut self, name: &QueueName, read: &Read, keys: Option<Vec<Vec<u8>>>) -> Result<Found> {
        let Read::Scan(table, after, limit) = read else { return Ok(Found::Scanned(Vec::new())) };
        let goes_on = |kept: &ScanKeys| after.is_some() && kept.queue == *name && kept.table == *table;
        let keys = match (keys, self.scan.take().filter(goes_on)) {
            (Some(keys), _) => keys,
            (None, Some(kept)) => kept.keys,
            (None, None) => scanned_keys(*table, self.core.fields(name, Key::table(*table)).await?),
        };
        let after = after.as_ref().map(RecordKey::bytes);
        let from = after.map_or(0, |after| keys.partition_point(|key| *key <= after));
        let mut records = Vec::new();
        for some in keys[from..].chunks(SCANNED_AT_ONCE.min(*limit).max(1)) {
            if records.len() >= *limit {
                break;
            }
            let some: Vec<_> = some.iter().filter_map(|key| RecordKey::read(*table, key)).collect();
            let reads: Vec<_> = some.iter().map(|key| Read::Record(*table, key.clone())).collect();
            let found = self.core.read_part(name, &reads).await?.unwrap_or_default();
            records.extend(some.into_iter().zip(found).filter_map(|(key, answer)| match answer {
                Answer::Found(Found::Record(record)) => Some((key, record?)),
                _ => None,
            }));
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

    async fn read(&mut self, queue: &QueueName, reads: &[Read]) -> Result<Option<Vec<Found>>> {
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
                    Answer::Keys(keys) => self.scan_page(queue, read, keys).await?,
                });
            }
        }
        Ok(Some(all))
    }

    async fn queues(&mut self, after: Option<&QueueName>, limit: usize) -> Result<Vec<QueueName>> {
        self.core.names_after(after, limit).await
    }

    async fn holders(&mut self, table: Table, key: &RecordKey) -> Result<Vec<QueueName>> {
        let queues = self.core.names_after(None, usize::MAX).await?;
        let mut holders = Vec::new();
        for some in queues.chunks(QUEUES_AT_ONCE) {
            let mut asked = JoinSet::new();
            for name in some {
                let (core, name, field) = (self.core.clone(), name.clone(), field(table, key));
                asked.spawn(async move {
                    let key = core.names.key(&name, Key::table(table));
                    let has = core.redis.query(&key, redis::cmd("HEXISTS").arg(&key).arg(field)).await?;
                    Ok::<_, StoreError>((int_of(&has)? == 1).then_some(name))
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
    async fn apply(&mut self, queue: &QueueName, batch: &Batch) -> Result<Applied> {
        let core = self.core.clone();
        core.writable()?;
        let name = queue;
        let promotes = batch.writes.iter().any(|write| matches!(write, Write::Promote(_)));
        let mut has_groups = batch.writes.iter().any(concerns_groups) || core.catalogue.has_groups(name);
        let (columns, queue, first, mut reply) = loop {
            let columns = Columns::of_batch(batch, has_groups);
            let script = if has_groups { &APPLY_GROUPS } else { &APPLY };
            let first = |queue: &Queue| core.lib_args(queue, promotes);
            let done = core.run(name, script, &columns.keys, first, (publish(batch.publish), &columns)).await?;
            match done {
                Some((queue, HAS_GROUPS, _)) => has_groups = queue.note_groups(),
                Some((queue, first, reply)) => break (columns, queue, first, reply),
                None => return Ok(Applied::NoQueue),
            }
        };
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

    async fn take(&mut self, queue: &QueueName, take: &Take<'_>) -> Result<Option<Taken>> {
        let core = self.core.clone();
        core.writable()?;
        let (name, args) = (queue, take::args(take));
        let mut has_groups = take::concerns_groups(take) || core.catalogue.has_groups(name);
        let (queue, first, mut reply) = loop {
            let script = if has_groups { &TAKE_GROUPS } else { &TAKE };
            let first = |queue: &Queue| core.lib_args(queue, true);
            match core.run(name, script, &take::keys(has_groups), first, &args[..]).await? {
                Some((queue, HAS_GROUPS, _)) => has_groups = queue.note_groups(),
                Some(taken) => break taken,
                None => return Ok(None),
            }
        };
        if first == TIME_IS_OFF {
            core.sample_time(&queue).await?;
        }
        match first {
            CHANGED | TIME_IS_OFF => Ok(Some(Taken { changed: vec![WHOLE_QUEUE], ..Taken::default() })),
            _ => take::taken(&mut reply).map(Some),
        }
    }

    async fn register(&mut self, queue: &QueueName, max: usize) -> Result<bool> {
        self.core.register_queue(queue, max).await
    }

    async fn forget(&mut self, queue: &QueueName, unused_since: Timestamp) -> Result<bool> {
        self.core.forget_queue(queue, unused_since).await
    }

    async fn numbers(&mut self, count: u64) -> Result<Range<u64>> {
        self.core.take_numbers(count).await
    }
}
