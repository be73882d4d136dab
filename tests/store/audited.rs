//! What must hold at the end of every story.

use crate::{engines::Engine, harness::Harness};
use redrive::store::Check;

/// The law, from the queues' own counters; and everything that `redrive audit` looks at.
pub(crate) async fn everything_adds_up<S: Engine>(h: &Harness<S>) {
    for queue in h.queues().await {
        let (t, held) = (queue.totals, queue.depths.held());
        let out = t.completed + t.purged + t.cancelled + t.retention_expired + t.moved_out;
        assert_eq!(t.enqueued + t.moved_in, out + held, "{queue:?}");
    }
    let report = Engine::audit(h.store(), &h.place).await;
    // Stories about damage leave their damage behind, and nothing else.
    let undamaged = report.findings.iter().filter(|found| found.check != Check::Checksums);
    let found: Vec<_> = undamaged.map(ToString::to_string).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}
