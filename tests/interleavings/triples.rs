//! Every triple of verbs that settle the same delivery, its expiry among them, and a claim that may get the job next.

use crate::fixture::{EXPIRY, Fixture, Named, OTHERS, SETTLING, Scene};
use crate::schedule::check;

fn settling() -> Vec<Named> {
    let claim = OTHERS.into_iter().find(|(name, _)| *name == "claim");
    SETTLING.into_iter().filter(|(name, _)| *name != "sweep").chain(claim).collect()
}

/// One of these, and any two of those, of which it may be one.
fn check_triples(scene: Scene, firsts: &[Named], others: &[Named]) {
    let mut runs = 0;
    for (at, first) in firsts.iter().enumerate() {
        for (then, second) in others.iter().enumerate().skip(at) {
            for third in &others[then..] {
                runs += check(scene, &[*first, *second, *third]);
            }
        }
    }
    println!("{runs} interleavings");
    assert!(runs > 1_000, "{runs}");
}

#[test]
fn every_triple_of_settling_verbs_in_every_interleaving_is_one_after_the_other() {
    let verbs = settling();
    check_triples(Fixture::with_everything, &verbs, &verbs);
}

#[test]
fn every_triple_of_an_expiry_and_settling_verbs_in_every_interleaving_is_one_after_the_other() {
    let others: Vec<_> = [EXPIRY].into_iter().chain(settling()).collect();
    check_triples(Fixture::with_an_expiry, &[EXPIRY], &others);
}
