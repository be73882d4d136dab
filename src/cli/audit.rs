//! `redrive audit`: what it prints.

use crate::store::{AuditReport, AuditedQueue, Finding, Totals};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// For people.
pub(super) fn text(what: &str, report: &AuditReport) -> String {
    let (jobs, records) = (report.jobs, report.records);
    let queues = report.queues.len();
    let mut text = format!("{what}: {jobs} jobs in {queues} queues, {records} records checked\n");
    if queues > 0 {
        text.push('\n');
        table(&mut text, &report.queues);
    }
    text.push('\n');
    if report.is_clean() {
        text.push_str("everything adds up\n");
        return text;
    }
    text + &super::things_off(&report.findings, report.left_out)
}

/// The law, term by term.
fn terms(totals: &Totals, held: u64) -> [(&'static str, u64); 8] {
    [
        ("enqueued", totals.enqueued),
        ("moved_in", totals.moved_in),
        ("completed", totals.completed),
        ("purged", totals.purged),
        ("cancelled", totals.cancelled),
        ("retention_expired", totals.retention_expired),
        ("moved_out", totals.moved_out),
        ("held", held),
    ]
}

fn table(text: &mut String, queues: &[AuditedQueue]) {
    let longest = queues.iter().map(|queue| queue.name.as_str().len()).max().unwrap_or(0);
    let width = longest.max("queue".len());
    let _ = write!(text, "{:<width$}", "queue");
    for (name, _) in terms(&Totals::default(), 0) {
        let _ = write!(text, "  {name:>9}");
    }
    text.push('\n');
    for queue in queues {
        let _ = write!(text, "{:<width$}", queue.name.as_str());
        for (name, value) in terms(&queue.totals, queue.depths.held()) {
            let _ = write!(text, "  {value:>width$}", width = name.len().max(9));
        }
        text.push('\n');
    }
}

/// For programs.
pub(super) fn json(report: &AuditReport) -> String {
    let queue = |queue: &AuditedQueue| {
        let counts = terms(&queue.totals, queue.depths.held());
        let counts = counts.into_iter().map(|(name, value)| (name.to_owned(), value.into()));
        let name = [("name".to_owned(), Value::from(queue.name.as_str()))];
        Value::Object(name.into_iter().chain(counts).collect())
    };
    let finding = |finding: &Finding| json!({ "check": finding.check.as_str(), "queue": finding.queue, "what": finding.what });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::ids::QueueName,
        store::{Check, Depths},
    };

    fn report() -> AuditReport {
        let totals =
            Totals { enqueued: 12, completed: 9, retention_expired: 1, ..Totals::default() };
        let depths = Depths { ready: 2, ..Depths::default() };
        let name = QueueName::parse("emails").unwrap();
        let queues = vec![AuditedQueue { name, totals, depths }];
        AuditReport { queues, jobs: 2, records: 5, ..AuditReport::default() }
    }

    #[test]
    fn a_good_store_is_shown_with_its_sums() {
        assert_eq!(
            text("data/redrive.db", &report()),
            "data/redrive.db: 2 jobs in 1 queues, 5 records checked\n\n\
             queue    enqueued   moved_in  completed     purged  cancelled  retention_expired  moved_out       held\n\
             emails         12          0          9          0          0                  1          0          2\n\n\
             everything adds up\n"
        );
    }

    #[test]
    fn what_is_off_is_listed_with_what_was_left_out() {
        let mut report = report();
        report.add(Check::Places, "emails", "job 7 is nowhere");
        report.left_out = 3;
        let text = text("d", &report);
        let end = "4 things are off:\n  places: queue emails: job 7 is nowhere\n  and 3 more\n";
        assert!(text.ends_with(end), "{text}");
        let json: Value = serde_json::from_str(&json(&report)).unwrap();
        assert_eq!(json["ok"], false);
        assert_eq!(json["queues"][0]["retention_expired"], 1);
        assert_eq!(json["findings"][0]["check"], "places");
        assert_eq!(json["findings_left_out"], 3);
    }
}
