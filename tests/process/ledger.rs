//! What the server acknowledged, and whether it has kept its word.

use crate::server::Server;
use redrive::grpc::pb::{AckRequest, GetJobRequest, JobState};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use tokio::{sync::watch, task::JoinSet};
use tonic::Code;

pub(crate) const QUEUE: &str = "load";
/// Calls at a time while checking.
const CHECKERS: usize = 8;

/// A moment: how long the shim's log was. 0 without a log, or before it began.
pub(crate) type Mark = u64;

/// What is known of a job. Answers are marked after they came, requests before they went.
#[derive(Clone, Debug, Default)]
struct Fate {
    enqueued: Option<Mark>,
    ack_sent: Option<Mark>,
    acked: Option<Mark>,
    /// Every death, and every request to end one: more of those than of these, and it must be dead.
    deaths: Vec<Mark>,
    requeues_sent: Vec<Mark>,
}

impl Fate {
    fn must_be_dead(&self, cut: Mark) -> bool {
        let until = |marks: &[Mark]| marks.iter().filter(|mark| **mark <= cut).count();
        until(&self.deaths) > until(&self.requeues_sent)
    }
}

#[derive(Debug)]
struct Held {
    id: String,
    lease: String,
}

#[derive(Debug)]
pub(crate) struct Ledger {
    log: Mutex<Option<PathBuf>>,
    fates: Mutex<HashMap<String, Fate>>,
    /// Done and found gone: they must not be handed out again.
    gone: Mutex<HashSet<String>>,
    came_back: Mutex<Vec<String>>,
    held: Mutex<Vec<Held>>,
    acknowledged: watch::Sender<u64>,
}

/// What a check found.
#[derive(Debug, Default)]
pub(crate) struct LedgerReport {
    pub(crate) checked: usize,
    /// Acknowledged, not done, and not there.
    pub(crate) lost: Vec<String>,
    /// Done, and there again.
    pub(crate) returned: Vec<String>,
    /// Acknowledged as dead, not requeued, and not among the dead.
    pub(crate) undead: Vec<String>,
    /// Handed out, not settled, and no longer to be settled.
    pub(crate) leases_lost: Vec<String>,
    states: HashMap<String, Option<JobState>>,
}

impl LedgerReport {
    /// As if nothing were there: the report about a server that does not start.
    pub(crate) fn all_lost(ledger: &Ledger) -> Self {
        let mut report = Self::default();
        for (id, fate) in ledger.fates().iter() {
            report.add(id, fate, u64::MAX, None);
        }
        report
    }

    #[track_caller]
    pub(crate) fn assert_word_kept(&self) {
        assert!(
            self.lost.is_empty() && self.returned.is_empty() && self.undead.is_empty() && self.leases_lost.is_empty(),
            "lost {:?}, returned {:?}, undead {:?}, leases lost {:?}",
            self.lost,
            self.returned,
            self.undead,
            self.leases_lost
        );
    }

    fn add(&mut self, id: &str, fate: &Fate, cut: Mark, state: Option<JobState>) {
        let by = |mark: Option<Mark>| mark.is_some_and(|mark| mark <= cut);
        self.checked += 1;
        if state.is_none() && by(fate.enqueued) && !by(fate.ack_sent) {
            self.lost.push(id.into());
        }
        if state.is_some() && by(fate.acked) {
            self.returned.push(id.into());
        }
        if fate.must_be_dead(cut) && state != Some(JobState::Dead) {
            self.undead.push(id.into());
        }
        self.states.insert(id.into(), state);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panics while holding it")
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self {
            log: Mutex::default(),
            fates: Mutex::default(),
            gone: Mutex::default(),
            came_back: Mutex::default(),
            held: Mutex::default(),
            acknowledged: watch::Sender::new(0),
        }
    }

    /// From now on marks are lengths of this log.
    pub(crate) fn measure(&self, log: PathBuf) {
        *locked(&self.log) = Some(log);
    }

    fn fates(&self) -> MutexGuard<'_, HashMap<String, Fate>> {
        locked(&self.fates)
    }

    fn mark(&self) -> Mark {
        let log = locked(&self.log);
        let length = |path: &PathBuf| std::fs::metadata(path).map_or(0, |found| found.len());
        log.as_ref().map_or(0, length)
    }

    /// How many answers came so far.
    pub(crate) fn acknowledged(&self) -> u64 {
        *self.acknowledged.borrow()
    }

    /// Waits for so many more answers.
    pub(crate) async fn wait_for_more(&self, answers: u64) {
        let target = self.acknowledged() + answers;
        let mut seen = self.acknowledged.subscribe();
        seen.wait_for(|count| *count >= target).await.expect("its sender lives");
    }

    fn count(&self) {
        self.acknowledged.send_modify(|count| *count += 1);
    }

    pub(crate) fn enqueued(&self, id: &str) {
        let mark = self.mark();
        let mut fates = self.fates();
        fates.entry(id.into()).or_default().enqueued.get_or_insert(mark);
        drop(fates);
        self.count();
    }

    pub(crate) fn claimed(&self, id: &str, lease: &str) {
        if locked(&self.gone).contains(id) {
            locked(&self.came_back).push(id.into());
        }
        locked(&self.held).push(Held { id: id.into(), lease: lease.into() });
        self.count();
    }

    /// A settlement is about to go: from here on it is not known whether the lease is good.
    pub(crate) fn settling(&self, id: &str, lease: &str, is_ack: bool) {
        let mark = self.mark();
        locked(&self.held).retain(|held| held.lease != lease);
        if is_ack {
            self.fates().entry(id.into()).or_default().ack_sent = Some(mark);
        }
    }

    pub(crate) fn acked(&self, id: &str) {
        let mark = self.mark();
        self.fates().entry(id.into()).or_default().acked = Some(mark);
        self.count();
    }

    pub(crate) fn nacked(&self, id: &str, is_dead: bool) {
        let mark = self.mark();
        if is_dead {
            let mut fates = self.fates();
            fates.entry(id.into()).or_default().deaths.push(mark);
        }
        self.count();
    }

    pub(crate) fn requeuing(&self, id: &str) {
        let mark = self.mark();
        let mut fates = self.fates();
        let fate = fates.entry(id.into()).or_default();
        fate.requeues_sent.push(mark);
    }

    pub(crate) fn requeued(&self) {
        self.count();
    }

    /// Jobs that are waiting or out.
    pub(crate) fn live(&self) -> usize {
        let fates = self.fates();
        let is_live = |fate: &&Fate| fate.acked.is_none() && !fate.must_be_dead(Mark::MAX);
        fates.values().filter(is_live).count()
    }

    /// A moment right after some answer, for the sharpest of cuts.
    pub(crate) fn a_moment_after_an_answer(&self, chance: u64) -> Option<Mark> {
        let fates = self.fates();
        let marks = |fate: &Fate| [fate.enqueued, fate.acked, fate.deaths.last().copied()];
        let marks = fates.values().flat_map(marks).flatten();
        let mut marks: Vec<Mark> = marks.filter(|mark| *mark > 0).collect();
        marks.sort_unstable();
        let index = chance.checked_rem(marks.len() as u64)?;
        Some(marks[index as usize])
    }

    /// Compares what a server has with what was acknowledged until `cut`.
    pub(crate) async fn check(&self, server: &Server, cut: Mark) -> LedgerReport {
        let fates: Vec<(String, Fate)> = self.fates().clone().into_iter().collect();
        let admin = server.admin().await;
        let mut checkers = JoinSet::new();
        for part in fates.chunks(fates.len().div_ceil(CHECKERS).max(1)) {
            let (part, mut admin) = (part.to_vec(), admin.clone());
            checkers.spawn(async move {
                let mut found = Vec::new();
                for (id, fate) in part {
                    let request =
                        GetJobRequest { job_id: id.clone(), queue: String::new(), ..GetJobRequest::default() };
                    let state = match admin.get_job(request).await {
                        Ok(reply) => Some(reply.into_inner().info.expect("a job").state()),
                        Err(status) => {
                            assert_eq!(status.code(), Code::NotFound, "{status:?}");
                            None
                        }
                    };
                    found.push((id, fate, state));
                }
                found
            });
        }
        let mut report = LedgerReport::default();
        for (id, fate, state) in checkers.join_all().await.into_iter().flatten() {
            report.add(&id, &fate, cut, state);
        }
        report
    }

    /// Settles every lease from before, to see that it still can be.
    pub(crate) async fn redeem(&self, server: &Server, report: &mut LedgerReport) {
        let mut queue = server.queue().await;
        let held = std::mem::take(&mut *locked(&self.held));
        for Held { id, lease } in held {
            self.settling(&id, &lease, true);
            let request = AckRequest { lease, ..AckRequest::default() };
            match queue.ack(request).await {
                Ok(reply) if !reply.get_ref().already_gone => {}
                _ => report.leases_lost.push(id.clone()),
            }
            report.states.insert(id.clone(), None);
            self.acked(&id);
        }
        report.returned.append(&mut std::mem::take(&mut *locked(&self.came_back)));
    }

    /// Takes what was found as the new beginning: what was in doubt is known now, and what was lost is not lost again.
    pub(crate) fn begin_anew(&self, report: &LedgerReport) {
        let mut gone = locked(&self.gone);
        self.fates().retain(|id, fate| {
            let state = report.states.get(id).copied().flatten();
            if state.is_none() {
                gone.insert(id.clone());
            }
            *fate = Fate {
                enqueued: Some(0),
                deaths: match state {
                    Some(JobState::Dead) => vec![0],
                    _ => Vec::new(),
                },
                ..Fate::default()
            };
            state.is_some()
        });
    }
}
