//! Callers of unary calls, with one job in each or with many.

use super::{Client, QUEUE, Round, item_refused, jobs};
use crate::bench::Error;
use crate::bench::plan::Mode;
use crate::bench::timings::Kind;
use crate::grpc::pb::{self, ack_result, enqueue_result, nack_result};
use std::sync::Arc;

/// As a worker without a stream would wait.
const WAIT: prost_types::Duration = prost_types::Duration { seconds: 10, nanos: 0 };

/// Enqueues, claims as many and settles them, in turn.
pub(super) async fn do_everything(round: Arc<Round>, mut client: Client) -> Result<(), Error> {
    // Jobs that failed come again: a caller has to take them beside the new ones.
    let mut owed = 0;
    loop {
        let lot = round.next_lot().await;
        if lot == 0 {
            break;
        }
        enqueue(&round, &mut client, lot).await?;
        let mut got = 0;
        while got < lot {
            let jobs = claim(&round, &mut client, lot - got + owed).await?;
            got += jobs.len();
            owed += settle(&round, &mut client, jobs).await?;
        }
        owed = owed.saturating_sub(got - lot);
    }
    round.made_all();
    // Until then what is there belongs to those who still wait for theirs.
    round.until(|| round.all_is_made()).await;
    work(round, client).await
}

/// Enqueues only.
pub(super) async fn produce(round: Arc<Round>, mut client: Client) -> Result<(), Error> {
    loop {
        round.wait_for_workers().await;
        let lot = round.next_lot().await;
        if lot == 0 {
            break;
        }
        enqueue(&round, &mut client, lot).await?;
        round.moved.notify_waiters();
    }
    round.made_all();
    Ok(())
}

/// Claims and settles only, until nothing is left.
pub(super) async fn work(round: Arc<Round>, mut client: Client) -> Result<(), Error> {
    while !round.took.initialized() {
        round.wait_for_producers().await;
        let jobs = tokio::select! {
            jobs = claim(&round, &mut client, round.plan.batch) => jobs?,
            // With a backlog there is always something, and a call that is cut off would leave it half taken.
            _ = round.took.wait(), if round.plan.backlog == 0 => return Ok(()),
        };
        settle(&round, &mut client, jobs).await?;
    }
    Ok(())
}

async fn enqueue(round: &Round, client: &mut Client, lot: usize) -> Result<(), Error> {
    let mut jobs = round.jobs(lot);
    if round.plan.mode == Mode::Unary
        && let Some(job) = jobs.pop()
    {
        return round.call(("Enqueue", Kind::Enqueue), client.enqueue(job)).await.map(drop);
    }
    let request = pb::EnqueueBatchRequest { jobs };
    let call = ("EnqueueBatch", Kind::Enqueue);
    for result in round.call(call, client.enqueue_batch(request)).await?.results {
        let Some(enqueue_result::Outcome::Ok(_)) = result.outcome else {
            return Err(item_refused(call.0, &result));
        };
    }
    Ok(())
}

async fn claim(round: &Round, client: &mut Client, most: usize) -> Result<Vec<pb::Job>, Error> {
    let request = pb::ClaimRequest {
        queues: vec![QUEUE.into()],
        max_jobs: u32::try_from(most).unwrap_or(u32::MAX),
        wait: Some(WAIT),
        ..pb::ClaimRequest::default()
    };
    let jobs = round.call(("Claim", Kind::Claim), client.claim(request)).await?.jobs;
    round.delivered(&jobs);
    Ok(jobs)
}

/// Says how many failed.
async fn settle(round: &Round, client: &mut Client, jobs: Vec<pb::Job>) -> Result<usize, Error> {
    if round.plan.mode == Mode::Unary {
        return settle_each(round, client, jobs).await;
    }
    let (request, failing) = settlements(round, jobs);
    let reply = round.call(("Settle", Kind::Settle), client.settle(request)).await?;
    settled(round, reply, failing)
}

async fn settle_each(round: &Round, client: &mut Client, jobs: Vec<pb::Job>) -> Result<usize, Error> {
    let mut failed = 0;
    for job in jobs {
        if round.fails() {
            let nack = jobs::failure(job.lease);
            let decision = round.call(("Nack", Kind::Settle), client.nack(nack)).await?;
            round.have_failed(&job.job_id, &decision)?;
            failed += 1;
        } else {
            let ack = pb::AckRequest { lease: job.lease, ..pb::AckRequest::default() };
            round.call(("Ack", Kind::Settle), client.ack(ack)).await?;
            round.have_acked(1);
        }
    }
    Ok(failed)
}

/// All of them in one call, and which of them fail.
pub(super) fn settlements(round: &Round, jobs: Vec<pb::Job>) -> (pb::SettleRequest, Vec<String>) {
    let mut request = pb::SettleRequest::default();
    request.acks.reserve_exact(jobs.len());
    let mut failing = Vec::new();
    for job in jobs {
        if round.fails() {
            request.nacks.push(jobs::failure(job.lease));
            failing.push(job.job_id);
        } else {
            request.acks.push(pb::AckRequest { lease: job.lease, ..pb::AckRequest::default() });
        }
    }
    (request, failing)
}

/// Says how many failed.
pub(super) fn settled(round: &Round, reply: pb::SettleResponse, failing: Vec<String>) -> Result<usize, Error> {
    let acked = reply.acks.len();
    for result in reply.acks {
        let Some(ack_result::Outcome::Ok(_)) = result.outcome else {
            return Err(item_refused("Settle", &result));
        };
    }
    let failed = failing.len();
    for (job_id, result) in failing.into_iter().zip(reply.nacks) {
        let Some(nack_result::Outcome::Ok(decision)) = &result.outcome else {
            return Err(item_refused("Settle", &result));
        };
        round.have_failed(&job_id, decision)?;
    }
    round.have_acked(acked);
    Ok(failed)
}
