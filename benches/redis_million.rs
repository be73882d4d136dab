//! What a million waiting jobs cost in Redis: commands for each call, scripts that take over 5 ms, bytes for each job.
//!
//!     cargo bench --bench redis_million
//!
//! Starts a redis-server of its own, and fails beyond the limits. Wants about a gigabyte of memory and an idle machine.

#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on stops")]

#[path = "../tests/store/backlog.rs"]
mod backlog;
#[allow(dead_code, reason = "the suite uses the rest of it")]
#[path = "../tests/store/builders.rs"]
mod builders;
#[allow(dead_code, reason = "the suite uses the rest of it")]
#[path = "../tests/store/recorded_events.rs"]
mod recorded_events;
#[allow(dead_code, reason = "the suite uses the rest of it")]
#[path = "../tests/store/redis_server.rs"]
mod redis_server;

use backlog::{BYTES_PER_JOB, Backlog, Calls};

const FEW: usize = 1_000;
const MANY: usize = 1_000_000;
/// Rounds of calls that are made while a million jobs wait.
const ROUNDS: usize = 2_000;
/// Of a thousand calls.
const SLOW_MAX: f64 = 1.0;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut backlog = Backlog::open().await;
    backlog.grow(FEW).await;
    // A first round is not measured: it loads scripts and fills caches.
    backlog.commands_of_one_round().await;
    let few = backlog.commands_of_one_round().await;
    println!("commands for an enqueue, a claim of ten and a dead-lettering with {FEW} jobs: {few:?}");
    let before = backlog.used_memory();
    backlog.grow(MANY).await;
    let bytes = (backlog.used_memory() - before) / MANY;
    println!("{bytes} bytes for each of {MANY} waiting jobs");
    let growing = backlog.calls();
    tell("while it grew", growing);
    let many = backlog.commands_of_one_round().await;
    println!("commands for an enqueue, a claim of ten and a dead-lettering with {MANY} jobs: {many:?}");
    for _ in 0..ROUNDS {
        backlog.commands_of_one_round().await;
    }
    backlog.grow(ROUNDS * 10).await;
    let all = backlog.calls();
    let at_last = Calls { all: all.all - growing.all, slow: all.slow - growing.slow };
    tell("with all of them waiting", at_last);
    assert!(bytes <= BYTES_PER_JOB, "a job takes more than {BYTES_PER_JOB} bytes");
    assert_eq!(few, many, "a long line takes more commands");
    assert!(at_last.slow_of_1000() <= SLOW_MAX, "too many scripts are slow: {at_last:?}");
    assert!(growing.slow_of_1000() <= SLOW_MAX, "too many scripts are slow: {growing:?}");
}

fn tell(when: &str, calls: Calls) {
    let share = calls.slow_of_1000();
    println!("{} of {} scripts took over 5 ms {when}: {share:.2} of 1,000", calls.slow, calls.all);
}
