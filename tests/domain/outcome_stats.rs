//! What is usual for a queue, and what is far from it.

use redrive::domain::{BreakerSettings, Degraded, OutcomeStats, Successes, Timestamp, Usual};
use std::time::Duration;

const MINUTE: u64 = 60_000;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(1_000_000 + millis)
}

/// A closed queue with an outcome each 100 ms, of which one in so many fails.
struct Queue {
    stats: OutcomeStats,
    sums: Successes,
    now: u64,
    outcomes: u64,
}

impl Queue {
    fn new() -> Self {
        Self::knowing(Usual::default())
    }

    fn knowing(usual: Usual) -> Self {
        Self { stats: OutcomeStats::new(usual, at(0)), sums: Successes::default(), now: 0, outcomes: 0 }
    }

    /// `failing` of each ten outcomes fail, for so long; the others take so many milliseconds.
    fn runs(&mut self, millis: u64, failing: u64, took_ms: u64) -> &mut Self {
        let end = self.now + millis;
        while self.now < end {
            self.now += 100;
            self.outcomes += 1;
            if self.outcomes % 10 < failing {
                self.stats.bucket.failed += 1;
            } else {
                self.sums.add(Successes::of(at(self.now - took_ms.min(self.now)), at(self.now), false));
            }
            self.stats.absorb(self.sums, Some(at(self.now)));
            self.stats.roll(at(self.now));
        }
        self
    }

    fn share(&self) -> f64 {
        self.stats.usual.share
    }

    fn degraded(&self) -> bool {
        self.stats.is_degraded()
    }
}

#[test]
fn successes_that_were_only_summed_up_are_those_that_were_seen_one_by_one() {
    let (mut seen, mut summed) =
        (OutcomeStats::new(Usual::default(), at(0)), OutcomeStats::new(Usual::default(), at(0)));
    let mut sums = Successes::default();
    for second in 1..=7 {
        sums.add(Successes::of(at(second * 1_000 - 20), at(second * 1_000), second % 2 == 0));
        seen.absorb(sums, Some(at(second * 1_000)));
    }
    summed.absorb(sums, Some(at(7_000)));
    assert_eq!(seen, summed);
    assert_eq!((seen.bucket.successes.count, seen.bucket.successes.retried), (7, 3));
}

#[test]
fn sums_without_a_success_change_nothing_and_one_ends_the_streak() {
    let mut stats = OutcomeStats { streak: 3, ..OutcomeStats::default() };
    let before = stats.clone();
    stats.absorb(Successes::default(), None);
    assert_eq!(stats, before);
    stats.absorb(Successes::of(at(0), at(5), false), Some(at(5)));
    assert_eq!((stats.streak, stats.last_success), (0, Some(at(5))));
}

#[test]
fn the_first_bucket_says_what_is_usual() {
    let mut queue = Queue::new();
    queue.runs(4_900, 3, 20);
    assert_eq!((queue.share(), queue.degraded()), (0.0, false), "nothing is known, so nothing is unusual");
    queue.runs(100, 3, 20);
    assert!((queue.share() - 0.3).abs() < 0.01, "{}", queue.share());
    assert!(!queue.degraded());
    assert_eq!(queue.stats.needed(None, &BreakerSettings::default()), 12);
}

#[test]
fn a_bucket_has_twenty_outcomes_or_lasts_a_quarter_of_an_hour() {
    let mut stats = OutcomeStats::new(Usual::default(), at(0));
    stats.absorb(Successes { count: 19, took_ms: 190, ..Successes::default() }, Some(at(100)));
    assert_eq!(stats.bucket_ends_at(at(0)), at(5_000));
    assert!(!stats.roll(at(5_000)));
    assert_eq!(stats.bucket_ends_at(at(5_000)), at(15 * MINUTE));
    assert!(stats.roll(at(15 * MINUTE)));
    stats.absorb(Successes { count: 40, took_ms: 400, ..Successes::default() }, Some(at(15 * MINUTE)));
    assert!(!stats.roll(at(15 * MINUTE + 4_999)));
    assert!(stats.roll(at(15 * MINUTE + 5_000)));
}

#[test]
fn a_bucket_without_outcomes_says_nothing() {
    let usual = Usual { share: 0.2, known: 50.0, load: Some(2.0), ln_took: Some(3.0) };
    let mut stats = OutcomeStats::new(usual.clone(), at(0));
    assert!(stats.roll(at(20 * MINUTE)));
    assert_eq!(stats.usual, usual);
}

#[test]
fn what_is_usual_follows_within_a_quarter_of_an_hour() {
    let mut queue = Queue::new();
    queue.runs(60 * MINUTE, 1, 20);
    assert!((queue.share() - 0.1).abs() < 0.01);
    queue.runs(5 * MINUTE, 2, 20);
    assert!((0.11..0.16).contains(&queue.share()), "{}", queue.share());
    queue.runs(40 * MINUTE, 2, 20);
    assert!((0.18..0.21).contains(&queue.share()), "{}", queue.share());
}

#[test]
fn far_more_failures_than_usual_are_degraded_and_do_not_become_usual_for_a_quarter_of_an_hour() {
    let mut queue = Queue::new();
    queue.runs(10 * MINUTE, 0, 20);
    queue.runs(MINUTE, 4, 20);
    let Degraded { share, outcomes, until } = queue.stats.degraded(at(queue.now)).unwrap();
    assert!((0.35..0.45).contains(&share) && outcomes >= 20, "{share} of {outcomes}");
    assert!((at(25 * MINUTE)..at(26 * MINUTE)).contains(&until));
    assert!(queue.share() < 0.01, "{}", queue.share());
    queue.runs(13 * MINUTE, 4, 20);
    assert!(queue.degraded());
    queue.runs(2 * MINUTE, 4, 20);
    assert!(!queue.degraded() && (0.35..0.45).contains(&queue.share()), "{}", queue.share());
    assert_eq!(queue.stats.degraded(at(queue.now)), None);
}

#[test]
fn a_queue_is_degraded_only_over_a_fifth_and_over_three_times_what_is_usual() {
    let degraded = |usual, failing| {
        let mut queue = Queue::knowing(Usual { share: usual, known: 1e6, ..Usual::default() });
        queue.runs(6_000, failing, 20).degraded()
    };
    assert_eq!([degraded(0.0, 2), degraded(0.0, 3), degraded(0.09, 3), degraded(0.11, 3)], [false, true, true, false]);
}

#[test]
fn a_queue_that_is_well_again_is_no_longer_degraded() {
    let mut queue = Queue::new();
    queue.runs(MINUTE, 0, 20).runs(MINUTE, 5, 20);
    assert!(queue.degraded());
    queue.runs(11_000, 0, 20);
    assert!(!queue.degraded());
    queue.runs(5_000, 0, 20);
    assert_eq!(queue.stats.degraded_since, None);
}

#[test]
fn the_usual_load_and_time_are_those_of_successes() {
    let mut queue = Queue::new();
    queue.runs(10 * MINUTE, 0, 200);
    let Usual { load, ln_took, .. } = queue.stats.usual.clone();
    assert!((load.unwrap() - 2.0).abs() < 0.01, "200 ms ten times a second: {load:?}");
    assert!((ln_took.unwrap().exp() - 200.0).abs() < 1.0);
    queue.runs(5_000, 0, 400);
    let moved = queue.stats.usual.load.unwrap();
    assert!((2.5..2.7).contains(&moved), "{moved}");
    let again = OutcomeStats::new(queue.stats.usual.clone(), at(queue.now));
    assert!((again.took_ms - 246.0).abs() < 2.0, "after a restart it goes by what was usual: {}", again.took_ms);
}

#[test]
fn times_that_go_backwards_or_are_huge_do_no_harm() {
    let mut stats = OutcomeStats::new(Usual::default(), at(0));
    let backwards = Successes::of(at(10), at(0), false);
    assert_eq!((backwards.took_ms, backwards.ln_took), (0, 0));
    let endless = Successes::of(Timestamp::default(), Timestamp::MAX, false);
    stats.absorb(endless, Some(Timestamp::MAX));
    stats.absorb(Successes::default(), Some(at(0)));
    stats.bucket.failed = 30;
    assert!(!stats.roll(Timestamp::from_millis(0)));
    assert!(stats.roll(Timestamp::MAX));
    let Usual { share, load, ln_took, .. } = stats.usual;
    assert!(share.is_finite() && load.unwrap().is_finite() && ln_took.unwrap().is_finite());
    assert!(Duration::from_millis(endless.took_ms) > Duration::from_secs(1));
}
