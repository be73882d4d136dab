//! Dead letters found by what they died of.

use crate::{builders::*, engines::Engine, harness::Harness};
use redrive::domain::{DeadFilter, DeadReason, Failure, Glob, JobId, Outcome};
use redrive::queue::{DeadLetterPage, DeadLetterQuery, Purge, Requeue, Search, Which};

/// Dies at once of this failure; ids say which is which.
async fn die<S: Engine>(h: &Harness<S>, id: &str, failure: Failure) {
    h.enqueue(job("q").id(id)).await;
    let lease = h.claim("q").await.delivery.lease;
    let outcome = Outcome::Failed { failure, permanent: true, retry_after: None };
    h.nack(lease, outcome).await.unwrap();
    h.advance(MILLISECOND);
}

async fn die_of<S: Engine>(h: &Harness<S>, deaths: &[(&str, &str)]) {
    for (id, error_type) in deaths {
        die(h, id, Failure::new(error_type, "it did not work")).await;
    }
}

fn query(filter: DeadFilter) -> DeadLetterQuery {
    DeadLetterQuery { search: Some(search(filter)), ..dead_query("q") }
}

fn ids(page: &DeadLetterPage) -> Vec<String> {
    page.jobs.iter().map(|job| job.spec.id.to_string()).collect()
}

async fn find<S: Engine>(h: &Harness<S>, filter: DeadFilter) -> String {
    ids(&h.dead_page(query(filter)).await).join(" ")
}

store_test! {
    async fn letters_are_found_by_each_of_their_facts(h) {
        h.enqueue(job("q").id("expired").expires(SECOND)).await;
        h.advance(SECOND);
        h.sweep().await;
        let any = DeadFilter::default;
        let slow = Failure { http_status: 503, ..Failure::new("Timeout", "No answer from 10") };
        die(&h, "slow", slow.clone()).await;
        let before = h.now();
        die(&h, "lost", Failure::new("LostError", "gone")).await;
        let mut other = job("q").id("other");
        other.job_type = "report".into();
        h.dead_letter(other).await;

        assert_eq!(find(&h, any()).await, "expired slow lost other");
        assert_eq!(find(&h, of_type("Lo*")).await, "lost");
        assert_eq!(find(&h, of_type("*")).await, "slow lost other");
        let job_type = Some(Glob::new("rep*"));
        assert_eq!(find(&h, DeadFilter { job_type, ..any() }).await, "other");
        let reason = Some(DeadReason::Expired);
        assert_eq!(find(&h, DeadFilter { reason, ..any() }).await, "expired");
        let message_contains = Some("no answer".into());
        assert_eq!(find(&h, DeadFilter { message_contains, ..any() }).await, "slow");
        assert_eq!(find(&h, DeadFilter { http_status: Some(503), ..any() }).await, "slow");
        let fingerprint = Some(slow.fingerprint("mail"));
        assert_eq!(find(&h, DeadFilter { fingerprint, ..any() }).await, "slow");
        let died_before = Some(before);
        assert_eq!(find(&h, DeadFilter { died_before, ..any() }).await, "expired slow");
        let died_after = Some(before);
        assert_eq!(find(&h, DeadFilter { died_after, ..any() }).await, "other");
    }
}

store_test! {
    async fn pages_of_what_was_found_go_on_where_they_ended(h) {
        die_of(&h, &[("a", "X"), ("b", "Y"), ("c", "X"), ("d", "Y"), ("e", "X")]).await;
        let page = |after| {
            h.dead_page(DeadLetterQuery { limit: 2, after, ..query(of_type("X")) })
        };
        let first = page(0).await;
        assert_eq!((ids(&first), first.total), (vec!["a".into(), "c".into()], 5));
        // What comes and goes meanwhile moves nothing.
        h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        h.claim("q").await;
        die_of(&h, &[("f", "X")]).await;
        let second = page(first.next.unwrap()).await;
        assert_eq!((ids(&second), second.next), (vec!["e".into(), "f".into()], None));
    }
}

store_test! {
    async fn a_call_looks_at_no_more_than_its_share(h) {
        die_of(&h, &[("a", "Y"), ("b", "Y"), ("c", "X"), ("d", "Y"), ("e", "X")]).await;
        let search = || Search { filter: of_type("X"), look_at: 2 };
        let (mut after, mut pages) = (0, Vec::new());
        loop {
            let query = DeadLetterQuery { search: Some(search()), after, ..dead_query("q") };
            let page = h.dead_page(query).await;
            assert_eq!(page.total, 5);
            pages.push(ids(&page).join(""));
            match page.next {
                Some(next) => after = next,
                None => break,
            }
        }
        assert_eq!(pages, ["", "c", "e"]);

        let (mut among, mut calls) = (None, Vec::new());
        loop {
            let which = Which::Found { search: search(), limit: 10, among };
            let done = h.requeue(requeue_of("q", which)).await.unwrap();
            calls.push(done.ids.iter().map(JobId::to_string).collect::<String>());
            among = Some(done.left);
            if !done.has_more {
                break;
            }
        }
        assert_eq!(calls, ["", "c", "e"]);
    }
}

store_test! {
    async fn only_what_was_found_goes_back_to_work(h) {
        die_of(&h, &[("a", "X"), ("b", "Y"), ("c", "X"), ("d", "X")]).await;
        let done = h.requeue(requeue_of("q", found(of_type("X"), 2))).await.unwrap();
        assert_eq!(done.ids, ["a", "c"].map(JobId::parse));
        assert!(done.has_more);
        // Those that were sent round die of the same again, and are not met.
        for delivered in h.claim_many("q", 2).await {
            let failure = Failure::new("X", "");
            let outcome = Outcome::Failed { failure, permanent: true, retry_after: None };
            h.nack(delivered.delivery.lease, outcome).await.unwrap();
        }
        let go_on = Which::Found {
            search: search(of_type("X")), limit: 2, among: Some(done.left)
        };
        let done = h.requeue(requeue_of("q", go_on)).await.unwrap();
        assert_eq!((done.ids, done.has_more), (vec![JobId::parse("d")], false));
        assert_eq!(h.depths("q").await.dead, 3);
    }
}

store_test! {
    async fn a_dry_run_of_a_filter_moves_nothing(h) {
        die_of(&h, &[("a", "X"), ("b", "Y")]).await;
        let requeue = Requeue { dry_run: true, ..requeue_of("q", found(of_type("Y"), 10)) };
        let done = h.requeue(requeue).await.unwrap();
        assert_eq!((done.ids, done.has_more), (vec![JobId::parse("b")], false));
        assert_eq!(h.depths("q").await.dead, 2);
    }
}

store_test! {
    async fn a_dry_run_counts_an_id_that_is_named_twice_once(h) {
        die_of(&h, &[("a", "X")]).await;
        let twice = || Which::Ids(["a", "a"].map(JobId::parse).into());
        let dry = h.requeue(Requeue { dry_run: true, ..requeue_of("q", twice()) }).await.unwrap();
        let done = h.requeue(requeue_of("q", twice())).await.unwrap();
        assert_eq!((dry.ids.len(), dry.skipped.len()), (1, 1));
        assert_eq!((dry.ids, dry.skipped), (done.ids, done.skipped));
        h.claim("q").await;
        die_of(&h, &[("b", "X")]).await;
        let twice = || Which::Ids(["b", "b"].map(JobId::parse).into());
        let dry = h.purge(Purge { dry_run: true, ..purge_of("q", twice()) }).await.unwrap();
        let done = h.purge(purge_of("q", twice())).await.unwrap();
        assert_eq!((dry.count, dry.skipped.len()), (1, 1));
        assert_eq!((dry.count, dry.skipped), (done.count, done.skipped));
    }
}
