//! The five documents that redrive comes from, each walked through the service: what it asks for, done here, row by row
//! of the specification's last table.

mod seed_000;
mod seed_001;
mod seed_002;
mod seed_003;
mod seed_004;

use crate::server::{Server, claim, inner, long, nack};
use redrive::grpc::pb;

fn preset(name: &str) -> pb::RetryPolicy {
    pb::RetryPolicy { preset: name.into(), ..Default::default() }
}

/// The policy with every field, and the shortest and longest wait before each retry in milliseconds.
async fn explain(server: &Server, policy: pb::RetryPolicy) -> (pb::RetryPolicy, Vec<(i64, i64)>) {
    let request = pb::ExplainPolicyRequest { policy: Some(policy), ..Default::default() };
    let explained = inner(server.admin().explain_policy(request).await).unwrap();
    let rows = explained.rows.iter().map(|row| (long(row.min), long(row.max)));
    (explained.resolved.unwrap(), rows.collect())
}

/// The delays of a preset, for more retries than it has of its own.
async fn delays(server: &Server, name: &str, max_retries: u32) -> Vec<(i64, i64)> {
    let policy = pb::RetryPolicy { max_retries: Some(max_retries), ..preset(name) };
    explain(server, policy).await.1
}

/// The next job of the queue is tried, and fails.
async fn fail(server: &Server, queue: &str, error: pb::Failure) -> pb::NackResponse {
    let lease = server.take(queue).await.lease;
    let request = pb::NackRequest { error: Some(error), ..nack(&lease, "") };
    server.nack(request).await.unwrap()
}

/// So many jobs of the queue die at once.
async fn dead_letter_many(server: &Server, queue: &str, ids: impl Iterator<Item = String>) {
    let jobs: Vec<_> = ids.map(|id| crate::server::job_of(queue, &id)).collect();
    let max_jobs = jobs.len() as u32;
    server.queue().enqueue_batch(pb::EnqueueBatchRequest { jobs }).await.unwrap();
    let claimed = server.claim(pb::ClaimRequest { max_jobs, ..claim(queue) }).await.unwrap();
    let kind = pb::NackKind::Permanent.into();
    let nacks = claimed.jobs.iter().map(|job| nack(&job.lease, "Hopeless"));
    let nacks: Vec<_> = nacks.map(|nack| pb::NackRequest { kind, ..nack }).collect();
    assert_eq!(nacks.len(), max_jobs as usize);
    server.settle(pb::SettleRequest { nacks, ..Default::default() }).await.unwrap();
}

fn dead_of(queue: &str) -> pb::ListDeadLettersRequest {
    pb::ListDeadLettersRequest { queue: queue.into(), ..Default::default() }
}

fn requeue(queue: &str) -> pb::RequeueRequest {
    pb::RequeueRequest { queue: queue.into(), ..Default::default() }
}

/// The ids of the dead letters of one name, oldest first.
async fn dead(server: &Server, queue: &str) -> Vec<String> {
    let page = server.list_dead(dead_of(queue)).await.unwrap();
    assert_eq!(page.next_page_token, "", "one page is enough for these");
    page.dead_letters.into_iter().map(|letter| letter.job.unwrap().job_id).collect()
}

/// How many dead letters each queue has, and all together.
async fn dead_counts(server: &Server) -> (Vec<(String, u32)>, u32) {
    let request = pb::GetDeadLetterStatsRequest::default();
    let stats = inner(server.admin().get_dead_letter_stats(request).await).unwrap();
    let counts = stats.queues.into_iter().map(|queue| (queue.queue, queue.count));
    (counts.collect(), stats.total_count)
}
