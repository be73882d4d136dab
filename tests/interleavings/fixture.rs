//! A store with a job in every state, and verbs about each of them.

use crate::schedule::{LIMITS, complete};
use crate::stepped::Stepped;
use redrive::domain::{
    Body, BreakerName, DeadPart, Failure, Jitter, JobId, Lease, NewJob, OnConflict, Outcome, PolicyOverride, QueueName,
    QueueSettings, Settings, Timestamp, When,
};
use redrive::env::ManualClock;
use redrive::queue::UndeliveredClaim;
use redrive::queue::{self, Answer, CallContext, Incoming, QueueMemory, Verb, View};
use redrive::queue::{
    Ack, BreakerOrder, Claim, Extend, Nack, NewPause, Purge, RequestId, Requeue, Settlements, Share, Sweep, Which,
};
use redrive::store::memory::MemoryStorage;
use redrive::store::storage::{Batch, Index, Len, Read, Reads, Storage, Write};
use std::{sync::Arc, time::Duration};

pub(crate) fn queue_name() -> QueueName {
    QueueName::parse("q").unwrap()
}

pub(crate) fn job(id: &str) -> NewJob {
    NewJob {
        queue: queue_name(),
        id: Some(JobId::parse(id)),
        key: None,
        job_type: "mail".into(),
        content_type: "text/plain".into(),
        headers: Vec::new(),
        body: Body::Text("body".into()),
        priority: 0,
        start: None,
        expiry: None,
        policy: Some(Box::new(PolicyOverride {
            jitter: Some(Jitter::None),
            max_retries: Some(3),
            ..PolicyOverride::default()
        })),
        on_conflict: OnConflict::default(),
        key_ttl: None,
        breaker_key: None,
    }
}

/// Where verbs begin: what is in the store, and how it is made.
pub(crate) type Scene = fn() -> Fixture;

pub(crate) struct Fixture {
    pub(crate) storage: MemoryStorage,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) settings: Arc<Settings>,
    /// Of the job `leased`, which has a key.
    pub(crate) lease: Lease,
    /// Of the claim that made it.
    pub(crate) answer: u64,
}

/// Leases last for 30 seconds.
const LEASE_IS_OVER: Duration = Duration::from_secs(31);

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at(Duration::from_secs(1_000_000_000)))
}

impl Fixture {
    fn empty() -> Self {
        let clock = clock();
        let storage = MemoryStorage::new(clock.clone());
        let settings = Arc::new(Settings {
            defaults: Arc::new(QueueSettings { key_retention: Duration::from_secs(3_600), ..QueueSettings::default() }),
            ..Settings::default()
        });
        let lease = Lease {
            queue: queue_name(),
            number: 0,
            delivery: 0,
            nonce: 0,
            flags: 0,
            epoch: 0,
            started_at: Timestamp::default(),
            duration_ms: 0,
            own_id: None,
        };
        Self { storage, clock, settings, lease, answer: 0 }
    }

    /// `leased` (with the key `k`) is out, and its lease has ended by the clock; `waits` is READY. Nothing else is due.
    pub(crate) fn with_an_expiry() -> Self {
        let mut fixture = Self::empty();
        fixture.lease_keyed();
        fixture.run(enqueue(vec![job("waits")]));
        fixture.clock.advance(LEASE_IS_OVER);
        fixture
    }

    /// The same, and `later` is SCHEDULED and due, `expires` SCHEDULED and past its deadline, `dead` a dead letter.
    pub(crate) fn with_everything() -> Self {
        let mut fixture = Self::empty();
        fixture.run(enqueue(vec![job("dead")]));
        let dead = fixture.claim();
        fixture.run(nack_of(
            dead.0,
            Outcome::Failed { failure: Failure::new("Broken", "for good"), permanent: true, retry_after: None },
        ));
        fixture.lease_keyed();
        let mut later = job("later");
        later.start = Some(When::After(Duration::from_secs(20)));
        let mut expires = job("expires");
        expires.start = Some(When::After(Duration::from_secs(3_600)));
        expires.expiry = Some(When::After(Duration::from_secs(25)));
        fixture.run(enqueue(vec![job("waits"), later, expires]));
        fixture.clock.advance(LEASE_IS_OVER);
        fixture
    }

    /// So many jobs `failed0`, `failed1`, … could not reach what they call, for the second time, and the breaker is open; `leased`
    /// is still out.
    pub(crate) fn of_an_outage(failed: usize) -> Self {
        let mut fixture = Self::empty();
        fixture.run(enqueue(vec![job("leased")]));
        (fixture.lease, fixture.answer) = fixture.claim();
        let jobs = (0..failed).map(|number| job(&format!("failed{number}")));
        fixture.run(enqueue(jobs.collect()));
        for seconds in [0, 1] {
            let leases: Vec<_> = (0..failed).map(|_| fixture.claim().0).collect();
            fixture.clock.advance(Duration::from_secs(seconds));
            for lease in leases {
                let failure = Failure::new("ConnectionRefused", "");
                fixture.run(nack_of(lease, Outcome::Failed { failure, permanent: false, retry_after: None }));
            }
            if seconds == 0 {
                fixture.run(enqueue(vec![job("works")]));
                let acks = vec![ack(fixture.claim().0)];
                fixture.run(Verb::Settle(Settlements { acks, ..Settlements::default() }));
                fixture.clock.advance(Duration::from_secs(4));
            }
        }
        fixture
    }

    fn lease_keyed(&mut self) {
        let mut keyed = job("leased");
        keyed.key = Some("k".into());
        self.run(enqueue(vec![keyed]));
        (self.lease, self.answer) = self.claim();
    }

    /// The same store once more.
    pub(crate) fn copied(&self) -> Self {
        let clock = clock();
        clock.advance(LEASE_IS_OVER);
        let (storage, settings, lease) =
            (self.storage.copied(clock.clone()), self.settings.clone(), self.lease.clone());
        Self { storage, clock, settings, lease, answer: self.answer }
    }

    pub(crate) fn run(&self, verb: Verb) -> Answer {
        let memory = QueueMemory::default();
        let mut cx = CallContext::new(self.settings.clone(), 7, &memory, LIMITS);
        let mut storage = Stepped(self.storage.clone());
        complete(queue::run(&mut storage, &mut cx, verb)).expect("the store is well")
    }

    fn claim(&self) -> (Lease, u64) {
        match self.run(claim_of("", "")) {
            Answer::Claim(Some(claimed)) => (claimed.jobs[0].delivery.lease.clone(), claimed.answer),
            other => panic!("{other:?}"),
        }
    }

    /// Leases that are out.
    pub(crate) fn leased(&self) -> u64 {
        let read = [Read::Len(Len::Index(Index::Leased))];
        complete(self.storage.clone().read(&queue_name(), &read)).unwrap().unwrap()[0].number()
    }

    /// The store as operators see it.
    pub(crate) fn describe(&self) -> String {
        let mut storage = self.copied().storage;
        // A claim that finds its facts old has promoted all the same: what is due is ready to any sweep.
        let promotion = Batch { writes: vec![Write::Promote(100)], ..Batch::default() };
        complete(storage.apply(&queue_name(), &promotion)).expect("the store is well");
        let mut out = Vec::new();
        let ids = ["leased", "waits", "later", "dead", "expires", "new"];
        for id in ids {
            let view = View::Job(JobId::parse(id), None);
            let viewed = complete(queue::view(&mut storage, view)).expect("the store is well");
            out.push(crate::schedule::without_random(&format!("{id}: {viewed:?}")));
        }
        for view in [View::Queues(None, 10), View::Stats(None)] {
            let viewed = complete(queue::view(&mut storage, view)).expect("the store is well");
            out.push(format!("{viewed:?}"));
        }
        out.join("\n")
    }

    pub(crate) fn verify(&self) {
        let mut storage = self.storage.clone();
        let report = complete(queue::verify(&mut storage, &mut |_| {})).expect("the store is well");
        assert!(report.is_clean(), "{report:#?}");
    }
}

pub(crate) fn enqueue(jobs: Vec<NewJob>) -> Verb {
    Verb::Enqueue(jobs.into_iter().map(Incoming::new).collect())
}

pub(crate) fn claim_of(worker: &str, request: &str) -> Verb {
    Verb::Claim(Claim {
        shares: vec![Share { queue: queue_name(), first: usize::MAX }],
        max_jobs: 1,
        max_bytes: 1 << 20,
        lease_duration: None,
        worker_id: worker.into(),
        request_id: request.into(),
        settle: Settlements::default(),
    })
}

fn ack(lease: Lease) -> Ack {
    Ack { lease, note: String::new(), result: bytes::Bytes::new(), breaker_key: String::new() }
}

pub(crate) fn nack_of(lease: Lease, outcome: Outcome) -> Verb {
    let nacks = vec![Nack { lease, outcome, checkpoint: String::new() }];
    Verb::Settle(Settlements { nacks, ..Settlements::default() })
}

/// Verbs by name. Those that settle the delivery of `leased` come first.
pub(crate) type Named = (&'static str, fn(&Fixture) -> Verb);

pub(crate) const SETTLING: [Named; 8] = [
    ("ack", |fixture| {
        let acks = vec![ack(fixture.lease.clone())];
        Verb::Settle(Settlements { acks, ..Settlements::default() })
    }),
    ("nack", |fixture| {
        let failure = Failure::new("Broken", "for now");
        let outcome = Outcome::Failed { failure, permanent: false, retry_after: None };
        nack_of(fixture.lease.clone(), outcome)
    }),
    ("release", |fixture| {
        nack_of(fixture.lease.clone(), Outcome::Released { retry_after: None, keep_position: false })
    }),
    ("extend", |fixture| {
        let (lease, duration) = (fixture.lease.clone(), Some(Duration::from_secs(60)));
        let extensions = vec![Extend { lease, duration, checkpoint: String::new() }];
        Verb::Settle(Settlements { extensions, ..Settlements::default() })
    }),
    ("checkpoint", |fixture| {
        let (lease, checkpoint) = (fixture.lease.clone(), "half".to_owned());
        let extensions = vec![Extend { lease, duration: None, checkpoint }];
        Verb::Settle(Settlements { extensions, ..Settlements::default() })
    }),
    ("sweep", |_| {
        let never = Timestamp::default();
        let sweep = Sweep { asked_at: Timestamp::from_millis(u64::MAX), spare_made_before: never, spare_until: never };
        Verb::Sweep(sweep, vec![queue_name()])
    }),
    ("undelivered", |fixture| {
        Verb::Undelivered(UndeliveredClaim {
            leases: vec![fixture.lease.clone()],
            answer: fixture.answer,
            after: Duration::ZERO,
        })
    }),
    ("cancel leased", |_| Verb::Cancel(JobId::parse("leased"), None, String::new())),
];

fn purge_or_requeue_all() -> Which {
    Which::Oldest { limit: 10, among: None }
}

fn purge_of(request: Option<RequestId>) -> Verb {
    let part = DeadPart::parse("q").unwrap();
    Verb::Purge(Purge { part, which: purge_or_requeue_all(), dry_run: false, request })
}

/// In a store in which nothing but the lease of `leased` is due.
pub(crate) const EXPIRY: Named = ("expiry", SETTLING[SWEEP].1);
const SWEEP: usize = 5;

pub(crate) const OTHERS: [Named; 17] = [
    ("enqueue", |_| enqueue(vec![job("new")])),
    ("enqueue the same id", |_| enqueue(vec![job("waits")])),
    ("enqueue the same key", |_| {
        let mut keyed = job("leased");
        keyed.key = Some("k".into());
        enqueue(vec![keyed])
    }),
    ("replace waiting", |_| {
        let (on_conflict, body) = (OnConflict::ReplaceWaiting, Body::Text("another".into()));
        enqueue(vec![NewJob { on_conflict, body, ..job("waits") }])
    }),
    ("claim", |_| claim_of("", "")),
    ("claim of a request", |_| claim_of("w", "r")),
    ("cancel waiting", |_| Verb::Cancel(JobId::parse("waits"), None, String::new())),
    ("cancel scheduled", |_| Verb::Cancel(JobId::parse("later"), None, String::new())),
    ("run now", |_| Verb::RunNow(JobId::parse("later"), None, String::new())),
    ("requeue", |_| {
        Verb::Requeue(Requeue {
            part: DeadPart::parse("q").unwrap(),
            which: purge_or_requeue_all(),
            target: None,
            keep_attempts: false,
            reason: String::new(),
            dry_run: false,
            request: None,
        })
    }),
    ("requeue to another queue", |_| {
        Verb::Requeue(Requeue {
            part: DeadPart::parse("q").unwrap(),
            which: purge_or_requeue_all(),
            target: QueueName::parse("other"),
            keep_attempts: false,
            reason: String::new(),
            dry_run: false,
            request: None,
        })
    }),
    ("purge", |_| purge_of(None)),
    ("purge of a request", |_| purge_of(Some(RequestId { id: "r".into(), asked: [1; 32] }))),
    ("pause", |_| Verb::Pause(queue_name(), Some(NewPause { duration: None, reason: "why".into() }))),
    ("resume", |_| Verb::Pause(queue_name(), None)),
    ("force the breaker open", |_| {
        let order = BreakerOrder::Force { open: true, reason: "broken".into() };
        Verb::SetBreaker(BreakerName::parse("queue:q").unwrap(), order)
    }),
    ("forget", |_| Verb::Forget(vec![queue_name()])),
];

pub(crate) fn all() -> Vec<Named> {
    SETTLING.into_iter().chain(OTHERS).collect()
}
