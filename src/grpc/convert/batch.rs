//! Batches: the items are independent, and answered in request order.

use super::{
    Context,
    check::{Invalid, Place},
    enqueue::enqueue,
    settle::{ack, extend, nack},
};
use crate::{
    domain::{job::NewJob, limits::Limits},
    grpc::pb,
    store::{Ack, Extend, Nack, Settlements},
};
use prost::Message;

/// Items that were refused, each with its place among all.
pub(in crate::grpc) type Refused = Vec<(usize, Invalid)>;

/// The refused items of a Settle.
#[derive(Debug, Default)]
pub(in crate::grpc) struct RefusedSettlements {
    pub(in crate::grpc) acks: Refused,
    pub(in crate::grpc) nacks: Refused,
    pub(in crate::grpc) extends: Refused,
}

pub(in crate::grpc) fn enqueue_batch(
    context: &Context<'_>,
    request: pb::EnqueueBatchRequest,
) -> Result<(Vec<NewJob>, Refused), Invalid> {
    check_size(context.limits, "jobs", request.jobs.len(), request.encoded_len())?;
    Ok(split(request.jobs, "jobs", |place, job| enqueue(context, place, job)))
}

/// Those of a Settle, or of a Claim that settles on its way.
pub(in crate::grpc) fn settlements(
    limits: &Limits,
    request: pb::SettleRequest,
    within_claim: bool,
) -> Result<(Settlements, RefusedSettlements), Invalid> {
    let items = request.acks.len() + request.nacks.len() + request.extends.len();
    let names = match within_claim {
        false => ["acks, nacks and extends", "acks", "nacks", "extends"],
        true => ["settle", "settle.acks", "settle.nacks", "settle.extends"],
    };
    check_size(limits, names[0], items, request.encoded_len())?;
    let (acks, bad_acks): (Vec<Ack>, _) =
        split(request.acks, names[1], |place, item| ack(limits, place, item));
    let (nacks, bad_nacks): (Vec<Nack>, _) =
        split(request.nacks, names[2], |place, item| nack(limits, place, item));
    let (extends, bad_extends): (Vec<Extend>, _) =
        split(request.extends, names[3], |place, item| extend(limits, place, item));
    let refused = RefusedSettlements { acks: bad_acks, nacks: bad_nacks, extends: bad_extends };
    Ok((Settlements { acks, nacks, extends }, refused))
}

fn check_size(limits: &Limits, field: &str, items: usize, bytes: usize) -> Result<(), Invalid> {
    let (most, most_bytes) = (limits.batch_items, limits.batch_bytes);
    if items > most {
        let message = format!("a call takes at most {most} items, not {items}; send several calls");
        return Err(Invalid::one(field, message));
    }
    if bytes > most_bytes {
        let message =
            format!("a call takes at most {most_bytes} bytes, not {bytes}; send several calls");
        return Err(Invalid::one(field, message));
    }
    Ok(())
}

fn split<W, T>(
    items: Vec<W>,
    list: &'static str,
    read: impl Fn(Option<Place>, W) -> Result<T, Invalid>,
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

/// Puts the answers for refused items back at their places.
pub(in crate::grpc) fn merge<T>(
    answers: impl Iterator<Item = T>,
    refused: impl Iterator<Item = (usize, T)>,
) -> Vec<T> {
    let mut answers = answers;
    let mut all = Vec::with_capacity(answers.size_hint().0 + refused.size_hint().0);
    for (at, answer) in refused {
        let before = at - all.len();
        all.extend(answers.by_ref().take(before));
        all.push(answer);
    }
    all.extend(answers);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::convert::testing::{context, refusals};
    use proptest::prelude::*;

    fn job(queue: &str) -> pb::EnqueueRequest {
        pb::EnqueueRequest { queue: queue.into(), r#type: "t".into(), ..Default::default() }
    }

    #[test]
    fn a_bad_item_is_refused_alone() {
        let request = pb::EnqueueBatchRequest { jobs: vec![job("a"), job("!"), job("b")] };
        let (valid, refused) = enqueue_batch(&context(), request).unwrap();
        assert_eq!(valid.len(), 2);
        assert_eq!(refused[0].0, 1);
        assert_eq!(refused[0].1.0[0].field, "queue");
        assert!(refused[0].1.0[0].to_string().starts_with("jobs[1].queue: "));
    }

    #[test]
    fn too_many_items_or_bytes_refuse_the_whole_call() {
        let many = pb::EnqueueBatchRequest { jobs: vec![job("a"); 1_001] };
        assert!(refusals(enqueue_batch(&context(), many))[0].contains("at most 1000 items"));
        let mut large = job("a");
        large.body = Some(pb::enqueue_request::Body::Data(vec![0; 1 << 20].into()));
        let large = pb::EnqueueBatchRequest { jobs: vec![large; 4] };
        assert!(refusals(enqueue_batch(&context(), large))[0].contains("at most 4194304 bytes"));
        let acks = vec![pb::AckRequest::default(); 1_001];
        let many = pb::SettleRequest { acks, ..Default::default() };
        let refused = refusals(settlements(context().limits, many, true));
        assert!(refused[0].starts_with("settle: "), "{refused:?}");
    }

    #[test]
    fn settlements_are_named_by_their_list() {
        let request = pb::SettleRequest {
            acks: vec![pb::AckRequest::default()],
            nacks: vec![pb::NackRequest::default()],
            extends: vec![pb::ExtendRequest::default()],
        };
        let (_, refused) = settlements(context().limits, request.clone(), false).unwrap();
        assert!(refused.acks[0].1.0[0].to_string().starts_with("acks[0].lease: "));
        assert!(refused.nacks[0].1.0[0].to_string().starts_with("nacks[0].lease: "));
        assert!(refused.extends[0].1.0[0].to_string().starts_with("extends[0].lease: "));
        let (_, refused) = settlements(context().limits, request, true).unwrap();
        assert_eq!(refused.acks[0].1.0[0].field, "lease");
        assert!(refused.acks[0].1.0[0].to_string().starts_with("settle.acks[0].lease: "));
    }

    proptest! {
        #[test]
        fn answers_come_in_request_order(valid: Vec<bool>) {
            let (good, bad): (Vec<_>, Vec<_>) = (0..valid.len()).partition(|at| valid[*at]);
            let merged = merge(good.into_iter(), bad.into_iter().map(|at| (at, at)));
            prop_assert_eq!(merged, (0..valid.len()).collect::<Vec<_>>());
        }
    }
}
