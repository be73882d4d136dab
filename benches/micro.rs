//! Micro-benchmarks of the hot functions and of the verbs on SQLite, without fsync.
//!
//!     cargo bench --bench micro
//!
//! Times, and so as noisy as the machine. What must not get worse unseen is counted in instructions: script/bench-check.

mod subjects;

use divan::{Bencher, black_box};
use redrive::{domain::Preset, queue::measured};
use std::time::Duration;
use subjects::Subject;

fn main() {
    divan::main();
}

#[divan::bench]
fn decide() {
    black_box(subjects::decided());
}

#[divan::bench]
fn backoff(bencher: Bencher) {
    let policy = Preset::Standard.policy();
    let last = Some(Duration::from_secs(2));
    bencher.bench_local(|| black_box(&policy).backoff(black_box(3), last, black_box(0.4)));
}

#[divan::bench]
fn write_job(bencher: Bencher) {
    let spec = subjects::spec();
    bencher.bench_local(|| measured::write_job(black_box(&spec)));
}

#[divan::bench]
fn read_job(bencher: Bencher) {
    let record = measured::write_job(&subjects::spec());
    bencher.bench_local(|| measured::read_job(black_box(&record)).expect("it is whole"));
}

/// A store with a thousand jobs, and room for what the benchmark takes out.
fn with_store(bencher: Bencher, batch: usize, mut work: impl FnMut(&mut Subject)) {
    let directory = tempfile::tempdir().expect("there is room for a directory");
    let mut subject = Subject::open(directory.path());
    subject.enqueue(1_000);
    bencher.counter(divan::counter::ItemsCount::new(batch)).bench_local(|| work(&mut subject));
    subject.close();
}

#[divan::bench(args = [1, 100])]
fn enqueue(bencher: Bencher, batch: usize) {
    with_store(bencher, batch, |subject| subject.enqueue(batch));
}

/// Enqueue, claim and ack: the depth stays.
#[divan::bench(args = [1, 100])]
fn life(bencher: Bencher, batch: usize) {
    with_store(bencher, batch, |subject| {
        subject.enqueue(batch);
        let leases = subject.claim(batch);
        subject.ack(leases);
    });
}

/// Enqueue, claim and nack: the retries pile up.
#[divan::bench(args = [1, 100])]
fn failed_attempt(bencher: Bencher, batch: usize) {
    with_store(bencher, batch, |subject| {
        subject.enqueue(batch);
        let leases = subject.claim(batch);
        subject.nack(leases);
    });
}
