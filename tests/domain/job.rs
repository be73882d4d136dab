use super::delivery;
use redrive::domain::{AttemptStatus, Progress, Timestamp};
use std::time::Duration;

const NOW: Timestamp = Timestamp::from_millis(1_000_000);

#[test]
fn a_requeue_starts_again_and_keeps_what_must_never_go_back() {
    let mut progress = Progress {
        deliveries: 9,
        tries: 4,
        releases: 3,
        interruptions: 2,
        uncounted: 1,
        cancel_requested: true,
        last_delay: Some(Duration::from_secs(1)),
        recorded: 8,
        ..Progress::default()
    };
    progress.requeue(NOW, Some(NOW), false);
    let started_again =
        Progress { deliveries: 9, recorded: 8, redrives: 1, deadline_cleared: true, ..Progress::default() };
    assert_eq!(progress, started_again);
    assert_eq!(progress.deadline(Some(NOW)), None);
    assert_eq!(progress.deliver(), 1);
}

#[test]
fn a_success_uses_up_a_try_and_is_the_last_entry_of_the_history() {
    let mut progress = Progress { tries: 3, recorded: 8, ..Progress::default() };
    let attempt = progress.complete(&delivery(4), "sent", NOW);
    assert_eq!((progress.tries, progress.recorded), (4, 9));
    assert_eq!((attempt.status, attempt.number), (AttemptStatus::Succeeded, 4));
    assert_eq!((attempt.delivery, attempt.nonce), (4, 9));
    assert_eq!((attempt.counted, attempt.nacked), (true, false));
    assert_eq!((attempt.worker_id.as_str(), attempt.note.as_str()), ("worker-1", "sent"));
    assert_eq!(attempt.ended_at.since(attempt.started_at), Duration::from_secs(10));
}

#[test]
fn a_requeue_that_keeps_attempts_goes_on_counting() {
    let mut progress = Progress { tries: 4, deliveries: 4, ..Progress::default() };
    progress.requeue(NOW, None, true);
    assert_eq!(progress.deliver(), 5);
}

#[test]
fn a_deadline_that_has_not_passed_survives_a_requeue() {
    let mut progress = Progress::default();
    let later = Some(Timestamp::from_millis(1_000_001));
    progress.requeue(NOW, later, false);
    assert_eq!(progress.deadline(later), later);
}
