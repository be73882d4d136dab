//! Dead letters sent back to work, or removed.

use super::check::{Check, Invalid};
use super::dead_selection::{PURGE, REQUEUE, Selection, cutoff_name, selected, skipped_out};
use super::page_token::{self, Kind};
use super::{Context, count};
use crate::grpc::pb;
use crate::queue::{Deaths, Purge, Purged, RequestId, Requeue, Requeued};
use prost::Message;
use sha2::{Digest, Sha256};

/// What the cut-off of a reply is bound to; none where nothing goes on.
pub(crate) struct Asked(Option<String>);

impl From<&Requeue> for Asked {
    fn from(request: &Requeue) -> Self {
        Self(cutoff_name(REQUEUE, &request.part, &request.which, request.dry_run))
    }
}

impl From<&Purge> for Asked {
    fn from(request: &Purge) -> Self {
        Self(cutoff_name(PURGE, &request.part, &request.which, request.dry_run))
    }
}

impl Asked {
    /// Where the next call goes on.
    fn cutoff(&self, left: Deaths) -> String {
        let position = [left.after, left.up_to].map(u64::to_be_bytes).concat();
        self.0.as_ref().map(|name| page_token::encode((Kind::Cutoff, name), &position)).unwrap_or_default()
    }
}

/// All fields together make the call what it is.
fn request_id(check: &mut Check<'_>, id: &str, request: &impl Message) -> Option<RequestId> {
    check.name("request_id", id);
    let asked = || Sha256::digest(request.encode_to_vec()).into();
    (!id.is_empty()).then(|| RequestId { id: id.to_owned(), asked: asked() })
}

/// The fields that both calls have.
macro_rules! selection {
    ($call:expr, $request:ident) => {
        Selection {
            call: $call,
            queue: &$request.queue,
            selector: $request.selector,
            limit: $request.limit,
            dry_run: $request.dry_run,
            cutoff: &$request.cutoff,
        }
    };
}

pub(crate) fn requeue(context: &Context<'_>, request: pb::RequeueRequest) -> Result<Requeue, Invalid> {
    let mut check = Check::new(context.limits);
    let request_id = request_id(&mut check, &request.request_id, &request);
    let selected = selected(&mut check, selection!(REQUEUE, request));
    let target = check.queue_if_given("target_queue", &request.target_queue);
    check.at_most("reason", request.reason.len(), context.limits.note_bytes);
    let requeue = selected.map(|(part, which)| Requeue {
        part,
        which,
        target,
        keep_attempts: request.keep_attempts,
        reason: request.reason,
        dry_run: request.dry_run,
        request: request_id,
    });
    check.done(requeue)
}

pub(crate) fn requeue_response(asked: &Asked, requeued: Requeued) -> pb::RequeueResponse {
    pb::RequeueResponse {
        requeued: count(requeued.ids.len() as u64),
        job_ids: requeued.ids.iter().map(ToString::to_string).collect(),
        skipped: skipped_out(requeued.skipped),
        has_more: requeued.has_more,
        cutoff: asked.cutoff(requeued.left),
    }
}

/// And why, for the log.
pub(crate) fn purge(context: &Context<'_>, request: pb::PurgeDeadLettersRequest) -> Result<(Purge, String), Invalid> {
    let mut check = Check::new(context.limits);
    let request_id = request_id(&mut check, &request.request_id, &request);
    let selected = selected(&mut check, selection!(PURGE, request));
    check.at_most("reason", request.reason.len(), context.limits.note_bytes);
    let purge = |(part, which)| Purge { part, which, dry_run: request.dry_run, request: request_id };
    check.done(selected.map(purge).map(|purge| (purge, request.reason)))
}

pub(crate) fn purge_response(asked: &Asked, purged: Purged) -> pb::PurgeDeadLettersResponse {
    pb::PurgeDeadLettersResponse {
        purged: count(purged.count),
        has_more: purged.has_more,
        skipped: skipped_out(purged.skipped),
        cutoff: asked.cutoff(purged.left),
    }
}
