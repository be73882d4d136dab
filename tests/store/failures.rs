//! What failed deliveries lead to: retries, dead letters, releases.

use crate::builders::*;
use redrive::domain::{
    AttemptStatus, DeadReason, ErrorRule, Failure, Glob, Jitter, Matcher, Next, PolicyOverride, QueueSettings, State,
    StatusPattern, Strategy, Then,
};
use redrive::queue::IdleReason;
use std::time::Duration;

fn rule(error_type: &str, then: Then) -> ErrorRule {
    let matcher = Matcher { error_type: Some(Glob::new(error_type)), ..Matcher::default() };
    ErrorRule::at(0, matcher, then)
}

store_test! {
    async fn retries_come_when_the_policy_says_and_not_a_millisecond_before(h) {
        h.set(without_jitter);
        let id = h.enqueue(job("q")).await;
        for (attempt, delay) in [(1, 1), (2, 2), (3, 4)] {
            let delivered = h.claim("q").await;
            assert_eq!(delivered.delivery.attempt, attempt);
            let ended = h.nack(delivered.delivery.lease, failed("Timeout")).await.unwrap();
            let at = h.now().after(seconds(delay));
            assert_eq!((ended.next, ended.delay), (Next::Later { at }, Some(seconds(delay))));
            assert_eq!((ended.number, ended.retries_left, ended.counted), (attempt, 4 - attempt, true));
            let view = h.view(&id).await;
            assert_eq!((view.state, view.ready_at), (State::Retrying, Some(at)));
            h.advance(seconds(delay) - MILLISECOND);
            h.sweep().await;
            let idle = h.idle("q").await;
            assert_eq!((idle.reason, idle.until), (IdleReason::NotDue, Some(at)));
            h.advance(MILLISECOND);
        }
        let last = h.claim("q").await;
        let ended = h.nack(last.delivery.lease, failed("Timeout")).await.unwrap();
        assert_eq!(ended.next, Next::DeadLetter(DeadReason::Exhausted));
        assert_eq!((ended.retries_left, ended.delay), (0, None));
        let view = h.view(&id).await;
        assert_eq!(view.death.unwrap().reason, DeadReason::Exhausted);
        let numbers: Vec<_> = view.attempts.iter().map(|attempt| attempt.number).collect();
        assert_eq!(numbers, [1, 2, 3, 4]);
        let totals = h.queue("q").await.unwrap().totals;
        assert_eq!((totals.failed_attempts, totals.retries, totals.dead_lettered), (4, 3, 1));
        assert_eq!((totals.retried_finished, totals.successful_retries), (1, 0));
    }
}

store_test! {
    async fn jitter_comes_from_the_calls_seed(h) {
        for _ in 0..20 {
            h.enqueue(job("q")).await;
            let lease = h.claim("q").await.delivery.lease;
            let delay = h.nack(lease, failed("E")).await.unwrap().delay.unwrap();
            assert!((SECOND..=SECOND * 5 / 4).contains(&delay), "{delay:?}");
            h.advance(HOUR);
            let lease = h.claim("q").await.delivery.lease;
            h.ack(lease).await.unwrap();
        }
    }
}

store_test! {
    async fn a_one_shot_job_dies_with_its_first_failure(h) {
        h.enqueue(job("q").retries(0)).await;
        let lease = h.claim("q").await.delivery.lease;
        let ended = h.nack(lease, failed("Timeout")).await.unwrap();
        assert_eq!(ended.next, Next::DeadLetter(DeadReason::Exhausted));
    }
}

store_test! {
    async fn a_retry_without_delay_is_ready_at_once(h) {
        h.set(|queue| {
            queue.policy.jitter = Jitter::Full;
            queue.policy.base_delay = Duration::ZERO;
            queue.policy.strategy = Strategy::Fixed;
        });
        h.enqueue(job("q")).await;
        let lease = h.claim("q").await.delivery.lease;
        let ended = h.nack(lease, failed("E")).await.unwrap();
        assert_eq!(ended.next, Next::Later { at: h.now() });
        assert_eq!(h.depths("q").await.ready, 1);
        assert_eq!(h.claim("q").await.delivery.attempt, 2);
    }
}

store_test! {
    async fn a_permanent_failure_kills_whatever_the_rules_say(h) {
        h.set(|queue| queue.rules = vec![rule("*", Then::Release)]);
        let id = h.dead_letter(job("q")).await;
        assert_eq!(h.view(&id).await.death.unwrap().reason, DeadReason::NonRetryable);
    }
}

store_test! {
    async fn an_error_rule_sends_to_the_dead_letters(h) {
        h.enqueue(job("q")).await;
        let lease = h.claim("q").await.delivery.lease;
        let ended = h.nack(lease, failed("ValidationError")).await.unwrap();
        assert_eq!(ended.next, Next::DeadLetter(DeadReason::NonRetryable));
        assert_eq!(ended.rule, "default: ValidationError");
    }
}

store_test! {
    async fn an_error_rule_releases(h) {
        h.set(|queue| queue.rules = vec![rule("Busy*", Then::Release)]);
        h.enqueue(job("q").retries(0)).await;
        let lease = h.claim("q").await.delivery.lease;
        let ended = h.nack(lease, failed("BusyNow")).await.unwrap();
        assert_eq!((ended.status, ended.counted), (AttemptStatus::Released, false));
        assert_eq!(h.claim("q").await.delivery.attempt, 1);
    }
}

store_test! {
    async fn an_error_rule_has_a_policy_of_its_own(h) {
        let policy = PolicyOverride {
            max_retries: Some(9),
            base_delay: Some(seconds(7)),
            jitter: Some(Jitter::None),
            ..PolicyOverride::default()
        };
        h.set(|queue: &mut QueueSettings| {
            let matcher = Matcher {
                http_status: Some(StatusPattern::Class(5)),
                ..Matcher::default()
            };
            queue.rules = vec![ErrorRule::at(0, matcher, Then::Policy(policy))];
        });
        h.enqueue(job("q")).await;
        let lease = h.claim("q").await.delivery.lease;
        let failure = Failure { http_status: 503, ..Failure::new("Http", "unavailable") };
        let ended = h.nack(lease, failed_with(failure)).await.unwrap();
        assert_eq!((ended.delay, ended.retries_left), (Some(seconds(7)), 9));
    }
}

store_test! {
    async fn retry_after_moves_a_retry_back_but_never_forward(h) {
        h.set(without_jitter);
        h.enqueue_all(vec![job("q"); 3]).await;
        let jobs = h.claim_many("q", 3).await;
        let delay = async |at: usize, asked| {
            let lease = jobs[at].delivery.lease.clone();
            h.nack(lease, failed_retry_after(asked)).await.unwrap().delay.unwrap()
        };
        let minute = delay(0, seconds(60)).await;
        assert!((seconds(60)..=seconds(66)).contains(&minute), "{minute:?}");
        assert_eq!(delay(1, MILLISECOND).await, SECOND);
        let cut = delay(2, 48 * HOUR).await;
        assert!((HOUR..=HOUR * 11 / 10).contains(&cut), "{cut:?}");
    }
}

store_test! {
    async fn a_release_with_a_time_comes_back_then(h) {
        h.enqueue(job("q")).await;
        let lease = h.claim("q").await.delivery.lease;
        let outcome = redrive::domain::Outcome::Released { retry_after: Some(seconds(5)), keep_position: false };
        let ended = h.nack(lease, outcome).await.unwrap();
        assert_eq!(ended.next, Next::Later { at: h.now().after(seconds(5)) });
        h.advance(seconds(5) - MILLISECOND);
        assert_eq!(h.idle("q").await.reason, IdleReason::NotDue);
        h.advance(MILLISECOND);
        assert_eq!(h.claim("q").await.delivery.attempt, 1);
    }
}

store_test! {
    async fn the_hundred_and_first_release_is_a_failure(h) {
        h.set(without_jitter);
        h.enqueue(job("q")).await;
        for _ in 0..100 {
            let delivered = h.claim("q").await;
            assert_eq!(delivered.delivery.attempt, 1);
            let ended = h.nack(delivered.delivery.lease, released()).await.unwrap();
            assert_eq!(ended.status, AttemptStatus::Released);
        }
        let lease = h.claim("q").await.delivery.lease;
        let ended = h.nack(lease, released()).await.unwrap();
        assert_eq!((ended.status, ended.counted), (AttemptStatus::Failed, true));
        assert_eq!(ended.failure.unwrap().error_type, "ReleaseLimit");
        assert_eq!(ended.next, Next::Later { at: h.now().after(SECOND) });
    }
}

store_test! {
    async fn an_expired_lease_is_a_failed_attempt(h) {
        h.set(without_jitter);
        let id = h.enqueue(job("q")).await;
        h.claim("q").await;
        h.advance(seconds(30) - MILLISECOND);
        assert!(h.sweep().await.expired.is_empty());
        h.advance(MILLISECOND);
        let swept = h.sweep().await;
        assert_eq!(swept.expired.len(), 1);
        let attempt = &swept.expired[0].attempt;
        assert_eq!((attempt.status, attempt.counted), (AttemptStatus::LeaseExpired, true));
        assert_eq!(attempt.failure.as_ref().unwrap().error_type, "LeaseExpired");
        assert_eq!(attempt.next, Next::Later { at: h.now().after(SECOND) });
        assert_eq!((&swept.expired[0].id, swept.expired[0].queue.as_str()), (&id, "q"));
        assert_eq!(h.queue("q").await.unwrap().totals.lease_expired, 1);
        h.advance(SECOND);
        assert_eq!(h.claim("q").await.delivery.attempt, 2);
    }
}

store_test! {
    async fn a_job_whose_workers_all_vanish_reaches_the_dead_letters(h) {
        h.set(without_jitter);
        h.enqueue(job("q").retries(1)).await;
        for _ in 0..2 {
            h.claim("q").await;
            h.advance(HOUR);
            h.sweep().await;
            h.advance(HOUR);
        }
        let dead = h.dead("q").await;
        assert_eq!(dead[0].death.as_ref().unwrap().reason, DeadReason::Exhausted);
        assert_eq!(dead[0].last_failure.as_ref().unwrap().error_type, "LeaseExpired");
    }
}

store_test! {
    async fn many_leases_expire_in_as_many_sweeps_as_it_takes(h) {
        h.enqueue_all(vec![job("q").retries(0); 1_200]).await;
        h.claim_many("q", 1_200).await;
        h.advance(HOUR);
        let swept = h.sweep().await;
        assert_eq!((swept.expired.len(), h.recorded.take_died().len()), (1_200, 1_200));
        assert_eq!(h.depths("q").await.dead, 1_200);
    }
}

store_test! {
    async fn a_job_that_waits_past_its_deadline_dies(h) {
        let ready = h.enqueue(job("q").expires(seconds(10))).await;
        let scheduled = h.enqueue(job("q").delay(HOUR).expires(seconds(10))).await;
        h.advance(seconds(10) - MILLISECOND);
        h.sweep().await;
        assert!(h.recorded.take_died().is_empty());
        h.advance(MILLISECOND);
        h.sweep().await;
        assert_eq!(h.recorded.take_died().len(), 2);
        for id in [ready, scheduled] {
            let death = h.view(&id).await.death.unwrap();
            assert_eq!((death.reason, death.died_at), (DeadReason::Expired, h.now()));
        }
        assert_eq!((h.depths("q").await.dead, h.sweep().await.next), (2, None));
    }
}

store_test! {
    async fn a_deadline_does_not_touch_a_job_that_runs(h) {
        h.enqueue(job("q").expires(seconds(10))).await;
        let lease = h.claim("q").await.delivery.lease;
        h.advance(seconds(20));
        h.sweep().await;
        assert!(h.recorded.take_died().is_empty());
        assert!(h.ack(lease).await.is_ok());
    }
}

store_test! {
    async fn a_retry_that_would_miss_the_deadline_is_not_made(h) {
        h.set(without_jitter);
        h.enqueue(job("q").expires(SECOND)).await;
        h.enqueue(job("q").expires(SECOND + MILLISECOND)).await;
        h.enqueue(job("q").expires(SECOND)).await;
        let jobs = h.claim_many("q", 3).await;
        let ended = h.nack(jobs[0].delivery.lease.clone(), failed("Timeout")).await.unwrap();
        assert_eq!(ended.next, Next::DeadLetter(DeadReason::WouldMissDeadline));
        let ended = h.nack(jobs[1].delivery.lease.clone(), failed("Timeout")).await.unwrap();
        assert_eq!(ended.next, Next::Later { at: h.now().after(SECOND) });
        h.advance(seconds(2));
        let ended = h.nack(jobs[2].delivery.lease.clone(), failed("Timeout")).await.unwrap();
        assert_eq!(ended.next, Next::DeadLetter(DeadReason::Expired));
    }
}

store_test! {
    async fn a_dead_notice_says_what_the_log_needs(h) {
        h.enqueue(job("q").retries(0)).await;
        let lease = h.claim("q").await.delivery.lease;
        let nack = redrive::queue::Nack { lease, outcome: failed("Timeout"), checkpoint: String::new() };
        h.settle(redrive::queue::Settlements { nacks: vec![nack], ..Default::default() }).await;
        let notice = &h.recorded.take_died()[0];
        assert_eq!((notice.queue.as_str(), notice.job_type.as_str()), ("q", "mail"));
        assert_eq!((notice.reason, notice.attempts), (DeadReason::Exhausted, 1));
        assert_eq!((notice.error_type.as_str(), notice.overflow), ("Timeout", false));
    }
}
