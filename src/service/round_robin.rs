//! Whose turn it is when a claim names several queues.

use crate::lock::lock;
use crate::{domain::QueueName, queue::Share};
use std::collections::HashMap;
use std::sync::Mutex;

/// So many different sets of queues are remembered; then they all start again, which only moves whose turn it is.
const SETS_MAX: usize = 4_096;

/// Where each set of queues, named together with its weights, stands: smooth weighted round robin.
#[derive(Debug, Default)]
pub struct RoundRobin(Mutex<HashMap<Vec<(QueueName, u32)>, Round>>);

#[derive(Debug)]
struct Round {
    /// What each queue is owed.
    owed: Vec<i64>,
    /// Calls that had whole rounds only: these have no first turn, so the queue that stands first rotates.
    whole: usize,
}

impl RoundRobin {
    /// Splits `max_jobs` over the queues as their turns come. Each turn is taken once, for all callers.
    pub fn take(&self, queues: &[(QueueName, u32)], max_jobs: usize) -> Vec<Share> {
        if let [(queue, _)] = queues {
            return vec![Share { queue: queue.clone(), first: max_jobs }];
        }
        let mut sets = lock(&self.0);
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
    let mut shares: Vec<Share> = queues.iter().map(|(queue, _)| Share { queue: queue.clone(), first: 0 }).collect();
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

/// Each queue is owed its weight more; the queue that is owed most takes the turn and pays for the round.
fn next_turn(queues: &[(QueueName, u32)], owed: &mut [i64], round: usize) -> usize {
    for (owed, (_, weight)) in owed.iter_mut().zip(queues) {
        *owed += i64::from(*weight);
    }
    let queue = (0..queues.len()).rev().max_by_key(|&queue| owed[queue]).unwrap_or(0);
    owed[queue] -= round as i64;
    queue
}
