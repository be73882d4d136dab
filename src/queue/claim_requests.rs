//! Request ids of claims: a claim that is said again gets the leases of the first time.
//!
//! The record is written before anything is taken, so that a claim on another server waits for this one's answer, and again with
//! what was taken. A server that dies in between leaves a record that says so: then the leases are looked for.

use super::{
    context::CallContext,
    encoding::{FORMAT, Read as ReadBytes, Reader, put_text, put_u48, put_u64},
    facts::record_fence,
    records,
    state_changes::Changes,
};
use crate::{
    domain::{ids::QueueName, time::Timestamp},
    store::{
        Claim, Delivered, REPLY_KEPT, Share, StoreError,
        storage::{Applied, Entry, Found, Index, Member, Read, RecordKey, Storage, Table},
    },
};
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
    record: Bytes,
    expires_at: Timestamp,
}

struct RequestRecord {
    begun_at: Timestamp,
    /// None: still being worked on.
    leases: Option<Vec<(QueueName, u64)>>,
    expires_at: Timestamp,
}

fn encode(request: &RequestRecord) -> Bytes {
    let mut out = vec![FORMAT];
    put_u48(&mut out, request.begun_at.millis());
    put_u48(&mut out, request.expires_at.millis());
    out.push(u8::from(request.leases.is_some()));
    let leases = request.leases.as_deref().unwrap_or_default();
    put_u64(&mut out, leases.len() as u64);
    for (queue, number) in leases {
        put_text(&mut out, queue.as_str());
        put_u48(&mut out, *number);
    }
    out.into()
}

fn decode(record: &[u8]) -> ReadBytes<RequestRecord> {
    let mut read = Reader(record);
    read.format()?;
    let begun_at = Timestamp::from_millis(read.u48()?);
    let expires_at = Timestamp::from_millis(read.u48()?);
    let done = read.u8()? == 1;
    let count = read.u64()?;
    let mut leases = Vec::new();
    for _ in 0..count {
        let queue = QueueName::parse(&read.text()?);
        let number = read.u48()?;
        leases.extend(queue.map(|queue| (queue, number)));
    }
    Ok(RequestRecord { begun_at, leases: done.then_some(leases), expires_at })
}

fn request_key(claim: &Claim) -> RecordKey {
    RecordKey::Text(format!("claim:{}:{}", claim.worker_id, claim.request_id).into())
}

/// To be called before anything is taken.
pub(crate) async fn begin_claim<S: Storage>(
    store: &mut S,
    cx: &CallContext<'_>,
    claim: &Claim,
) -> Result<ClaimBegun, StoreError> {
    if claim.request_id.is_empty() {
        return Ok(ClaimBegun::Fresh(None));
    }
    let key = request_key(claim);
    let reads = [Read::Record(Table::Request, key.clone())];
    loop {
        // The record stands in one of the queues; the same request may name them in another order.
        let mut home: Option<(&QueueName, Option<Bytes>)> = None;
        for Share { queue, .. } in &claim.shares {
            let Some(found) = store.read(queue, &reads).await? else { continue };
            let raw = found.into_iter().next().and_then(Found::record);
            let known = raw.as_deref().map(|it| records::readable(decode(it))).transpose()?;
            let now = store.now();
            if let Some(known) = known.flatten() {
                let leases = match known.leases {
                    Some(leases) => leases,
                    None if now.since(known.begun_at) < ABANDONED_AFTER => {
                        return Ok(ClaimBegun::InProgress);
                    }
                    None => leases_of(store, claim).await?,
                };
                let live = live(store, claim, leases).await?;
                if !live.is_empty() {
                    return Ok(ClaimBegun::Answered(live));
                }
            }
            if home.is_none() || raw.is_some() {
                home = Some((queue, raw));
            }
        }
        let Some((queue, raw)) = home else { return Ok(ClaimBegun::Fresh(None)) };
        let now = store.now();
        let duration = claim.lease_duration.unwrap_or(cx.settings.queue(queue).lease_duration);
        let expires_at = now.after(duration.max(REPLY_KEPT));
        let record = encode(&RequestRecord { begun_at: now, leases: None, expires_at });
        let mut changes = Changes::default();
        changes.fence(record_fence(Table::Request, key.clone(), raw.as_ref()));
        changes.put(Table::Request, key.clone(), record.clone());
        changes.insert(Index::Expires, expiry(&key, expires_at));
        if let Applied::Done(_) = store.apply(queue, &changes.batch()).await? {
            let queue = queue.clone();
            return Ok(ClaimBegun::Fresh(Some(OpenRequest { queue, key, record, expires_at })));
        }
    }
}

fn expiry(key: &RecordKey, at: Timestamp) -> Entry {
    Entry { score: at.millis(), member: Member::Record(Table::Request, key.clone()) }
}

/// To be called with what was taken.
pub(crate) async fn finish_claim<S: Storage>(
    store: &mut S,
    request: OpenRequest,
    jobs: &[Delivered],
) -> Result<(), StoreError> {
    let OpenRequest { queue, key, record, expires_at } = request;
    let mut changes = Changes::default();
    changes.fence(record_fence(Table::Request, key.clone(), Some(&record)));
    if jobs.is_empty() {
        // Said again, it looks again.
        changes.remove(Index::Expires, expiry(&key, expires_at));
        changes.delete(Table::Request, key);
    } else {
        let leases = jobs.iter().map(|job| (job.queue.clone(), job.delivery.lease.number));
        let begun_at = decode(&record).map(|request| request.begun_at).unwrap_or_default();
        let done = RequestRecord { begun_at, leases: Some(leases.collect()), expires_at };
        let done = encode(&done);
        // In every queue that gave jobs: said again, it may name some of them only.
        let others: BTreeSet<_> =
            jobs.iter().map(|job| &job.queue).filter(|it| **it != queue).collect();
        for other in others {
            let mut changes = Changes::default();
            changes.put(Table::Request, key.clone(), done.clone());
            changes.insert(Index::Expires, expiry(&key, expires_at));
            store.apply(other, &changes.batch()).await?;
        }
        changes.put(Table::Request, key, done);
    }
    // Where another call took it over, that one has found the leases.
    store.apply(&queue, &changes.batch()).await.map(drop)
}

/// Those of the leases that are still out under this request, in queues that are asked.
async fn live<S: Storage>(
    store: &mut S,
    claim: &Claim,
    leases: Vec<(QueueName, u64)>,
) -> Result<Vec<(QueueName, u64)>, StoreError> {
    let mut live = Vec::new();
    for (queue, number) in leases {
        if !claim.shares.iter().any(|share| share.queue == queue) {
            continue;
        }
        let reads = [Read::Record(Table::Lease, RecordKey::Number(number))];
        let found = store.read(&queue, &reads).await?.unwrap_or_default();
        if let Some(record) = found.into_iter().next().and_then(Found::record)
            && is_of(claim, &queue, number, &record)?
        {
            live.push((queue, number));
        }
    }
    Ok(live)
}

/// Whether a lease that was taken under this request is still out: then the record stays.
pub(crate) async fn is_in_use<S: Storage>(
    store: &mut S,
    queue: &QueueName,
    key: &RecordKey,
) -> Result<bool, StoreError> {
    if !matches!(key, RecordKey::Text(text) if text.starts_with("claim:")) {
        return Ok(false);
    }
    let reads = [Read::Record(Table::Request, key.clone())];
    let found = store.read(queue, &reads).await?.unwrap_or_default();
    let record = found.into_iter().next().and_then(Found::record);
    let known = record.map(|it| records::readable(decode(&it))).transpose()?.flatten();
    for (queue, number) in known.and_then(|known| known.leases).unwrap_or_default() {
        let reads = [Read::Record(Table::Lease, RecordKey::Number(number))];
        let found = store.read(&queue, &reads).await?.unwrap_or_default();
        if found.into_iter().next().and_then(Found::record).is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_of(claim: &Claim, queue: &QueueName, number: u64, record: &[u8]) -> Result<bool, StoreError> {
    let lease = records::readable(records::read_lease(queue, number, record))?;
    Ok(lease.is_some_and(|lease| {
        lease.tail.request_id == claim.request_id && lease.tail.worker_id == claim.worker_id
    }))
}

/// The leases that a server took under this request before it died.
async fn leases_of<S: Storage>(
    store: &mut S,
    claim: &Claim,
) -> Result<Vec<(QueueName, u64)>, StoreError> {
    let mut leases = Vec::new();
    for share in &claim.shares {
        let read = Read::Range {
            index: Index::Leased,
            after: None,
            up_to: None,
            limit: LEASES_LOOKED_AT,
            reverse: true,
        };
        let found = store.read(&share.queue, &[read]).await?.unwrap_or_default();
        let entries = found.into_iter().next().map(Found::entries).unwrap_or_default();
        let numbers = entries.into_iter().filter_map(|entry| entry.member.job());
        leases.extend(numbers.map(|number| (share.queue.clone(), number)));
    }
    live(store, claim, leases).await
}
