//! Micro-benchmarks of the hot functions and of the embedded store's verbs, without fsync.
//!
//!     cargo bench --bench micro
//!
//! Times, and so as noisy as the machine. What must not get worse unseen is counted in instructions: script/bench-check.

mod subjects;

use divan::{Bencher, black_box};
use redrive::{domain::presets::Preset, store::measured};
use std::time::Duration;
use subjects::Subject;

fn main() {
    divan::main();
}

#[divan::bench]
fn judge() {
    black_box(subjects::judged());
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
    let mut out = Vec::new();
    bencher.bench_local(|| measured::write_job(black_box(&spec), &mut out));
}

#[divan::bench]
fn read_job(bencher: Bencher) {
    let mut head = Vec::new();
    measured::write_job(&subjects::spec(), &mut head);
    let read = || measured::read_job(black_box(&head), subjects::body()).expect("it is whole");
    bencher.bench_local(read);
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
