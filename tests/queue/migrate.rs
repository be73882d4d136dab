//! What a copy of a whole store reports.

use redrive::domain::QueueName;
use redrive::migrate::{Counts, MovedQueue, Report};

#[test]
fn what_is_missing_is_told_by_queue_and_state() {
    let name = QueueName::parse("q").unwrap();
    let (source, added) = (Counts([3, 2, 1, 0, 0]), Counts([2, 2, 1, 0, 0]));
    let moved = MovedQueue { name, source, added, there: Counts::default() };
    let before = Counts([5, 0, 0, 0, 0]);
    let mut report = Report::default();
    report.verify(&moved, before, Counts([7, 1, 1, 0, 0]));
    assert_eq!(
        report.problems,
        ["queue q: the source has 3 waiting, and 2 are copied", "queue q: the target should have 2 dead, and it has 1",]
    );
    let moved = MovedQueue { there: Counts([1, 0, 0, 0, 0]), ..moved };
    report = Report::default();
    report.verify(&moved, before, before + added);
    assert!(report.is_whole(), "{report:?}");
}
