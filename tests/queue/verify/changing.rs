//! A store that other calls change meanwhile.

use super::*;
use redrive::domain::{JobId, Lease, NewJob, OnConflict, Outcome, When};
use redrive::queue::{Ack, Claim, Nack, Settlements, Share};
use redrive::queue::{Answer, CallContext, Incoming, QueueMemory, StoreLimits, Verb};
use redrive::store::memory::MemoryStorage;
use std::{sync::Arc, time::Duration};

/// Jobs come in, are delivered, and are done or wait again.
#[derive(Default)]
struct Others {
    leases: Vec<Lease>,
    memory: QueueMemory,
    run: u64,
    steps: u64,
}

impl Others {
    fn step(&mut self, store: &mut MemoryStorage) {
        self.steps += 1;
        assert!(self.steps < 20_000, "a verification has an end");
        let settle = match self.steps % 5 {
            0 => return drop(self.run(store, Verb::Enqueue(vec![Incoming::new(self.job())]))),
            1 | 3 => return self.claim(store),
            2 => |lease| {
                let nack = Nack {
                    lease,
                    outcome: Outcome::Released { retry_after: None, keep_position: false },
                    checkpoint: String::new(),
                };
                Settlements { nacks: vec![nack], ..Settlements::default() }
            },
            _ => |lease| {
                let ack = Ack { lease, note: String::new(), result: Bytes::new(), breaker_key: String::new() };
                Settlements { acks: vec![ack], ..Settlements::default() }
            },
        };
        if let Some(lease) = self.leases.pop() {
            self.run(store, Verb::Settle(settle(lease)));
        }
    }

    fn run(&mut self, store: &mut MemoryStorage, verb: Verb) -> Answer {
        let limits = StoreLimits { queues: 10, leases: 1_000, finished_keys: 1_000 };
        let mut cx = CallContext::new(Arc::default(), self.steps, &self.memory, limits);
        now(redrive::queue::run(store, &mut cx, verb))
    }

    fn job(&self) -> NewJob {
        NewJob {
            queue: queue_name(),
            id: Some(JobId::parse(&format!("new-{}-{}", self.run, self.steps))),
            key: Some(format!("k-{}-{}", self.run, self.steps)),
            job_type: "mail".into(),
            content_type: "text/plain".into(),
            headers: Vec::new(),
            body: Body::Text("body".into()),
            priority: 0,
            start: None,
            expiry: Some(When::After(Duration::from_secs(90))),
            policy: None,
            on_conflict: OnConflict::default(),
            key_ttl: None,
            breaker_key: None,
        }
    }

    fn claim(&mut self, store: &mut MemoryStorage) {
        let claim = Claim {
            shares: vec![Share { queue: queue_name(), first: usize::MAX }],
            max_jobs: 2,
            max_bytes: 1 << 20,
            lease_duration: None,
            worker_id: String::new(),
            request_id: String::new(),
            settle: Settlements::default(),
        };
        let Answer::Claim(Some(claimed)) = self.run(store, Verb::Claim(claim)) else { panic!("no claim") };
        self.leases.extend(claimed.jobs.delivered().into_iter().map(|job| job.delivery.lease));
    }
}

/// The store changes before every read.
fn busy(f: &Fixture, run: u64) -> Hooked {
    let mut others = Others { run, steps: run, ..Others::default() };
    let read = Box::new(move |store: &mut _, queue: &_, reads: &[Read]| {
        others.step(store);
        now(Reads::read(store, queue, reads))
    });
    Hooked { read, ..Hooked::new(&f.store) }
}

#[test]
fn a_store_that_changes_meanwhile_is_clean_and_damage_in_it_is_found() {
    let mut f = everything();
    f.import((0..300).map(|n| ready(&format!("more-{n}"))).collect());
    f.clock.advance(Duration::from_millis(1));
    for run in 0..7 {
        let report = check(&mut busy(&f, run));
        assert!(report.is_clean(), "{:#?}", report.findings);
        let totals = report.queues[0].totals;
        assert!(totals.enqueued > 5 * run && totals.completed > 5 * run, "others were at work: {totals:?}");
    }
    let later = f.number_of("later");
    let position = position(&mut f, Index::Scheduled, "later");
    f.write(vec![Write::Remove(Index::Scheduled, Entry::waiting(position))]);
    let report = check(&mut busy(&f, 7));
    assert_found(&report, Check::Places, &format!("job {later} (later) is nowhere"));
}
