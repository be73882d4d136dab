//! Dead letters, counted by what they died of.

use crate::{builders::*, engines::Engine, harness::Harness};
use redrive::domain::{Failure, Outcome};
use redrive::queue::{Ack, DeadCount, DeadCountQuery, Nack, Settlements};

fn all() -> DeadCountQuery {
    DeadCountQuery { queue: None, after: None, limit: 1_000, types: 20, latest: 2 }
}

/// One dead letter for each type, as many at once as a claim takes.
async fn die_of<S: Engine>(h: &Harness<S>, name: &str, types: &[String]) {
    for types in types.chunks(1_000) {
        h.enqueue_all(types.iter().map(|_| job(name)).collect()).await;
        let jobs = h.claim_many(name, types.len()).await;
        let nacks = jobs.iter().zip(types).map(|(job, error_type)| {
            let failure = Failure::new(error_type, "");
            let outcome = Outcome::Failed { failure, permanent: true, retry_after: None };
            Nack { lease: job.delivery.lease.clone(), outcome, checkpoint: String::new() }
        });
        let (acks, extensions): (Vec<Ack>, _) = Default::default();
        h.settle(Settlements { acks, nacks: nacks.collect(), extensions }).await;
    }
}

fn types(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

async fn count<S: Engine>(h: &Harness<S>, name: &str) -> DeadCount {
    let query = DeadCountQuery { queue: Some(queue(name)), ..all() };
    h.dead_counts(query).await.queues.remove(0)
}

async fn by_type<S: Engine>(h: &Harness<S>, name: &str) -> String {
    let count = count(h, name).await;
    let types = count.by_error_type.iter().map(|(error_type, n)| format!("{error_type}={n}"));
    types.collect::<Vec<_>>().join(" ")
}

store_test! {
    async fn each_queue_tells_how_many_died_of_what(h) {
        h.set(|queue| queue.dead_letters.max_entries = 3);
        h.enqueue(job("alive")).await;
        let oldest_at = h.now();
        die_of(&h, "q", &types(&["B", "A", "C"])).await;
        h.advance(SECOND);
        die_of(&h, "q", &types(&["B"])).await;
        die_of(&h, "a", &types(&["X"])).await;
        let counts = h.dead_counts(all()).await;
        assert_eq!(counts.total, 5);
        let names: Vec<_> = counts.queues.iter().map(|queue| queue.queue.to_string()).collect();
        assert_eq!(names, ["a", "q"]);
        let q = &counts.queues[1];
        assert_eq!((q.count, q.overflow, q.oldest), (4, 1, Some(oldest_at)));
        assert_eq!(by_type(&h, "q").await, "B=2 A=1 C=1");
        let latest: Vec<_> = q.latest.iter().map(|dead| dead.error_type.as_str()).collect();
        assert_eq!(latest, ["B", "C"]);
        assert_eq!(q.latest[0].died_at, h.now());
        let top = DeadCountQuery { types: 1, latest: 0, limit: 1, ..all() };
        let counts = h.dead_counts(DeadCountQuery { after: Some(queue("a")), ..top }).await;
        assert_eq!((counts.queues.len(), counts.total), (1, 5));
        assert_eq!(counts.queues[0].by_error_type, [("B".to_owned(), 2)]);
    }
}

store_test! {
    async fn counts_follow_what_goes_back_and_what_goes(h) {
        die_of(&h, "q", &types(&["A", "B", "A", "B"])).await;
        h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        assert_eq!(by_type(&h, "q").await, "B=2 A=1");
        h.purge(purge_of("q", found(of_type("A"), 10))).await.unwrap();
        assert_eq!(by_type(&h, "q").await, "B=2");
        h.reopen().await;
        h.purge(purge_of("q", oldest(10))).await.unwrap();
        assert_eq!(by_type(&h, "q").await, "");
        let none = count(&h, "q").await;
        assert_eq!((none.count, none.oldest), (0, None));
        assert!(h.dead_counts(all()).await.queues.is_empty());
    }
}

store_test! {
    async fn a_job_that_never_failed_has_no_type(h) {
        h.enqueue(job("q").expires(SECOND)).await;
        h.advance(SECOND);
        h.sweep().await;
        assert_eq!(by_type(&h, "q").await, "=1");
    }
}

store_test! {
    async fn beyond_a_thousand_types_the_rest_is_counted_together(h) {
        let many: Vec<_> = (0..1_000).map(|n| format!("E{n}")).collect();
        die_of(&h, "q", &many).await;
        die_of(&h, "q", &types(&["New", "E7", "Newer", "New"])).await;
        let query = DeadCountQuery { types: 5_000, queue: Some(queue("q")), ..all() };
        let counted = h.dead_counts(query.clone()).await.queues.remove(0).by_error_type;
        assert_eq!(counted.len(), 1_001);
        assert_eq!(counted[..2], [("(other)".to_owned(), 3), ("E7".to_owned(), 2)]);
        // Each goes from where it was counted, also when its type would have room by then.
        h.purge(purge_of("q", oldest(10))).await.unwrap();
        die_of(&h, "q", &types(&["New"])).await;
        h.purge(purge_of("q", found(of_type("New"), 2))).await.unwrap();
        let counted = h.dead_counts(query).await.queues.remove(0).by_error_type;
        let of = |name: &str| counted.iter().find(|(t, _)| t == name).map(|(_, count)| *count);
        assert_eq!((of("(other)"), of("New")), (Some(1), Some(1)));
    }
}

store_test! {
    async fn a_queue_that_does_not_exist_is_refused(h) {
        let query = DeadCountQuery { queue: Some(queue("none")), ..all() };
        assert_eq!(h.store().dead_letter_counts(query).await.unwrap_err(), no_queue("none").into());
    }
}
