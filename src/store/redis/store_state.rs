//! The store as a whole: its generation, its format and its time; and whether this server may go on with it.

use super::catalogue::Queue;
use super::clock::{Offset, Sample};
use super::reply::{Reply, int_of};
use super::scripts::{CATALOGUE, LOOK};
use super::{Core, lock};
use crate::env;
use crate::store::storage::{self, VERSION};
use crate::store::{Result, StoreError};
use redis::ToRedisArgs;
use std::sync::{Mutex, OnceLock};

const FORMAT: u32 = storage::FORMAT as u32;

#[derive(Debug, Default)]
pub(super) struct StoreState {
    /// Known since the store was opened.
    generation: OnceLock<String>,
    halt: Mutex<Option<Halt>>,
    /// Samples of TIME are taken one after the other: each is compared with the one before.
    looking: tokio::sync::Mutex<()>,
}

/// Why this server does no more with the store.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Halt {
    why: String,
    reads_too: bool,
}

impl Core {
    /// Fails where this server must not write.
    pub(super) fn writable(&self) -> Result<()> {
        self.halted().map_or(Ok(()), |why| Err(StoreError::Unavailable(why)))
    }

    /// Fails where this server must not even read.
    pub(super) fn readable(&self) -> Result<()> {
        let reads = !lock(&self.state.halt).as_ref().is_some_and(|halt| halt.reads_too);
        if reads { Ok(()) } else { self.writable() }
    }

    /// Why writes are refused, if they are.
    pub(super) fn halted(&self) -> Option<String> {
        lock(&self.state.halt).as_ref().map(|halt| halt.why.clone())
    }

    fn halt(&self, why: String, reads_too: bool) -> StoreError {
        let halt = Halt { why: why.clone(), reads_too };
        if lock(&self.state.halt).replace(halt.clone()) != Some(halt) {
            tracing::error!("{why}");
        }
        StoreError::Unavailable(why)
    }

    pub(super) fn store_generation(&self) -> &str {
        self.state.generation.get().map_or("", String::as_str)
    }

    /// Makes the store where there is none: the first call.
    pub(super) async fn open_store(&self) -> Result<()> {
        let old = self.names.of_old_format();
        if int_of(&self.redis.query(&old[0], redis::cmd("EXISTS").arg(&old)).await?)? > 0 {
            let why = format!(
                "the namespace {} holds jobs in the format of a version before {VERSION}, which \
                 this one does not read: empty it, or choose another namespace",
                self.options.namespace
            );
            return Err(self.halt(why, true));
        }
        let fresh = format!("{:032x}", env::random::<u128>());
        let mut reply = self.ask_catalogue("open", (fresh, format!("{FORMAT} {FORMAT} {VERSION}"))).await?;
        reply.micros()?;
        let generation = reply.text()?;
        self.state.generation.get_or_init(|| generation);
        self.sample_store().await
    }

    async fn ask_catalogue(&self, verb: &str, args: impl ToRedisArgs) -> Result<Reply> {
        // A look only reads, so it waits for no replica.
        let script = if verb == "look" { &LOOK } else { &CATALOGUE };
        let args = (verb, self.store_generation(), args);
        Reply::of(self.redis.run(script, &self.names.catalogue(), args).await?)
    }

    /// One verb of the catalogue, with TIME and the offset. Where there is another store now, this server halts.
    async fn check(&self, verb: &str, args: impl ToRedisArgs) -> Result<(Sample, Offset, Reply)> {
        let sent_us = self.time.boot_us();
        let mut reply = self.ask_catalogue(verb, args).await?;
        let sample = self.time.sample(sent_us, reply.micros()?);
        self.check_store(&reply.text()?)?;
        self.check_format(&reply.text()?)?;
        Ok((sample, Offset::read(&reply.text()?), reply))
    }

    /// One verb of the catalogue: its own part of the reply.
    pub(super) async fn catalogue(&self, verb: &str, args: impl ToRedisArgs) -> Result<Reply> {
        self.check(verb, args).await.map(|(_, _, reply)| reply)
    }

    /// Samples TIME of the catalogue's node, and compares generation and format.
    pub(super) async fn sample_store(&self) -> Result<()> {
        let _one = self.state.looking.lock().await;
        let (sample, offset, _) = self.check("look", "").await?;
        let Some(to) = self.time.observe(sample, offset) else { return Ok(()) };
        tracing::warn!("the clock of Redis has jumped; store time runs on at its own pace");
        let (_, offset, _) = self.check("clock", (offset.to_string(), to.to_string())).await?;
        self.time.proposed(to, offset);
        Ok(())
    }

    pub(super) fn check_store(&self, found: &str) -> Result<()> {
        if found == self.store_generation() {
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

    /// The least formats that a reader and a writer must know, and the version that does.
    fn check_format(&self, text: &str) -> Result<()> {
        let mut parts = text.splitn(3, ' ');
        let mut number = || parts.next().and_then(|number| number.parse().ok()).unwrap_or(u32::MAX);
        let (min_reader, min_writer) = (number(), number());
        let version = parts.next().unwrap_or("of another kind");
        for (least, to, reads_too) in [(min_reader, "read", true), (min_writer, "write to", false)] {
            if least > FORMAT {
                let why = format!("to {to} this store takes redrive {version} or newer, and this is {VERSION}");
                return Err(self.halt(why, reads_too));
            }
        }
        Ok(())
    }

    /// Samples TIME again: that of the catalogue's node, and in a Cluster that of the queue's.
    pub(super) async fn sample_time(&self, queue: &Queue) -> Result<()> {
        if self.redis.is_cluster() {
            self.read_part(&queue.name, &[]).await?;
        }
        self.sample_store().await
    }

    /// What TIME should say where the queue is; empty: it is not compared.
    pub(super) fn expected_time(&self, queue: &Queue) -> String {
        let expected = match (self.time.is_given(), self.redis.is_cluster()) {
            (true, _) => None,
            (false, false) => self.time.expected_ms(),
            (false, true) => queue.time.expected_ms(self.time.boot_us()),
        };
        expected.map(|time_ms| time_ms.to_string()).unwrap_or_default()
    }
}
