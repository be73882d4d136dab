//! Totals on the way out.

use super::check::{Check, Invalid};
use crate::{
    domain::{ids::QueueName, limits::Limits},
    grpc::pb,
    store::Stats,
};

pub(in crate::grpc) fn get_stats(
    limits: &Limits,
    request: &pb::GetStatsRequest,
) -> Result<Option<QueueName>, Invalid> {
    let mut check = Check::new(limits);
    let queue = check.queue_if_given("queue", &request.queue);
    check.done(Some(queue))
}

pub(in crate::grpc) fn stats(stats: Stats) -> pb::GetStatsResponse {
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
