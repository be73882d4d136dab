//! Circuit breakers as workers and operators see them.

use crate::scene::{Scene, assert_refused};
use crate::server::{Server, Setup, claim, inner, job, job_of, nack, steady, time, unguarded};
use crate::shapes::{after, by_all};
use redrive::domain::{ErrorRule, Glob, Matcher, QueueSettings, StatusPattern, Then};
use redrive::grpc::pb;
use std::time::Duration;
use tonic::{Code, Status};

/// A claim that waits for as long as it takes.
fn waiting(queue: &str) -> pb::ClaimRequest {
    pb::ClaimRequest { wait: time(20, 0), ..claim(queue) }
}

impl Server {
    pub(crate) async fn breaker(&self, name: &str) -> Result<pb::Breaker, Status> {
        let request = pb::BreakerStatusRequest { name: name.into(), ..Default::default() };
        let mut status = inner(self.queue().breaker_status(request).await)?;
        assert_eq!((status.breakers.len(), status.next_page_token.as_str()), (1, ""));
        Ok(status.breakers.remove(0))
    }

    pub(crate) async fn set_breaker(
        &self, name: &str, state: pb::BreakerState, reason: &str,
    ) -> Result<pb::Breaker, Status> {
        let (name, state, reason) = (name.into(), state.into(), reason.into());
        let request = pb::SetBreakerRequest { name, state, reason };
        let set = inner(self.admin().set_breaker(request).await)?;
        Ok(set.breaker.expect("the breaker after the change"))
    }

    pub(crate) async fn reset_breaker(&self, name: &str) -> Result<pb::Breaker, Status> {
        let request = pb::ResetBreakerRequest { name: name.into() };
        let reset = inner(self.admin().reset_breaker(request).await)?;
        Ok(reset.breaker.expect("the breaker after the reset"))
    }

    /// Until the open breaker of `q` lets a probe out.
    pub(crate) async fn pass_to_probe(&self) {
        let breaker = self.breaker("queue:q").await.unwrap();
        let (opened, probe) = (breaker.opened_at.unwrap(), breaker.probe_at.unwrap());
        let nanos = (probe.seconds - opened.seconds) * 1_000_000_000 + i64::from(probe.nanos - opened.nanos);
        self.pass(Duration::from_nanos(nanos as u64)).await;
    }

    /// Five jobs of `q` fail; `spare` is ready. Says what the last Nack answered.
    pub(crate) async fn trip(&self) -> pb::NackResponse {
        let mut last = None;
        for number in 0..5 {
            self.enqueue(job_of("q", &format!("j{number}"))).await.unwrap();
        }
        let jobs = self.claim(pb::ClaimRequest { max_jobs: 5, ..claim("q") }).await.unwrap().jobs;
        // Five failures within a moment may be chance.
        self.pass(Duration::from_secs(1)).await;
        for job in jobs {
            last = Some(self.nack(nack(&job.lease, "ConnectionRefused")).await.unwrap());
        }
        self.enqueue(job_of("q", "spare")).await.unwrap();
        last.expect("five of them")
    }
}

#[tokio::test]
async fn an_open_breaker_says_why_and_for_how_long() {
    let server = Server::start().await;
    let last = server.trip().await;
    assert_eq!(last.queue_breaker(), pb::BreakerState::Open);
    assert!(last.attempt_counted, "it was the failure that opened it");
    let idle = server.claim(claim("q")).await.unwrap().idle.remove(0);
    assert_eq!(idle.reason(), pb::IdleReason::BreakerOpen);
    let wait = Duration::try_from(idle.retry_after.unwrap()).unwrap();
    assert!((Duration::from_millis(900)..=Duration::from_millis(1_100)).contains(&wait), "the first probe: {wait:?}");
    let breaker = server.breaker("queue:q").await.unwrap();
    assert_eq!(breaker.state(), pb::BreakerState::Open);
    assert_eq!((breaker.trips, breaker.forced), (1, false));
    assert!(breaker.last_error.starts_with("ConnectionRefused"), "{}", breaker.last_error);
    assert_eq!((breaker.opened_at, breaker.held_jobs), (breaker.outage_since, 1));
    let last = breaker.transitions.last().unwrap();
    assert_eq!((last.state(), last.reason.as_str()), (pb::BreakerState::Open, "ConnectionRefused"));
    let settings = breaker.settings.unwrap();
    assert_eq!((settings.failure_threshold, settings.recovery_timeout), (5, time(10, 0)));
    assert_eq!((settings.first_probe, settings.outage_grace, settings.ramp), (time(1, 0), time(86_400, 0), true));
    assert_eq!((settings.half_open_max_calls, settings.success_threshold), (1, 1));
    assert!(!settings.disabled);
    let queues = server.list_queues().await;
    assert_eq!(queues[0].breaker(), pb::BreakerState::Open);
    let waiting = server.get_job("spare").await.unwrap().waiting_because;
    assert!(waiting.starts_with("the queue's breaker is open until 2027-01-15T08:00:0"), "{waiting}");
    assert!(waiting.ends_with("after ConnectionRefused"), "{waiting}");
}

#[tokio::test]
async fn a_probe_is_marked_and_its_ack_lets_the_queue_recover() {
    let server = Server::start().await;
    server.trip().await;
    server.enqueue(job_of("q", "other")).await.unwrap();
    server.pass_to_probe().await;
    let breaker = server.breaker("queue:q").await.unwrap();
    assert_eq!((breaker.state(), breaker.probe_at), (pb::BreakerState::HalfOpen, None));
    let probe = server.take("q").await;
    let shown = server.get_job(&probe.job_id).await.unwrap();
    assert!(shown.attempts.last().unwrap().probe);
    assert_eq!(server.breaker("queue:q").await.unwrap().probes_in_flight, 1);
    let idle = server.claim(claim("q")).await.unwrap().idle.remove(0);
    assert_eq!((idle.reason(), idle.retry_after), (pb::IdleReason::Limited, time(10, 0)));
    let waits = if probe.job_id == "spare" { "j0" } else { "spare" };
    server.pass(Duration::from_millis(1)).await;
    let waiting = server.get_job(waits).await.unwrap().waiting_because;
    assert!(waiting.starts_with("the queue's breaker is half open"), "{waiting}");
    server.pass(Duration::from_millis(20)).await;
    server.ack(&probe.lease).await.unwrap();
    let breaker = server.breaker("queue:q").await.unwrap();
    assert_eq!((breaker.state(), breaker.opened_at), (pb::BreakerState::Recovering, None));
    assert!(breaker.outage_since.is_some() && breaker.load > 0.0 && breaker.load_per_second > 0.0, "{breaker:?}");
    let rest = || pb::ClaimRequest { max_jobs: 10, ..claim("q") };
    let first = server.claim(rest()).await.unwrap().jobs;
    assert_eq!(first.len(), 1, "the backlog is not let out at once");
    let idle = server.claim(rest()).await.unwrap().idle.remove(0);
    assert_eq!(idle.reason(), pb::IdleReason::Limited);
    let waiting = server.list_queues().await;
    assert_eq!(waiting[0].breaker(), pb::BreakerState::Recovering);
    // Each that succeeds lets the next one out, and in the end it is closed.
    server.ack(&first[0].lease).await.unwrap();
    let mut done = 2;
    for _ in 0..200 {
        server.pass(Duration::from_millis(100)).await;
        for job in server.claim(rest()).await.unwrap().jobs {
            server.ack(&job.lease).await.unwrap();
            done += 1;
        }
    }
    assert_eq!(done, 7);
    assert_eq!(server.breaker("queue:q").await.unwrap().state(), pb::BreakerState::Closed);
}

#[tokio::test]
async fn a_probe_that_fails_is_not_counted_and_never_the_last_attempt() {
    let server = Server::start().await;
    let one_shot = pb::RetryPolicy { max_retries: Some(0), ..Default::default() };
    let urgent = pb::EnqueueRequest {
        priority: 1,
        start: after(time(2, 0)),
        retry_policy: Some(one_shot),
        ..job_of("q", "one-shot")
    };
    server.enqueue(urgent).await.unwrap();
    server.trip().await;
    server.pass(Duration::from_secs(2)).await;
    let probe = server.take("q").await;
    assert_eq!((probe.job_id.as_str(), probe.is_last_attempt), ("one-shot", false));
    let answer = server.nack(nack(&probe.lease, "ConnectionRefused")).await.unwrap();
    assert_eq!(answer.outcome(), pb::NackOutcome::RetryScheduled);
    assert_eq!((answer.attempt_counted, answer.retries_left), (false, 0));
    assert_eq!(answer.queue_breaker(), pb::BreakerState::Open);
    let info = server.get_job("one-shot").await.unwrap();
    assert_eq!(info.uncounted_failures, 1);
    assert!(info.attempts[0].probe && !info.attempts[0].counted);
}

/// A waiter gets the probe by the clock, not by polling.
#[tokio::test]
async fn a_waiting_worker_gets_the_probe_when_its_time_comes() {
    let mut queue = steady(Duration::from_secs(10));
    let hold = Matcher { error_type: Some(Glob::new("E")), ..Matcher::default() };
    queue.rules = vec![ErrorRule::at(0, hold, Then::Hold)];
    queue.breaker.recovery_timeout = Duration::from_millis(150);
    let setup = Setup { defaults: queue, real_time: true, ..Setup::default() };
    let server = Server::with(setup).await;
    server.enqueue(job_of("q", "first")).await.unwrap();
    let lease = server.take("q").await.lease;
    server.enqueue(pb::EnqueueRequest { priority: 1, ..job_of("q", "second") }).await.unwrap();
    let answer = server.nack(nack(&lease, "E")).await.unwrap();
    assert_eq!(answer.queue_breaker(), pb::BreakerState::Open);
    let probe = server.claim(waiting("q")).await.unwrap().jobs.remove(0);
    assert_eq!(probe.job_id, "second");
    // And the next one waits for the probe's outcome.
    server.enqueue(pb::EnqueueRequest { priority: 1, ..job_of("q", "third") }).await.unwrap();
    let (next, acked) = tokio::join!(server.claim(waiting("q")), server.ack(&probe.lease));
    acked.unwrap();
    assert_eq!(next.unwrap().jobs[0].job_id, "third");
}

#[tokio::test]
async fn one_429_closes_the_tap_for_all_for_the_time_asked() {
    let http_status = Some(StatusPattern::parse("429").unwrap());
    let rule = ErrorRule::at(0, Matcher { http_status, ..Matcher::default() }, Then::Hold);
    let queue = QueueSettings { rules: vec![rule], ..QueueSettings::default() };
    let server = Server::with(Setup { defaults: queue, ..Setup::default() }).await;
    for id in ["first", "second"] {
        server.enqueue(job_of("q", id)).await.unwrap();
    }
    let lease = server.take("q").await.lease;
    let error = pb::Failure { http_status: 429, ..crate::server::error("TooManyRequests") };
    let told = pb::NackRequest { retry_after: time(17, 0), error: Some(error), ..nack(&lease, "") };
    let answer = server.nack(told).await.unwrap();
    assert_eq!(answer.outcome(), pb::NackOutcome::Released);
    assert_eq!((answer.attempt_counted, answer.rule.as_str()), (false, "rules[0]: http_status=429"));
    assert_eq!(answer.queue_breaker(), pb::BreakerState::Open);
    let held = "the queue is held until 2027-01-15T08:00:17Z; released behind its priority level";
    assert_eq!(answer.explanation, held);
    let idle = server.claim(claim("q")).await.unwrap().idle.remove(0);
    assert_eq!((idle.reason(), idle.retry_after), (pb::IdleReason::BreakerOpen, time(17, 0)));
    server.pass(Duration::from_millis(16_999)).await;
    assert!(server.claim(claim("q")).await.unwrap().jobs.is_empty());
    server.pass(Duration::from_millis(1)).await;
    let probe = server.take("q").await;
    server.ack(&probe.lease).await.unwrap();
    server.take("q").await;
}

#[tokio::test]
async fn an_operator_forces_a_breaker_and_lets_it_go() {
    let server = Server::start().await;
    server.enqueue(job_of("q", "x")).await.unwrap();
    let open = server.set_breaker("queue:q", pb::BreakerState::Open, "database move").await.unwrap();
    assert_eq!((open.state(), open.forced), (pb::BreakerState::Open, true));
    assert_eq!((open.forced_reason.as_str(), open.probe_at), ("database move", None));
    server.pass(Duration::from_secs(3_600)).await;
    let idle = server.claim(claim("q")).await.unwrap().idle.remove(0);
    assert_eq!((idle.reason(), idle.retry_after), (pb::IdleReason::BreakerOpen, None));
    let waiting = server.get_job("x").await.unwrap().waiting_because;
    assert_eq!(waiting, "the queue's breaker is forced open until it is reset: database move");
    let closed = server.set_breaker("queue:q", pb::BreakerState::Closed, "").await.unwrap();
    assert_eq!((closed.state(), closed.forced), (pb::BreakerState::Closed, true));
    let lease = server.take("q").await.lease;
    server.nack(nack(&lease, "E")).await.unwrap();
    let reset = server.reset_breaker("queue:q").await.unwrap();
    assert_eq!((reset.state(), reset.forced), (pb::BreakerState::Closed, false));
    assert_eq!((reset.failure_count, reset.trips, reset.last_error.as_str()), (0, 0, ""));
}

#[tokio::test]
async fn a_reset_wakes_the_waiters() {
    let server = Server::start().await;
    server.trip().await;
    let held = server.service.queues().host().looks();
    let waits = server.claim(waiting("q"));
    let resets = async {
        server.service.queues().host().looked(held + 1).await;
        server.reset_breaker("queue:q").await
    };
    let (claimed, reset) = tokio::join!(waits, resets);
    reset.unwrap();
    assert_eq!(claimed.unwrap().jobs[0].job_id, "spare");
}

#[tokio::test]
async fn every_queue_has_two_breakers_and_pages_list_them_all() {
    let queues = vec![("b", QueueSettings::default())];
    let server = Server::with(Setup { queues, ..Setup::default() }).await;
    for name in ["a", "c"] {
        server.enqueue(job(name)).await.unwrap();
    }
    let all = ["queue:a", "dlq:a", "queue:b", "dlq:b", "queue:c", "dlq:c"];
    for page_size in 1..=7 {
        let (mut names, mut page_token) = (Vec::new(), String::new());
        loop {
            let request = pb::BreakerStatusRequest { name: String::new(), page_size, page_token };
            let page = inner(server.queue().breaker_status(request).await).unwrap();
            assert!(page.breakers.len() <= page_size as usize);
            names.extend(page.breakers.into_iter().map(|breaker| breaker.name));
            page_token = page.next_page_token;
            if page_token.is_empty() {
                break;
            }
        }
        assert_eq!(names, all, "pages of {page_size}");
    }
    // One that is only configured can be looked at and set.
    assert_eq!(server.breaker("dlq:b").await.unwrap().state(), pb::BreakerState::Closed);
    server.set_breaker("queue:b", pb::BreakerState::Open, "").await.unwrap();
    assert_eq!(server.breaker("queue:b").await.unwrap().state(), pb::BreakerState::Open);
}

#[tokio::test]
async fn bad_calls_are_refused_and_change_nothing() {
    let scene = Scene::set().await;
    let server = &scene.server;
    for name in ["queue:nowhere", "dlq:nowhere", "q", "queue:", "dlq:overflow:q", "tcp:q"] {
        let (code, reason) = (Code::NotFound, "BREAKER_NOT_FOUND");
        let status = scene.refuses(server.breaker(name), code, reason, &[]).await;
        assert!(status.message().contains(name), "{}", status.message());
        let open = pb::BreakerState::Open;
        scene.refuses(server.set_breaker(name, open, ""), code, reason, &[]).await;
        scene.refuses(server.reset_breaker(name), code, reason, &[]).await;
    }
    let half_open = server.set_breaker("queue:q", pb::BreakerState::HalfOpen, "").await;
    assert_refused(&half_open.unwrap_err(), Code::InvalidArgument, "INVALID_FIELD", &["state"]);
    let long = "x".repeat(1_025);
    let unnamed = server.set_breaker("", pb::BreakerState::Unspecified, &long).await;
    let fields = ["name", "state", "reason"];
    assert_refused(&unnamed.unwrap_err(), Code::InvalidArgument, "INVALID_FIELD", &fields);
    let unnamed = server.reset_breaker("").await;
    assert_refused(&unnamed.unwrap_err(), Code::InvalidArgument, "INVALID_FIELD", &["name"]);
    let queues = pb::ListQueuesRequest { page_size: 1, ..Default::default() };
    let token = inner(server.admin().list_queues(queues).await).unwrap().next_page_token;
    for page_token in ["nonsense".to_owned(), token] {
        let request = pb::BreakerStatusRequest { page_token, ..Default::default() };
        let page = inner(server.queue().breaker_status(request).await);
        assert_refused(&page.unwrap_err(), Code::InvalidArgument, "INVALID_FIELD", &["page_token"]);
    }
}

#[tokio::test]
async fn a_full_dead_letter_queue_loses_nothing_and_recovers_when_there_is_room() {
    let mut queue = QueueSettings::default();
    queue.dead_letters.max_entries = 10;
    let server = Server::with(unguarded(queue)).await;
    for number in 0..30 {
        server.dead_letter("q", &format!("j{number}"), crate::server::error("E")).await;
    }
    let breaker = server.breaker("dlq:q").await.unwrap();
    assert_eq!((breaker.state(), breaker.trips), (pb::BreakerState::Open, 1));
    let request = pb::ListDeadLettersRequest { queue: "q".into(), ..Default::default() };
    let page = inner(server.queue().list_dead_letters(request).await).unwrap();
    let overflow = page.dead_letters.iter().filter(|letter| letter.overflow).count();
    assert_eq!((page.dead_letters.len(), overflow), (30, 20));
    assert_eq!(page.dead_letters[29].context.unwrap().dlq_breaker(), pb::BreakerState::Open);
    let all = pb::RequeueRequest { queue: "dlq:q".into(), selector: by_all(), ..Default::default() };
    assert_eq!(server.requeue(all).await.unwrap().requeued, 30);
    let breaker = server.breaker("dlq:q").await.unwrap();
    assert_eq!(breaker.state(), pb::BreakerState::Closed);
    let everything = pb::ClaimRequest { max_jobs: 100, ..claim("q") };
    assert_eq!(server.claim(everything).await.unwrap().jobs.len(), 30);
}
