//! A server that dies after each of its steps, while another one works.

use crate::fixture::{Fixture, all};
use crate::schedule::{Choices, interleave, one_after_the_other};

/// A verb that died at any step has happened or not, or is completed by being said again.
#[test]
fn a_verb_that_dies_after_any_step_leaves_a_store_in_order() {
    let mut runs = 0;
    for (name, verb) in all() {
        let twice = one_after_the_other(&[verb]);
        for steps in 0..40 {
            let fixture = Fixture::new();
            let answers = interleave(&fixture, &[verb], &mut Choices::default(), 0, Some((0, steps)));
            fixture.verify();
            runs += 1;
            if answers[0].is_some() {
                break;
            }
            // Said again, it is done: the store is as if it had been done once.
            fixture.run(verb(&fixture));
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

/// Said again, these are not as if said once: a claim without a request id gets the next job, a move that was begun is completed
/// by a sweep, a sweep that is said again does what the first one left, and a job that replaces itself says so in its events.
const REPEATS_COUNT: [&str; 4] = ["claim", "requeue to another queue", "sweep", "replace waiting"];

#[test]
fn a_verb_that_dies_at_any_step_beside_any_other_leaves_a_store_in_order() {
    let all = all();
    let mut runs = 0;
    for first in &all {
        for second in &all {
            for steps in 0..40 {
                let fixture = Fixture::new();
                let verbs = [first.1, second.1];
                let mut choices = Choices::default();
                let answers = interleave(&fixture, &verbs, &mut choices, 0, Some((0, steps)));
                fixture.verify();
                runs += 1;
                if answers[0].is_some() {
                    break;
                }
            }
        }
    }
    println!("{runs} deaths");
}
