//! What is simulated, and what came of it.

use super::downstream::Downstream;
use redrive::domain::{PolicyOverride, QueueSettings};

/// A job that fails whatever the downstream does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Poison {
    /// As an error that says nothing of the downstream.
    Bug,
    Http500,
}

#[derive(Clone)]
pub(super) struct Scenario {
    pub(super) jobs: usize,
    /// Jobs that are enqueued each second.
    pub(super) rate: f64,
    pub(super) slots: usize,
    /// A worker's own time for each job.
    pub(super) overhead_ms: f64,
    /// One for each breaker key where there are several; jobs go to them in turn.
    pub(super) downstreams: Vec<Downstream>,
    /// Keys are given at Enqueue; otherwise failures name them.
    pub(super) keys_given: bool,
    /// This share of the jobs is poison.
    pub(super) poison: Option<(f64, Poison)>,
    /// So long after an opening, other servers still hand out.
    pub(super) stale_ms: u64,
    pub(super) settings: QueueSettings,
    pub(super) policy: Option<PolicyOverride>,
    /// From then to then no worker asks for jobs: a deploy.
    pub(super) away: Option<(f64, f64)>,
    /// Seconds.
    pub(super) end: f64,
    /// So many seconds after it has drained.
    pub(super) end_after_drained: f64,
    pub(super) seed: u64,
}

impl Default for Scenario {
    fn default() -> Self {
        Self {
            jobs: 10_000,
            rate: 40.0,
            slots: 20,
            overhead_ms: 5.0,
            downstreams: vec![Downstream::default()],
            keys_given: true,
            poison: None,
            stale_ms: 0,
            settings: QueueSettings::default(),
            policy: None,
            away: None,
            end: 330.0,
            end_after_drained: f64::MAX,
            seed: 1,
        }
    }
}

impl Scenario {
    /// Against one downstream.
    pub(super) fn of(downstream: Downstream) -> Self {
        Self { downstreams: vec![downstream], ..Self::default() }
    }

    /// The same without an outage.
    pub(super) fn without_outage(&self) -> Self {
        let well = |downstream: &Downstream| Downstream { down: Vec::new(), ..downstream.clone() };
        Self { downstreams: self.downstreams.iter().map(well).collect(), ..self.clone() }
    }
}

/// Times are seconds after the last outage unless said otherwise.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) done: usize,
    pub(super) dead: usize,
    pub(super) good_dead: usize,
    pub(super) poison: usize,
    pub(super) poison_dead: usize,
    /// Attempts that good jobs lost.
    pub(super) counted: u64,
    pub(super) failed: u64,
    pub(super) calls: u64,
    /// How often a downstream fell over.
    pub(super) falls: u32,
    /// After one and the same outage.
    pub(super) falls_of_one_recovery: u32,
    /// Calls in one sliding second after the last outage.
    pub(super) peak: usize,
    pub(super) first_success: Option<f64>,
    pub(super) drained: Option<f64>,
    /// What was foreseen at the first steps of the recovery from the last outage: then, and how long draining takes from then on.
    pub(super) estimates: Vec<(f64, f64)>,
    /// Jobs that were not done when the last outage ended.
    pub(super) backlog: usize,
    pub(super) trips: u32,
    /// Seconds in which work waited, the downstream was well, and nothing was handed out, at most.
    pub(super) idle_while_well: f64,
    /// When a failure last was not counted, in seconds from the start.
    pub(super) last_uncounted: Option<f64>,
    pub(super) last_done: f64,
    /// Milliseconds from Enqueue to success, of each downstream, sorted.
    pub(super) waits: Vec<Vec<u64>>,
    /// Seconds from the first delivery of a poison job to its death, at most.
    pub(super) slowest_death: f64,
}

impl Results {
    pub(super) fn p99(&self, downstream: usize) -> u64 {
        let waits = &self.waits[downstream];
        waits.get(waits.len() * 99 / 100).copied().unwrap_or_default()
    }
}
