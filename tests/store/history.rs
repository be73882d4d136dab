//! What is remembered of a job's attempts.

use crate::{builders::*, engines::Engine, harness::Harness};
use redrive::domain::{Attempt, AttemptStatus, Failure, Outcome};

/// One delivery that ends like this, as soon as the job can be had.
async fn attempt<S: Engine>(h: &Harness<S>, outcome: Outcome) -> Attempt {
    h.advance(HOUR);
    let lease = h.claim("q").await.delivery.lease;
    h.nack(lease, outcome).await.unwrap()
}

fn long(letter: &str) -> Failure {
    Failure {
        stack_trace: letter.repeat(5_000),
        response_body: letter.repeat(3_000),
        details: "{}".into(),
        http_status: 500,
        ..Failure::new("Long", letter.repeat(5_000))
    }
}

store_test! {
    async fn the_first_ten_and_the_last_forty_attempts_are_kept(h) {
        h.set(|queue| queue.breaker.disabled = true);
        let id = h.enqueue(job("q").retries(1_000)).await;
        for _ in 0..60 {
            attempt(&h, failed("Timeout")).await;
        }
        let view = h.view(&id).await;
        let kept: Vec<u32> = view.attempts.iter().map(|attempt| attempt.number).collect();
        let expected: Vec<u32> = (1..=10).chain(21..=60).collect();
        assert_eq!(kept, expected);
        assert_eq!(view.progress.recorded, 60);
    }
}

store_test! {
    async fn fifty_attempts_are_all_kept(h) {
        let id = h.enqueue(job("q").retries(1_000)).await;
        for _ in 0..50 {
            attempt(&h, failed("Timeout")).await;
        }
        assert_eq!(h.view(&id).await.attempts.len(), 50);
    }
}

store_test! {
    async fn first_and_last_failure_are_whole_and_those_between_are_cut(h) {
        let id = h.enqueue(job("q").retries(10)).await;
        for letter in ["a", "b", "c"] {
            attempt(&h, failed_with(long(letter))).await;
        }
        let view = h.view(&id).await;
        let failures: Vec<_> = view.attempts.iter().map(|a| a.failure.clone().unwrap()).collect();
        for (at, letter) in [(0, "a"), (2, "c")] {
            assert_eq!(failures[at].message, letter.repeat(4_096));
            assert_eq!(failures[at].stack_trace, letter.repeat(4_096));
            assert_eq!(failures[at].response_body, letter.repeat(2_048));
            assert_eq!(failures[at].details, "{}");
            assert!(failures[at].truncated);
        }
        assert_eq!(failures[1].message, "b".repeat(512));
        assert_eq!((failures[1].stack_trace.as_str(), failures[1].http_status), ("", 500));
        assert!(failures[1].truncated);
        assert_eq!(view.last_failure.unwrap(), failures[2]);
    }
}

store_test! {
    async fn a_single_failure_is_first_and_last(h) {
        let id = h.enqueue(job("q")).await;
        attempt(&h, failed_with(long("a"))).await;
        let view = h.view(&id).await;
        assert_eq!(view.attempts[0].failure, view.last_failure);
        assert_eq!(view.last_failure.unwrap().message.len(), 4_096);
    }
}

store_test! {
    /// The first failure is neither among the first ten attempts nor among the last forty.
    async fn a_failure_is_shown_with_its_own_attempt_only(h) {
        let id = h.enqueue(job("q").retries(10)).await;
        for _ in 0..15 {
            attempt(&h, released()).await;
        }
        attempt(&h, failed_with(long("a"))).await;
        for _ in 0..50 {
            attempt(&h, released()).await;
        }
        attempt(&h, failed_with(long("b"))).await;
        let view = h.view(&id).await;
        assert_eq!(view.attempts.len(), 50);
        let failures: Vec<_> = view.attempts.iter().filter_map(|a| a.failure.as_ref()).collect();
        assert_eq!(failures.len(), 1);
        assert_eq!(failures[0].message, "b".repeat(4_096));
        assert_eq!(view.last_failure.as_ref(), Some(failures[0]));
    }
}

store_test! {
    async fn an_attempt_says_who_when_and_why(h) {
        h.set(without_jitter);
        let id = h.enqueue(job("q")).await;
        let delivery = h.claim("q").await.delivery;
        h.advance(seconds(3));
        let ended = h.nack(delivery.lease.clone(), failed("Timeout")).await.unwrap();
        let kept = h.view(&id).await.attempts.remove(0);
        assert_eq!(kept, ended);
        assert_eq!(kept.worker_id, "worker");
        assert_eq!((kept.delivery, kept.nonce), (delivery.lease.delivery, delivery.lease.nonce));
        assert_eq!((kept.started_at, kept.ended_at), (delivery.started_at, h.now()));
        assert_eq!((kept.delay, kept.status), (Some(SECOND), AttemptStatus::Failed));
        assert!(!kept.explanation.is_empty());
    }
}

store_test! {
    async fn failures_are_dated(h) {
        let id = h.enqueue(job("q")).await;
        attempt(&h, released()).await;
        assert_eq!(h.view(&id).await.progress.first_failed_at, None);
        attempt(&h, failed("Timeout")).await;
        let first = h.now();
        attempt(&h, failed("Timeout")).await;
        let progress = h.view(&id).await.progress;
        assert_eq!((progress.first_failed_at, progress.last_failed_at), (Some(first), Some(h.now())));
    }
}

store_test! {
    async fn history_survives_death_requeue_and_restart(h) {
        let id = h.enqueue(job("q").retries(1)).await;
        attempt(&h, failed("One")).await;
        attempt(&h, failed("Two")).await;
        h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        h.reopen().await;
        attempt(&h, failed("Three")).await;
        let view = h.view(&id).await;
        let story: Vec<_> = view.attempts.iter()
            .map(|a| (a.number, a.failure.as_ref().unwrap().error_type.clone()))
            .collect();
        assert_eq!(story, [(1, "One".into()), (2, "Two".into()), (1, "Three".into())]);
    }
}
