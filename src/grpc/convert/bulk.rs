//! Dead letters sent back to work, or removed.

use super::{
    Context,
    check::{Check, Invalid},
    count,
    dead_selection::{Selection, cutoff, skipped_out},
};
use crate::{
    broker::{PurgeRequest, RequeueRequest, Selector},
    domain::ids::DeadPart,
    grpc::pb,
    store::{Purged, RequestId, Requeued},
};
use prost::Message;
use sha2::{Digest, Sha256};

/// Cut-offs of a requeue are its own; those of a purge are told apart from them.
const REQUEUE: &str = "";
const PURGE: &str = "purge:";

/// Whose reply it is: what its cut-off is bound to.
pub(in crate::grpc) struct Asked {
    part: DeadPart,
    which: Selector,
    dry_run: bool,
}

impl From<&RequeueRequest> for Asked {
    fn from(request: &RequeueRequest) -> Self {
        let (part, which) = (request.part.clone(), request.which.clone());
        Self { part, which, dry_run: request.dry_run }
    }
}

impl From<&PurgeRequest> for Asked {
    fn from(request: &PurgeRequest) -> Self {
        let (part, which) = (request.part.clone(), request.which.clone());
        Self { part, which, dry_run: request.dry_run }
    }
}

/// All fields together make the call what it is.
fn request_id(check: &mut Check<'_>, id: &str, request: &impl Message) -> Option<RequestId> {
    check.name("request_id", id);
    let asked = || Sha256::digest(request.encode_to_vec()).into();
    (!id.is_empty()).then(|| RequestId { id: id.to_owned(), asked: asked() })
}

/// Both requests select alike, by fields of the same names.
macro_rules! selection {
    ($call:expr, $request:ident) => {
        Selection {
            call: $call,
            queue: &$request.queue,
            job_ids: &$request.job_ids,
            filter: $request.filter,
            oldest: $request.oldest,
            all: $request.all,
            limit: $request.limit,
            dry_run: $request.dry_run,
            cutoff: &$request.cutoff,
        }
    };
}

pub(in crate::grpc) fn requeue(
    context: &Context<'_>,
    request: pb::RequeueRequest,
) -> Result<RequeueRequest, Invalid> {
    let mut check = Check::new(context.limits);
    let request_id = request_id(&mut check, &request.request_id, &request);
    let selection = selection!(REQUEUE, request);
    let selected = selection.read(&mut check);
    let target = check.queue_if_given("target_queue", &request.target_queue);
    check.at_most("reason", request.reason.len(), context.limits.note_bytes);
    let requeue = selected.map(|selected| RequeueRequest {
        part: selected.part,
        which: selected.which,
        target,
        keep_attempts: request.keep_attempts,
        dry_run: request.dry_run,
        among: selected.among,
        request: request_id,
    });
    check.done(requeue)
}

pub(in crate::grpc) fn requeue_response(asked: &Asked, requeued: Requeued) -> pb::RequeueResponse {
    let Asked { part, which, dry_run } = asked;
    pb::RequeueResponse {
        requeued: count(requeued.ids.len() as u64),
        job_ids: requeued.ids.iter().map(ToString::to_string).collect(),
        skipped: skipped_out(requeued.skipped),
        has_more: requeued.has_more,
        cutoff: cutoff(REQUEUE, (part, which, *dry_run), requeued.left),
    }
}

pub(in crate::grpc) fn purge(
    context: &Context<'_>,
    request: pb::PurgeDeadLettersRequest,
) -> Result<PurgeRequest, Invalid> {
    let mut check = Check::new(context.limits);
    let request_id = request_id(&mut check, &request.request_id, &request);
    let selection = selection!(PURGE, request);
    let selected = selection.read(&mut check);
    check.at_most("reason", request.reason.len(), context.limits.note_bytes);
    let purge = selected.map(|selected| PurgeRequest {
        part: selected.part,
        which: selected.which,
        dry_run: request.dry_run,
        reason: request.reason,
        among: selected.among,
        request: request_id,
    });
    check.done(purge)
}

pub(in crate::grpc) fn purge_response(
    asked: &Asked,
    purged: Purged,
) -> pb::PurgeDeadLettersResponse {
    let Asked { part, which, dry_run } = asked;
    pb::PurgeDeadLettersResponse {
        purged: count(purged.count),
        has_more: purged.has_more,
        skipped: skipped_out(purged.skipped),
        cutoff: cutoff(PURGE, (part, which, *dry_run), purged.left),
    }
}

#[cfg(test)]
mod tests;
