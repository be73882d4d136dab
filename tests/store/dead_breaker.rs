//! The breaker of the dead letters: full ones send to the overflow, and nothing is ever lost.

use crate::{builders::*, engines::Engine, harness::Harness};
use redrive::domain::{BreakerKind, BreakerState};
use redrive::queue::BreakerOrder;
use std::time::Duration;

const RECOVERY: Duration = Duration::from_secs(60);

impl<S: Engine> Harness<S> {
    /// Room for two dead letters, and both places taken.
    async fn filled(&mut self) {
        self.set(|queue| queue.dead_letters.max_entries = 2);
        for id in ["a", "b"] {
            self.dead_letter(job("q").id(id)).await;
        }
    }

    /// As `filled`, and five more found no room.
    async fn opened(&mut self) {
        self.filled().await;
        for id in ["c", "d", "e", "f", "g"] {
            self.dead_letter(job("q").id(id)).await;
        }
        assert_eq!(self.dead_letters_state().await, BreakerState::Open);
    }

    async fn dead_letters_state(&self) -> BreakerState {
        let breaker = self.breakers("q").await.dead_letters.breaker;
        breaker.state(&self.settings.defaults.dead_letters.breaker, self.now())
    }

    /// Every dead letter in its order, those of the overflow in capitals.
    async fn dead_letters(&self) -> String {
        let dead = self.dead("q").await;
        let name = |view: &redrive::queue::JobView| {
            let id = view.spec.id.to_string();
            let overflow = view.death.as_ref().is_some_and(|death| death.overflow);
            if overflow { id.to_uppercase() } else { id }
        };
        dead.iter().map(name).collect()
    }
}

store_test! {
    async fn five_in_a_row_that_find_no_room_open_it(h) {
        h.filled().await;
        for (count, id) in ["c", "d", "e", "f"].iter().enumerate() {
            h.dead_letter(job("q").id(id)).await;
            assert_eq!(h.breakers("q").await.dead_letters.failures as usize, count + 1);
        }
        assert_eq!(h.dead_letters_state().await, BreakerState::Closed);
        h.recorded.take_breakers();
        h.dead_letter(job("q").id("g")).await;
        assert_eq!(h.dead_letters_state().await, BreakerState::Open);
        let notice = h.recorded.take_breakers().remove(0);
        assert_eq!((notice.name.kind, notice.state), (BreakerKind::DeadLetters, BreakerState::Open));
        let error = &notice.view.breaker.last_error;
        assert!(error.contains("max_entries"), "{error}");
        assert_eq!(h.dead_letters().await, "abCDEFG");
        // Its queue works on.
        h.enqueue(job("q")).await;
        h.claim("q").await;
    }
}

store_test! {
    async fn while_it_is_open_everything_is_overflow_without_asking(h) {
        h.opened().await;
        // More room by the settings is found only when it is tried again.
        h.set(|queue| queue.dead_letters.max_entries = 100);
        h.dead_letter(job("q").id("h")).await;
        assert_eq!(h.dead_letters().await, "abCDEFGH");
        h.advance(RECOVERY);
        assert_eq!(h.dead_letters_state().await, BreakerState::HalfOpen);
        h.dead_letter(job("q").id("i")).await;
        assert_eq!(h.dead_letters_state().await, BreakerState::Closed);
        h.dead_letter(job("q").id("j")).await;
        assert_eq!(h.dead_letters().await, "abCDEFGHij");
    }
}

store_test! {
    async fn half_open_and_still_full_it_opens_again(h) {
        h.opened().await;
        h.advance(RECOVERY);
        h.dead_letter(job("q").id("h")).await;
        assert_eq!(h.dead_letters().await, "abCDEFGH");
        let breaker = h.breakers("q").await.dead_letters.breaker;
        assert_eq!(breaker.trips, 2);
        assert_eq!(breaker.outage.map(|outage| outage.probe_at), Some(h.now().after(RECOVERY)));
    }
}

store_test! {
    async fn a_call_that_makes_room_closes_it_at_once(h) {
        h.opened().await;
        h.requeue(requeue_of("q", oldest(1))).await.unwrap();
        assert_eq!(h.dead_letters_state().await, BreakerState::Closed, "requeued");
        let lease = h.claim("q").await.delivery.lease;
        h.ack(lease).await.unwrap();
        h.dead_letter(job("q").id("h")).await;
        assert_eq!(h.dead_letters().await, "bCDEFGh");
        for id in ["i", "j", "k", "l", "m"] {
            h.dead_letter(job("q").id(id)).await;
        }
        assert_eq!(h.dead_letters_state().await, BreakerState::Open);
        h.purge(purge_of("q", oldest(1))).await.unwrap();
        assert_eq!(h.dead_letters_state().await, BreakerState::Closed, "purged");
    }
}

store_test! {
    async fn retention_makes_room_as_well(h) {
        h.opened().await;
        h.set(|queue| queue.dead_letters.retention = Some(SECOND));
        h.advance(SECOND);
        h.sweep().await;
        assert_eq!(h.dead_letters_state().await, BreakerState::Closed);
        assert_eq!(h.dead_letters().await, "");
    }
}

store_test! {
    async fn the_overflow_has_no_room_to_make(h) {
        h.opened().await;
        h.purge(purge_of("dlq:overflow:q", oldest(3))).await.unwrap();
        assert_eq!(h.dead_letters().await, "abFG");
        assert_eq!(h.dead_letters_state().await, BreakerState::Open);
        // Marks do not change: a place among the others is not given to who is there.
        h.purge(purge_of("q", oldest(2))).await.unwrap();
        assert_eq!((h.dead_letters().await.as_str(), h.dead_letters_state().await), ("FG", BreakerState::Closed));
        h.requeue(requeue_of("q", oldest(10))).await.unwrap();
        assert_eq!(h.drain("q").await, ["f", "g"]);
    }
}

store_test! {
    async fn an_operator_can_send_everything_to_the_overflow_and_back(h) {
        let force = |open| BreakerOrder::Force { open, reason: "disk".into() };
        h.set_breaker("dlq:q", force(true)).await.unwrap_err();
        h.dead_letter(job("q").id("a")).await;
        h.set_breaker("dlq:q", force(true)).await.unwrap();
        h.dead_letter(job("q").id("b")).await;
        h.advance(RECOVERY * 10);
        h.dead_letter(job("q").id("c")).await;
        h.set_breaker("dlq:q", force(false)).await.unwrap();
        h.set(|queue| queue.dead_letters.max_entries = 1);
        for id in ["d", "e", "f", "g", "h", "i", "j"] {
            h.dead_letter(job("q").id(id)).await;
        }
        assert_eq!(h.dead_letters_state().await, BreakerState::Closed, "nothing opens it");
        assert_eq!(h.dead_letters().await, "aBCDEFGHIJ");
        h.set_breaker("dlq:q", BreakerOrder::Reset).await.unwrap();
        for id in ["k", "l", "m", "n", "o"] {
            h.dead_letter(job("q").id(id)).await;
        }
        assert_eq!(h.dead_letters_state().await, BreakerState::Open);
    }
}

store_test! {
    async fn a_disabled_one_asks_each_time(h) {
        h.set(|queue| queue.dead_letters.breaker.disabled = true);
        h.filled().await;
        for id in ["c", "d", "e", "f", "g", "h"] {
            h.dead_letter(job("q").id(id)).await;
        }
        assert_eq!((h.dead_letters().await.as_str(), h.dead_letters_state().await), ("abCDEFGH", BreakerState::Closed));
        h.purge(purge_of("q", oldest(1))).await.unwrap();
        h.dead_letter(job("q").id("i")).await;
        assert_eq!(h.dead_letters().await, "bCDEFGHi");
    }
}

store_test! {
    async fn it_is_open_after_a_restart(h) {
        h.opened().await;
        let before = h.breakers("q").await.dead_letters;
        h.reopen().await;
        assert_eq!(h.breakers("q").await.dead_letters, before);
        h.dead_letter(job("q").id("h")).await;
        assert_eq!(h.dead_letters().await, "abCDEFGH");
        h.requeue(requeue_of("q", oldest(100))).await.unwrap();
        assert_eq!(h.drain("q").await.len(), 8, "nothing was lost");
        assert_eq!(h.dead_letters_state().await, BreakerState::Closed);
    }
}
