//! Bulk calls that are killed between two batches, or overtaken by others: every dead letter ends in exactly one place, and a call
//! that is repeated reports exactly what it did.

use crate::overtaken::*;
use redrive::domain::{JobId, State};
use redrive::queue::{Answer, Verb};
use redrive::queue::{Purge, Requeue, SkipReason, Which};
use redrive::store::storage::Table;
use std::{ops::Range, time::Duration};

const BODIES: Range<usize> = 0..1_100;

#[test]
fn a_requeue_that_was_killed_at_any_batch_goes_on_and_reports_exactly_its_own() {
    for applied in [false, true] {
        for batches in 0..10 {
            let f = Fixture::new();
            f.dead_letters(&ids(BODIES));
            let wanted = || Verb::Requeue(requeue_to(None, oldest(1_050), request()));
            let over = f.killed(wanted(), batches, applied);
            let again = f.requeue(requeue_to(None, oldest(1_050), request()));
            assert_eq!((again.ids.len(), again.has_more), (1_050, true), "{batches} {applied}");
            assert_eq!(again.ids, ids(0..1_050));
            assert_eq!(f.requeue(requeue_to(None, oldest(1_050), request())), again);
            assert_eq!((f.listed("q"), f.totals("q").requeued), (50, 1_050));
            assert_eq!(f.claim("q", 10_000).len(), 1_050);
            if over {
                assert!(batches > 2);
                break;
            }
        }
    }
}

#[test]
fn a_purge_that_was_killed_at_any_batch_goes_on_and_counts_exactly_its_own() {
    let names = || Which::Ids(ids(0..1_050).into_iter().chain(ids(0..20)).collect());
    let wanted = || Purge { part: part("q"), which: names(), dry_run: false, request: request() };
    for applied in [false, true] {
        for batches in 0..5 {
            let f = Fixture::new();
            f.dead_letters(&ids(BODIES));
            f.killed(Verb::Purge(wanted()), batches, applied);
            let again = f.purge(wanted());
            assert_eq!((again.count, again.skipped.len()), (1_050, 20), "{batches} {applied}");
            assert_eq!(f.purge(wanted()), again);
            assert_eq!((f.listed("q"), f.totals("q").purged), (50, 1_050));
            f.is_clean("q", 50);
        }
    }
}

/// One of them cannot go: its key is taken where it goes.
fn moving(f: &Fixture) -> Vec<JobId> {
    let all = ids(0..120);
    for (at, id) in all.iter().enumerate() {
        f.enqueue("q", id, (at == 60).then_some("k"));
    }
    f.fail_all("q");
    f.enqueue("other", &JobId::parse("holder"), Some("k"));
    all
}

#[test]
fn a_move_that_was_killed_at_any_batch_goes_on_and_reports_exactly_its_own() {
    for applied in [false, true] {
        for swept in [false, true] {
            let mut was_over = false;
            for batches in 0..20 {
                let f = Fixture::new();
                let all = moving(&f);
                let wanted = || requeue_to(Some("other"), oldest(110), request());
                was_over = f.killed(Verb::Requeue(wanted()), batches, applied);
                for id in &all {
                    assert_eq!(f.places(id).len(), 1, "{id} {batches} {applied}");
                }
                if swept {
                    f.advance(Duration::from_secs(11));
                    f.sweep();
                }
                let again = f.requeue(wanted());
                assert_eq!((again.ids.len(), again.skipped.len(), again.has_more), (109, 1, true));
                assert_eq!(again.skipped[0].1, SkipReason::KeyTaken);
                assert_eq!(f.requeue(wanted()), again);
                let mut expected = all[..110].to_vec();
                expected.remove(60);
                assert_eq!(again.ids, expected, "{batches} {applied} {swept}");
                for id in &again.ids {
                    assert_eq!(f.places(id), [("other".to_owned(), State::Ready)]);
                }
                assert_eq!((f.listed("q"), f.totals("q").moved_out), (11, 109));
                assert_eq!((f.totals("other").moved_in, f.totals("q").requeued), (109, 109));
                f.is_clean("q", 11);
                if was_over {
                    break;
                }
            }
            assert!(was_over, "not every batch was tried");
        }
    }
}

#[test]
fn a_move_that_was_killed_is_completed_by_the_sweep() {
    for applied in [false, true] {
        for batches in 0..3 {
            let f = Fixture::new();
            let id = ids(0..1).remove(0);
            f.dead_letters(std::slice::from_ref(&id));
            let wanted = requeue_to(Some("other"), oldest(1), None);
            f.killed(Verb::Requeue(wanted), batches, applied);
            let begun = batches > 0 || applied;
            let arrived = batches > 1 || batches == 1 && applied;
            let place = if arrived { ("other", State::Ready) } else { ("q", State::Dead) };
            assert_eq!(f.places(&id), [(place.0.to_owned(), place.1)], "{batches} {applied}");
            assert_eq!(f.listed("q"), usize::from(!arrived), "a job is listed where it is");
            let purge = || Purge { part: part("q"), which: oldest(1), dry_run: false, request: None };
            if begun && !arrived {
                assert_eq!(f.purge(purge()).count, 0, "it is bound for the other queue");
            }
            f.advance(Duration::from_secs(11));
            f.sweep();
            let place = if begun { ("other", State::Ready) } else { ("q", State::Dead) };
            assert_eq!(f.places(&id), [(place.0.to_owned(), place.1)], "{batches} {applied}");
            assert_eq!(f.totals("q").moved_out, u64::from(begun));
            assert_eq!(f.totals("other").moved_in, u64::from(begun));
            // Back and forth: what is left of a move must not be taken for another one.
            if begun {
                f.fail_all("other");
                let back = Requeue { part: part("other"), ..requeue_to(Some("q"), oldest(1), None) };
                assert_eq!(f.requeue(back).ids, std::slice::from_ref(&id));
                f.fail_all("q");
                let there = requeue_to(Some("other"), oldest(1), None);
                assert_eq!(f.requeue(there).ids, std::slice::from_ref(&id));
                assert_eq!(f.places(&id), [("other".to_owned(), State::Ready)]);
                f.is_clean("q", 0);
            }
            f.advance(Duration::from_secs(48 * 3600));
            f.sweep();
            for name in ["q", "other"] {
                assert_eq!(f.scan(name, Table::Move), [], "the records of moves go in time");
            }
        }
    }
}

/// What others do before each batch of a call.
fn overtaken_by(verb: impl Fn() -> Verb, others: impl Fn(&Fixture) + Clone + Send + 'static) {
    for batches in 0..12 {
        let f = Fixture::new();
        let all = moving(&f);
        let hook = {
            let (f, others) = (f.clone(), others.clone());
            Box::new(move || others(&f)) as Hook
        };
        let then = Then::Others(hook);
        let server = OneServer { batches, then, ..f.server() };
        let answer = f.run_on(server, verb()).unwrap();
        for id in &all {
            assert_eq!(f.places(id).len(), 1, "{id} before batch {batches}: {answer:?}");
        }
        let (here, there) = (f.totals("q"), f.totals("other"));
        assert_eq!(here.moved_out, there.moved_in);
        f.advance(Duration::from_secs(4_000));
        f.sweep();
        for id in &all {
            assert_eq!(f.places(id).len(), 1, "{id} later");
        }
    }
}

#[test]
fn a_move_that_the_sweep_overtakes_moves_each_job_once() {
    let verb = || Verb::Requeue(requeue_to(Some("other"), oldest(110), None));
    overtaken_by(verb, |f| {
        f.advance(Duration::from_secs(11));
        f.sweep();
    });
}

#[test]
fn calls_that_take_the_same_dead_letters_share_them() {
    let moves = || Verb::Requeue(requeue_to(Some("other"), oldest(110), None));
    let here = || Verb::Requeue(requeue_to(None, oldest(110), None));
    overtaken_by(moves, move |f| {
        f.run(here());
    });
    overtaken_by(here, move |f| {
        f.run(moves());
    });
    overtaken_by(moves, move |f| {
        f.run(moves());
    });
}

#[test]
fn two_calls_with_one_request_id_have_one_answer() {
    for to in [None, Some("other")] {
        for batches in 0..8 {
            let f = Fixture::new();
            moving(&f);
            let wanted = move || requeue_to(to, oldest(110), request());
            let hook = {
                let f = f.clone();
                Box::new(move || {
                    f.run(Verb::Requeue(wanted()));
                }) as Hook
            };
            let server = OneServer { batches, then: Then::Others(hook), ..f.server() };
            let answer = match f.run_on(server, Verb::Requeue(wanted())).unwrap() {
                Answer::Requeue(answer) => answer,
                other => panic!("{other:?}"),
            };
            assert_eq!(f.requeue(wanted()), answer, "before batch {batches}");
            assert_eq!(answer.ids.len() + answer.skipped.len(), 110);
            assert_eq!(f.totals("q").requeued as usize, answer.ids.len());
            assert_eq!(f.listed("q"), 120 - answer.ids.len());
        }
    }
}

#[test]
fn a_key_that_is_taken_on_the_way_leaves_the_dead_letter_where_it_is() {
    let f = Fixture::new();
    let id = ids(0..1).remove(0);
    f.enqueue("q", &id, Some("k"));
    f.fail_all("q");
    // Between the look at the target and the arrival there.
    let hook = {
        let f = f.clone();
        Box::new(move || f.enqueue("other", &JobId::parse("holder"), Some("k"))) as Hook
    };
    let server = OneServer { batches: 1, then: Then::Others(hook), ..f.server() };
    let wanted = || requeue_to(Some("other"), oldest(1), None);
    match f.run_on(server, Verb::Requeue(wanted())).unwrap() {
        Answer::Requeue(done) => {
            assert_eq!(done.skipped, [(id.clone(), SkipReason::KeyTaken)]);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(f.places(&id), [("q".to_owned(), State::Dead)]);
    assert_eq!(f.scan("q", Table::Move), []);
    f.claim("other", 1);
    // In its own queue nothing holds it back.
    assert_eq!(f.requeue(requeue_to(None, oldest(1), None)).ids, [id]);
}

#[test]
fn dead_letters_with_one_key_go_back_one_at_a_time() {
    let f = Fixture::new();
    for id in ids(0..3) {
        f.enqueue("q", &id, Some("k"));
        f.fail_all("q");
    }
    for to in [None, Some("other")] {
        let dry = Requeue { dry_run: true, ..requeue_to(to, oldest(10), None) };
        let would = f.requeue(dry);
        let done = f.requeue(requeue_to(to, oldest(10), None));
        assert_eq!(would, done, "a dry run says what happens");
        assert_eq!(done.ids.len(), 1);
    }
}

#[test]
fn a_batch_takes_a_large_body_alone_and_no_more_than_a_mebibyte() {
    for lengths in [&[3 << 20, 1][..], &[1 << 19, 1 << 19, 1]] {
        let f = Fixture::new();
        f.large_dead_letters(lengths);
        f.killed(Verb::Requeue(requeue_to(None, oldest(10), None)), 1, false);
        assert_eq!(f.listed("q"), 1, "{lengths:?}");
    }
}

#[test]
fn named_dead_letters_are_all_done_whatever_their_size() {
    let f = Fixture::new();
    f.large_dead_letters(&[1 << 20; 18]);
    let done = f.requeue(requeue_to(None, Which::Ids(ids(0..18)), None));
    assert_eq!((done.ids.len(), done.has_more), (18, false));
}
