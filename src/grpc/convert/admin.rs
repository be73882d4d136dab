//! What operators ask, do and see: jobs, queues, policies.

use super::check::{Check, Invalid};
use super::failure::{brief_failure_out, category};
use super::job::{View, attempt_out, event_out, running_out, viewed};
use super::page_token::{self, Kind};
use super::policy::{override_out, policy, policy_out};
use super::same_name::SameName;
use super::time::{duration_out, timestamp_out};
use super::{Context, count};
use crate::domain::{JobId, Limits, QueueName, Spec, State};
use crate::grpc::pb;
use crate::queue::waiting_because;
use crate::queue::{Cancelled, JobView, NewPause, QueueView};
use crate::service::{ExplainRequest, Explained};

const QUEUES: (Kind, &str) = (Kind::Queues, "");

/// Which job, in which queue; and whether what is said about why can be kept.
pub(crate) fn which_job(
    limits: &Limits, id: &str, queue: &str, reason: &str,
) -> Result<(JobId, Option<QueueName>), Invalid> {
    let mut check = Check::new(limits);
    let id = check.job_id("job_id", id);
    let queue = check.queue_if_given("queue", queue);
    check.at_most("reason", reason.len(), limits.note_bytes);
    check.done(id.map(|id| (id, queue)))
}

/// How a job is named.
pub(crate) enum GetJob {
    Id(JobId, Option<QueueName>),
    Key(QueueName, String),
}

pub(crate) fn get_job(limits: &Limits, request: &pb::GetJobRequest) -> Result<GetJob, Invalid> {
    let pb::GetJobRequest { job_id, queue, idempotency_key: key } = request;
    if key.is_empty() {
        return which_job(limits, job_id, queue, "").map(|(id, queue)| GetJob::Id(id, queue));
    }
    let mut check = Check::new(limits);
    if !job_id.is_empty() {
        check.refuse("job_id", "give either this or idempotency_key");
    }
    check.clean_name("idempotency_key", key);
    let queue = check.queue("queue", queue);
    check.done(queue.map(|queue| GetJob::Key(queue, key.clone())))
}

pub(crate) fn job_info(context: &Context<'_>, view: JobView, shown: View) -> pb::JobInfo {
    let waiting_because = waiting_because(&view, context.settings, context.now);
    let (mut attempts, mut events) = (Vec::new(), Vec::new());
    if shown == View::Full {
        events.extend(view.events.into_iter().map(event_out));
        attempts.extend(view.attempts.into_iter().map(attempt_out));
        attempts.extend(view.delivery.as_ref().map(running_out));
    }
    let scheduled_at = view.ready_at.filter(|_| matches!(view.state, State::Scheduled | State::Retrying));
    let now = (view.state, view.delivery.as_ref());
    let spec = Spec { breaker_key: view.learnt_key.or(view.spec.breaker_key), ..view.spec };
    pb::JobInfo {
        state: view.state.out(),
        run_at: scheduled_at.map(timestamp_out),
        attempts,
        events,
        waiting_because,
        releases: view.progress.releases,
        interruptions: view.progress.interruptions,
        dead_reason: view.death.map_or(0, |death| death.reason.out()),
        uncounted_failures: view.progress.uncounted,
        cancel_requested: view.progress.cancel_requested,
        completed_at: view.completed_at.map(timestamp_out),
        result: view.result,
        retry_policy: spec.policy.as_deref().map(override_out),
        idempotency_key: spec.key.clone().unwrap_or_default(),
        job: Some(pb::Job {
            last_failure: view.last_failure.map(brief_failure_out),
            ..viewed(context.settings, &view.queue, spec, view.progress, now, shown)
        }),
    }
}

/// The queue to go on after, and how many.
pub(crate) fn list_queues(
    limits: &Limits, request: &pb::ListQueuesRequest,
) -> Result<(Option<QueueName>, usize), Invalid> {
    let mut check = Check::new(limits);
    let after = check.token("page_token", QUEUES, &request.page_token, queue_position);
    let limit = check.page_size(request.page_size);
    check.done(Some((after, limit)))
}

pub(super) fn queue_position(position: &[u8]) -> Option<QueueName> {
    QueueName::parse(str::from_utf8(position).ok()?)
}

/// `limit`: what was asked for; a full page may have another behind it.
pub(crate) fn queues_page(context: &Context<'_>, queues: &[QueueView], limit: usize) -> pb::ListQueuesResponse {
    let next = queues.last().filter(|_| queues.len() >= limit).map(|last| &last.name);
    let queues = queues.iter().map(|queue| (&queue.name, queue_out(context, queue)));
    let (queues, next_page_token) = page_token::page(QUEUES, context.limits, queues, next, QueueName::as_str);
    pb::ListQueuesResponse { queues, next_page_token }
}

fn queue_out(context: &Context<'_>, queue: &QueueView) -> pb::QueueInfo {
    let (now, settings) = (context.now, context.settings.queue(&queue.name));
    let (depths, pause) = (&queue.depths, queue.pause.as_ref().filter(|pause| pause.holds(now)));
    pb::QueueInfo {
        name: queue.name.as_str().to_owned(),
        ready: count(depths.ready),
        scheduled: count(depths.scheduled),
        retrying: count(depths.retrying),
        leased: count(depths.leased),
        dead: count(depths.dead),
        overflow: count(depths.overflow),
        oldest_ready_age: queue.oldest_ready_at.map(|at| duration_out(now.since(at))),
        paused: pause.is_some(),
        paused_reason: pause.map(|pause| pause.reason.clone()).unwrap_or_default(),
        paused_until: pause.and_then(|pause| pause.until).map(timestamp_out),
        breaker: queue.breaker.state(&settings.breaker, now).out(),
        policy: Some(policy_out(&settings.policy)),
        last_claim_at: queue.last_claim_at.map(timestamp_out),
        ..pb::QueueInfo::default()
    }
}

pub(crate) fn pause_queue(limits: &Limits, request: pb::PauseQueueRequest) -> Result<(QueueName, NewPause), Invalid> {
    let mut check = Check::new(limits);
    let queue = check.queue("queue", &request.queue);
    let duration = check.delay("duration", request.duration);
    if duration.is_some_and(|duration| duration.is_zero()) {
        check.refuse("duration", "must be more than 0; leave it out to pause until resumed");
    }
    check.at_most("reason", request.reason.len(), limits.note_bytes);
    check.done(queue.map(|queue| (queue, NewPause { duration, reason: request.reason })))
}

pub(crate) fn resume_queue(limits: &Limits, request: &pb::ResumeQueueRequest) -> Result<QueueName, Invalid> {
    let mut check = Check::new(limits);
    let queue = check.queue("queue", &request.queue);
    check.done(queue)
}

pub(crate) fn explain_request(
    context: &Context<'_>, request: pb::ExplainPolicyRequest,
) -> Result<ExplainRequest, Invalid> {
    let mut check = Check::new(context.limits);
    check.name("error_type", &request.error_type);
    check.name("code", &request.code);
    let category = category(request.category());
    let explain = ExplainRequest {
        policy: policy(&mut check, "policy", request.policy),
        queue: check.queue_if_given("queue", &request.queue),
        category,
        code: request.code,
        error_type: request.error_type,
    };
    check.done(Some(explain))
}

pub(crate) fn cancelled(cancelled: Cancelled) -> pb::CancelJobResponse {
    pb::CancelJobResponse { outcome: cancelled.out() }
}

pub(crate) fn explained(explained: Explained) -> pb::ExplainPolicyResponse {
    let rows = explained.rows.iter().map(|row| pb::DelayRow {
        retry: row.retry,
        delay: Some(duration_out(row.delay)),
        min: Some(duration_out(row.min)),
        max: Some(duration_out(row.max)),
    });
    pb::ExplainPolicyResponse {
        rows: rows.collect(),
        rule: explained.rule,
        resolved: Some(policy_out(&explained.policy)),
        total_min: Some(duration_out(explained.total_min)),
        total_max: Some(duration_out(explained.total_max)),
    }
}
