//! Batches: the items are independent, and answered in request order.

use super::Context;
use super::check::{Check, Invalid, Place};
use super::enqueue::enqueue;
use super::settle::{ack, extend, nack};
use crate::domain::{Limits, NewJob};
use crate::grpc::{pb, status};
use crate::queue::Refusal;
use crate::queue::Settlements;
use prost::Message;

/// Items that were refused, each with its place among all.
pub(crate) type Refused = Vec<(usize, Invalid)>;

/// The refused items of a Settle.
#[derive(Debug, Default)]
pub(crate) struct RefusedSettlements {
    pub(crate) acks: Refused,
    pub(crate) nacks: Refused,
    pub(crate) extensions: Refused,
}

impl RefusedSettlements {
    pub(crate) fn items(&self) -> usize {
        self.acks.len() + self.nacks.len() + self.extensions.len()
    }
}

pub(crate) fn enqueue_batch(
    context: &Context<'_>, request: pb::EnqueueBatchRequest,
) -> Result<(Vec<NewJob>, Refused), Invalid> {
    check_size(context.limits, "jobs", request.jobs.len(), request.encoded_len())?;
    Ok(split(request.jobs, "jobs", |place, job| enqueue(context, place, job)))
}

/// Those of a Settle, or of a Claim that settles on its way.
pub(crate) fn settlements(
    limits: &Limits, request: pb::SettleRequest, within_claim: bool,
) -> Result<(Settlements, RefusedSettlements), Invalid> {
    let items = request.acks.len() + request.nacks.len() + request.extensions.len();
    let names = match within_claim {
        false => ["acks, nacks and extensions", "acks", "nacks", "extensions"],
        true => ["settle", "settle.acks", "settle.nacks", "settle.extensions"],
    };
    check_size(limits, names[0], items, request.encoded_len())?;
    let (acks, bad_acks) = split(request.acks, names[1], |place, item| ack(limits, place, item));
    let (nacks, bad_nacks) = split(request.nacks, names[2], |place, item| nack(limits, place, item));
    let (extensions, bad_extensions) = split(request.extensions, names[3], |place, item| extend(limits, place, item));
    let refused = RefusedSettlements { acks: bad_acks, nacks: bad_nacks, extensions: bad_extensions };
    Ok((Settlements { acks, nacks, extensions }, refused))
}

fn check_size(limits: &Limits, field: &str, items: usize, bytes: usize) -> Result<(), Invalid> {
    let mut check = Check::new(limits);
    let (most, most_bytes) = (limits.batch_items, limits.batch_bytes);
    if items > most {
        check.refuse(field, format!("a call takes at most {most} items, not {items}; send several calls"));
    } else if bytes > most_bytes {
        check.refuse(field, format!("a call takes at most {most_bytes} bytes, not {bytes}; send several calls"));
    }
    check.done(Some(()))
}

fn split<W, T>(
    items: Vec<W>, list: &'static str, read: impl Fn(Option<Place>, W) -> Result<T, Invalid>,
) -> (Vec<T>, Refused) {
    let mut valid = Vec::with_capacity(items.len());
    let mut refused = Vec::new();
    for (at, item) in items.into_iter().enumerate() {
        match read(Some(Place { list, at }), item) {
            Ok(item) => valid.push(item),
            Err(invalid) => refused.push((at, invalid)),
        }
    }
    (valid, refused)
}

/// One result for each item, in request order: refused items are back at their places.
pub(super) fn results<T, R>(
    done: Vec<Result<T, Refusal>>, refused: Refused, result: impl Fn(Result<T, pb::ItemError>) -> R,
) -> Vec<R> {
    let mut all = Vec::with_capacity(done.len() + refused.len());
    let mut done = done.into_iter().map(|done| result(done.map_err(|refusal| status::item(&refusal))));
    for (at, invalid) in refused {
        let before = at - all.len();
        all.extend(done.by_ref().take(before));
        all.push(result(Err(status::invalid_item(&invalid))));
    }
    all.extend(done);
    all
}
