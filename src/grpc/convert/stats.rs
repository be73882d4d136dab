//! What has been counted: totals, and dead letters.

use super::admin::queue_position;
use super::check::{Check, Invalid};
use super::count;
use super::page_token::{self, Kind};
use super::time::timestamp_out;
use crate::domain::{Limits, QueueName};
use crate::grpc::pb;
use crate::queue::{DeadCount, DeadCountQuery, DeadCounts, Stats};

pub(crate) fn get_stats(limits: &Limits, request: &pb::GetStatsRequest) -> Result<Option<QueueName>, Invalid> {
    let mut check = Check::new(limits);
    let queue = check.queue_if_given("queue", &request.queue);
    check.done(Some(queue))
}

pub(crate) fn stats(stats: Stats) -> pb::GetStatsResponse {
    let Stats { totals, held } = stats;
    let rate = match totals.retried_finished {
        0 => 0.0,
        finished => totals.successful_retries as f64 / finished as f64,
    };
    pb::GetStatsResponse {
        enqueued: totals.enqueued,
        completed: totals.completed,
        failed_attempts: totals.failed_attempts,
        total_retries: totals.retries,
        successful_retries: totals.successful_retries,
        retry_success_rate: rate,
        dead_lettered: totals.dead_lettered,
        requeued: totals.requeued,
        lease_expired: totals.lease_expired,
        purged: totals.purged,
        cancelled: totals.cancelled,
        retention_expired: totals.retention_expired,
        moved_in: totals.moved_in,
        moved_out: totals.moved_out,
        held,
    }
}

/// Types of error that are shown of each queue.
const TYPES_SHOWN: usize = 20;

pub(crate) fn dead_letter_stats(
    limits: &Limits, request: &pb::GetDeadLetterStatsRequest,
) -> Result<DeadCountQuery, Invalid> {
    let mut check = Check::new(limits);
    let part = match request.queue.as_str() {
        "" => None,
        name => check.dead_part("queue", name),
    };
    if part.as_ref().is_some_and(|part| part.overflow_only) {
        check.refuse("queue", "name the queue itself: `overflow` counts its overflow");
    }
    let query = (Kind::DeadLetterStats, request.queue.as_str());
    let after = check.token("page_token", query, &request.page_token, queue_position);
    let limit = check.page_size(request.page_size);
    let queue = part.map(|part| part.queue);
    check.done(Some(DeadCountQuery { queue, after, limit, types: TYPES_SHOWN, latest: 0 }))
}

pub(crate) fn dead_letter_stats_page(
    limits: &Limits, query: &DeadCountQuery, counts: &DeadCounts,
) -> pb::GetDeadLetterStatsResponse {
    let full = query.queue.is_none() && counts.queues.len() >= query.limit;
    let next = counts.queues.last().filter(|_| full).map(|last| &last.queue);
    let queues = counts.queues.iter().map(|queue| (&queue.queue, count_out(queue)));
    let (queues, next_page_token) =
        page_token::page((Kind::DeadLetterStats, ""), limits, queues, next, QueueName::as_str);
    pb::GetDeadLetterStatsResponse { queues, total_count: count(counts.total), next_page_token }
}

fn count_out(queue: &DeadCount) -> pb::DeadLetterCount {
    let by_error_type = queue
        .by_error_type
        .iter()
        .map(|(error_type, number)| pb::ErrorTypeCount { error_type: error_type.clone(), count: count(*number) });
    pb::DeadLetterCount {
        queue: queue.queue.to_string(),
        count: count(queue.count),
        overflow: count(queue.overflow),
        oldest: queue.oldest.map(timestamp_out),
        by_error_type: by_error_type.collect(),
    }
}
