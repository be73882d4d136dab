//! The life of a job that fails, and who decides about it.

use crate::server::{Server, Setup, at, claim, error, inner, job, job_of, long, millis, nack, steady, time, unguarded};
use crate::shapes::expires_in;
use redrive::domain::{ErrorRule, Glob, Matcher, PolicyOverride, QueueSettings, RetryPolicy, StatusPattern, Then};
use redrive::grpc::pb;
use std::time::Duration;

fn exponential() -> pb::RetryPolicy {
    pb::RetryPolicy {
        max_retries: Some(3),
        strategy: pb::BackoffStrategy::Exponential.into(),
        base_delay: time(1, 0),
        factor: Some(2.0),
        max_delay: time(30, 0),
        jitter: pb::JitterKind::None.into(),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_job_that_always_fails_is_tried_four_times_and_dies() {
    let server = Server::start().await;
    let request = pb::EnqueueRequest { retry_policy: Some(exponential()), ..job_of("q", "poison") };
    server.enqueue(request).await.unwrap();
    for (attempt, delay, retries_left) in [(1, 1_000, 3), (2, 2_000, 2), (3, 4_000, 1), (4, 0, 0)] {
        let reply = server.claim(claim("q")).await.unwrap();
        let job = &reply.jobs[0];
        assert_eq!((job.attempt, job.deliveries, job.max_retries), (attempt, attempt, 3));
        assert_eq!(job.is_last_attempt, attempt == 4);
        let last = job.last_failure.as_ref().map(|failure| failure.r#type.clone());
        assert_eq!(last, (attempt > 1).then(|| format!("E{}", attempt - 1)));

        let decided = server.nack(nack(&job.lease, &format!("E{attempt}"))).await.unwrap();
        assert_eq!((decided.attempt, decided.attempt_counted), (attempt, true));
        assert_eq!(decided.retries_left, retries_left);
        assert!(!decided.explanation.is_empty());
        if attempt == 4 {
            assert_eq!(decided.outcome(), pb::NackOutcome::DeadLettered);
            assert_eq!(decided.dead_reason(), pb::DeadReason::Exhausted);
            assert_eq!((decided.delay, decided.retry_at), (None, None));
            break;
        }
        assert_eq!(decided.outcome(), pb::NackOutcome::RetryScheduled);
        assert_eq!(long(decided.delay), delay);
        assert_eq!(at(decided.retry_at), at(reply.server_time) + delay);
        // Not a millisecond early.
        server.pass(Duration::from_millis(delay as u64 - 1)).await;
        let early = server.claim(claim("q")).await.unwrap();
        assert_eq!(early.idle[0].reason(), pb::IdleReason::NotDue);
        assert_eq!(long(early.idle[0].retry_after), 1);
        server.pass(Duration::from_millis(1)).await;
    }
    let info = server.get_job("poison").await.unwrap();
    assert_eq!((info.state(), info.attempts.len()), (pb::JobState::Dead, 4));
}

#[tokio::test]
async fn the_delays_chosen_are_those_that_explain_policy_shows() {
    use pb::{BackoffStrategy as Strategy, JitterKind as Jitter};
    let server = Server::with(unguarded(Default::default())).await;
    let strategies = [Strategy::Exponential, Strategy::Linear, Strategy::Fixed, Strategy::Fibonacci, Strategy::List];
    let jitters = [
        Jitter::None,
        Jitter::Proportional,
        Jitter::Symmetric,
        Jitter::Full,
        Jitter::Equal,
        Jitter::Additive,
        Jitter::Decorrelated,
    ];
    for strategy in strategies {
        for jitter in jitters {
            let policy = pb::RetryPolicy {
                max_retries: Some(5),
                strategy: strategy.into(),
                delays: vec![millis(70).unwrap(), millis(900).unwrap()],
                jitter: jitter.into(),
                jitter_fraction: Some(0.5),
                jitter_max: millis(300),
                max_delay: time(4, 0),
                ..exponential()
            };
            holds_to_its_explanation(&server, policy).await;
        }
    }
}

/// Fails a job of this policy until it dies, and compares every delay with its row.
async fn holds_to_its_explanation(server: &Server, policy: pb::RetryPolicy) {
    let request = pb::ExplainPolicyRequest { policy: Some(policy.clone()), ..Default::default() };
    let explained = inner(server.admin().explain_policy(request).await).unwrap();
    assert_eq!(explained.rows.len(), 5);
    let resolved = explained.resolved.unwrap();
    assert_eq!((resolved.strategy, resolved.jitter), (policy.strategy, policy.jitter));
    let retry_policy = Some(policy.clone());
    server.enqueue(pb::EnqueueRequest { retry_policy, ..job("policies") }).await.unwrap();
    let mut total = 0;
    for row in &explained.rows {
        let lease = server.take("policies").await.lease;
        let delay = long(server.nack(nack(&lease, "E")).await.unwrap().delay);
        let (least, most) = (long(row.min), long(row.max));
        assert!((least..=most).contains(&delay), "{delay} {row:?} {policy:?}");
        if policy.jitter() == pb::JitterKind::None {
            assert_eq!(delay, long(row.delay));
        }
        total += delay;
        // Delays on the wire are finer than the clock.
        server.pass(Duration::from_millis(delay as u64 + 1)).await;
    }
    let bounds = long(explained.total_min)..=long(explained.total_max);
    assert!(bounds.contains(&(total + 5)) || bounds.contains(&total), "{total} {bounds:?}");
    let lease = server.take("policies").await.lease;
    let dead = server.nack(nack(&lease, "E")).await.unwrap();
    assert_eq!(dead.outcome(), pb::NackOutcome::DeadLettered);
}

#[tokio::test]
async fn a_job_overrides_its_queue_field_by_field() {
    let server = Server::start().await;
    let once = pb::RetryPolicy { max_retries: Some(1), ..Default::default() };
    let request = pb::EnqueueRequest { retry_policy: Some(once), ..job_of("q", "x") };
    server.enqueue(request).await.unwrap();
    let job = server.take("q").await;
    assert_eq!((job.max_retries, job.is_last_attempt), (1, false));
    // The delay is still the queue's.
    let retry = server.nack(nack(&job.lease, "E")).await.unwrap();
    assert_eq!((long(retry.delay), retry.retries_left), (10_000, 1));
    server.pass(Duration::from_secs(10)).await;
    let job = server.take("q").await;
    assert!(job.is_last_attempt);
    let dead = server.nack(nack(&job.lease, "E")).await.unwrap();
    assert_eq!(dead.dead_reason(), pb::DeadReason::Exhausted);
    let shown = server.get_job("x").await.unwrap().retry_policy.unwrap();
    assert_eq!((shown.max_retries, shown.base_delay), (Some(1), None));
}

#[tokio::test]
async fn a_preset_sets_every_field() {
    let server = Server::start().await;
    let preset = pb::RetryPolicy { preset: "one-shot".into(), ..Default::default() };
    let request = pb::EnqueueRequest { retry_policy: Some(preset), ..job("q") };
    server.enqueue(request).await.unwrap();
    let job = server.take("q").await;
    assert!(job.is_last_attempt);
    let dead = server.nack(nack(&job.lease, "E")).await.unwrap();
    assert_eq!(dead.dead_reason(), pb::DeadReason::Exhausted);
}

fn ruled() -> QueueSettings {
    let on_type = |glob: &str| Matcher { error_type: Some(Glob::new(glob)), ..Matcher::default() };
    let on_status = |status| Matcher { http_status: Some(StatusPattern::parse(status).unwrap()), ..Matcher::default() };
    let on_message = |part: &str| Matcher { message_contains: Some(part.into()), ..Matcher::default() };
    let slow = PolicyOverride {
        base_delay: Some(Duration::from_secs(600)),
        max_delay: Some(Duration::from_secs(3_600)),
        ..PolicyOverride::default()
    };
    QueueSettings {
        rules: vec![
            ErrorRule::at(0, on_status("429"), Then::Release),
            ErrorRule::at(1, on_status("4xx"), Then::DeadLetter),
            ErrorRule::at(2, on_type("Slow*"), Then::Policy(slow)),
            ErrorRule::at(3, on_message("Out of Stock"), Then::DeadLetter),
        ],
        ..steady(Duration::from_secs(10))
    }
}

#[tokio::test]
async fn the_first_error_rule_that_fits_decides() {
    use pb::NackOutcome::{DeadLettered, Released, RetryScheduled};
    let server = Server::with(Setup { defaults: ruled(), ..Setup::default() }).await;
    let failure = |error_type: &str, http_status, message: &str| pb::Failure {
        http_status,
        message: message.into(),
        ..error(error_type)
    };
    for (failure, outcome, rule, delay) in [
        (failure("E", 429, ""), Released, "rules[0]", None),
        (failure("E", 404, ""), DeadLettered, "rules[1]", None),
        (failure("SlowDown", 500, ""), RetryScheduled, "rules[2]", Some(600_000)),
        (failure("E", 0, "item out of stock!"), DeadLettered, "rules[3]", None),
        (failure("ValidationError", 0, ""), DeadLettered, "default: ValidationError", None),
        (failure("E", 500, ""), RetryScheduled, "", Some(10_000)),
    ] {
        let queue = "ruled";
        server.enqueue(pb::EnqueueRequest { priority: 9, ..job(queue) }).await.unwrap();
        let job = server.take(queue).await;
        let request = pb::NackRequest { error: Some(failure), ..nack(&job.lease, "") };
        let decided = server.nack(request).await.unwrap();
        assert_eq!(decided.outcome(), outcome, "{decided:?}");
        assert!(decided.rule.starts_with(rule), "{decided:?}");
        assert_eq!(decided.rule.is_empty(), rule.is_empty(), "{decided:?}");
        assert_eq!(decided.delay.map(|delay| long(Some(delay))), delay);
        assert_eq!(decided.attempt_counted, outcome != Released);
        if outcome == Released {
            let lease = server.take(queue).await.lease;
            server.ack(&lease).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_worker_that_says_permanent_or_release_is_not_overruled() {
    let server = Server::with(Setup { defaults: ruled(), ..Setup::default() }).await;
    for (kind, outcome) in
        [(pb::NackKind::Permanent, pb::NackOutcome::DeadLettered), (pb::NackKind::Release, pb::NackOutcome::Released)]
    {
        server.enqueue(job("q")).await.unwrap();
        let lease = server.take("q").await.lease;
        let request = pb::NackRequest { kind: kind.into(), ..nack(&lease, "SlowDown") };
        let decided = server.nack(request).await.unwrap();
        assert_eq!((decided.outcome(), decided.rule.as_str()), (outcome, ""));
    }
}

#[tokio::test]
async fn explain_policy_applies_the_rules_of_a_queue() {
    let server = Server::with(Setup { defaults: ruled(), ..Setup::default() }).await;
    server.enqueue(job("q")).await.unwrap();
    for (error_type, rows, first) in [("", 3, 10_000), ("SlowDown", 3, 600_000), ("SyntaxError", 0, 0)] {
        let request =
            pb::ExplainPolicyRequest { queue: "q".into(), error_type: error_type.into(), ..Default::default() };
        let explained = inner(server.admin().explain_policy(request).await).unwrap();
        assert_eq!(explained.rows.len(), rows, "{error_type}");
        assert!(explained.rows.first().is_none_or(|row| long(row.delay) == first));
    }
}

#[tokio::test]
async fn explain_policy_shows_what_the_default_rules_do_with_a_category_and_a_code() {
    let server = Server::with(Setup::default()).await;
    server.enqueue(job("q")).await.unwrap();
    let (timeout, invalid) = (pb::FailureCategory::Timeout, pb::FailureCategory::Invalid);
    let none = pb::FailureCategory::Unspecified;
    for (category, code, error_type, retries, rule) in [
        (timeout, "", "", 20, "default: category=timeout"),
        (none, "ECONNREFUSED", "", 20, "default: category=unreachable"),
        (invalid, "", "", 0, "default: category=invalid"),
        // What is given goes before what the code or the type speaks for.
        (invalid, "ECONNREFUSED", "", 0, "default: category=invalid"),
        (timeout, "", "NotFoundError", 20, "default: category=timeout"),
        (none, "", "NotFoundError", 0, "default: NotFoundError"),
        (none, "E42", "", 3, ""),
    ] {
        for queue in ["", "q"] {
            let request = pb::ExplainPolicyRequest {
                queue: queue.into(),
                category: category.into(),
                code: code.into(),
                error_type: error_type.into(),
                ..Default::default()
            };
            let explained = inner(server.admin().explain_policy(request).await).unwrap();
            let context = format!("{category:?} {code} {error_type} {queue}");
            assert_eq!((explained.rows.len(), explained.rule.as_str()), (retries, rule), "{context}");
            assert_eq!(explained.resolved.unwrap().max_retries, Some(retries as u32), "{context}");
        }
    }
}

#[tokio::test]
async fn an_upstreams_retry_after_is_kept_to_and_spread() {
    let defaults = QueueSettings { max_retry_after: Duration::from_secs(100), ..steady(Duration::from_secs(10)) };
    let server = Server::with(Setup { defaults, ..Setup::default() }).await;
    for (asked, least, most) in [(5, 10_000, 10_000), (50, 50_000, 55_000), (5_000, 100_000, 110_000)] {
        server.enqueue(pb::EnqueueRequest { priority: 9, ..job("q") }).await.unwrap();
        let lease = server.take("q").await.lease;
        let kind = pb::NackKind::Retry.into();
        let request = pb::NackRequest { retry_after: time(asked, 0), kind, ..nack(&lease, "E") };
        let delay = long(server.nack(request).await.unwrap().delay);
        assert!((least..=most).contains(&delay), "{asked}: {delay}");
    }
    server.enqueue(pb::EnqueueRequest { priority: 9, ..job("q") }).await.unwrap();
    let reply = server.claim(claim("q")).await.unwrap();
    let kind = pb::NackKind::Release.into();
    let request = pb::NackRequest { retry_after: time(50, 0), kind, ..nack(&reply.jobs[0].lease, "") };
    let released = server.nack(request).await.unwrap();
    assert_eq!((released.outcome(), released.dead_reason), (pb::NackOutcome::Released, 0));
    assert!(at(released.retry_at) >= at(reply.server_time) + 50_000);
}

#[tokio::test]
async fn a_retry_that_would_miss_the_deadline_dies_at_once() {
    let server = Server::start().await;
    let request = pb::EnqueueRequest { deadline: expires_in(time(5, 0)), ..job("q") };
    server.enqueue(request).await.unwrap();
    let lease = server.take("q").await.lease;
    let dead = server.nack(nack(&lease, "E")).await.unwrap();
    assert_eq!(dead.dead_reason(), pb::DeadReason::WouldMissDeadline);
    assert_eq!(dead.retries_left, 0);
}

#[tokio::test]
async fn a_job_past_its_deadline_is_not_run_any_more() {
    let server = Server::start().await;
    let request = pb::EnqueueRequest { deadline: expires_in(time(5, 0)), ..job_of("q", "late") };
    server.enqueue(request).await.unwrap();
    server.pass(Duration::from_secs(5)).await;
    assert!(server.claim(claim("q")).await.unwrap().jobs.is_empty());
    let info = server.get_job("late").await.unwrap();
    assert_eq!((info.state(), info.dead_reason()), (pb::JobState::Dead, pb::DeadReason::Expired));
}

#[tokio::test]
async fn the_policy_shown_for_a_queue_is_the_one_in_force() {
    let server = Server::start().await;
    server.enqueue(job("q")).await.unwrap();
    let shown = server.list_queues().await.remove(0).policy.unwrap();
    assert_eq!(shown.strategy(), pb::BackoffStrategy::Fixed);
    assert_eq!(shown.max_retries, Some(RetryPolicy::default().max_retries));
    assert_eq!(shown.base_delay, time(10, 0));
}

#[tokio::test]
async fn the_policy_that_decided_the_last_failure_says_which_attempt_is_the_last() {
    let file = r#"
        [queues.q]
        policy = { max_retries = 2 }
        rules = [{ error_type = "Often", policy = { max_retries = 9 } }]
    "#;
    let server = Server::configured(file).await;
    server.enqueue(job_of("q", "x")).await.unwrap();
    for (error, attempt, max_retries, last) in [("Often", 1, 2, false), ("Often", 2, 9, false), ("E", 3, 9, false)] {
        let job = server.take("q").await;
        assert_eq!((job.attempt, job.max_retries, job.is_last_attempt), (attempt, max_retries, last));
        let nacked = server.nack(nack(&job.lease, error)).await.unwrap();
        if attempt == 3 {
            assert_eq!(nacked.outcome(), pb::NackOutcome::DeadLettered);
        } else {
            assert_eq!(nacked.retries_left, 10 - attempt);
            server.pass(Duration::from_secs(60)).await;
        }
    }
    let info = server.get_job("x").await.unwrap();
    assert_eq!(info.job.unwrap().max_retries, 2, "of the queue's own policy, which decided");
}
