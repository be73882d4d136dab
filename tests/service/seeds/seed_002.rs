//! Seed 002: a queue worker whose retries survive crashes, that tells errors apart, and pauses while its server is down.
//!
//! The command that reviews dead letters, `dlq list`, comes with the command line, in a later version.

use super::{dead, delays, fail};
use crate::server::{Server, at, claim, error, job_of, long, nack};
use redrive::grpc::pb;
use std::time::Duration;

/// Everything but what is still being scanned retries for minutes; that retries for hours.
const PLEX: &str = r#"
[queues.plex]
policy = "transient"
breaker = { first_probe = "60s", recovery_timeout = "60s" }
rules = [ { error_type = "PlexNotFound*", policy = "library-scan" },
          { error_type = "PermanentError", action = "dead-letter" } ]
"#;

#[tokio::test]
async fn seed_002_queue_processor_whose_retries_survive() {
    retry_state_survives_a_restart().await;
    a_clock_that_jumps_neither_hurries_nor_strands_a_retry().await;
    each_error_has_its_policy().await;
    transient_and_permanent_errors().await;
    dead_letter_review().await;
    breaker_that_pauses_work().await;
}

async fn retry_state_survives_a_restart() {
    let mut server = Server::configured(PLEX).await;
    server.enqueue(job_of("plex", "scene-1")).await.unwrap();
    for attempt in 1..=2 {
        let retried = fail(&server, "plex", error("PlexTemporarilyUnavailable")).await;
        assert_eq!((retried.attempt, retried.retries_left), (attempt, 6 - attempt));
        if attempt == 1 {
            server.pass(Duration::from_secs(5)).await;
        }
    }
    let before = server.get_job("scene-1").await.unwrap();
    server = server.restarted().await;
    assert_eq!(server.get_job("scene-1").await.unwrap(), before, "not even its time has changed");
    let idle = server.claim(claim("plex")).await.unwrap().idle;
    assert_eq!(idle[0].reason(), pb::IdleReason::NotDue);
    server.pass(Duration::from_secs(10)).await;
    let job = server.take("plex").await;
    assert_eq!((job.attempt, job.deliveries), (3, 3));
    // With its worker, too, it survives.
    server = server.restarted().await;
    assert_eq!(server.nack(nack(&job.lease, "Timeout")).await.unwrap().attempt, 3);
}

async fn a_clock_that_jumps_neither_hurries_nor_strands_a_retry() {
    const DAY: i64 = 86_400;
    for jump in [-DAY, DAY] {
        for restart in [false, true] {
            let file = "[defaults]\npolicy = { base_delay = \"60s\", max_delay = \"60s\", jitter = \"none\" }";
            let mut server = Server::configured(file).await;
            server.enqueue(job_of("q", "x")).await.unwrap();
            fail(&server, "q", error("E")).await;
            server.clock.jump_wall(jump);
            if restart {
                server = server.restarted().await;
            }
            server.pass(Duration::from_secs(59)).await;
            let early = server.claim(claim("q")).await.unwrap();
            assert_eq!(early.jobs.len(), 0, "{jump} {restart}");
            // Time may be gained on the wall clock, slowly: by at most one part in a hundred.
            server.pass(Duration::from_secs(2)).await;
            assert_eq!(server.take("q").await.attempt, 2, "{jump} {restart}");
        }
    }
}

async fn each_error_has_its_policy() {
    let server = Server::configured(PLEX).await;
    let minutes = [30, 60, 120, 240, 480, 600, 600];
    let half_or_more = minutes.map(|seconds| (seconds * 500, seconds * 1_000));
    assert_eq!(delays(&server, "library-scan", 7).await, half_or_more);
    let seconds = [5, 10, 20, 40, 80, 80];
    assert_eq!(delays(&server, "transient", 6).await, seconds.map(|most| (0, most * 1_000)));

    server.enqueue(job_of("plex", "new-scene")).await.unwrap();
    for attempt in 1..=8 {
        let retried = fail(&server, "plex", error("PlexNotFound")).await;
        assert_eq!((retried.attempt, retried.retries_left), (attempt, 13 - attempt));
        assert_eq!(retried.rule, "rules[0]: error_type=PlexNotFound*");
        let longest = half_or_more[(attempt as usize - 1).min(6)];
        assert!((longest.0..=longest.1).contains(&long(retried.delay)), "{retried:?}");
        server.pass(Duration::from_secs(601)).await;
    }
    // One counter, and the policy that fits the error of the moment: for this one it is long enough.
    let exhausted = fail(&server, "plex", error("Timeout")).await;
    assert_eq!((exhausted.attempt, exhausted.dead_reason()), (9, pb::DeadReason::Exhausted));
}

async fn transient_and_permanent_errors() {
    let server = Server::configured(PLEX).await;
    for id in ["by-rule", "by-worker", "transient"] {
        server.enqueue(job_of("plex", id)).await.unwrap();
    }
    let by_rule = fail(&server, "plex", error("PermanentError")).await;
    assert_eq!((by_rule.attempt, by_rule.dead_reason()), (1, pb::DeadReason::NonRetryable));
    let lease = server.take("plex").await.lease;
    let kind = pb::NackKind::Permanent.into();
    let by_worker = pb::NackRequest { kind, ..nack(&lease, "BadFile") };
    assert_eq!(server.nack(by_worker).await.unwrap().dead_reason(), pb::DeadReason::NonRetryable);
    let transient = fail(&server, "plex", error("TransientError")).await;
    assert_eq!(transient.outcome(), pb::NackOutcome::RetryScheduled);
    assert_eq!(dead(&server, "plex").await, ["by-rule", "by-worker"]);
}

/// The line that the log gets every ten minutes while there are any.
async fn dead_letter_review() {
    let server = Server::configured(PLEX).await;
    let mut next = server.service.queues().now();
    assert_eq!(server.service.remind_if_due(&mut next).await, Ok(None), "it is empty, as it should");
    for id in ["scene-1", "scene-2", "scene-3", "scene-4"] {
        server.dead_letter("plex", id, error("PlexServerError")).await;
        server.pass(Duration::from_secs(1)).await;
    }
    server.pass(Duration::from_secs(600)).await;
    let told = server.service.remind_if_due(&mut next).await.unwrap().unwrap();
    assert_eq!((told.total, told.queues().as_str()), (4, "plex 4"));
    let latest = "scene-4 in plex (PlexServerError), scene-3 in plex (PlexServerError), \
                  scene-2 in plex (PlexServerError)";
    assert_eq!(told.latest(), latest);
    let info = server.get_job("scene-4").await.unwrap();
    assert!(at(info.job.unwrap().enqueued_at) > 0, "and who wants to know more asks for it");
}

/// It opens after five failures in a row, ignores permanent ones, and tries again after a minute.
async fn breaker_that_pauses_work() {
    use pb::BreakerState::{Closed, HalfOpen, Open, Recovering};
    let server = Server::configured(PLEX).await;
    for number in 0..12 {
        server.enqueue(job_of("plex", &format!("scene-{number:02}"))).await.unwrap();
    }
    for _ in 0..6 {
        let permanent = fail(&server, "plex", error("PermanentError")).await;
        assert_eq!(permanent.queue_breaker(), Closed, "such errors are none of its business");
    }
    for failures in 1..=5 {
        let lease = server.take("plex").await.lease;
        server.pass(Duration::from_millis(300)).await;
        let transient = server.nack(nack(&lease, "ConnectionError")).await.unwrap();
        assert_eq!(transient.queue_breaker(), if failures < 5 { Closed } else { Open });
    }
    let held = server.claim(claim("plex")).await.unwrap();
    assert_eq!((held.jobs.len(), held.idle[0].reason()), (0, pb::IdleReason::BreakerOpen));
    let wait = held.idle[0].retry_after.unwrap().seconds;
    assert!((54..=66).contains(&wait), "about a minute: {wait} s");
    assert_eq!(server.get_job("scene-11").await.unwrap().state(), pb::JobState::Ready);

    // A minute later one job tries, while all others wait for what comes of it.
    server.pass(Duration::from_secs(66)).await;
    assert_eq!(server.breaker("queue:plex").await.unwrap().state(), HalfOpen);
    let probe = server.take("plex").await;
    let others = server.claim(claim("plex")).await.unwrap().idle;
    assert_eq!(others[0].reason(), pb::IdleReason::Limited);
    let failed = server.nack(nack(&probe.lease, "ConnectionError")).await.unwrap();
    assert_eq!((failed.queue_breaker(), failed.attempt_counted), (Open, false));

    // An outage wastes no retries: only the probe has been tried since, and that was not counted.
    server.pass(Duration::from_secs(66)).await;
    let probe = server.take("plex").await;
    server.ack(&probe.lease).await.unwrap();
    // The others follow with a load that grows.
    assert_eq!(server.breaker("queue:plex").await.unwrap().state(), Recovering);
    let mut done = 0;
    while server.breaker("queue:plex").await.unwrap().state() == Recovering {
        let all = pb::ClaimRequest { max_jobs: 100, ..claim("plex") };
        for job in server.claim(all).await.unwrap().jobs {
            assert_eq!(job.attempt, 1, "what failed before it opened does not count either");
            server.ack(&job.lease).await.unwrap();
            done += 1;
        }
        server.pass(Duration::from_millis(500)).await;
    }
    assert_eq!((done, server.breaker("queue:plex").await.unwrap().state()), (5, Closed));
    let dead = dead(&server, "plex").await;
    assert_eq!(dead.len(), 6, "the permanent ones, and none for the outage: {dead:?}");
}
