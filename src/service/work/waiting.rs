//! Settlements that wait for the next round, and how several of them share a transaction.

use super::in_flight::Named;
use crate::{domain::Lease, queue::Settlements};
use std::collections::HashSet;

/// A worker's settlements, to be carried out and answered together.
pub(super) struct Waiting<T> {
    pub(super) tag: T,
    pub(super) settle: Settlements,
}

/// As many as can go into one transaction: none names a lease that an earlier one names.
pub(super) fn next_batch<T>(waiting: &mut Vec<Waiting<T>>, most: usize) -> Vec<Waiting<T>> {
    let mut named = HashSet::new();
    let mut fits = 0;
    for Waiting { settle, .. } in &*waiting {
        let own: HashSet<_> = leases(settle).collect();
        let full = !named.is_empty() && named.len() + own.len() > most;
        if full || !named.is_disjoint(&own) {
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
}

pub(super) fn together<T>(batch: Vec<Waiting<T>>) -> (Settlements, Named, Vec<Expected<T>>) {
    let (mut all, mut named) = (Settlements::default(), Named::default());
    let mut answers = Vec::with_capacity(batch.len());
    for Waiting { tag, settle } in batch {
        named.ended.extend(settle.acks.iter().map(|ack| ack.lease.clone()));
        named.ended.extend(settle.nacks.iter().map(|nack| nack.lease.clone()));
        named.extended.extend(settle.extensions.iter().map(|extend| extend.lease.clone()));
        answers.push(Expected {
            tag,
            acks: settle.acks.len(),
            nacks: settle.nacks.len(),
            extensions: settle.extensions.len(),
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
