//! Settlements that wait for the next round, and how several of them share a transaction.

use super::{Held, WorkSettlements, in_flight::Named};
use crate::{domain::Lease, queue::Settlements};
use std::collections::HashSet;

/// As many as can go into one transaction and be answered together: none names a lease that an earlier one names.
pub(super) fn next_batch<T>(waiting: &mut Vec<WorkSettlements<T>>, most: usize) -> Vec<WorkSettlements<T>> {
    let mut named = HashSet::new();
    let (mut fits, mut items) = (0, 0);
    for WorkSettlements { settle, refused, .. } in &*waiting {
        let own: HashSet<_> = leases(settle).collect();
        items += own.len() + refused;
        if fits > 0 && items > most || !named.is_disjoint(&own) {
            break;
        }
        named.extend(own);
        fits += 1;
    }
    waiting.drain(..fits).collect()
}

/// How one message's settlements are answered.
pub(super) struct Expected<T> {
    pub(super) tag: T,
    pub(super) acks: usize,
    pub(super) nacks: usize,
    pub(super) extensions: usize,
    pub(super) held: Held,
}

pub(super) fn together<T>(batch: Vec<WorkSettlements<T>>) -> (Settlements, Named, Vec<Expected<T>>) {
    let (mut all, mut named) = (Settlements::default(), Named::default());
    let mut answers = Vec::with_capacity(batch.len());
    for WorkSettlements { tag, settle, held, .. } in batch {
        named.ended.extend(settle.acks.iter().map(|ack| ack.lease.clone()));
        named.ended.extend(settle.nacks.iter().map(|nack| nack.lease.clone()));
        named.extended.extend(settle.extensions.iter().map(|extend| extend.lease.clone()));
        answers.push(Expected {
            tag,
            acks: settle.acks.len(),
            nacks: settle.nacks.len(),
            extensions: settle.extensions.len(),
            held,
        });
        all.acks.extend(settle.acks);
        all.nacks.extend(settle.nacks);
        all.extensions.extend(settle.extensions);
    }
    (all, named, answers)
}

fn leases(settle: &Settlements) -> impl Iterator<Item = &Lease> {
    let acks = settle.acks.iter().map(|ack| &ack.lease);
    let nacks = settle.nacks.iter().map(|nack| &nack.lease);
    acks.chain(nacks).chain(settle.extensions.iter().map(|extend| &extend.lease))
}
