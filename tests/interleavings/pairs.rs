//! Every pair of verbs.

use crate::{fixture::all, schedule::check};

#[test]
fn every_pair_of_verbs_in_every_interleaving_is_one_after_the_other() {
    let (all, mut runs) = (all(), 0);
    for (at, first) in all.iter().enumerate() {
        for second in &all[at..] {
            runs += check(&[first.0, second.0], &[first.1, second.1]);
        }
    }
    println!("{runs} interleavings");
    assert!(runs > 1_000, "{runs}");
}
