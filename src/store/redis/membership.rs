//! The servers that share this store: each keeps a note of itself in the catalogue, which expires when the server has died.
//!
//! Servers may have different settings, so that configuration files can be changed one server after the other; that they do
//! is a warning. The heartbeat also samples TIME and compares the generation and the format of the store.

use super::{Core, lock};
use crate::store::{StoreError, redis::connection::Arg};
use std::{collections::BTreeMap, sync::Mutex, time::Duration};

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
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// None: this server has not joined, or has left.
    digest: Option<Digest>,
    differing: Option<String>,
}

impl Membership {
    pub(super) fn new(id: u64) -> Self {
        Self { id, state: Mutex::default() }
    }

    /// From the next heartbeat on, the others see this server with these settings.
    pub(super) fn join(&self, settings: Digest) {
        lock(&self.state).digest = Some(settings);
    }

    /// That the servers have different settings, if they do.
    pub(super) fn warning(&self) -> Option<String> {
        lock(&self.state).differing.clone()
    }

    /// Keeps what was found; each change is logged once.
    fn found(&self, differing: Option<String>) {
        let mut state = lock(&self.state);
        if state.differing == differing {
            return;
        }
        match &differing {
            Some(warning) => tracing::warn!("{warning}"),
            None => tracing::info!("all servers have the same settings again"),
        }
        state.differing = differing;
    }
}

impl Core {
    /// Renews this server's note, and reads those of the others.
    pub(super) async fn heartbeat(&self) -> Result<(), StoreError> {
        self.look().await?;
        let digest = lock(&self.membership.state).digest;
        let Some(digest) = digest else { return Ok(()) };
        let note = [&digest[..], self.options.server.as_bytes()].concat();
        let notes = self.note(NOTE_KEPT, note).await?;
        self.membership.found(differing(notes));
        Ok(())
    }

    /// A server that shuts down is gone at once. If that fails, its note expires.
    pub(super) async fn leave(&self) -> Result<(), StoreError> {
        if lock(&self.membership.state).digest.take().is_none() {
            return Ok(());
        }
        self.note(Duration::ZERO, Vec::new()).await.map(|_| ())
    }

    async fn note(
        &self,
        kept: Duration,
        note: Vec<u8>,
    ) -> Result<Vec<(Digest, String)>, StoreError> {
        let args = vec![
            Arg::from(self.membership.id),
            self.time.now().millis().into(),
            (kept.as_millis() as u64).into(),
            note.into(),
        ];
        let mut found = self.catalogue("heartbeat", args).await?.list()?;
        let mut notes = Vec::with_capacity(found.left());
        while found.left() > 0 {
            let note = found.bytes()?.unwrap_or_default();
            if let Some((digest, name)) = note.split_first_chunk() {
                notes.push((*digest, String::from_utf8_lossy(name).into_owned()));
            }
        }
        Ok(notes)
    }
}

/// In words, if not all of them have the same settings.
fn differing(notes: Vec<(Digest, String)>) -> Option<String> {
    let mut groups: BTreeMap<Digest, Vec<String>> = BTreeMap::new();
    for (digest, name) in notes {
        groups.entry(digest).or_default().push(name);
    }
    if groups.len() < 2 {
        return None;
    }
    let mut groups: Vec<_> = groups.into_values().map(in_words).collect();
    groups.sort();
    let groups = groups.join(" unlike ");
    Some(format!("servers on this Redis have different configuration files: {groups}"))
}

fn in_words(mut names: Vec<String>) -> String {
    names.sort();
    let more = names.len().saturating_sub(NAMED_MAX);
    names.truncate(NAMED_MAX);
    let names = names.join(", ");
    if more > 0 { format!("({names} and {more} more)") } else { format!("({names})") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_differ_are_named_and_those_that_agree_are_not() {
        let note = |digest: u8, name: &str| ([digest; 32], name.to_owned());
        assert_eq!(differing(vec![]), None);
        assert_eq!(differing(vec![note(1, "a"), note(1, "b")]), None);
        let told = differing(vec![note(2, "c"), note(9, "b"), note(2, "a")]).unwrap();
        assert!(told.ends_with("files: (a, c) unlike (b)"), "{told}");
        let many = (0..8).map(|at| note(1, &at.to_string())).chain([note(2, "x")]);
        let told = differing(many.collect()).unwrap();
        assert!(told.ends_with("(0, 1, 2, 3, 4 and 3 more) unlike (x)"), "{told}");
    }
}
