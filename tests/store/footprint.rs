//! What a backlog costs in Redis: memory for each job, and nothing in time.
//!
//! `cargo bench --bench redis_million` says the same of a million jobs, and is stricter about time: here others use the
//! machine.

use crate::backlog::{BYTES_PER_JOB, Backlog};

const JOBS: usize = 100_000;
/// Of a thousand calls. A script takes far less than 5 ms, but time that other processes take from Redis counts, too.
const SLOW_MAX: f64 = 50.0;

#[test]
fn a_waiting_job_takes_little_memory_and_a_long_line_no_more_steps() {
    crate::harness::runtime().block_on(async {
        let mut backlog = Backlog::open().await;
        backlog.grow(1_000).await;
        // A first round is not measured: it loads scripts and fills caches.
        backlog.commands_of_one_round().await;
        let short = backlog.commands_of_one_round().await;
        let before = backlog.used_memory();
        backlog.grow(JOBS).await;
        let bytes = (backlog.used_memory() - before) / JOBS;
        println!("{bytes} bytes for each of {JOBS} waiting jobs");
        assert!(bytes <= BYTES_PER_JOB, "{bytes} bytes");
        // The first enqueue takes new numbers, for a thousand jobs.
        backlog.commands_of_one_round().await;
        let long = backlog.commands_of_one_round().await;
        println!("commands for an enqueue, a claim of ten and a dead-lettering: {long:?}");
        assert_eq!(short, long);
        let calls = backlog.calls();
        println!("{calls:?}");
        assert!(calls.slow_of_1000() <= SLOW_MAX, "{calls:?}");
    });
}
