//! The next dead letters that a bulk call means.

use super::super::requests::BulkProgress;
use super::super::select::{self, DeadEntry};
use super::Bulk;
use crate::domain::JobId;
use crate::queue::{Deaths, Search, Which};
use crate::store::Result;
use crate::store::storage::Storage;

/// Dead letters of one batch.
const CHUNK_MAX: usize = 500;

/// One that was chosen.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// As the caller named it.
    pub(super) named: Option<JobId>,
    /// None: it is not among the dead letters.
    pub(super) letter: Option<DeadEntry>,
    /// Dead letters that the call has looked at by then.
    pub(super) looked_at: u64,
}

/// Dead letters that are decided about together, and where the call is after them.
#[derive(Default)]
pub(super) struct Chunk {
    pub(super) items: Vec<Item>,
    pub(super) left: Deaths,
    pub(super) looked_at: u64,
    pub(super) has_more: bool,
    pub(super) last: bool,
    /// It is the last because there are as many as the call may take.
    pub(super) is_full: bool,
}

impl Bulk<'_> {
    pub(super) fn among(&self) -> Option<Deaths> {
        match self.which {
            Which::Ids(_) => None,
            Which::Oldest { among, .. } | Which::Found { among, .. } => *among,
        }
    }

    pub(super) fn is_named(&self) -> bool {
        matches!(self.which, Which::Ids(_))
    }

    /// The next dead letters that the call means.
    pub(super) async fn next<S: Storage>(&self, store: &mut S, progress: &BulkProgress) -> Result<Chunk> {
        match self.which {
            Which::Ids(ids) => self.named(store, ids, progress).await,
            Which::Oldest { limit, .. } => self.found(store, None, *limit, progress).await,
            Which::Found { search, limit, .. } => self.found(store, Some(search), *limit, progress).await,
        }
    }

    async fn named<S: Storage>(&self, store: &mut S, ids: &[JobId], progress: &BulkProgress) -> Result<Chunk> {
        let rest = &ids[progress.handled().min(ids.len())..];
        let some = &rest[..rest.len().min(CHUNK_MAX)];
        let letters = select::by_ids(store, self.part, some).await?;
        let (left, looked_at) = (progress.left, progress.looked_at);
        let item = |(id, letter): (&JobId, _)| Item { named: Some(id.clone()), letter, looked_at };
        let items = some.iter().zip(letters).map(item).collect();
        Ok(Chunk { items, left, looked_at, last: some.len() == rest.len(), ..Chunk::default() })
    }

    /// Those that the search finds, or else the oldest.
    async fn found<S: Storage>(
        &self, store: &mut S, search: Option<&Search>, limit: usize, progress: &BulkProgress,
    ) -> Result<Chunk> {
        let limit = limit.saturating_sub(progress.handled());
        let look_at = search.map_or(u64::MAX, |search| search.look_at as u64);
        let not_looked_at = usize::try_from(look_at.saturating_sub(progress.looked_at)).unwrap_or(usize::MAX);
        let most = if search.is_some() { not_looked_at } else { limit };
        let (letters, more) = select::page(store, self.part, progress.left, most.min(CHUNK_MAX)).await?;
        let fits = match search {
            Some(search) => select::matching(store, &self.part.queue, &search.filter, &letters).await?,
            None => vec![true; letters.len()],
        };
        let mut chunk = Chunk { left: progress.left, looked_at: progress.looked_at, ..Chunk::default() };
        let mut left_over = more;
        for (letter, fits) in letters.into_iter().zip(fits) {
            if chunk.items.len() == limit {
                left_over = true;
                break;
            }
            chunk.looked_at += 1;
            chunk.left.after = letter.death;
            if fits {
                chunk.items.push(Item { named: None, letter: Some(letter), looked_at: chunk.looked_at });
            }
        }
        let looked_at_all = chunk.looked_at >= look_at;
        chunk.is_full = chunk.items.len() == limit && left_over && !looked_at_all;
        chunk.last = !left_over || chunk.is_full || looked_at_all;
        chunk.has_more = chunk.last && left_over;
        Ok(chunk)
    }
}
