//! PurgeDeadLetters.

use super::{
    Broker, Error, Selector,
    dead_letters::{missing, request_id_taken},
};
use crate::{
    domain::ids::DeadPart,
    store::{Deaths, Purge, PurgeRefused, Purged, RequestId, Store},
};

#[derive(Clone, Debug)]
pub struct PurgeRequest {
    pub part: DeadPart,
    pub which: Selector,
    pub dry_run: bool,
    /// Why, for the log.
    pub reason: String,
    /// From an earlier answer.
    pub among: Option<Deaths>,
    pub request: Option<RequestId>,
}

impl<S: Store> Broker<S> {
    pub async fn purge_dead_letters(&self, request: PurgeRequest) -> Result<Purged, Error> {
        let PurgeRequest { part, which, dry_run, reason, among, request } = request;
        let queue = part.queue.clone();
        let which = self.which(which, among);
        let configured = self.is_configured(&queue);
        let missing = if configured { missing(&which) } else { Vec::new() };
        match self.store.purge(Purge { part, which, dry_run, request }).await? {
            Ok(purged) => {
                if !dry_run && purged.count > 0 {
                    tracing::info!(%queue, purged = purged.count, reason, "dead letters purged");
                }
                Ok(purged)
            }
            Err(PurgeRefused::NoSuchQueue) if configured => {
                Ok(Purged { skipped: missing, ..Purged::default() })
            }
            Err(PurgeRefused::RequestIdTaken) => Err(request_id_taken()),
            Err(PurgeRefused::NoSuchQueue) => Err(self.unknown_queue(queue)),
        }
    }
}
