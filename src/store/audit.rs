//! What an audit of a store says: whether everything that came in is accounted for, and every job is where it should be.

use super::{Totals, view::Depths};
use crate::domain::ids::QueueName;
use std::fmt;

/// More is counted, but not listed: whoever sees so many has one big problem, not many small ones.
pub const FINDINGS_MAX: usize = 1_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditReport {
    pub queues: Vec<AuditedQueue>,
    /// Totals of queues that are no more.
    pub forgotten: Totals,
    /// How much was looked at.
    pub jobs: u64,
    pub records: u64,
    pub findings: Vec<Finding>,
    /// Found, but not listed.
    pub left_out: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditedQueue {
    pub name: QueueName,
    pub totals: Totals,
    pub depths: Depths,
}

/// Something that is off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub check: Check,
    /// Empty: it belongs to no queue.
    pub queue: String,
    pub what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The engine's own files.
    Files,
    /// What came in is what went out and what is held.
    Law,
    /// Counters say how many there are.
    Counts,
    /// Every job is in exactly one place.
    Places,
    /// What leads to a job leads to it, and to nothing else.
    Indexes,
    /// Bytes are those that were written.
    Checksums,
}

impl Check {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Law => "law",
            Self::Counts => "counts",
            Self::Places => "places",
            Self::Indexes => "indexes",
            Self::Checksums => "checksums",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { check, queue, what } = self;
        match queue.as_str() {
            "" => write!(f, "{}: {what}", check.as_str()),
            queue => write!(f, "{}: queue {queue}: {what}", check.as_str()),
        }
    }
}

impl AuditReport {
    /// Adds what another audit of the same store found.
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

    /// Holds a queue to the law.
    pub fn check_queue_law(&mut self, queue: &AuditedQueue) {
        let off = imbalance(&queue.totals, queue.depths.held());
        self.tell_imbalance(queue.name.as_str(), off, "");
    }

    /// Holds every queue to the law, then all of them together.
    pub fn check_law(&mut self) {
        let queues = std::mem::take(&mut self.queues);
        for queue in &queues {
            self.check_queue_law(queue);
        }
        let forgotten = self.forgotten;
        let off = imbalance(&forgotten, 0);
        self.tell_imbalance("", off, "the queues that are no more: ");
        let moved = |of: fn(&Totals) -> u64| {
            queues.iter().map(|queue| of(&queue.totals)).sum::<u64>() + of(&forgotten)
        };
        let (moved_in, moved_out) =
            (moved(|totals| totals.moved_in), moved(|totals| totals.moved_out));
        if moved_in != moved_out {
            let what = format!("{moved_out} jobs moved out of queues and {moved_in} into queues");
            self.add(Check::Law, "", what);
        }
        self.queues = queues;
    }

    fn tell_imbalance(&mut self, queue: &str, off: i128, whose: &str) {
        let (count, what) = match off {
            0 => return,
            1.. => (off, "came in and are neither held nor accounted for"),
            _ => (-off, "are held or went out and never came in"),
        };
        self.add(Check::Law, queue, format!("{whose}{count} jobs {what}"));
    }
}

/// How many more came in than are accounted for.
fn imbalance(totals: &Totals, held: u64) -> i128 {
    let sum = |counts: &[u64]| counts.iter().map(|count| i128::from(*count)).sum::<i128>();
    let came = sum(&[totals.enqueued, totals.moved_in]);
    let accounted = sum(&[
        totals.completed,
        totals.purged,
        totals.cancelled,
        totals.retention_expired,
        totals.moved_out,
        held,
    ]);
    came - accounted
}

/// How far an audit has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditProgress {
    pub step: &'static str,
    pub done: u64,
    /// Where it is known.
    pub of: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(enqueued: u64, moved_in: u64, moved_out: u64, held: u64) -> AuditReport {
        let totals = Totals { enqueued, moved_in, moved_out, ..Totals::default() };
        let depths = Depths { ready: held, ..Depths::default() };
        let name = QueueName::parse("q").unwrap();
        let queues = vec![AuditedQueue { name, totals, depths }];
        AuditReport { queues, ..AuditReport::default() }
    }

    fn law(mut report: AuditReport) -> Vec<String> {
        report.check_law();
        report.findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_came_in_is_what_went_out_and_what_is_held() {
        assert!(law(report(3, 0, 0, 3)).is_empty());
        let missing = "law: queue q: 1 jobs came in and are neither held nor accounted for";
        assert_eq!(law(report(3, 0, 0, 2)), [missing]);
        let extra = "law: queue q: 2 jobs are held or went out and never came in";
        assert_eq!(law(report(1, 0, 0, 3)), [extra]);
    }

    #[test]
    fn what_leaves_a_queue_arrives_in_another() {
        let found = law(report(3, 0, 1, 2));
        assert_eq!(found, ["law: 1 jobs moved out of queues and 0 into queues"]);
        let mut whole = report(3, 0, 1, 2);
        whole.forgotten = Totals { moved_in: 1, completed: 1, ..Totals::default() };
        assert!(law(whole).is_empty());
    }

    #[test]
    fn endless_findings_are_counted_and_not_listed() {
        let mut report = AuditReport::default();
        for _ in 0..FINDINGS_MAX + 5 {
            report.add(Check::Places, "q", "lost");
        }
        assert_eq!((report.findings.len(), report.left_out), (FINDINGS_MAX, 5));
    }
}
