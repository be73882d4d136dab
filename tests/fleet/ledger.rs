//! What the servers promised, and every way in which they did not keep it.
//!
//! Redis' clock is this machine's: a delivery that is here before `retry_at`, or before the lease of the one before it has
//! ended, was made too early, whatever the network did.

use crate::fleet::Fleet;
use prost_types::Timestamp;
use redrive::grpc::pb::{Job, NackOutcome, NackResponse};
use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;

pub(crate) const QUEUE: &str = "load";

#[derive(Debug, Default)]
struct Fate {
    /// Enqueue was answered, or it was delivered.
    enqueued: bool,
    out: Option<Out>,
    /// Settled for good, as far as anybody was told.
    done: bool,
    dead: bool,
    /// Milliseconds of Redis' time.
    not_before: u64,
}

/// The last delivery, while its settlement is not confirmed.
#[derive(Debug)]
struct Out {
    lease: String,
    until: u64,
    /// A settlement is on its way: whether the lease is good is not known.
    settling: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Book {
    fates: HashMap<String, Fate>,
    pub(crate) answers: u64,
    pub(crate) enqueued: usize,
    pub(crate) done: usize,
    pub(crate) dead: usize,
    /// Calls that were not answered with OK and went out again, by their reason.
    pub(crate) repeated: HashMap<String, u64>,
    pub(crate) slowest_refusal: Duration,
    /// Delivered again because a lease had run out, or because a settlement never arrived.
    pub(crate) redelivered: usize,
    unexpected: Vec<String>,
    at_once: Vec<String>,
    duplicated: Vec<String>,
    early: Vec<String>,
    stolen: Vec<String>,
}

impl Book {
    pub(crate) fn live(&self) -> usize {
        self.enqueued - self.done - self.dead
    }

    /// How often a call was repeated for this reason.
    pub(crate) fn times(&self, reason: &str) -> u64 {
        self.repeated.get(reason).copied().unwrap_or_default()
    }

    fn delivered(&mut self, job: &Job, now: u64) {
        self.answers += 1;
        let Some(fate) = self.fates.get_mut(&job.job_id) else {
            self.unexpected.push(job.job_id.clone());
            return;
        };
        // It may be here, and even done, before an Enqueue that is repeated has its answer.
        self.enqueued += usize::from(!std::mem::replace(&mut fate.enqueued, true));
        match &fate.out {
            // A claim that was repeated has the same answer.
            Some(out) if out.lease == job.lease => return,
            Some(out) if !out.settling && now < out.until => self.at_once.push(job.job_id.clone()),
            Some(_) => self.redelivered += 1,
            None => {}
        }
        if fate.done || fate.dead {
            self.duplicated.push(job.job_id.clone());
        }
        if now < fate.not_before {
            self.early.push(job.job_id.clone());
        }
        let until = millis(job.lease_expires_at);
        fate.out = Some(Out { lease: job.lease.clone(), until, settling: false });
        fate.not_before = 0;
    }

    /// What is known of a job, and whether this lease is the last of it.
    fn of(&mut self, job: &Job) -> (&mut Fate, bool) {
        let fate = self.fates.get_mut(&job.job_id).expect("it was delivered");
        let is_last = fate.out.as_ref().is_some_and(|out| out.lease == job.lease);
        (fate, is_last)
    }

    fn acked(&mut self, job: &Job, already_gone: bool, first: bool, now: u64) {
        self.answers += 1;
        let (fate, is_last) = self.of(job);
        let before = std::mem::replace(&mut fate.done, true);
        let until = fate.out.as_ref().map_or(0, |out| out.until);
        fate.out = None;
        if before && !already_gone {
            self.duplicated.push(job.job_id.clone());
        }
        if first && already_gone && is_last && now < until {
            self.stolen.push(job.job_id.clone());
        }
        self.done += usize::from(!before);
    }

    fn nacked(&mut self, job: &Job, reply: &NackResponse) {
        self.answers += 1;
        let (fate, is_last) = self.of(job);
        if is_last {
            fate.out = None;
            fate.not_before = reply.retry_at.map_or(0, |at| millis(Some(at)));
        }
        if reply.outcome() == NackOutcome::DeadLettered && !fate.dead {
            fate.dead = true;
            self.dead += 1;
        }
    }

    fn lease_lost(&mut self, job: &Job, first: bool, now: u64) {
        self.answers += 1;
        let (fate, is_last) = self.of(job);
        let until = fate.out.as_ref().map_or(0, |out| out.until);
        if is_last {
            fate.out = None;
        }
        if first && is_last && now < until {
            self.stolen.push(job.job_id.clone());
        }
    }
}

pub(crate) struct Ledger {
    book: watch::Sender<Book>,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self { book: watch::Sender::new(Book::default()) }
    }

    /// Waits until the book says so.
    pub(crate) async fn until(&self, is: impl FnMut(&Book) -> bool) {
        self.book.subscribe().wait_for(is).await.expect("its sender lives");
    }

    /// Waits for so many more answers.
    pub(crate) async fn wait_for_more(&self, answers: u64) {
        let target = self.book.borrow().answers + answers;
        self.until(|book| book.answers >= target).await;
    }

    pub(crate) fn enqueuing(&self, id: &str) {
        self.book.send_modify(|book| {
            book.fates.insert(id.into(), Fate::default());
        });
    }

    pub(crate) fn enqueued(&self, id: &str) {
        self.book.send_modify(|book| {
            book.answers += 1;
            let fate = book.fates.get_mut(id).expect("it was sent");
            book.enqueued += usize::from(!std::mem::replace(&mut fate.enqueued, true));
        });
    }

    pub(crate) fn delivered(&self, job: &Job) {
        let now = wall();
        self.book.send_modify(|book| book.delivered(job, now));
    }

    /// A settlement is about to go.
    pub(crate) fn settling(&self, job: &Job) {
        self.book.send_modify(|book| {
            let (fate, is_last) = book.of(job);
            if let Some(out) = fate.out.as_mut().filter(|_| is_last) {
                out.settling = true;
            }
        });
    }

    /// `first`: no call before this one was left without an answer.
    pub(crate) fn acked(&self, job: &Job, already_gone: bool, first: bool) {
        let now = wall();
        self.book.send_modify(|book| book.acked(job, already_gone, first, now));
    }

    pub(crate) fn nacked(&self, job: &Job, reply: &NackResponse) {
        self.book.send_modify(|book| book.nacked(job, reply));
    }

    pub(crate) fn lease_lost(&self, job: &Job, first: bool) {
        let now = wall();
        self.book.send_modify(|book| book.lease_lost(job, first, now));
    }

    /// A call goes out again.
    pub(crate) fn repeated(&self, why: &str, took: Duration) {
        self.book.send_modify(|book| {
            *book.repeated.entry(why.into()).or_default() += 1;
            book.slowest_refusal = book.slowest_refusal.max(took);
        });
    }

    pub(crate) fn times(&self, reason: &str) -> u64 {
        self.book.borrow().times(reason)
    }

    /// Compares what is in the book with what this server says.
    pub(crate) async fn report(&self, fleet: &Fleet, at: usize) -> LedgerReport {
        let unfinished: Vec<String> = {
            let book = self.book.borrow();
            let open = book.fates.iter().filter(|(_, fate)| !fate.done && !fate.dead);
            open.filter(|(_, fate)| fate.enqueued).map(|(id, _)| id.clone()).collect()
        };
        let (mut lost, mut stuck) = (Vec::new(), Vec::new());
        for id in unfinished {
            match fleet.state(at, QUEUE, &id).await {
                None => lost.push(id),
                Some(state) => stuck.push(format!("{id} is {state:?}")),
            }
        }
        let stats = fleet.stats(at, QUEUE).await;
        let book = self.book.send_replace(Book::default());
        LedgerReport {
            lost,
            stuck,
            counted: [stats.enqueued, stats.completed, stats.held],
            lease_expired: stats.lease_expired,
            book,
        }
    }
}

/// What became of it all.
pub(crate) struct LedgerReport {
    pub(crate) book: Book,
    /// Acknowledged, not done, and not there.
    lost: Vec<String>,
    /// There, and never delivered.
    stuck: Vec<String>,
    /// By the servers: enqueued, completed, held.
    counted: [u64; 3],
    lease_expired: u64,
}

impl LedgerReport {
    #[track_caller]
    pub(crate) fn assert_word_kept(&self) {
        let Book { at_once, duplicated, early, stolen, unexpected, .. } = &self.book;
        let broken = [&self.lost, &self.stuck, at_once, duplicated, early, stolen, unexpected];
        assert!(
            broken.iter().all(|jobs| jobs.is_empty()),
            "lost {:?}, stuck {:?}, two at once {at_once:?}, duplicated {duplicated:?}, early \
             {early:?}, leases stolen {stolen:?}, unexpected {unexpected:?}",
            self.lost,
            self.stuck
        );
        let Book { enqueued, done, dead, .. } = self.book;
        let ours = [enqueued, done, dead].map(|count| count as u64);
        assert_eq!(self.counted, ours, "the servers count otherwise: enqueued, completed, held");
    }
}

impl fmt::Display for LedgerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let book = &self.book;
        write!(
            f,
            "{} enqueued, {} done, {} dead; lost {}, duplicated {}, two at once {}, early {}, leases \
             stolen {}; {} leases ran out, {} redelivered for a reason; repeated {:?}, slowest \
             refusal {:.1?}",
            book.enqueued,
            book.done,
            book.dead,
            self.lost.len(),
            book.duplicated.len(),
            book.at_once.len(),
            book.early.len(),
            book.stolen.len(),
            self.lease_expired,
            book.redelivered,
            book.repeated,
            book.slowest_refusal
        )
    }
}

fn millis(at: Option<Timestamp>) -> u64 {
    let at = at.expect("a time");
    at.seconds.cast_unsigned() * 1_000 + u64::from(at.nanos.cast_unsigned()) / 1_000_000
}

fn wall() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is after 1970");
    since.as_millis() as u64
}
