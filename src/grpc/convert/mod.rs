//! Between the wire and the domain: the only conversions, in both directions, and all validation.
//!
//! Requests are checked field by field, and every bad field is named, not just the first. What comes out of here keeps
//! to the limits; nothing behind it checks again.

mod admin;
mod batch;
mod breaker;
mod bulk;
mod check;
mod claim;
mod dead_letters;
mod dead_selection;
mod enqueue;
mod failure;
mod job;
mod json;
mod limits;
mod list_jobs;
mod page_token;
mod policy;
mod same_name;
mod settle;
mod stats;
mod time;
mod work;

pub(super) use admin::{GetJob, cancelled, explain_request, explained, get_job, job_info, which_job};
pub(super) use admin::{list_queues, pause_queue, queues_page, resume_queue};
pub(super) use batch::{enqueue_batch, settlements};
pub(super) use breaker::{WhichBreakers, breaker_out, breaker_status, breakers_page, reset_breaker, set_breaker};
pub(super) use bulk::{Asked, purge, purge_response, requeue, requeue_response};
pub(super) use check::{Invalid, Violation};
pub(super) use claim::{claim, claim_response};
pub(super) use dead_letters::{dead_letters_page, list_dead_letters};
pub(super) use enqueue::{enqueue, enqueue_batch_response, enqueued, trace_headers};
pub(super) use job::View;
pub(super) use limits::limits_out;
pub(super) use list_jobs::{jobs_page, list_jobs};
pub(super) use settle::{ack, acked, extend, extended, nack, nacked, settle_response};
pub(super) use stats::{dead_letter_stats, dead_letter_stats_page, get_stats, stats};
pub(super) use time::grpc_timeout;
pub use time::{caller_patience, duration_out, timestamp_out};
pub(super) use work::{SettleTag, work_hello, work_message, work_response};

use crate::domain::{Limits, Settings, Timestamp};

/// What a request is checked against.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    pub(super) limits: &'a Limits,
    pub(super) settings: &'a Settings,
    pub(super) now: Timestamp,
    /// Trace headers of the call, for jobs that bring none.
    pub(super) trace: &'a [(String, String)],
}

/// Counts on the wire are 32 bits wide; more than that is shown as the most.
fn count(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    #[test]
    fn counts_beyond_32_bits_are_shown_as_the_most() {
        assert_eq!([7, u64::MAX].map(super::count), [7, u32::MAX]);
    }
}
