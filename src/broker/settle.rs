//! Ack, Nack, Extend and Settle: leases end, or go on.

use super::{Broker, Error, Refusal};
use crate::{
    domain::{job::Attempt, lease::Lease},
    store::{Acked, Extended, LeaseLost, Settled, Settlements, Store},
};
use std::collections::HashSet;

/// One result for each item, in request order.
#[derive(Clone, Debug, Default)]
pub struct SettleReply {
    pub acks: Vec<Result<Acked, Refusal>>,
    pub nacks: Vec<Result<Attempt, Refusal>>,
    pub extends: Vec<Result<Extended, Refusal>>,
}

impl<S: Store> Broker<S> {
    pub async fn settle(&self, settlements: Settlements) -> Result<SettleReply, Error> {
        let (once, again) = named_once(settlements);
        let settled = self.store.settle(self.ask(), once).await?;
        Ok(again.reply(settled))
    }
}

/// Leaves out every item whose lease an earlier one names: it could only find the lease gone.
pub(super) fn named_once(mut settlements: Settlements) -> (Settlements, NamedAgain) {
    let items = settlements.acks.len() + settlements.nacks.len() + settlements.extends.len();
    if items <= 1 {
        return (settlements, NamedAgain::default());
    }
    let mut seen = HashSet::with_capacity(items);
    let mut again = NamedAgain::default();
    keep_first(&mut settlements.acks, |ack| ack.lease.clone(), &mut seen, &mut again.acks);
    keep_first(&mut settlements.nacks, |nack| nack.lease.clone(), &mut seen, &mut again.nacks);
    keep_first(
        &mut settlements.extends,
        |extend| extend.lease.clone(),
        &mut seen,
        &mut again.extends,
    );
    (settlements, again)
}

fn keep_first<T>(
    items: &mut Vec<T>,
    lease: impl Fn(&T) -> Lease,
    seen: &mut HashSet<Lease>,
    again: &mut Vec<usize>,
) {
    let mut at = 0;
    items.retain(|item| {
        let first = seen.insert(lease(item));
        if !first {
            again.push(at);
        }
        at += 1;
        first
    });
}

/// Where the left-out items stood.
#[derive(Debug, Default)]
pub(super) struct NamedAgain {
    acks: Vec<usize>,
    nacks: Vec<usize>,
    extends: Vec<usize>,
}

impl NamedAgain {
    /// Puts a LEASE_LOST back at each of their places.
    pub(super) fn reply(&self, settled: Settled) -> SettleReply {
        SettleReply {
            acks: put_back(settled.acks, &self.acks),
            nacks: put_back(settled.nacks, &self.nacks),
            extends: put_back(settled.extends, &self.extends),
        }
    }
}

fn put_back<T>(results: Vec<Result<T, LeaseLost>>, again: &[usize]) -> Vec<Result<T, Refusal>> {
    let mut all: Vec<_> = results.into_iter().map(|r| r.map_err(Refusal::from)).collect();
    for &at in again {
        all.insert(at, Err(Refusal::LeaseLost));
    }
    all
}
