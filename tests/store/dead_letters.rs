//! Reading the dead letters: their order, their pages, the overflow.

use crate::{builders::*, engines::Engine, harness::Harness};
use redrive::domain::{Body, State};
use redrive::queue::DeadLetterQuery;

/// Dead letters of these ids, in this order of death.
async fn dead_letter_all<S: Engine>(h: &Harness<S>, ids: &[&str]) {
    for id in ids {
        h.dead_letter(job("q").id(id)).await;
        h.advance(MILLISECOND);
    }
}

async fn ids<S: Engine>(h: &Harness<S>, name: &str) -> Vec<String> {
    let dead = h.dead(name).await;
    dead.iter().map(|job| job.spec.id.to_string()).collect()
}

store_test! {
    async fn dead_letters_come_in_the_order_of_death(h) {
        dead_letter_all(&h, &["c", "a", "b"]).await;
        assert_eq!(ids(&h, "q").await, ["c", "a", "b"]);
        assert_eq!(ids(&h, "dlq:q").await, ["c", "a", "b"]);
        let numbers: Vec<_> = h.dead("q").await.iter().map(|job| job.death.as_ref().unwrap().number).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    }
}

store_test! {
    async fn a_dead_letter_keeps_the_whole_job(h) {
        h.enqueue(job("q")).await;
        h.dead_letter(job("q").priority(9).key("k")).await;
        let view = h.dead("q").await.remove(0);
        assert_eq!((view.state, view.corrupt), (State::Dead, false));
        assert_eq!((view.spec.priority, view.spec.key.as_deref()), (9, Some("k")));
        assert_eq!(view.spec.body, Body::Text("body".into()));
        assert_eq!((view.attempts.len(), view.progress.tries), (1, 1));
        let death = view.death.unwrap();
        assert_eq!(death.died_at, h.now());
        assert_eq!(death.context.ready, 1);
    }
}

store_test! {
    async fn a_short_list_leaves_out_what_is_large(h) {
        h.dead_letter(job("q")).await;
        let query = DeadLetterQuery { full: false, ..dead_query("q") };
        let view = h.dead_page(query).await.jobs.remove(0);
        assert_eq!(view.spec.body, Body::None);
        assert!(view.last_failure.is_some());
    }
}

store_test! {
    async fn pages_follow_one_another(h) {
        dead_letter_all(&h, &["a", "b", "c", "d", "e"]).await;
        let mut found = Vec::new();
        let mut after = 0;
        for (jobs, more) in [(2, true), (2, true), (1, false)] {
            let page = h.dead_page(DeadLetterQuery { after, limit: 2, ..dead_query("q") }).await;
            assert_eq!((page.jobs.len(), page.total, page.next.is_some()), (jobs, 5, more));
            found.extend(page.jobs.iter().map(|job| job.spec.id.to_string()));
            after = page.next.unwrap_or_default();
        }
        assert_eq!(found, ["a", "b", "c", "d", "e"]);
    }
}

store_test! {
    async fn no_limit_means_one_page(h) {
        dead_letter_all(&h, &["a", "b"]).await;
        let page = h.dead_page(DeadLetterQuery { limit: usize::MAX, ..dead_query("q") }).await;
        assert_eq!((page.jobs.len(), page.next), (2, None));
    }
}

store_test! {
    async fn a_page_that_ends_with_the_last_letter_is_the_last(h) {
        dead_letter_all(&h, &["a", "b"]).await;
        let page = h.dead_page(DeadLetterQuery { limit: 2, ..dead_query("q") }).await;
        assert_eq!((page.jobs.len(), page.next), (2, None));
    }
}

store_test! {
    async fn pages_stay_stable_while_letters_come_and_go(h) {
        dead_letter_all(&h, &["a", "b", "c"]).await;
        let first = h.dead_page(DeadLetterQuery { limit: 2, ..dead_query("q") }).await;
        h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        h.claim("q").await;
        dead_letter_all(&h, &["d"]).await;
        let after = first.next.unwrap();
        let rest = h.dead_page(DeadLetterQuery { after, ..dead_query("q") }).await;
        let rest: Vec<_> = rest.jobs.iter().map(|job| job.spec.id.to_string()).collect();
        assert_eq!(rest, ["c", "d"]);
    }
}

store_test! {
    async fn a_page_is_bounded_in_bytes_and_holds_at_least_one_letter(h) {
        for id in ["a", "b", "c"] {
            h.dead_letter(job("q").id(id).body(&"x".repeat(10_000))).await;
        }
        let bounded = |max_bytes, after| DeadLetterQuery { max_bytes, after, ..dead_query("q") };
        let page = h.dead_page(bounded(25_000, 0)).await;
        assert_eq!(page.jobs.len(), 2);
        let page = h.dead_page(bounded(1, page.next.unwrap())).await;
        assert_eq!((page.jobs.len(), page.next), (1, None));
    }
}

store_test! {
    async fn a_full_queue_of_dead_letters_overflows_and_loses_nothing(h) {
        h.set(|queue| queue.dead_letters.max_entries = 2);
        dead_letter_all(&h, &["a", "b", "c", "d"]).await;
        assert_eq!(ids(&h, "q").await, ["a", "b", "c", "d"]);
        assert_eq!(ids(&h, "dlq:overflow:q").await, ["c", "d"]);
        let depths = h.depths("q").await;
        assert_eq!((depths.dead, depths.overflow), (4, 2));
        assert_eq!(h.dead_page(dead_query("q")).await.total, 4);
        assert_eq!(h.dead_page(dead_query("dlq:overflow:q")).await.total, 2);
    }
}

store_test! {
    async fn overflow_marks_do_not_change_and_freed_room_is_used(h) {
        h.set(|queue| queue.dead_letters.max_entries = 2);
        dead_letter_all(&h, &["a", "b", "c"]).await;
        h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        h.claim("q").await;
        assert_eq!(ids(&h, "dlq:overflow:q").await, ["c"]);
        dead_letter_all(&h, &["d", "e"]).await;
        assert_eq!(ids(&h, "dlq:overflow:q").await, ["c", "e"]);
        assert_eq!(ids(&h, "q").await, ["b", "c", "d", "e"]);
    }
}

store_test! {
    async fn an_unknown_queue_has_no_dead_letters_to_list(h) {
        assert_eq!(h.store().dead_letters(dead_query("none")).await.unwrap_err(), no_queue("none").into());
    }
}

store_test! {
    async fn listing_removes_nothing(h) {
        dead_letter_all(&h, &["a"]).await;
        assert_eq!(ids(&h, "q").await, ids(&h, "q").await);
        assert_eq!(h.depths("q").await.dead, 1);
    }
}
