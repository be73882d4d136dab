//! Whose turn it is when a claim names several queues.

use crate::{domain::ids::QueueName, store::Share};
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// So many different sets of queues are remembered; then they all start again, which only moves whose turn it is.
const SETS_MAX: usize = 4_096;

/// Where each set of queues, named together with its weights, stands: smooth weighted round robin.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<Vec<(QueueName, u32)>, Round>>);

#[derive(Debug)]
struct Round {
    /// What each queue is owed.
    owed: Vec<i64>,
    /// Calls that had whole rounds only, in which nobody's turn is first.
    whole: usize,
}

impl Turns {
    /// Splits `max_jobs` over the queues as their turns come. Each turn is taken once, whoever asks.
    pub(super) fn take(&self, queues: &[(QueueName, u32)], max_jobs: usize) -> Vec<Share> {
        if let [(queue, _)] = queues {
            return vec![Share { queue: queue.clone(), first: max_jobs }];
        }
        let mut sets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if sets.len() >= SETS_MAX {
            sets.clear();
        }
        match sets.get_mut(queues) {
            Some(round) => split(queues, round, max_jobs),
            None => {
                let mut round = Round { owed: vec![0; queues.len()], whole: 0 };
                let shares = split(queues, &mut round, max_jobs);
                sets.insert(queues.to_vec(), round);
                shares
            }
        }
    }
}

/// The next `max_jobs` turns. The queue whose turn is first stands first, the others follow in the order named: a reply that
/// is full before all had their share was not always filled by the same.
fn split(queues: &[(QueueName, u32)], round: &mut Round, max_jobs: usize) -> Vec<Share> {
    let turns: usize = queues.iter().map(|(_, weight)| *weight as usize).sum();
    let mut shares: Vec<Share> =
        queues.iter().map(|(queue, _)| Share { queue: queue.clone(), first: 0 }).collect();
    if turns == 0 {
        return shares;
    }
    // Whole rounds change nothing in what is owed.
    for (share, (_, weight)) in shares.iter_mut().zip(queues) {
        share.first = max_jobs / turns * *weight as usize;
    }
    let mut first = None;
    for _ in 0..max_jobs % turns {
        let queue = next_turn(queues, &mut round.owed, turns);
        first.get_or_insert(queue);
        shares[queue].first += 1;
    }
    let first = first.unwrap_or_else(|| {
        round.whole = (round.whole + 1) % queues.len();
        round.whole
    });
    shares.rotate_left(first);
    shares
}

/// Everybody is owed their weight more; who is owed most takes the turn and pays for the round.
fn next_turn(queues: &[(QueueName, u32)], owed: &mut [i64], round: usize) -> usize {
    for (owed, (_, weight)) in owed.iter_mut().zip(queues) {
        *owed += i64::from(*weight);
    }
    let queue = (0..queues.len()).rev().max_by_key(|&queue| owed[queue]).unwrap_or(0);
    owed[queue] -= round as i64;
    queue
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn queues(weights: &[u32]) -> Vec<(QueueName, u32)> {
        let name = |n| QueueName::parse(&format!("q{n}")).unwrap();
        weights.iter().enumerate().map(|(n, weight)| (name(n), *weight)).collect()
    }

    #[test]
    fn two_queues_take_turns() {
        let turns = Turns::default();
        let queues = queues(&[1, 1]);
        let firsts: Vec<_> =
            (0..6).map(|_| turns.take(&queues, 1)[0].queue.as_str().to_owned()).collect();
        assert_eq!(firsts, ["q0", "q1", "q0", "q1", "q0", "q1"]);
    }

    #[test]
    fn a_weight_of_three_is_three_turns_of_four_spread_evenly() {
        let turns = Turns::default();
        let queues = queues(&[3, 1]);
        let firsts: Vec<_> =
            (0..8).map(|_| turns.take(&queues, 1)[0].queue.as_str().to_owned()).collect();
        assert_eq!(firsts, ["q0", "q0", "q1", "q0", "q0", "q0", "q1", "q0"]);
    }

    #[test]
    fn whole_rounds_do_not_always_begin_with_the_same_queue() {
        let turns = Turns::default();
        let queues = queues(&[1, 1]);
        let firsts: Vec<_> =
            (0..4).map(|_| turns.take(&queues, 10)[0].queue.as_str().to_owned()).collect();
        assert_eq!(firsts, ["q1", "q0", "q1", "q0"]);
    }

    proptest! {
        #[test]
        fn shares_add_up_and_follow_the_weights(
            weights in prop::collection::vec(1u32..20, 1..6), before in 0usize..1000, rounds in 1usize..5
        ) {
            let queues = queues(&weights);
            let turns: u32 = weights.iter().sum();
            let mut round = Round { owed: vec![0; weights.len()], whole: 0 };
            split(&queues, &mut round, before);
            let shares = split(&queues, &mut round, rounds * turns as usize);
            for (name, weight) in &queues {
                let share = shares.iter().find(|share| share.queue == *name).unwrap();
                prop_assert_eq!(share.first, rounds * *weight as usize);
            }
        }

        #[test]
        fn every_job_asked_for_has_a_turn(
            weights in prop::collection::vec(1u32..20, 1..6), before in 0usize..1000, max in 1usize..50
        ) {
            let mut round = Round { owed: vec![0; weights.len()], whole: 0 };
            split(&queues(&weights), &mut round, before);
            let shares = split(&queues(&weights), &mut round, max);
            prop_assert_eq!(shares.iter().map(|share| share.first).sum::<usize>(), max);
            prop_assert!(shares[0].first > 0);
        }
    }
}
