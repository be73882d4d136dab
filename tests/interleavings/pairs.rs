//! Every pair of verbs.

use crate::fixture::{EXPIRY, Fixture, all};
use crate::schedule::check;

#[test]
fn every_pair_of_verbs_in_every_interleaving_is_one_after_the_other() {
    let (all, mut runs) = (all(), 0);
    for (at, first) in all.iter().enumerate() {
        for second in &all[at..] {
            runs += check(Fixture::with_everything, &[*first, *second]);
        }
    }
    println!("{runs} interleavings");
    assert!(runs > 1_000, "{runs}");
}

#[test]
fn an_expiry_and_any_other_verb_in_every_interleaving_are_one_after_the_other() {
    let runs: usize = all().iter().map(|other| check(Fixture::with_an_expiry, &[EXPIRY, *other])).sum();
    println!("{runs} interleavings");
    assert!(runs > 1_000, "{runs}");
}
