//! The store as a whole: its generation, its format and its time; and whether this server may go on with it.

use super::{
    Core,
    catalogue::Queue,
    clock::{Offset, Sample},
    keys::Key,
    lock,
    reply::{Reply, int_of},
    scripts::{CATALOGUE, LOOK},
};
use crate::{
    env,
    store::{
        StoreError,
        redis::connection::{Arg, Script},
    },
};
use std::sync::Mutex;

/// The format of the keys and records that this version reads and writes.
const FORMAT: u32 = 1;
const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(Debug, Default)]
pub(super) struct StoreState {
    /// Known since the store was opened.
    generation: Mutex<String>,
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
    pub(super) fn writable(&self) -> Result<(), StoreError> {
        self.halted().map_or(Ok(()), |why| Err(StoreError::Unavailable(why)))
    }

    /// Fails where this server must not even read.
    pub(super) fn readable(&self) -> Result<(), StoreError> {
        let halt = lock(&self.state.halt).clone().filter(|halt| halt.reads_too);
        halt.map_or(Ok(()), |halt| Err(StoreError::Unavailable(halt.why)))
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

    pub(super) fn store_generation(&self) -> String {
        lock(&self.state.generation).clone()
    }

    /// Makes the store where there is none, and takes it as it is now: the first call, and the one that ends a halt.
    pub(super) async fn open_store(&self) -> Result<(), StoreError> {
        let old = self.names.of_old_format();
        let mut command = redis::cmd("EXISTS");
        command.arg(&old);
        if int_of(&self.redis.command(&old[0], command).await?)? > 0 {
            let why = format!(
                "the namespace {} holds jobs in the format of a version before {VERSION}, which \
                 this one does not read: empty it, or choose another namespace",
                self.options.namespace
            );
            return Err(self.halt(why, true));
        }
        let fresh = format!("{:032x}", env::random::<u128>());
        let format = format!("{FORMAT} {FORMAT} {VERSION}");
        let args = [fresh.as_str(), &format].map(Arg::from).to_vec();
        let mut reply = self.ask_catalogue(&CATALOGUE, "open", "", args).await?;
        reply.micros()?;
        *lock(&self.state.generation) = reply.text()?;
        *lock(&self.state.halt) = None;
        self.catalogue.clear();
        self.time.reset();
        self.look().await
    }

    async fn ask_catalogue(
        &self,
        script: &Script,
        verb: &str,
        store: &str,
        args: Vec<Arg>,
    ) -> Result<Reply, StoreError> {
        let mut all = vec![Arg::from(verb), store.into()];
        all.extend(args);
        Reply::of(self.redis.run(script, &self.names.catalogue(), all).await?)
    }

    /// One verb of the catalogue: its own part of the reply. Where there is another store now, this server halts.
    pub(super) async fn catalogue(&self, verb: &str, args: Vec<Arg>) -> Result<Reply, StoreError> {
        let store = self.store_generation();
        let mut reply = self.ask_catalogue(&CATALOGUE, verb, &store, args).await?;
        reply.micros()?;
        self.check_store(&reply.text()?, &store)?;
        self.check_format(&reply.text()?)?;
        reply.text()?;
        Ok(reply)
    }

    /// Samples TIME of the catalogue's node, and compares generation and format. It only reads, so it waits for no replica.
    pub(super) async fn look(&self) -> Result<(), StoreError> {
        let _one = self.state.looking.lock().await;
        let store = self.store_generation();
        let sent_us = self.time.boot_us();
        let mut reply = self.ask_catalogue(&LOOK, "look", &store, Vec::new()).await?;
        let received_us = self.time.boot_us();
        let time_us = reply.micros()?;
        self.check_store(&reply.text()?, &store)?;
        self.check_format(&reply.text()?)?;
        let offset = Offset::read(&reply.text()?);
        let Some(proposal) = self.time.heard(Sample { time_us, sent_us, received_us }, offset)
        else {
            return Ok(());
        };
        tracing::warn!("the clock of Redis has jumped; store time runs on at its own pace");
        let args = [proposal.from, proposal.to].map(|it| Arg::from(it.to_string().as_str()));
        let mut settled = self.ask_catalogue(&CATALOGUE, "clock", &store, args.to_vec()).await?;
        settled.micros()?;
        self.check_store(&settled.text()?, &store)?;
        settled.text()?;
        self.time.proposed(proposal, Offset::read(&settled.text()?));
        Ok(())
    }

    pub(super) fn check_store(&self, found: &str, known: &str) -> Result<(), StoreError> {
        if found == known {
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
    fn check_format(&self, text: &str) -> Result<(), StoreError> {
        let mut parts = text.splitn(3, ' ');
        let mut number = || parts.next().and_then(|number| number.parse().ok()).unwrap_or(u32::MAX);
        let (min_reader, min_writer) = (number(), number());
        let version = parts.next().unwrap_or("of another kind");
        let takes = |to| {
            format!("to {to} this store takes redrive {version} or newer, and this is {VERSION}")
        };
        if min_reader > FORMAT {
            return Err(self.halt(takes("read"), true));
        }
        if min_writer > FORMAT {
            return Err(self.halt(takes("write to"), false));
        }
        Ok(())
    }

    /// Samples TIME again: that of the catalogue's node, and in a Cluster that of the queue's.
    pub(super) async fn sample_time(&self, queue: &Queue) -> Result<(), StoreError> {
        if self.redis.is_cluster() {
            let key = self.names.key(&queue.name, Key::State);
            let sent_us = self.time.boot_us();
            let mut reply = Reply::of(self.redis.command(&key, redis::cmd("TIME")).await?)?;
            let received_us = self.time.boot_us();
            queue.time.heard(Sample { time_us: reply.micros()?, sent_us, received_us });
        }
        self.look().await
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
}
