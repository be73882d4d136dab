//! The servers that share this store: each keeps a note of itself in Redis, which ends by itself when the server has died.
//!
//! Every server judges by its own file. That is allowed, so that files can be changed one server after the other, but
//! whoever forgets one of them has to be told.

use super::{Core, reply::Reply, scripts::INTRODUCE};
use crate::{
    domain::settings::Settings,
    store::{StoreError, redis::record},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// A note counts for so long: some of the looks around that renew it may fail.
const NOTE_KEPT: Duration = Duration::from_secs(10);
/// Servers that are named for one set of settings.
const NAMED_MAX: usize = 5;

type Digest = [u8; 32];

/// What this server knows of the others, and says of itself.
#[derive(Debug)]
pub(super) struct Peers {
    /// This server's, unlike any other's.
    id: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The settings that the sum was made of: making it takes a while.
    summed: Option<(Arc<Settings>, Digest)>,
    differing: Option<String>,
    has_left: bool,
}

impl Peers {
    pub(super) fn new(id: u64) -> Self {
        Self { id, state: Mutex::default() }
    }

    /// That the servers judge by different settings, if they do.
    pub(super) fn notice(&self) -> Option<String> {
        self.lock().differing.clone()
    }

    fn digest(&self, settings: &Arc<Settings>) -> Digest {
        let mut state = self.lock();
        match &state.summed {
            Some((summed, digest)) if Arc::ptr_eq(summed, settings) => *digest,
            _ => {
                let digest = settings.digest();
                state.summed = Some((settings.clone(), digest));
                digest
            }
        }
    }

    /// Keeps what was heard; the log has it once for each change.
    fn heard(&self, differing: Option<String>) {
        let mut state = self.lock();
        if state.differing == differing {
            return;
        }
        match &differing {
            Some(notice) => tracing::warn!("{notice}"),
            None => tracing::info!("all servers judge by the same settings again"),
        }
        state.differing = differing;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Core {
    /// Renews this server's note, and looks at those of the others.
    pub(super) async fn introduce(&self) -> Result<(), StoreError> {
        // By which settings it judges, a server that nobody has asked anything does not know.
        let Some(settings) = self.followed() else { return Ok(()) };
        if self.peers.lock().has_left {
            return Ok(());
        }
        let digest = self.peers.digest(&settings);
        let note = [&digest[..], self.options.server.as_bytes()].concat();
        let notes = self.say(NOTE_KEPT, note).await?;
        self.peers.heard(differing(notes));
        Ok(())
    }

    /// A server that ends in peace is gone at once.
    pub(super) async fn take_leave(&self) {
        self.peers.lock().has_left = true;
        // If even this cannot be said, the note ends by itself.
        drop(self.say(Duration::ZERO, Vec::new()).await);
    }

    async fn say(
        &self,
        kept: Duration,
        note: Vec<u8>,
    ) -> Result<Vec<(Digest, String)>, StoreError> {
        let args = vec![
            self.clock.given().as_str().into(),
            self.peers.id.into(),
            record::millis(kept).into(),
            note.into(),
        ];
        let mut reply =
            Reply::of(self.redis.run(&INTRODUCE, &[self.names.servers()], args).await?)?;
        let mut notes = Vec::with_capacity(reply.left());
        while reply.left() > 0 {
            let note = reply.bytes()?;
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
    Some(format!(
        "servers on this Redis judge by different configuration files: {}",
        groups.join(" unlike ")
    ))
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
