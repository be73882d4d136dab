//! What operators ask and see: jobs, queues, policies.

use super::{
    Context,
    breaker::breaker_state_out,
    check::{Check, Invalid},
    count,
    dead_letters::page_size,
    failure::brief_failure_out,
    job::{View, attempt_out, dead_reason_out, running_out, state_out, viewed},
    page_token::{self, Kind},
    policy::{override_out, policy, policy_out},
    time::{duration_out, timestamp_out},
};
use crate::{
    broker::{ExplainRequest, Explained, JobReport, QueueReport},
    domain::{
        ids::{JobId, QueueName},
        job::State,
        limits::Limits,
        settings::Settings,
    },
    grpc::pb,
};

pub(in crate::grpc) fn get_job(
    limits: &Limits,
    request: pb::GetJobRequest,
) -> Result<(JobId, Option<QueueName>), Invalid> {
    let mut check = Check::new(limits);
    let id = check.job_id("job_id", &request.job_id);
    let queue = check.queue_if_given("queue", &request.queue);
    check.done(id.map(|id| (id, queue)))
}

pub(in crate::grpc) fn job_info(
    settings: &Settings,
    report: JobReport,
    shown: View,
) -> pb::JobInfo {
    let JobReport { view, waiting_because } = report;
    let mut attempts = Vec::new();
    if shown == View::Full {
        attempts.extend(view.attempts.iter().map(attempt_out));
        attempts.extend(view.delivery.as_ref().map(running_out));
    }
    let scheduled_at = view.ready_at.filter(|_| view.state == State::Scheduled);
    let mut info = pb::JobInfo {
        state: state_out(view.state).into(),
        run_at: scheduled_at.map(timestamp_out),
        attempts,
        waiting_because,
        releases: view.progress.releases,
        interruptions: view.progress.interruptions,
        dead_reason: view.death.map_or(0, |death| dead_reason_out(death.reason).into()),
        uncounted_failures: view.progress.uncounted,
        cancel_requested: view.progress.cancel_requested,
        completed_at: view.completed_at.map(timestamp_out),
        result: view.result,
        retry_policy: view.spec.policy.as_deref().map(override_out),
        idempotency_key: view.spec.key.clone().unwrap_or_default(),
        ..pb::JobInfo::default()
    };
    let now = (view.state, view.delivery.as_ref());
    let mut job = viewed(settings, &view.queue, view.spec, view.progress, now, shown);
    job.last_failure = view.last_failure.map(brief_failure_out);
    info.job = Some(job);
    info
}

/// The queue to go on after, and how many.
pub(in crate::grpc) fn list_queues(
    limits: &Limits,
    request: &pb::ListQueuesRequest,
) -> Result<(Option<QueueName>, usize), Invalid> {
    let mut check = Check::new(limits);
    let mut after = None;
    if !request.page_token.is_empty() {
        match page_token::decode(Kind::Queues, "", &request.page_token) {
            Ok(name) => {
                after = String::from_utf8(name).ok().and_then(|name| QueueName::parse(&name));
            }
            Err(problem) => check.refuse("page_token", problem),
        }
    }
    check.done(Some((after, page_size(request.page_size, limits))))
}

/// `limit`: what was asked for; a full page may have another behind it.
pub(in crate::grpc) fn queues_page(
    limits: &Limits,
    reports: Vec<QueueReport>,
    limit: usize,
) -> pb::ListQueuesResponse {
    let last = reports.last().filter(|_| reports.len() >= limit);
    let queues = reports.iter().map(|report| (&report.view.name, queue_out(report)));
    let (queues, cut_after) = page_token::fit(queues, limits.reply_bytes);
    let next = cut_after.or_else(|| last.map(|last| &last.view.name));
    let token = |name: &QueueName| page_token::encode(Kind::Queues, "", name.as_str().as_bytes());
    pb::ListQueuesResponse { next_page_token: next.map(token).unwrap_or_default(), queues }
}

fn queue_out(report: &QueueReport) -> pb::Queue {
    let (depths, pause) = (&report.view.depths, report.view.pause.as_ref());
    pb::Queue {
        name: report.view.name.as_str().to_owned(),
        ready: count(depths.ready),
        scheduled: count(depths.scheduled),
        leased: count(depths.leased),
        dead: count(depths.dead),
        overflow: count(depths.overflow),
        oldest_ready_age: report.view.oldest_ready_at.map(|at| duration_out(report.now.since(at))),
        paused: pause.is_some(),
        paused_reason: pause.map(|pause| pause.reason.clone()).unwrap_or_default(),
        paused_until: pause.and_then(|pause| pause.until).map(timestamp_out),
        breaker: breaker_state_out(report.breaker).into(),
        policy: Some(policy_out(&report.policy)),
        ..pb::Queue::default()
    }
}

pub(in crate::grpc) fn explain_request(
    context: &Context<'_>,
    request: pb::ExplainPolicyRequest,
) -> Result<ExplainRequest, Invalid> {
    let mut check = Check::new(context.limits);
    check.name("error_type", &request.error_type);
    let explain = ExplainRequest {
        policy: policy(&mut check, "policy", request.policy),
        queue: check.queue_if_given("queue", &request.queue),
        error_type: request.error_type,
    };
    check.done(Some(explain))
}

pub(in crate::grpc) fn explained(explained: Explained) -> pb::ExplainPolicyResponse {
    let rows = explained.rows.iter().map(|row| pb::DelayRow {
        retry: row.retry,
        delay: Some(duration_out(row.delay)),
        min: Some(duration_out(row.min)),
        max: Some(duration_out(row.max)),
    });
    pb::ExplainPolicyResponse {
        rows: rows.collect(),
        resolved: Some(policy_out(&explained.policy)),
        total_min: Some(duration_out(explained.total_min)),
        total_max: Some(duration_out(explained.total_max)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::{breaker::BreakerState, policy::RetryPolicy, time::Timestamp},
        grpc::convert::testing::{context, refusals},
        store::{Depths, QueueView},
    };
    use std::time::Duration;

    fn report(name: &str, ready: u64) -> QueueReport {
        let view = QueueView {
            depths: Depths { ready, ..Depths::default() },
            oldest_ready_at: Some(Timestamp::from_millis(1_000)),
            ..QueueView::empty(QueueName::parse(name).unwrap())
        };
        let (policy, breaker) = (RetryPolicy::default(), BreakerState::Closed);
        QueueReport { view, policy, breaker, now: Timestamp::from_millis(3_500) }
    }

    #[test]
    fn a_full_page_of_queues_has_a_token_for_the_next() {
        let page = queues_page(&Limits::default(), vec![report("a", 1), report("b", u64::MAX)], 2);
        assert_eq!((page.queues[0].ready, page.queues[1].ready), (1, u32::MAX));
        assert_eq!(
            page.queues[0].oldest_ready_age,
            Some(duration_out(Duration::from_millis(2_500)))
        );
        let request = pb::ListQueuesRequest { page_size: 2, page_token: page.next_page_token };
        let (after, limit) = list_queues(&Limits::default(), &request).unwrap();
        assert_eq!((after, limit), (QueueName::parse("b"), 2));
        assert_eq!(queues_page(&Limits::default(), vec![report("a", 1)], 2).next_page_token, "");
    }

    #[test]
    fn bad_fields_are_named() {
        let limits = Limits::default();
        let bad = pb::ListQueuesRequest { page_token: "x".into(), page_size: 0 };
        assert!(refusals(list_queues(&limits, &bad))[0].starts_with("page_token: "));
        let bad = pb::GetJobRequest { job_id: String::new(), queue: "!".into() };
        let refused = refusals(get_job(&limits, bad));
        assert!(refused[0].starts_with("job_id: ") && refused[1].starts_with("queue: "));
        let bad = pb::ExplainPolicyRequest {
            policy: Some(pb::RetryPolicy { preset: "x".into(), ..Default::default() }),
            queue: "!".into(),
            error_type: "x".repeat(257),
        };
        let refused = refusals(explain_request(&context(), bad));
        assert!(refused[0].starts_with("error_type: "), "{refused:?}");
        assert!(refused[1].starts_with("policy.preset: "), "{refused:?}");
        assert!(refused[2].starts_with("queue: "), "{refused:?}");
    }
}
