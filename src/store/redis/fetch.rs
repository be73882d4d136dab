//! Claims whose callers go away at the last moment.

use super::RedisStore;
use crate::store::{Claimed, StoreError, Unanswered};
use tokio::sync::oneshot;

/// A claim's caller, who may go away when the answer is there but not yet fetched: then the jobs have to go back.
pub(super) struct Fetch<'a> {
    pub(super) store: &'a RedisStore,
    pub(super) answer: oneshot::Receiver<Result<Claimed, StoreError>>,
    pub(super) request_id: String,
}

impl Drop for Fetch<'_> {
    fn drop(&mut self) {
        // From here on the claim notices by itself that nobody is there.
        self.answer.close();
        if let Ok(Ok(claimed)) = self.answer.try_recv()
            && !claimed.jobs.is_empty()
            && let Ok(place) = self.store.place()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let unanswered = Unanswered::new(&claimed.jobs, claimed.answer, &self.request_id);
            let core = self.store.core.clone();
            runtime.spawn(async move {
                let _place = place;
                // If even this cannot be said, the leases run out.
                drop(core.unclaim(unanswered).await);
            });
        }
    }
}
