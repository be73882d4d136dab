//! Request ids of claims: a claim that is said again gets the leases of the first time.
//!
//! The record is written before anything is taken, so that a claim on another server waits for this one's answer, and again with
//! what was taken. A server that dies in between leaves a record that says so: then the leases are looked for.

use super::answers::{ask, ask_if_there, ask_record, last_of};
use super::context::CallContext;
use super::encoding::{FORMAT, Read as ReadBytes, Reader, Unknown, put_list, put_text, put_u48};
use super::facts::record_fence;
use super::records::{self, LeaseTail, read_if};
use super::requests::expiry;
use super::state_changes::Changes;
use crate::domain::{QueueName, Timestamp};
use crate::queue::{Claim, Delivered, REPLY_KEPT, Share};
use crate::store::Result;
use crate::store::storage::{Applied, Fence, Index, Read, RecordKey, Storage, Table};
use bytes::Bytes;
use std::{collections::BTreeSet, time::Duration};

/// A server that works on a claim for longer has died.
const ABANDONED_AFTER: Duration = Duration::from_secs(5);
/// Leases that are looked at for those of a server that died.
const LEASES_LOOKED_AT: usize = 10_000;

pub(crate) enum ClaimBegun {
    /// Nothing was taken under this request id, or there is none.
    Fresh(Option<OpenRequest>),
    /// Leases that were taken.
    Answered(Vec<(QueueName, u64)>),
    InProgress,
}

/// A request that this call works on.
pub(crate) struct OpenRequest {
    queue: QueueName,
    key: RecordKey,
    record: RequestRecord,
}

struct RequestRecord {
    begun_at: Timestamp,
    /// None: still being worked on.
    leases: Option<Vec<(QueueName, u64)>>,
    expires_at: Timestamp,
    unknown: Unknown,
}

impl RequestRecord {
    fn put(&self, key: &RecordKey, changes: &mut Changes) {
        changes.put(Table::Request, key.clone(), encode(self));
        changes.insert(Index::Expires, expiry(Table::Request, key.clone(), self.expires_at));
    }
}

fn encode(request: &RequestRecord) -> Bytes {
    let mut out = vec![FORMAT];
    put_u48(&mut out, request.begun_at.millis());
    put_u48(&mut out, request.expires_at.millis());
    out.push(u8::from(request.leases.is_some()));
    put_list(&mut out, request.leases.as_deref().unwrap_or_default(), |out, (queue, number)| {
        put_text(out, queue.as_str());
        put_u48(out, *number);
    });
    request.unknown.put(&mut out);
    out.into()
}

fn decode(record: &[u8]) -> ReadBytes<RequestRecord> {
    let mut read = Reader(record);
    read.format()?;
    let begun_at = Timestamp::from_millis(read.u48()?);
    let expires_at = Timestamp::from_millis(read.u48()?);
    let done = read.u8()? == 1;
    let leases: Vec<_> = read.list(|read| Ok((QueueName::parse(&read.text()?), read.u48()?)))?;
    let leases = leases.into_iter().filter_map(|(queue, number)| Some((queue?, number)));
    let leases = done.then(|| leases.collect());
    Ok(RequestRecord { begun_at, leases, expires_at, unknown: read.fields(|_, _| Ok(false))? })
}

/// Without a colon in the worker's name, no two pairs of worker and request have the same key.
fn key(claim: &Claim) -> RecordKey {
    let worker = claim.worker_id.replace('%', "%25").replace(':', "%3A");
    RecordKey::Text(format!("claim:{worker}:{}", claim.request_id).into())
}

/// To be called before anything is taken.
pub(crate) async fn begin_claim<S: Storage>(store: &mut S, cx: &CallContext<'_>, claim: &Claim) -> Result<ClaimBegun> {
    if claim.request_id.is_empty() {
        return Ok(ClaimBegun::Fresh(None));
    }
    let key = key(claim);
    let reads = [Read::Record(Table::Request, key.clone())];
    loop {
        // The record stands in one of the queues; the same request may name them in another order.
        let mut home: Option<(&QueueName, Option<Bytes>, Unknown)> = None;
        // Every queue is asked: claims under one request id may have named different ones.
        let mut taken = BTreeSet::new();
        for Share { queue, .. } in &claim.shares {
            let Some(mut found) = ask_if_there(store, queue, &reads).await? else { continue };
            let (raw, mut unknown) = (found.record(), Unknown::default());
            if let Some(known) = read_if(raw.as_ref(), decode)? {
                unknown = known.unknown;
                taken.extend(match known.leases {
                    Some(leases) => leases,
                    None if store.now().since(known.begun_at) < ABANDONED_AFTER => {
                        return Ok(ClaimBegun::InProgress);
                    }
                    None => leases_of(store, claim).await?,
                });
            }
            if home.is_none() || raw.is_some() {
                home = Some((queue, raw, unknown));
            }
        }
        let live = live(store, claim, taken).await?;
        if !live.is_empty() {
            return Ok(ClaimBegun::Answered(live));
        }
        let Some((queue, raw, unknown)) = home else { return Ok(ClaimBegun::Fresh(None)) };
        let now = store.now();
        let duration = claim.lease_duration.unwrap_or(cx.settings.queue(queue).lease_duration);
        let expires_at = now.after(duration.max(REPLY_KEPT));
        let record = RequestRecord { begun_at: now, leases: None, expires_at, unknown };
        let mut changes = Changes::default();
        changes.fence(record_fence(Table::Request, key.clone(), raw.as_ref()));
        record.put(&key, &mut changes);
        if let Applied::Done(_) = store.apply(queue, &changes.batch()).await? {
            return Ok(ClaimBegun::Fresh(Some(OpenRequest { queue: queue.clone(), key, record })));
        }
    }
}

/// To be called with what was taken.
pub(crate) async fn finish_claim<S: Storage>(store: &mut S, request: OpenRequest, jobs: &[Delivered]) -> Result<()> {
    let OpenRequest { queue, key, record } = request;
    let mut changes = Changes::default();
    changes.fence(Fence::Is(Table::Request, key.clone(), encode(&record)));
    if jobs.is_empty() {
        // Said again, it looks again.
        changes.remove(Index::Expires, expiry(Table::Request, key.clone(), record.expires_at));
        changes.delete(Table::Request, key);
    } else {
        let leases = jobs.iter().map(|job| (job.queue.clone(), job.delivery.lease.number));
        let done = RequestRecord { leases: Some(leases.collect()), ..record };
        // In every queue that gave jobs: said again, it may name some of them only.
        let others: BTreeSet<_> = jobs.iter().map(|job| &job.queue).filter(|it| **it != queue).collect();
        for other in others {
            let mut changes = Changes::default();
            done.put(&key, &mut changes);
            store.apply(other, &changes.batch()).await?;
        }
        changes.put(Table::Request, key, encode(&done));
    }
    // Where another call took it over, that one has found the leases.
    store.apply(&queue, &changes.batch()).await.map(drop)
}

/// Those of the leases that are still out under this request, in queues that are asked.
async fn live<S: Storage>(
    store: &mut S, claim: &Claim, leases: BTreeSet<(QueueName, u64)>,
) -> Result<Vec<(QueueName, u64)>> {
    let mut live = Vec::new();
    for (queue, number) in leases {
        if !claim.shares.iter().any(|share| share.queue == queue) {
            continue;
        }
        let record = ask_record(store, &queue, Table::Lease, RecordKey::Number(number)).await?;
        let lease = read_if(record.as_ref(), |record| records::read_lease(&queue, number, record))?;
        if lease.is_some_and(|lease| is_of(claim, &lease.tail)) {
            live.push((queue, number));
        }
    }
    Ok(live)
}

/// Whether a lease that was taken under this request is still out: then the record stays.
pub(crate) async fn is_in_use<S: Storage>(store: &mut S, queue: &QueueName, key: &RecordKey) -> Result<bool> {
    if !matches!(key, RecordKey::Text(text) if text.starts_with("claim:")) {
        return Ok(false);
    }
    let record = ask_record(store, queue, Table::Request, key.clone()).await?;
    let leases = read_if(record.as_ref(), decode)?.and_then(|known| known.leases);
    for (queue, number) in leases.unwrap_or_default() {
        if ask_record(store, &queue, Table::Lease, RecordKey::Number(number)).await?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether the lease was taken under this request.
pub(crate) fn is_of(claim: &Claim, lease: &LeaseTail) -> bool {
    lease.request_id == claim.request_id && lease.worker_id == claim.worker_id
}

/// The leases that a server may have taken under this request before it died.
async fn leases_of<S: Storage>(store: &mut S, claim: &Claim) -> Result<Vec<(QueueName, u64)>> {
    let mut leases = Vec::new();
    for share in &claim.shares {
        let entries = ask(store, &share.queue, &[last_of(Index::Leased, LEASES_LOOKED_AT)]).await?.entries();
        let numbers = entries.into_iter().filter_map(|entry| entry.member.job());
        leases.extend(numbers.map(|number| (share.queue.clone(), number)));
    }
    Ok(leases)
}
