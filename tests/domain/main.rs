//! The decisions of `domain`, each from its facts alone: no store, no clock, no server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

mod admission;
mod backoff;
mod breaker;
mod breaker_days;
mod breaker_probes;
mod breaker_recovery;
mod category;
mod clock;
mod dead_filter;
mod dead_letter_breaker;
mod duration;
mod errors_by_language;
mod failure;
mod glob;
mod ids;
mod job;
mod lease;
mod outage;
mod outcome_stats;
mod policy;
mod presets;
mod retry_decision;
mod rules;
mod sameness;
mod settings;
mod time;

use redrive::domain::{Delivery, Glob, Lease, Matcher, QueueName, Timestamp};
use std::time::Duration;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn on_type(pattern: &str) -> Matcher {
    Matcher { error_type: Some(Glob::new(pattern)), ..Matcher::default() }
}

fn lease(delivery: u32, nonce: u64) -> Lease {
    Lease {
        queue: QueueName::parse("emails").unwrap(),
        number: 7,
        delivery,
        nonce,
        flags: 5,
        epoch: 9,
        started_at: Timestamp::from_millis(1_800_000_000_123),
        duration_ms: 30_000,
        own_id: None,
    }
}

fn delivery(attempt: u32) -> Delivery {
    Delivery {
        lease: lease(attempt, 9),
        attempt,
        worker_id: "worker-1".into(),
        started_at: Timestamp::from_millis(990_000),
        expires_at: Timestamp::from_millis(1_020_000),
        duration: secs(30),
        probe: false,
    }
}
