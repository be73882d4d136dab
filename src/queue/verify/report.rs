//! What verify says: whether everything that came in is accounted for, and every job is where it should be.

use crate::domain::QueueName;
use crate::queue::{Depths, Totals};
use crate::store::{Check, Finding};

/// More is counted, but not listed: so many are one big problem, not many small ones.
pub const FINDINGS_MAX: usize = 1_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    pub queues: Vec<VerifiedQueue>,
    /// How much was looked at.
    pub jobs: u64,
    pub records: u64,
    pub findings: Vec<Finding>,
    /// Found, but not listed.
    pub left_out: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedQueue {
    pub name: QueueName,
    pub totals: Totals,
    pub depths: Depths,
}

impl VerifyReport {
    /// Adds what another check of the same store found.
    pub fn include(&mut self, other: Self) {
        self.queues.extend(other.queues);
        self.jobs += other.jobs;
        self.records += other.records;
        self.left_out += other.left_out;
        for Finding { check, queue, what } in other.findings {
            self.add(check, queue, what);
        }
    }

    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    pub fn add(&mut self, check: Check, queue: impl Into<String>, what: impl Into<String>) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(Finding { check, queue: queue.into(), what: what.into() });
        } else {
            self.left_out += 1;
        }
    }

    /// What came into a queue is what went out of it and what is held.
    pub(crate) fn check_law(&mut self, queue: &VerifiedQueue) {
        let Totals { enqueued, moved_in, .. } = queue.totals;
        let Totals { completed, purged, cancelled, retention_expired, moved_out, .. } = queue.totals;
        let sum = |counts: &[u64]| counts.iter().map(|count| i128::from(*count)).sum::<i128>();
        let held = queue.depths.held();
        let accounted = sum(&[completed, purged, cancelled, retention_expired, moved_out, held]);
        let off = sum(&[enqueued, moved_in]) - accounted;
        let what = match off {
            0 => return,
            1.. => "came in and are neither held nor accounted for",
            _ => "are held or went out and never came in",
        };
        self.add(Check::Law, queue.name.as_str(), format!("{} jobs {what}", off.abs()));
    }
}

/// How far verify has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyProgress {
    pub step: &'static str,
    pub done: u64,
    /// Where it is known.
    pub of: Option<u64>,
}
