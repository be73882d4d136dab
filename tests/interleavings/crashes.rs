//! A server that dies after each of its steps, while another one works.

use crate::fixture::{Fixture, all};
use crate::schedule::{Choices, Seen, interleave, one_after_the_other};

/// A verb that died at any step has happened or not, or is completed by being said again.
#[test]
fn a_verb_that_dies_after_any_step_leaves_a_store_in_order() {
    let (begun, mut runs) = (Fixture::with_everything(), 0);
    for (name, verb) in all() {
        let twice = one_after_the_other(&begun, &[verb]);
        for steps in 0..40 {
            let fixture = begun.copied();
            let answers = interleave(&fixture, &[verb], &mut Choices::default(), 0, Some((0, steps)));
            fixture.verify();
            runs += 1;
            if answers[0].is_some() {
                break;
            }
            // Said again, it is done: the store is as if it had been done once.
            interleave(&fixture, &[verb], &mut Choices::default(), 0, None);
            fixture.verify();
            let store = fixture.describe();
            if !REPEATS_COUNT.contains(&name) {
                assert!(
                    twice.iter().any(|once| once.store == store),
                    "{name} died after {steps} steps, was said again, and led to\n{store}\nnot to\n{twice:#?}"
                );
            }
        }
    }
    println!("{runs} deaths");
}

/// Said again, these are not as if said once: a claim without a request id gets the next job, and one with a request id waits for
/// the server that died; a move that was begun is completed by a sweep, a sweep that is said again does what the first one left,
/// and a job that replaces itself says so in its events.
const REPEATS_COUNT: [&str; 5] =
    ["claim", "claim of a request", "requeue to another queue", "sweep", "replace waiting"];

/// Said again, it has the job that it got before it died, or one: no other is out.
#[test]
fn a_claim_of_a_request_that_died_at_any_step_has_leased_one_job_when_it_is_said_again() {
    let (begun, mut runs) = (Fixture::with_everything(), 0);
    let (_, claim) = all().into_iter().find(|(name, _)| *name == "claim of a request").unwrap();
    let once = begun.copied();
    once.run(claim(&once));
    for steps in 0..40 {
        let fixture = begun.copied();
        let died = interleave(&fixture, &[claim], &mut Choices::default(), 0, Some((0, steps)))[0].is_none();
        let said_again = interleave(&fixture, &[claim], &mut Choices::default(), 0, None);
        assert!(said_again[0].as_ref().is_some_and(|answer| answer.contains("Delivered {")), "{said_again:?}");
        assert_eq!(fixture.leased(), once.leased(), "died after {steps} steps");
        runs += 1;
        if !died {
            break;
        }
    }
    assert!(runs > 4, "{runs}");
}

/// The other one runs before, after and in the middle of it.
#[test]
fn a_verb_that_dies_at_any_step_beside_any_other_leaves_a_store_in_order() {
    let (begun, all) = (Fixture::with_everything(), all());
    let mut runs = 0;
    for first in &all {
        for second in &all {
            let mut seen = Seen::default();
            for steps in 0..40 {
                let (mut choices, mut died) = (Choices::default(), false);
                loop {
                    let fixture = begun.copied();
                    let answers = interleave(&fixture, &[first.1, second.1], &mut choices, 1, Some((0, steps)));
                    seen.look(&fixture);
                    died |= answers[0].is_none();
                    runs += 1;
                    if !choices.next() {
                        break;
                    }
                }
                if !died {
                    break;
                }
            }
        }
    }
    println!("{runs} deaths");
    assert!(runs > 10_000, "{runs}");
}
