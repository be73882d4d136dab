//! What must hold at the end of every story, and a story with one of everything.

use crate::{builders::*, engines::Engine, harness::Harness};
use redrive::domain::JobId;
use redrive::queue::{Requeue, Which};
use redrive::store::Check;

/// The law, from the queues' own counters; and everything that `redrive verify` looks at.
pub(crate) async fn everything_adds_up<S: Engine>(h: &Harness<S>) {
    for queue in h.queues().await {
        let (t, held) = (queue.totals, queue.depths.held());
        let out = t.completed + t.purged + t.cancelled + t.retention_expired + t.moved_out;
        assert_eq!(t.enqueued + t.moved_in, out + held, "{queue:?}");
    }
    let report = S::verify(h.store(), &h.place).await;
    // Stories about damage leave their damage behind, and nothing else.
    let undamaged = report.findings.iter().filter(|found| found.check != Check::Checksums);
    let found: Vec<_> = undamaged.map(ToString::to_string).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// One of everything: ready, scheduled, leased, completed, dead, overflow, with ids, keys, deadlines, history, moves and
/// removals.
pub(crate) async fn one_of_everything<S: Engine>(h: &mut Harness<S>) {
    h.set(|queue| queue.dead_letters.max_entries = 1);
    let large = "large ".repeat(1_000);
    h.enqueue(job("q").id("ready").key("k-ready").expires(HOUR).body(&large)).await;
    h.enqueue(job("q").priority(9)).await;
    h.enqueue(job("q").id("later").delay(HOUR)).await;
    for id in ["dead-1", "dead-2", "moved"] {
        h.dead_letter(job("dying").id(id)).await;
    }
    let moved = requeue_of("dying", Which::Ids(vec![JobId::parse("moved")]));
    h.requeue(Requeue { target: Some(queue("other")), ..moved }).await.unwrap();
    h.enqueue(job("q").id("done").key("k-done").priority(99)).await;
    let lease = h.claim("q").await.delivery.lease;
    h.ack(lease).await.unwrap();
    h.enqueue(job("q").id("retried").priority(98)).await;
    let lease = h.claim("q").await.delivery.lease;
    h.nack(lease, failed("Hiccup")).await.unwrap();
    h.enqueue(job("q").id("out").priority(97)).await;
    h.claim("q").await;
    h.set(|queue| queue.completed_retention = Some(HOUR));
    h.enqueue(job("kept").id("kept").key("k-kept")).await;
    let lease = h.claim("kept").await.delivery.lease;
    h.ack_with(lease, "well", "result".into()).await.unwrap();
    h.enqueue(job("q").id("cancelled")).await;
    h.cancel("cancelled").await.unwrap();
}
