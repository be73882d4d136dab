//! The servers that share this store: each keeps a note of itself in the catalogue, which expires when the server has died.
//!
//! Servers may have different settings, so that configuration files can be changed one server after the other; that they do
//! is a warning. The heartbeat also samples TIME and compares the generation and the format of the store.

use super::reply::Reply;
use super::{Core, RedisStorage, lock};
use crate::{env, store::Result};
use bytes::Bytes;
use std::{borrow::Cow, collections::BTreeMap, sync::Mutex, time::Duration};

pub(super) const HEARTBEAT: Duration = Duration::from_secs(1);
/// A note counts for so long: some heartbeats may fail.
const NOTE_KEPT: Duration = Duration::from_secs(10);
/// Servers that are named for one set of settings.
const NAMED_MAX: usize = 5;

/// Of the settings.
pub type Digest = [u8; 32];

#[derive(Debug)]
pub(super) struct Membership {
    /// This server's, unlike any other's.
    id: u64,
    /// None: this server has not joined, or has left.
    digest: Mutex<Option<Digest>>,
    differing: Mutex<Option<String>>,
}

impl Default for Membership {
    fn default() -> Self {
        Self { id: env::random(), digest: Mutex::default(), differing: Mutex::default() }
    }
}

impl RedisStorage {
    /// The other servers learn of this one and of its settings, from the next heartbeat on.
    pub fn join(&self, settings: Digest) {
        *lock(&self.core.membership.digest) = Some(settings);
    }

    /// That servers have different settings, if they do.
    pub fn warning(&self) -> Option<String> {
        lock(&self.core.membership.differing).clone()
    }

    /// This server shuts down: it is gone at once. If that fails, its note expires.
    pub async fn leave(&self) -> Result<()> {
        let digest = lock(&self.core.membership.digest).take();
        if digest.is_some() {
            self.core.note(Duration::ZERO, &[]).await?;
        }
        Ok(())
    }
}

impl Core {
    /// Renews this server's note, and reads those of the others. Each change in what they say is logged once.
    pub(super) async fn heartbeat(&self) -> Result<()> {
        self.sample_store().await?;
        let digest = *lock(&self.membership.digest);
        let Some(digest) = digest else { return Ok(()) };
        let note = [&digest[..], self.options.server.as_bytes()].concat();
        let found = differing(&self.note(NOTE_KEPT, &note).await?);
        let mut known = lock(&self.membership.differing);
        match &found {
            Some(warning) if *known != found => tracing::warn!("{warning}"),
            None if known.is_some() => tracing::info!("all servers have the same settings again"),
            _ => {}
        }
        *known = found;
        Ok(())
    }

    /// All notes, this server's included.
    async fn note(&self, kept: Duration, note: &[u8]) -> Result<Vec<Bytes>> {
        let (now, kept) = (self.time.now().millis(), kept.as_millis() as u64);
        let mut reply = self.catalogue("heartbeat", (self.membership.id, now, kept, note)).await?;
        Ok(reply.list()?.rest(Reply::bytes)?.into_iter().flatten().collect())
    }
}

/// In words, if not all of them have the same settings.
fn differing(notes: &[Bytes]) -> Option<String> {
    let mut groups: BTreeMap<&Digest, Vec<_>> = BTreeMap::new();
    for (digest, name) in notes.iter().filter_map(|note| note.split_first_chunk()) {
        groups.entry(digest).or_default().push(String::from_utf8_lossy(name));
    }
    let mut groups: Vec<_> = groups.into_values().map(in_words).collect();
    groups.sort();
    let text = || format!("servers on this Redis have different configuration files: {}", groups.join(" unlike "));
    (groups.len() > 1).then(text)
}

fn in_words(mut names: Vec<Cow<'_, str>>) -> String {
    names.sort();
    let more = names.len().saturating_sub(NAMED_MAX);
    names.truncate(NAMED_MAX);
    let names = names.join(", ");
    if more > 0 { format!("({names} and {more} more)") } else { format!("({names})") }
}
