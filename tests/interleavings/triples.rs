//! Every triple of verbs that settle the same delivery, and a claim that may get the job next.

use crate::fixture::{OTHERS, SETTLING};
use crate::schedule::check;

#[test]
fn every_triple_of_settling_verbs_in_every_interleaving_is_one_after_the_other() {
    let claim = OTHERS.iter().find(|(name, _)| *name == "claim").unwrap();
    let settling = SETTLING.iter().filter(|(name, _)| *name != "sweep");
    let verbs: Vec<_> = settling.chain([claim]).collect();
    let mut runs = 0;
    for (at, first) in verbs.iter().enumerate() {
        for (then, second) in verbs.iter().enumerate().skip(at) {
            for third in &verbs[then..] {
                runs += check(&[first.0, second.0, third.0], &[first.1, second.1, third.1]);
            }
        }
    }
    println!("{runs} interleavings");
    assert!(runs > 1_000, "{runs}");
}
