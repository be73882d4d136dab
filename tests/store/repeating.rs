//! Bulk calls that come again under the same request id.

use crate::{builders::*, engines::Engine, harness::Harness};
use redrive::domain::JobId;
use redrive::queue::Refusal;
use redrive::queue::{Purge, REPLY_KEPT, RequestId, Requeue, Which};

fn request(id: &str, asked: u8) -> Option<RequestId> {
    Some(RequestId { id: id.into(), asked: [asked; 32] })
}

fn one_more(id: &str, asked: u8) -> Requeue {
    Requeue { request: request(id, asked), ..requeue_of("q", oldest(1)) }
}

fn one_less(id: &str, asked: u8) -> Purge {
    Purge { request: request(id, asked), ..purge_of("q", oldest(1)) }
}

async fn dead_letter_all<S: Engine>(h: &Harness<S>, ids: &[&str]) {
    for id in ids {
        h.dead_letter(job("q").id(id)).await;
    }
}

store_test! {
    async fn a_requeue_that_comes_again_gets_the_first_answer(h) {
        dead_letter_all(&h, &["a", "b", "c", "d"]).await;
        let which = Which::Ids(["a", "unknown"].map(JobId::parse).into());
        let named = Requeue { request: request("r", 1), ..requeue_of("q", which) };
        let first = h.requeue(named.clone()).await.unwrap();
        assert_eq!((first.ids.len(), first.skipped.len()), (1, 1));
        let other = h.requeue(one_more("s", 1)).await.unwrap();
        assert_eq!(other.ids, [JobId::parse("b")]);
        for _ in 0..2 {
            assert_eq!(h.requeue(named.clone()).await.as_ref(), Ok(&first));
            assert_eq!(h.requeue(one_more("s", 1)).await.as_ref(), Ok(&other));
            assert_eq!(h.depths("q").await.dead, 2);
            h.reopen().await;
        }
    }
}

store_test! {
    async fn a_purge_that_comes_again_gets_the_first_answer(h) {
        dead_letter_all(&h, &["a", "b", "c"]).await;
        let first = h.purge(one_less("r", 1)).await.unwrap();
        assert_eq!((first.count, first.has_more), (1, true));
        h.reopen().await;
        assert_eq!(h.purge(one_less("r", 1)).await, Ok(first));
        assert_eq!(h.depths("q").await.dead, 2);
        // A requeue has request ids of its own.
        assert_eq!(h.requeue(one_more("r", 2)).await.unwrap().ids, [JobId::parse("b")]);
    }
}

store_test! {
    async fn the_same_request_id_for_something_else_is_refused(h) {
        dead_letter_all(&h, &["a", "b"]).await;
        h.requeue(one_more("r", 1)).await.unwrap();
        assert_eq!(h.requeue(one_more("r", 2)).await, Err(Refusal::RequestIdTaken));
        h.purge(Purge { dry_run: true, ..one_less("r", 1) }).await.unwrap();
        assert_eq!(h.purge(one_less("r", 2)).await, Err(Refusal::RequestIdTaken));
        assert_eq!(h.depths("q").await.dead, 1);
    }
}

store_test! {
    async fn answers_are_forgotten_after_ten_minutes(h) {
        dead_letter_all(&h, &["a", "b", "c"]).await;
        h.requeue(one_more("r", 1)).await.unwrap();
        h.advance(REPLY_KEPT - MILLISECOND);
        h.sweep().await;
        assert_eq!(h.requeue(one_more("r", 1)).await.unwrap().ids, [JobId::parse("a")]);
        h.advance(MILLISECOND);
        assert_eq!(h.requeue(one_more("r", 2)).await.unwrap().ids, [JobId::parse("b")]);
        h.advance(REPLY_KEPT);
        h.sweep().await;
        assert_eq!(h.requeue(one_more("r", 3)).await.unwrap().ids, [JobId::parse("c")]);
    }
}

store_test! {
    async fn a_call_that_was_refused_is_not_remembered(h) {
        assert_eq!(h.requeue(one_more("r", 1)).await, Err(no_queue("q")));
        dead_letter_all(&h, &["a"]).await;
        assert_eq!(h.requeue(one_more("r", 1)).await.unwrap().ids.len(), 1);
    }
}
