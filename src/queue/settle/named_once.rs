//! A lease that is named twice in one call: the second item could only find it gone.

use crate::domain::Lease;
use crate::queue::refusal::Refusal;
use crate::queue::{Settled, Settlements};
use std::collections::HashSet;

/// Leaves out every item whose lease an earlier one names.
pub(crate) fn named_once(mut settlements: Settlements) -> (Settlements, NamedAgain) {
    let items = settlements.acks.len() + settlements.nacks.len() + settlements.extensions.len();
    let mut again = NamedAgain::default();
    if items > 1 {
        let mut seen = HashSet::with_capacity(items);
        keep_first(&mut settlements.acks, |ack| &ack.lease, &mut seen, &mut again.acks);
        keep_first(&mut settlements.nacks, |nack| &nack.lease, &mut seen, &mut again.nacks);
        keep_first(&mut settlements.extensions, |extend| &extend.lease, &mut seen, &mut again.extensions);
    }
    (settlements, again)
}

fn keep_first<T>(items: &mut Vec<T>, lease: impl Fn(&T) -> &Lease, seen: &mut HashSet<Lease>, again: &mut Vec<usize>) {
    let mut at = 0;
    items.retain(|item| {
        let first = seen.insert(lease(item).clone());
        if !first {
            again.push(at);
        }
        at += 1;
        first
    });
}

/// Where the left-out items stood.
#[derive(Debug, Default)]
pub(crate) struct NamedAgain {
    acks: Vec<usize>,
    nacks: Vec<usize>,
    extensions: Vec<usize>,
}

impl NamedAgain {
    /// Puts a LEASE_LOST at each of their positions.
    pub(crate) fn put_back(&self, settled: &mut Settled) {
        put_back(&mut settled.acks, &self.acks);
        put_back(&mut settled.nacks, &self.nacks);
        put_back(&mut settled.extensions, &self.extensions);
    }
}

fn put_back<T>(results: &mut Vec<Result<T, Refusal>>, again: &[usize]) {
    for &at in again {
        results.insert(at, Err(Refusal::LeaseLost));
    }
}
