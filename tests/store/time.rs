//! The one clock: what wall-clock jumps, restarts and reboots do not do.

use crate::builders::*;
use redrive::domain::{State, Timestamp};
use redrive::queue::{IdleReason, Sweep};

const HOUR_SECONDS: i64 = 3600;

store_test! {
    async fn a_wall_clock_that_jumps_releases_nothing_and_ends_nothing(h) {
        h.set(without_jitter);
        h.enqueue(job("leased")).await;
        h.enqueue(job("later").delay(seconds(10))).await;
        h.enqueue(job("dying").delay(HOUR).expires(seconds(10))).await;
        let lease = h.claim("leased").await.delivery.lease;
        let before = h.now();
        for jump in [HOUR_SECONDS, -2 * HOUR_SECONDS, HOUR_SECONDS * 24] {
            h.clock.jump_wall(jump);
            let swept = h.sweep().await;
            assert!(swept.expired.is_empty() && h.recorded.take_died().is_empty() && swept.promoted == 0);
            assert_eq!(h.now(), before);
            assert_eq!(h.idle("later").await.reason, IdleReason::NotDue);
        }
        assert!(h.ack(lease).await.is_ok());
    }
}

store_test! {
    async fn a_wall_clock_that_jumps_is_followed_by_at_most_a_hundredth(h) {
        for jump in [HOUR_SECONDS, -2 * HOUR_SECONDS] {
            let before = h.now();
            h.clock.jump_wall(jump);
            h.advance(seconds(100));
            let passed = h.now().since(before);
            assert!((seconds(99)..=seconds(101)).contains(&passed), "{passed:?}");
        }
    }
}

store_test! {
    async fn a_wall_clock_that_jumps_while_the_store_is_closed_changes_nothing(h) {
        for jump in [HOUR_SECONDS, -2 * HOUR_SECONDS] {
            let id = h.enqueue(job("q").delay(seconds(10))).await;
            let before = h.now();
            h.close().await;
            h.clock.jump_wall(jump);
            h.open().await;
            assert_eq!(h.now(), before);
            assert_eq!(h.sweep().await.promoted, 0);
            h.advance(seconds(9));
            assert_eq!(h.sweep().await.promoted, 0);
            h.advance(seconds(2));
            assert_eq!(h.sweep().await.promoted, 1);
            assert_eq!(h.view(&id).await.state, State::Ready);
            let lease = h.claim("q").await.delivery.lease;
            h.ack(lease).await.unwrap();
        }
    }
}

store_test! {
    async fn time_passes_while_the_store_is_closed(h) {
        h.enqueue(job("q").delay(HOUR)).await;
        h.close().await;
        h.advance(HOUR);
        h.open().await;
        h.claim("q").await;
    }
}

store_test! {
    async fn after_a_restart_a_worker_can_still_settle_a_lease_that_is_over(h) {
        h.enqueue(job("q")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.close().await;
        h.advance(seconds(40));
        h.open().await;
        assert!(!h.ack(lease).await.unwrap().already_gone);
    }
}

store_test! {
    async fn a_restart_burns_no_attempts(h) {
        let id = h.enqueue(job("q").id("old")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.close().await;
        h.advance(seconds(40));
        h.open().await;
        let spare = Sweep {
            spare_made_before: h.now(),
            spare_until: h.now().after(seconds(30)),
            ..sweep_all()
        };
        let swept = h.sweep_sparing(spare).await;
        assert!(swept.expired.is_empty());
        assert_eq!(swept.next, Some(spare.spare_until));
        h.advance(seconds(30) - MILLISECOND);
        assert!(h.sweep_sparing(spare).await.expired.is_empty());
        assert!(h.extend(lease, None, "").await.is_ok(), "its worker came back in time");
        h.advance(seconds(10));
        assert!(h.sweep_sparing(spare).await.expired.is_empty());
        assert_eq!(h.view(&id).await.progress.tries, 0);
        h.advance(seconds(20));
        assert_eq!(h.sweep_sparing(spare).await.expired.len(), 1);
    }
}

store_test! {
    async fn a_sweep_that_comes_late_ends_no_lease(h) {
        h.enqueue(job("q")).await;
        let lease = h.claim("q").await.delivery.lease;
        h.advance(seconds(40));
        // It was asked for, and the server stood still: what its worker sent in time has not been read.
        let late = Sweep { asked_at: Timestamp::from_millis(h.now().millis() - 1_001), ..sweep_all() };
        let swept = h.store().sweep(late).await.unwrap();
        assert!(swept.late && swept.expired.is_empty());
        assert_eq!(swept.next, Some(h.now()));
        h.extend(lease, None, "").await.unwrap();
        h.advance(seconds(40));
        let soon = Sweep { asked_at: Timestamp::from_millis(h.now().millis() - 1_000), ..sweep_all() };
        assert_eq!(h.sweep_sparing(soon).await.expired.len(), 1);
    }
}

store_test! {
    async fn leases_of_workers_that_do_not_come_back_end_after_the_grace(h) {
        h.enqueue(job("q").id("old")).await;
        h.claim("q").await;
        h.advance(seconds(40));
        h.reopen().await;
        let spare = Sweep {
            spare_made_before: h.now(),
            spare_until: h.now().after(seconds(30)),
            ..sweep_all()
        };
        h.enqueue(job("q").id("new")).await;
        let claim = redrive::queue::Claim { lease_duration: Some(SECOND), ..claim_of(&["q"], 1) };
        h.try_claim(claim).await;
        h.advance(SECOND);
        let swept = h.sweep_sparing(spare).await;
        assert_eq!(swept.expired.len(), 1, "what was leased since is not spared");
        assert_eq!(swept.expired[0].id.to_string(), "new");
        h.advance(seconds(29));
        let swept = h.sweep_sparing(spare).await;
        assert_eq!(swept.expired.len(), 1);
        assert_eq!(swept.expired[0].id.to_string(), "old");
    }
}

store_test! {
    async fn after_a_reboot_the_later_of_kept_and_wall_time_counts(h) {
        h.enqueue(job("q").delay(HOUR)).await;
        let before = h.now();
        h.close().await;
        h.clock.reboot();
        h.clock.jump_wall(-HOUR_SECONDS);
        h.open().await;
        assert_eq!(h.now(), before, "kept time is later");
        h.close().await;
        h.clock.reboot();
        h.clock.jump_wall(3 * HOUR_SECONDS);
        h.open().await;
        assert_eq!(h.now(), before.after(2 * HOUR), "wall time is later");
        h.claim("q").await;
    }
}

store_test! {
    /// Nothing was written between two restarts; the time that was told in between holds all the same.
    async fn what_the_store_said_after_a_reboot_counts_even_if_it_wrote_nothing(h) {
        h.enqueue(job("q").delay(2 * HOUR)).await;
        h.close().await;
        h.clock.reboot();
        h.clock.jump_wall(HOUR_SECONDS);
        h.open().await;
        let told = h.now();
        for jump in [-HOUR_SECONDS, 5 * HOUR_SECONDS] {
            h.close().await;
            h.clock.jump_wall(jump);
            h.open().await;
            assert_eq!(h.now(), told);
        }
        assert_eq!(h.idle("q").await.reason, IdleReason::NotDue);
    }
}

store_test! {
    async fn time_never_runs_backwards(h) {
        let mut last = h.now();
        for step in 0..20 {
            h.clock.jump_wall(if step % 3 == 0 { HOUR_SECONDS } else { -HOUR_SECONDS });
            h.advance(MILLISECOND * step);
            h.sweep().await;
            if step % 4 == 0 {
                h.reopen().await;
            }
            if step % 7 == 0 {
                h.close().await;
                h.clock.reboot();
                h.open().await;
            }
            assert!(h.now() >= last);
            last = h.now();
        }
    }
}
