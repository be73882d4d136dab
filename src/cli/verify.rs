//! `redrive verify`: what it prints.

use crate::domain::QueueName;
use crate::queue::{VerifiedQueue, VerifyReport};
use crate::store::Finding;
use serde_json::{Value, json};

/// The law, term by term.
const TERMS: [&str; 8] =
    ["enqueued", "moved_in", "completed", "purged", "cancelled", "retention_expired", "moved_out", "held"];

fn terms(VerifiedQueue { totals, depths, .. }: &VerifiedQueue) -> [u64; TERMS.len()] {
    [
        totals.enqueued,
        totals.moved_in,
        totals.completed,
        totals.purged,
        totals.cancelled,
        totals.retention_expired,
        totals.moved_out,
        depths.held(),
    ]
}

/// For people.
pub(super) fn text(what: &str, report: &VerifyReport) -> String {
    let (jobs, records, queues) = (report.jobs, report.records, report.queues.len());
    let mut text = format!("{what}: {jobs} jobs in {queues} queues, {records} records checked\n\n");
    if queues > 0 {
        text += &table(TERMS, report.queues.iter().map(|queue| (&queue.name, terms(queue))));
        text.push('\n');
    }
    if report.is_clean() {
        return text + "everything adds up\n";
    }
    text + &super::things_off(&report.findings, report.left_out)
}

/// A line for each queue, under the names of its numbers.
pub(super) fn table<'a, const N: usize>(
    names: [&str; N], queues: impl Iterator<Item = (&'a QueueName, [u64; N])> + Clone,
) -> String {
    let longest = queues.clone().map(|(name, _)| name.as_str().len()).max().unwrap_or(0);
    let line = |first: &str, columns: [String; N]| {
        let mut line = format!("{first:<width$}", width = longest.max("queue".len()));
        for (name, column) in names.iter().zip(columns) {
            line += &format!("  {column:>width$}", width = name.len().max(9));
        }
        line + "\n"
    };
    let mut text = line("queue", names.map(str::to_owned));
    for (name, numbers) in queues {
        text += &line(name.as_str(), numbers.map(|number| number.to_string()));
    }
    text
}

/// For programs.
pub(super) fn json(report: &VerifyReport) -> String {
    let queue = |queue: &VerifiedQueue| {
        let counts = TERMS.into_iter().zip(terms(queue).map(Value::from));
        let name = [("name", Value::from(queue.name.as_str()))];
        name.into_iter().chain(counts).collect::<Value>()
    };
    let finding =
        |finding: &Finding| json!({ "check": finding.check.as_str(), "queue": finding.queue, "what": finding.what });
    let value = json!({
        "ok": report.is_clean(),
        "jobs": report.jobs,
        "records": report.records,
        "queues": report.queues.iter().map(queue).collect::<Vec<_>>(),
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
        "findings_left_out": report.left_out,
    });
    format!("{value:#}\n")
}
