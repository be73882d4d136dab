//! Whose turn it is when a claim names several queues.

use proptest::prelude::*;
use redrive::{domain::QueueName, service::RoundRobin};

fn queues(weights: &[u32]) -> Vec<(QueueName, u32)> {
    let name = |n| QueueName::parse(&format!("q{n}")).unwrap();
    weights.iter().enumerate().map(|(n, weight)| (name(n), *weight)).collect()
}

#[test]
fn two_queues_take_turns() {
    let turns = RoundRobin::default();
    let queues = queues(&[1, 1]);
    let firsts: Vec<_> = (0..6).map(|_| turns.take(&queues, 1)[0].queue.as_str().to_owned()).collect();
    assert_eq!(firsts, ["q0", "q1", "q0", "q1", "q0", "q1"]);
}

#[test]
fn a_weight_of_three_is_three_turns_of_four_spread_evenly() {
    let turns = RoundRobin::default();
    let queues = queues(&[3, 1]);
    let firsts: Vec<_> = (0..8).map(|_| turns.take(&queues, 1)[0].queue.as_str().to_owned()).collect();
    assert_eq!(firsts, ["q0", "q0", "q1", "q0", "q0", "q0", "q1", "q0"]);
}

#[test]
fn whole_rounds_do_not_always_begin_with_the_same_queue() {
    let turns = RoundRobin::default();
    let queues = queues(&[1, 1]);
    let firsts: Vec<_> = (0..4).map(|_| turns.take(&queues, 10)[0].queue.as_str().to_owned()).collect();
    assert_eq!(firsts, ["q1", "q0", "q1", "q0"]);
}

proptest! {
    #[test]
    fn shares_add_up_and_follow_the_weights(
        weights in prop::collection::vec(1u32..20, 1..6), before in 0usize..1000, rounds in 1usize..5
    ) {
        let queues = queues(&weights);
        let turns: u32 = weights.iter().sum();
        let robin = RoundRobin::default();
        robin.take(&queues, before);
        let shares = robin.take(&queues, rounds * turns as usize);
        for (name, weight) in &queues {
            let share = shares.iter().find(|share| share.queue == *name).unwrap();
            prop_assert_eq!(share.first, rounds * *weight as usize);
        }
    }

    #[test]
    fn every_job_asked_for_has_a_turn(
        weights in prop::collection::vec(1u32..20, 1..6), before in 0usize..1000, max in 1usize..50
    ) {
        let robin = RoundRobin::default();
        robin.take(&queues(&weights), before);
        let shares = robin.take(&queues(&weights), max);
        prop_assert_eq!(shares.iter().map(|share| share.first).sum::<usize>(), max);
        prop_assert!(shares[0].first > 0);
    }
}
