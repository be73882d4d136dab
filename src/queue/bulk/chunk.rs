//! The next dead letters that a bulk call means.

use super::{
    super::{
        requests::BulkProgress,
        select::{self, DeadEntry},
    },
    Bulk, CHUNK_MAX, Item,
};
use crate::{
    domain::ids::{DeadPart, JobId},
    store::{Deaths, StoreError, Which, storage::Storage},
};

/// Dead letters that are decided about together, and where the call is after them.
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
    pub(super) async fn next<S: Storage>(
        &self,
        store: &mut S,
        progress: &BulkProgress,
    ) -> Result<Chunk, StoreError> {
        match self.which {
            Which::Ids(ids) => self.named(store, ids, progress).await,
            Which::Oldest { limit, .. } => self.oldest(store, *limit, progress).await,
            Which::Found { search, limit, .. } => {
                let look_at = search.look_at as u64 - progress.looked_at.min(search.look_at as u64);
                let look_at = usize::try_from(look_at).unwrap_or(usize::MAX).min(CHUNK_MAX);
                let (letters, more) = self.page(store, progress.left, look_at).await?;
                let queue = &self.part.queue;
                let fits = select::matching(store, queue, &search.filter, &letters).await?;
                let limit = limit.saturating_sub(progress.handled());
                let mut chunk = Chunk::new(progress);
                let mut left_over = more;
                for (letter, fits) in letters.into_iter().zip(fits) {
                    if chunk.items.len() == limit {
                        left_over = true;
                        break;
                    }
                    chunk.looked_at += 1;
                    chunk.left.after = letter.death;
                    if fits {
                        let looked_at = chunk.looked_at;
                        chunk.items.push(Item { named: None, letter: Some(letter), looked_at });
                    }
                }
                let looked_at_all = chunk.looked_at >= search.look_at as u64;
                chunk.is_full = chunk.items.len() == limit && left_over && !looked_at_all;
                chunk.last = !left_over || chunk.is_full || looked_at_all;
                chunk.has_more = chunk.last && left_over;
                Ok(chunk)
            }
        }
    }

    async fn named<S: Storage>(
        &self,
        store: &mut S,
        ids: &[JobId],
        progress: &BulkProgress,
    ) -> Result<Chunk, StoreError> {
        let rest = &ids[progress.handled().min(ids.len())..];
        let some = &rest[..rest.len().min(CHUNK_MAX)];
        let letters =
            select::by_ids(store, &self.part.queue, self.part.overflow_only, some).await?;
        let mut chunk = Chunk::new(progress);
        let looked_at = progress.looked_at;
        let items = some.iter().zip(letters);
        chunk.items =
            items.map(|(id, letter)| Item { named: Some(id.clone()), letter, looked_at }).collect();
        chunk.last = some.len() == rest.len();
        Ok(chunk)
    }

    async fn oldest<S: Storage>(
        &self,
        store: &mut S,
        limit: usize,
        progress: &BulkProgress,
    ) -> Result<Chunk, StoreError> {
        let limit = limit.saturating_sub(progress.handled());
        let (letters, more) = self.page(store, progress.left, limit.min(CHUNK_MAX)).await?;
        let mut chunk = Chunk::new(progress);
        for letter in letters {
            chunk.looked_at += 1;
            chunk.left.after = letter.death;
            let looked_at = chunk.looked_at;
            chunk.items.push(Item { named: None, letter: Some(letter), looked_at });
        }
        chunk.is_full = chunk.items.len() == limit && more;
        chunk.last = !more || chunk.is_full;
        chunk.has_more = chunk.last && more;
        Ok(chunk)
    }

    /// So many, and whether there are more.
    async fn page<S: Storage>(
        &self,
        store: &mut S,
        left: Deaths,
        limit: usize,
    ) -> Result<(Vec<DeadEntry>, bool), StoreError> {
        let DeadPart { queue, overflow_only } = self.part;
        let page = select::page(store, queue, *overflow_only, left, limit + 1).await?;
        let mut letters = page.unwrap_or_default();
        let more = letters.len() > limit;
        letters.truncate(limit);
        Ok((letters, more))
    }
}

impl Chunk {
    fn new(progress: &BulkProgress) -> Self {
        let (left, looked_at) = (progress.left, progress.looked_at);
        Self { items: Vec::new(), left, looked_at, has_more: false, last: false, is_full: false }
    }
}
