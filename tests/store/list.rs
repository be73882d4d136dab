//! Listing a queue's jobs: in order, a page at a time, at a bounded cost.

use crate::builders::*;
use redrive::domain::{NewJob, State};
use redrive::queue::{Ahead, JobQuery};

fn of_type(job: NewJob, job_type: &str) -> NewJob {
    NewJob { job_type: job_type.into(), ..job }
}

fn by(limit: usize, name: &str) -> JobQuery {
    JobQuery { limit, ..jobs_of(name) }
}

/// Jobs in every state, each told apart by its id, and some of another queue among them.
async fn every_state<S: crate::engines::Engine>(h: &crate::harness::Harness<S>) {
    h.dead_letter(job("q").id("dead-b")).await;
    h.dead_letter(job("q").id("dead-a")).await;
    for id in ["leased-b", "leased-a"] {
        h.enqueue(job("other").id(id)).await;
        h.enqueue(job("q").id(id)).await;
        h.claim("other").await;
        h.claim("q").await;
    }
    h.enqueue(job("q").id("ready-low").priority(-1)).await;
    h.enqueue(job("q").id("ready-b")).await;
    h.enqueue(job("q").id("ready-a")).await;
    h.advance(SECOND);
    h.enqueue(job("q").id("ready-0")).await;
    h.enqueue(job("q").id("ready-high").priority(1)).await;
    h.enqueue(job("q").id("later-b").delay(HOUR)).await;
    h.enqueue(job("q").id("later-a").delay(HOUR)).await;
    h.enqueue(job("q").id("soon").delay(SECOND)).await;
    h.enqueue(job("other").id("foreign")).await;
}

const READY: [&str; 5] = ["ready-high", "ready-b", "ready-a", "ready-0", "ready-low"];
const SCHEDULED: [&str; 3] = ["soon", "later-b", "later-a"];
const LEASED: [&str; 2] = ["leased-b", "leased-a"];
const DEAD: [&str; 2] = ["dead-b", "dead-a"];

store_test! {
    async fn every_job_is_listed_once_in_order_whatever_the_page(h) {
        every_state(&h).await;
        let all = [&READY[..], &SCHEDULED, &LEASED, &DEAD].concat();
        for limit in 1..=all.len() + 1 {
            let pages = h.pages(by(limit, "q")).await;
            assert_eq!(pages.concat(), all, "{limit} a page");
            assert!(pages.iter().rev().skip(1).all(|page| page.len() == limit), "{pages:?}");
        }
    }
}

store_test! {
    async fn one_state_can_be_asked_for(h) {
        every_state(&h).await;
        for (state, expected) in [
            (State::Ready, &READY[..]),
            (State::Scheduled, &SCHEDULED),
            (State::Leased, &LEASED),
            (State::Dead, &DEAD),
            (State::Completed, &[]),
        ] {
            for limit in [1, 2, 100] {
                let query = JobQuery { state: Some(state), ..by(limit, "q") };
                assert_eq!(h.pages(query.clone()).await.concat(), expected);
                let page = h.page(query).await;
                assert!(page.jobs.iter().all(|(_, view)| view.state == state));
            }
        }
    }
}

store_test! {
    async fn a_type_is_found_among_others_at_a_bounded_cost(h) {
        for n in 0..30 {
            let kind = if n % 10 == 9 { "rare" } else { "mail" };
            h.enqueue(of_type(job("q").id(&format!("{n:02}")), kind)).await;
        }
        let rare = JobQuery { job_type: Some("rare".into()), looks_max: 4, ..jobs_of("q") };
        let pages = h.pages(rare.clone()).await;
        assert_eq!(pages.concat(), ["09", "19", "29"]);
        assert_eq!(pages.len(), 8, "four looks to a page, most of them in vain: {pages:?}");
        assert_eq!(h.pages(JobQuery { looks_max: 30, ..rare.clone() }).await.len(), 1);
        let none = JobQuery { job_type: Some("rar".into()), ..rare };
        assert!(h.pages(none).await.concat().is_empty(), "the whole type, not a part");
    }
}

store_test! {
    /// Elsewhere the leases of a queue are by themselves.
    async fn leases_of_other_queues_are_not_looked_at(h) {
        for n in 0..9 {
            h.enqueue(job(if n == 7 { "q" } else { "busy" }).id(&n.to_string())).await;
        }
        h.claim_many("busy", 10).await;
        let leased = JobQuery { state: Some(State::Leased), looks_max: 3, ..jobs_of("q") };
        assert_eq!(h.pages(leased.clone()).await.len(), 1, "none is out: nothing to look at");
        h.claim("q").await;
        let pages = h.pages(leased).await;
        assert_eq!((pages.concat(), pages.len()), (vec!["7".to_owned()], 1));
    }
}

store_test! {
    async fn pages_stay_right_while_jobs_come_and_go(h) {
        for id in ["a", "b", "c", "d"] {
            h.enqueue(job("q").id(id)).await;
        }
        let first = h.page(by(2, "q")).await;
        assert_eq!(first.jobs.len(), 2);
        // One that was listed goes, so does the one where the page ended, and one comes before it.
        h.cancel("a").await.unwrap();
        h.cancel("b").await.unwrap();
        h.enqueue(job("q").id("first").priority(5)).await;
        h.enqueue(job("q").id("e")).await;
        let rest = h.pages(JobQuery { after: first.next, ..by(2, "q") }).await;
        assert_eq!(rest.concat(), ["c", "d", "e"]);
    }
}

store_test! {
    async fn every_ready_job_knows_how_many_go_first(h) {
        for _ in 0..5 {
            h.enqueue(job("q")).await;
        }
        let mut query = by(2, "q");
        let mut ahead = Vec::new();
        loop {
            let page = h.page(query.clone()).await;
            ahead.extend(page.jobs.iter().filter_map(|(_, view)| view.ahead));
            if page.next.is_none() {
                break;
            }
            query.after = page.next;
        }
        let expected: Vec<_> = (0..5).map(|jobs| Ahead { jobs, more: false }).collect();
        assert_eq!(ahead, expected);
    }
}

store_test! {
    async fn a_listed_job_is_what_looking_at_it_shows(h) {
        every_state(&h).await;
        let lease = h.claim("q").await.delivery.lease;
        h.nack_saving(lease, failed("E"), "half way").await.unwrap();
        let whole = h.page(JobQuery { full: true, ..jobs_of("q") }).await.jobs;
        for (_, listed) in &whole {
            let view = h.store().job(listed.spec.id.clone(), Some(queue("q"))).await.unwrap();
            assert_eq!(format!("{listed:?}"), format!("{view:?}"));
        }
        let basic = h.page(jobs_of("q")).await.jobs;
        assert_eq!(basic.len(), whole.len());
        for ((_, basic), (_, whole)) in basic.iter().zip(&whole) {
            let mut expected = whole.clone();
            expected.spec.body = Default::default();
            expected.attempts.clear();
            expected.progress.checkpoint.clear();
            assert_eq!(format!("{basic:?}"), format!("{expected:?}"));
        }
    }
}

store_test! {
    async fn a_page_ends_before_it_gets_too_long_but_is_never_empty(h) {
        for id in ["a", "b", "c"] {
            h.enqueue(job("q").id(id).body(&"x".repeat(10_000))).await;
        }
        let full = JobQuery { full: true, max_bytes: 25_000, ..jobs_of("q") };
        assert_eq!(h.pages(full.clone()).await, [vec!["a", "b"], vec!["c"]]);
        let tiny = JobQuery { max_bytes: 1, ..full };
        assert_eq!(h.pages(tiny).await, [["a"], ["b"], ["c"]]);
        let basic = JobQuery { max_bytes: 25_000, ..jobs_of("q") };
        assert_eq!(h.pages(basic).await.len(), 1, "bodies that are not shown do not count");
    }
}

store_test! {
    async fn there_is_nothing_to_list_in_a_queue_that_is_not_there(h) {
        assert_eq!(h.store().jobs(jobs_of("none")).await.unwrap_err(), no_queue("none").into());
        h.enqueue(job("q")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease).await.unwrap();
        let page = h.page(jobs_of("q")).await;
        assert!(page.jobs.is_empty() && page.next.is_none());
    }
}
