//! Seed 003: retries with four strategies, a log of every execution, and claims that only one worker wins.
//!
//! Its demo comes as `redrive demo`, and the drawn table of a job's log as `jobs show`, with the command line, in a later
//! version.

use super::{delays, explain, fail, preset};
use crate::scene::assert_refused;
use crate::server::{Server, at, claim, error, inner, job, job_of, long, nack, time};
use redrive::grpc::pb;
use std::{collections::HashSet, time::Duration};
use tonic::Code;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seed_003_four_strategies_and_an_execution_log() {
    four_strategies_give_or_take_a_fifth().await;
    errors_that_are_never_retried().await;
    a_job_of_its_own_mind().await;
    execution_log().await;
    only_one_worker_wins_a_job().await;
    a_dead_worker_loses_its_job().await;
    bounded_retries().await;
    retry_statistics().await;
}

async fn four_strategies_give_or_take_a_fifth() {
    let server = Server::configured("").await;
    for (name, minutes) in [
        ("chronos", [1, 2, 4, 8, 16]),
        ("chronos-linear", [1, 2, 3, 4, 5]),
        ("chronos-fixed", [1, 1, 1, 1, 1]),
        ("chronos-fibonacci", [1, 1, 2, 3, 5]),
    ] {
        let rows = delays(&server, name, 5).await;
        assert_eq!(rows, minutes.map(|minutes| (minutes * 48_000, minutes * 72_000)), "{name}");
        let (policy, _) = explain(&server, preset(name)).await;
        assert_eq!((policy.max_retries, policy.max_delay), (Some(3), time(3_600, 0)));
    }
    // Never more than an hour, before jitter.
    assert_eq!(delays(&server, "chronos", 10).await[9], (2_880_000, 4_320_000));
    let plain = pb::RetryPolicy { jitter: pb::JitterKind::None.into(), ..preset("chronos") };
    assert_eq!(explain(&server, plain).await.1[0], (60_000, 60_000));
}

async fn errors_that_are_never_retried() {
    let server = Server::configured("[defaults]\npolicy = \"chronos\"").await;
    for error_type in ["ValidationError", "NotFoundError", "UnauthorizedError", "ForbiddenError", "SyntaxError"] {
        server.enqueue(job_of("q", error_type)).await.unwrap();
        let failed = fail(&server, "q", error(error_type)).await;
        assert_eq!(failed.dead_reason(), pb::DeadReason::NonRetryable, "{error_type}");
        assert_eq!((failed.attempt, failed.rule), (1, format!("default: {error_type}")));
    }
}

/// maxRetries 5, retryDelay 30 s, exponential: for this job alone.
async fn a_job_of_its_own_mind() {
    let server = Server::configured("[defaults]\npolicy = \"chronos-fixed\"").await;
    let own = pb::RetryPolicy {
        max_retries: Some(5),
        base_delay: time(30, 0),
        strategy: pb::BackoffStrategy::Exponential.into(),
        ..Default::default()
    };
    let critical = pb::EnqueueRequest { retry_policy: Some(own), ..job_of("q", "critical") };
    server.enqueue(critical).await.unwrap();
    for (retry, seconds) in (0..).zip([30, 60, 120, 240, 480]) {
        let retried = fail(&server, "q", error("SmtpError")).await;
        assert_eq!(retried.retries_left, 5 - retry);
        let delay = long(retried.delay);
        assert!((seconds * 800..=seconds * 1_200).contains(&delay), "{delay}");
        server.pass(Duration::from_millis(delay as u64 + 1)).await;
    }
    let failed = fail(&server, "q", error("SmtpError")).await;
    assert_eq!((failed.attempt, failed.dead_reason()), (6, pb::DeadReason::Exhausted));
}

/// The log of the seed's example, read when the job is done.
async fn execution_log() {
    let server = Server::configured("[defaults]\ncompleted_retention = \"1d\"").await;
    let request = pb::EnqueueRequest { r#type: "send-welcome-email".into(), ..job_of("emails", "job_abc123") };
    server.enqueue(request).await.unwrap();
    for (worker, millis, message) in [("w1", 1_234, "SMTP timeout"), ("w2", 856, "SMTP connection refused")] {
        let request = pb::ClaimRequest { worker_id: worker.into(), ..claim("emails") };
        let lease = server.take_by(request).await.lease;
        server.pass(Duration::from_millis(millis)).await;
        let failure = pb::Failure { message: message.into(), ..error("SmtpError") };
        let failed = pb::NackRequest { error: Some(failure), ..nack(&lease, "") };
        server.nack(failed).await.unwrap();
        server.pass(Duration::from_secs(3)).await;
    }
    let request = pb::ClaimRequest { worker_id: "w1".into(), ..claim("emails") };
    let lease = server.take_by(request).await.lease;
    server.pass(Duration::from_millis(2_103)).await;
    let (note, result) = ("Email delivered".to_owned(), "message 17".into());
    server.queue().ack(pb::AckRequest { lease, note, result, ..pb::AckRequest::default() }).await.unwrap();
    server.pass(Duration::from_secs(3_600)).await;

    use pb::AttemptStatus::{Failed, Succeeded};
    let info = server.get_job("job_abc123").await.unwrap();
    assert_eq!((info.state(), &*info.result), (pb::JobState::Completed, &b"message 17"[..]));
    let log: Vec<_> = info
        .attempts
        .iter()
        .map(|attempt| {
            let took = at(attempt.ended_at) - at(attempt.started_at);
            let failure = attempt.failure.as_ref().map(|failure| failure.message.as_str());
            let worker = attempt.worker_id.as_str();
            (attempt.number, attempt.status(), took, failure.unwrap_or(&attempt.note), worker)
        })
        .collect();
    let expected = [
        (1, Failed, 1_234, "SMTP timeout", "w1"),
        (2, Failed, 856, "SMTP connection refused", "w2"),
        (3, Succeeded, 2_103, "Email delivered", "w1"),
    ];
    assert_eq!(log, expected);
}

/// Many workers ask at the same moment.
async fn only_one_worker_wins_a_job() {
    let server = Server::configured("").await;
    let jobs = vec![job("q"); 100];
    server.queue().enqueue_batch(pb::EnqueueBatchRequest { jobs }).await.unwrap();
    let workers: Vec<_> = (0..20)
        .map(|_| {
            let mut client = server.queue();
            tokio::spawn(async move {
                let mut won = Vec::new();
                loop {
                    let jobs = client.claim(claim("q")).await.unwrap().into_inner().jobs;
                    if jobs.is_empty() {
                        return won;
                    }
                    won.extend(jobs.into_iter().map(|job| job.job_id));
                }
            })
        })
        .collect();
    let mut won = Vec::new();
    for worker in workers {
        won.extend(worker.await.unwrap());
    }
    assert_eq!((won.len(), won.iter().collect::<HashSet<_>>().len()), (100, 100));
}

async fn a_dead_worker_loses_its_job() {
    let server = Server::configured("[defaults]\nlease_duration = \"10s\"").await;
    server.enqueue(job_of("q", "x")).await.unwrap();
    let crashed = server.take_by(pb::ClaimRequest { worker_id: "w1".into(), ..claim("q") }).await;
    server.pass(Duration::from_millis(9_999)).await;
    assert_eq!(server.get_job("x").await.unwrap().state(), pb::JobState::Leased);
    server.pass(Duration::from_millis(1)).await;
    let info = server.get_job("x").await.unwrap();
    assert_eq!(info.state(), pb::JobState::Retrying, "a retry as after any failure");
    assert_eq!(info.attempts[0].status(), pb::AttemptStatus::LeaseExpired);
    server.pass(Duration::from_secs(2)).await;
    let taken_over = server.take("q").await;
    assert_eq!((taken_over.attempt, taken_over.last_failure.unwrap().r#type), (2, "LeaseExpired".into()));
    let woke_up = server.ack(&crashed.lease).await.unwrap_err();
    assert_refused(&woke_up, Code::FailedPrecondition, "LEASE_LOST", &[]);
}

async fn bounded_retries() {
    let server = Server::configured("[defaults]\npolicy = \"chronos\"").await;
    server.enqueue(job("q")).await.unwrap();
    for _ in 0..3 {
        let retried = fail(&server, "q", error("Timeout")).await;
        assert_eq!(retried.outcome(), pb::NackOutcome::RetryScheduled);
        server.pass(Duration::from_secs(3_600)).await;
    }
    let failed = fail(&server, "q", error("Timeout")).await;
    assert_eq!(failed.dead_reason(), pb::DeadReason::Exhausted);
}

async fn retry_statistics() {
    let server = Server::configured("").await;
    for id in ["recovers", "recovers-too", "never"] {
        server.enqueue(job_of("q", id)).await.unwrap();
        fail(&server, "q", error("Timeout")).await;
    }
    server.pass(Duration::from_secs(2)).await;
    for _ in 0..3 {
        let job = server.take("q").await;
        if job.job_id == "never" {
            let kind = pb::NackKind::Permanent.into();
            server.nack(pb::NackRequest { kind, ..nack(&job.lease, "E") }).await.unwrap();
        } else {
            server.ack(&job.lease).await.unwrap();
        }
    }
    let stats = inner(server.admin().get_stats(pb::GetStatsRequest::default()).await).unwrap();
    assert_eq!((stats.total_retries, stats.successful_retries), (3, 2));
    assert!((stats.retry_success_rate - 2.0 / 3.0).abs() < 1e-9, "{stats:?}");
}
