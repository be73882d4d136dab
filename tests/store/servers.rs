//! Several servers on one Redis, each with its own connection, in real time: one truth, and each hears of the others.

use crate::builders::*;
use crate::redis_server::{self, Server};
use redrive::domain::{BreakerName, BreakerState, JobId, Lease, NewJob, QueueSettings, Settings, State, Timestamp};
use redrive::env::SystemClock;
use redrive::queue::hosts::redis::RedisStore;
use redrive::queue::{Ack, BreakerOrder, Delivered, IdleReason, JobView, Nack, NewPause, Requeue, Settlements};
use redrive::queue::{Event, EventKind, Setup, Subscriber, Subscribers};
use redrive::store::redis::Options;
use redrive::store::redis::connection::Address;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Far beyond what anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

struct EventChannels {
    available: mpsc::UnboundedSender<(String, usize)>,
    due: watch::Sender<Option<Timestamp>>,
    cancels: watch::Sender<Option<Lease>>,
}

impl Subscriber for EventChannels {
    fn wants(&self, _: EventKind) -> bool {
        true
    }

    fn event(&self, event: &Event) {
        match event {
            Event::Available { queue, jobs } => drop(self.available.send((queue.to_string(), *jobs))),
            Event::SweepDue { at } => drop(self.due.send_replace(Some(*at))),
            Event::CancelRequested(lease) => drop(self.cancels.send_replace(Some(lease.clone()))),
            _ => {}
        }
    }
}

/// One server.
pub(crate) struct One {
    pub(crate) store: RedisStore,
    pub(crate) available: mpsc::UnboundedReceiver<(String, usize)>,
    due: watch::Receiver<Option<Timestamp>>,
    cancels: watch::Receiver<Option<Lease>>,
}

impl One {
    pub(crate) async fn open(server: &Server, namespace: &str) -> Self {
        Self::named(server, namespace, "one").await
    }

    async fn named(server: &Server, namespace: &str, name: &str) -> Self {
        let (told, available) = mpsc::unbounded_channel();
        let (due, due_received) = watch::channel(None);
        let (cancels, cancels_received) = watch::channel(None);
        let address = Address::parse(server.address()).unwrap();
        let (namespace, name) = (namespace.into(), name.into());
        let options = Options { namespace, server: name, ..Options::new(address) };
        let clock = Arc::new(SystemClock::new());
        let channels = Arc::new(EventChannels { available: told, due, cancels });
        let mut settings = Settings::default();
        without_jitter(Arc::make_mut(&mut settings.defaults));
        let settings = Arc::new(settings);
        let subscribers = Subscribers::default().with(channels);
        let setup = Setup { settings: settings.clone(), subscribers, ..Setup::default() };
        let store = RedisStore::open_redis(options, 10_000, true, clock, setup).await.unwrap();
        let (due, cancels) = (due_received, cancels_received);
        Self { store, available, due, cancels }
    }

    /// Changes the settings of every queue.
    pub(crate) fn set(&self, change: impl FnOnce(&mut QueueSettings)) {
        let mut settings = (*self.store.settings()).clone();
        change(Arc::make_mut(&mut settings.defaults));
        self.store.set_settings(Arc::new(settings));
    }

    pub(crate) async fn enqueue(&self, job: NewJob) -> JobId {
        let added = self.store.enqueue(vec![job]).await.unwrap().remove(0);
        added.unwrap().id
    }

    pub(crate) async fn claim(&self, name: &str, most: usize) -> Vec<Delivered> {
        self.store.claim(claim_of(&[name], most)).await.unwrap().jobs.delivered()
    }

    pub(crate) async fn idle(&self, name: &str) -> IdleReason {
        let claimed = self.store.claim(claim_of(&[name], 1)).await.unwrap();
        claimed.idle.first().expect("there is nothing").reason
    }

    pub(crate) async fn settle(&self, settlements: Settlements) {
        self.store.settle(settlements).await.unwrap();
    }

    pub(crate) async fn ack(&self, jobs: &[Delivered]) {
        let ack = |job: &Delivered| Ack {
            lease: job.delivery.lease.clone(),
            note: String::new(),
            result: Default::default(),
            breaker_key: String::new(),
        };
        let acks = jobs.iter().map(ack).collect();
        self.settle(Settlements { acks, ..Settlements::default() }).await;
    }

    pub(crate) async fn nack(&self, jobs: &[Delivered], error_type: &str) {
        let nack = |job: &Delivered| Nack {
            lease: job.delivery.lease.clone(),
            outcome: failed(error_type),
            checkpoint: String::new(),
        };
        let nacks = jobs.iter().map(nack).collect();
        self.settle(Settlements { nacks, ..Settlements::default() }).await;
    }

    pub(crate) async fn sweep(&self) {
        self.store.sweep(sweep_all()).await.unwrap();
    }

    /// The next time that this queue has something.
    pub(crate) async fn hears_of(&mut self, name: &str) {
        let received = async {
            while let Some((queue, _)) = self.available.recv().await {
                if queue == name {
                    return;
                }
            }
        };
        tokio::time::timeout(PATIENCE, received).await.expect("the event comes");
    }

    /// As a server and a worker do: sweeps whenever something is due, and asks until there is a job.
    pub(crate) async fn gets(&mut self, name: &str) -> Delivered {
        let getting = async {
            loop {
                self.sweep().await;
                if let Some(job) = self.claim(name, 1).await.pop() {
                    return job;
                }
                drop(tokio::time::timeout(Duration::from_millis(50), self.due.changed()).await);
            }
        };
        tokio::time::timeout(PATIENCE, getting).await.expect("it comes in time")
    }

    /// It sweeps until so many leases have run out.
    pub(crate) async fn comes_to_expire(&mut self, leases: usize) {
        let expiring = async {
            let mut expired = 0;
            while expired < leases {
                expired += self.store.sweep(sweep_all()).await.unwrap().expired.len();
                drop(tokio::time::timeout(Duration::from_millis(50), self.due.changed()).await);
            }
        };
        tokio::time::timeout(PATIENCE, expiring).await.expect("in time");
    }

    /// Its next sweep finds that the files differ in this way.
    async fn says(&self, how: &str) {
        self.comes_to_say(|notice| notice.is_some_and(|notice| notice.ends_with(how))).await;
    }

    async fn no_longer_says(&self) {
        self.comes_to_say(|notice| notice.is_none()).await;
    }

    /// A warning sends no event: the test polls until it is there.
    async fn comes_to_say(&self, so: impl Fn(Option<String>) -> bool) {
        self.sweep().await;
        let saying = async {
            let is_of_files = |notice: &String| notice.contains("configuration files");
            while !so(self.store.warnings().into_iter().find(is_of_files)) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, saying).await.expect("it says so in time");
    }

    async fn job(&self, id: &str) -> Vec<JobView> {
        self.store.jobs_of_id(JobId::parse(id), None).await.unwrap()
    }
}

pub(crate) fn run<F: Future<Output = ()>>(scenario: impl FnOnce(&'static Server, String) -> F) {
    static SCENARIOS: AtomicU64 = AtomicU64::new(0);
    let namespace = format!("servers-{}", SCENARIOS.fetch_add(1, Ordering::Relaxed));
    crate::harness::runtime().block_on(scenario(redis_server::shared(), namespace));
}

#[test]
fn an_enqueue_on_one_server_wakes_a_waiter_on_another() {
    run(async |server, namespace| {
        let a = One::open(server, &namespace).await;
        let mut b = One::open(server, &namespace).await;
        for _ in 0..3 {
            a.enqueue(job("q")).await;
            b.hears_of("q").await;
            let jobs = b.claim("q", 10).await;
            assert_eq!(jobs.len(), 1);
            b.ack(&jobs).await;
        }
    });
}

#[test]
fn what_a_server_that_died_has_scheduled_is_promoted_by_another() {
    run(async |server, namespace| {
        let a = One::open(server, &namespace).await;
        let mut b = One::open(server, &namespace).await;
        a.enqueue(job("q").delay(Duration::from_millis(300))).await;
        drop(a);
        b.gets("q").await;
    });
}

#[test]
fn a_job_whose_server_died_comes_back_when_its_lease_is_over() {
    run(async |server, namespace| {
        let a = One::open(server, &namespace).await;
        let mut b = One::open(server, &namespace).await;
        a.enqueue(job("q").id("x").retries(5)).await;
        let mut claim = claim_of(&["q"], 1);
        claim.lease_duration = Some(Duration::from_millis(200));
        assert_eq!(a.store.claim(claim).await.unwrap().jobs.len(), 1);
        drop(a);
        let job = b.gets("q").await;
        assert_eq!((job.delivery.attempt, job.delivery.lease.delivery), (2, 2));
    });
}

#[test]
fn pauses_and_breakers_are_those_of_all_servers() {
    run(async |server, namespace| {
        let a = One::open(server, &namespace).await;
        let mut b = One::open(server, &namespace).await;
        for _ in 0..21 {
            a.enqueue(job("q")).await;
        }
        let pause = NewPause { duration: None, reason: "deploy".into() };
        a.store.pause(queue("q"), Some(pause)).await.unwrap();
        assert_eq!(b.idle("q").await, IdleReason::Paused);
        while b.available.try_recv().is_ok() {}
        a.store.pause(queue("q"), None).await.unwrap();
        b.hears_of("q").await;
        let jobs = b.claim("q", 20).await;
        assert_eq!(jobs.len(), 20);
        b.nack(&jobs, "Timeout").await;
        assert_eq!(a.idle("q").await, IdleReason::BreakerOpen);
        let name = || BreakerName::parse("queue:q").unwrap();
        while b.available.try_recv().is_ok() {}
        a.store.set_breaker(name(), BreakerOrder::Reset).await.unwrap();
        b.hears_of("q").await;
        assert_eq!(b.claim("q", 1).await.len(), 1);
        let views = b.store.breakers(vec![queue("q")]).await.unwrap();
        let breaker = &views[0].work.breaker;
        let state = breaker.state(&b.store.settings().defaults.breaker, b.store.now());
        assert_eq!((state, breaker.transitions), (BreakerState::Closed, 2));
    });
}

#[test]
fn the_server_that_a_worker_talks_to_hears_of_a_cancellation_by_another() {
    run(async |server, namespace| {
        let a = One::open(server, &namespace).await;
        let mut b = One::open(server, &namespace).await;
        let id = a.enqueue(job("q")).await;
        b.hears_of("q").await;
        let lease = b.claim("q", 1).await[0].delivery.lease.clone();
        a.store.cancel(id, None, String::new()).await.unwrap();
        let received = b.cancels.wait_for(|received| received.as_ref() == Some(&lease));
        tokio::time::timeout(PATIENCE, received).await.expect("in time").expect("the event comes");
    });
}

#[test]
fn no_job_goes_to_two_workers_and_none_is_lost() {
    run(async |server, namespace| {
        let servers = [
            One::open(server, &namespace).await,
            One::open(server, &namespace).await,
            One::open(server, &namespace).await,
        ];
        let mut seen = std::collections::HashSet::new();
        let mut added = std::collections::HashSet::new();
        for round in 0..30 {
            let by = &servers[round % 3];
            let jobs = vec![job("q"); 20];
            for one in by.store.enqueue(jobs).await.unwrap() {
                assert!(added.insert(one.unwrap().id), "an id came twice");
            }
            let [a, b, c] = &servers;
            let claims = tokio::join!(a.claim("q", 7), b.claim("q", 7), c.claim("q", 7));
            for (server, jobs) in servers.iter().zip([claims.0, claims.1, claims.2]) {
                for job in &jobs {
                    assert!(seen.insert(job.spec.id.clone()), "{} came twice", job.spec.id);
                }
                server.ack(&jobs).await;
            }
        }
        loop {
            let jobs = servers[0].claim("q", 100).await;
            if jobs.is_empty() {
                break;
            }
            seen.extend(jobs.iter().map(|job| job.spec.id.clone()));
            servers[1].ack(&jobs).await;
        }
        assert_eq!(seen, added);
        let stats = servers[2].store.stats(Some(queue("q"))).await.unwrap();
        assert_eq!((stats.totals.enqueued, stats.totals.completed, stats.held), (600, 600, 0));
    });
}

#[test]
fn servers_whose_files_differ_say_so_until_they_agree_or_are_gone() {
    run(async |server, namespace| {
        let a = One::named(server, &namespace, "a").await;
        let b = One::named(server, &namespace, "b").await;
        let alike = b.store.settings();
        b.set(|queue| queue.max_depth = Some(7));
        let differing = b.store.settings();
        b.sweep().await;
        a.says("files: (a) unlike (b)").await;
        b.says("files: (a) unlike (b)").await;
        // The file was put right, then it was not, and then its server ended.
        b.store.set_settings(alike);
        b.sweep().await;
        a.no_longer_says().await;
        b.store.set_settings(differing);
        b.sweep().await;
        a.says("files: (a) unlike (b)").await;
        b.store.close().await;
        a.no_longer_says().await;
        // One that dies without a word is forgotten after a while.
        let c = One::named(server, &namespace, "c").await;
        c.set(|queue| queue.max_depth = Some(8));
        c.sweep().await;
        a.says("files: (a) unlike (c)").await;
        drop(c);
        a.no_longer_says().await;
    });
}

/// What the first step of a move from `from` to `to` writes: since `due` it is for any server to complete.
fn begin_move(server: &Server, namespace: &str, number: u64, due: Timestamp) {
    let (due, number) = (due.millis(), &number.to_be_bytes()[2..]);
    let (format, begun, keep_attempts, death) = (1, 1, 0, 1);
    let mut record = vec![format, begun];
    record.extend_from_slice(&due.to_be_bytes()[2..]);
    record.extend_from_slice(b"\x02to");
    record.extend_from_slice(&[keep_attempts, death]);
    record.extend_from_slice(&crc32c::crc32c(&record).to_le_bytes());
    let mut redis = redis::Client::open(server.address()).unwrap().get_connection().unwrap();
    let start = format!("{namespace}:{{from}}");
    redis::pipe()
        .atomic()
        .cmd("HSET")
        .arg(format!("{start}:m"))
        .arg(number)
        .arg(record)
        .cmd("ZADD")
        .arg(format!("{start}:expires"))
        .arg(due)
        .arg([b"m", number].concat())
        .exec(&mut redis)
        .unwrap();
}

/// Step one of a move is done, and its server is gone.
#[test]
fn a_move_that_a_server_left_half_done_is_completed_by_another() {
    run(async |server, namespace| {
        let a = One::open(server, &namespace).await;
        a.enqueue(job("from").id("x").key("k").retries(0)).await;
        let jobs = a.claim("from", 1).await;
        a.nack(&jobs, "Timeout").await;
        let number = jobs[0].delivery.lease.number;
        begin_move(server, &namespace, number, a.store.now());
        let here = a.job("x").await;
        assert_eq!((here.len(), here[0].queue.as_str(), here[0].state), (1, "from", State::Dead));
        // No other worker can have it meanwhile.
        let requeue = Requeue { ..requeue_of("from", oldest(1)) };
        let done = a.store.requeue(requeue).await.unwrap();
        assert!(done.ids.is_empty(), "{done:?}");
        drop(a);
        let b = One::open(server, &namespace).await;
        b.sweep().await;
        let there = b.job("x").await;
        assert_eq!((there.len(), there[0].queue.as_str(), there[0].state), (1, "to", State::Ready));
        assert_eq!((there[0].attempts.len(), there[0].progress.redrives), (1, 1));
        let stats = |name| b.store.stats(Some(queue(name)));
        let (from, to) = (stats("from").await.unwrap(), stats("to").await.unwrap());
        assert_eq!((from.totals.moved_out, from.held), (1, 0));
        assert_eq!((to.totals.moved_in, to.held), (1, 1));
        b.sweep().await;
        let jobs = b.claim("to", 10).await;
        assert_eq!(jobs.len(), 1);
        b.ack(&jobs).await;
    });
}

#[test]
fn a_worker_that_asks_at_one_server_is_known_at_all() {
    run(async |server, namespace| {
        let (a, b) = (One::open(server, &namespace).await, One::named(server, &namespace, "two").await);
        a.enqueue(job("q")).await;
        let last = async || b.store.queues(None, 10).await.unwrap()[0].last_claim_at;
        assert_eq!(last().await, None);
        let asked = b.store.now();
        a.claim("q", 1).await;
        let known = async {
            while last().await.is_none() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), known).await.expect("within ten seconds");
        let at = last().await.unwrap();
        assert!(at.millis().abs_diff(asked.millis()) < 1_000, "{at} {asked}");
        // Nothing is written while no worker asks.
        assert_eq!(a.store.queues(None, 10).await.unwrap()[0].last_claim_at, Some(at));
    });
}
