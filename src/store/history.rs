//! A job's history: what is kept of it, and how it is put together again.

use super::{JobView, codec};
use crate::domain::{
    failure::Failure,
    job::{Attempt, AttemptStatus, Next},
};

/// Attempts at both ends of the history that are kept.
pub(super) const FIRST_ATTEMPTS: u32 = 10;
pub(super) const LAST_ATTEMPTS: u32 = 40;

/// The attempts in order, with first and last failure whole.
pub(super) fn put_together<'a>(
    records: impl Iterator<Item = &'a [u8]>,
    first: Option<&Failure>,
    last: Option<&Failure>,
) -> Vec<Attempt> {
    let read = |record: &[u8]| codec::read_attempt(record).unwrap_or_else(|_| damaged());
    let mut all: Vec<_> = records.map(read).collect();
    let failed = |attempt: &&mut Attempt| attempt.failure.is_some();
    if let Some(attempt) = all.iter_mut().rfind(failed) {
        make_whole(attempt, last);
    }
    if let Some(attempt) = all.iter_mut().find(failed) {
        make_whole(attempt, first);
    }
    all
}

/// A history as it is kept: records of attempts by their sequence, and of the first and the last failure.
pub(super) struct Kept {
    pub(super) attempts: Vec<(u32, Vec<u8>)>,
    pub(super) first: Option<Vec<u8>>,
    /// Where it is not the first.
    pub(super) last: Option<Vec<u8>>,
}

/// What [`put_together`] has put together.
pub(super) fn take_apart(view: &JobView) -> Kept {
    let record = |(seq, attempt): (u32, &Attempt)| (seq, codec::attempt(&summary(attempt)));
    let failures: Vec<_> =
        view.attempts.iter().filter_map(|attempt| attempt.failure.as_ref()).collect();
    let last = view.last_failure.as_ref();
    let first = failures.first().copied().or(last);
    let last = last.filter(|last| failures.len() > 1 || Some(*last) != first);
    Kept {
        attempts: sequences(view.progress.recorded).zip(&view.attempts).map(record).collect(),
        first: first.map(codec::failure),
        last: last.map(codec::failure),
    }
}

/// The attempts that are kept of so many.
fn sequences(recorded: u32) -> impl Iterator<Item = u32> {
    let last = recorded.saturating_sub(LAST_ATTEMPTS) + 1;
    (1..=recorded.min(FIRST_ATTEMPTS)).chain(last.max(FIRST_ATTEMPTS + 1)..=recorded)
}

/// Puts a failure where its summary is; its own attempt may be one of those that were not kept.
fn make_whole(attempt: &mut Attempt, whole: Option<&Failure>) {
    if attempt.failure == whole.map(Failure::summary) {
        attempt.failure = whole.cloned();
    }
}

/// What the history keeps of an attempt; a first or last failure is kept beside it.
pub(super) fn summary(attempt: &Attempt) -> Attempt {
    Attempt { failure: attempt.failure.as_ref().map(Failure::summary), ..attempt.clone() }
}

/// Stands in for an entry of the history that fails its checksum.
fn damaged() -> Attempt {
    Attempt {
        number: 0,
        delivery: 0,
        nonce: 0,
        status: AttemptStatus::Failed,
        worker_id: String::new(),
        started_at: Default::default(),
        ended_at: Default::default(),
        note: "this entry is damaged on disk".into(),
        failure: None,
        next: Next::OldPlace,
        delay: None,
        retries_left: 0,
        counted: false,
        probe: false,
        nacked: false,
        breaker: Default::default(),
        rule: String::new(),
        explanation: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ten_and_the_last_forty_are_kept() {
        let all = |recorded| sequences(recorded).collect::<Vec<_>>();
        assert!(all(0).is_empty());
        assert_eq!(all(3), [1, 2, 3]);
        assert_eq!(all(50), (1..=50).collect::<Vec<_>>());
        assert_eq!(all(53), (1..=10).chain(14..=53).collect::<Vec<_>>());
    }
}
