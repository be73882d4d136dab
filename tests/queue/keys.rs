//! Keys of jobs that are done: how many of them a queue remembers.

use crate::jobs_fixture::{Fixture, SECOND, job, queue, with_body, with_id, with_key};
use redrive::domain::{JobId, NewJob, State, Timestamp};
use redrive::queue::{EnqueueOutcome, Refusal, Sweep, Verb};
use redrive::store::storage::{Read, Table};

fn sweep(f: &mut Fixture) {
    let sweep =
        Sweep { asked_at: Timestamp::MAX, spare_made_before: Timestamp::default(), spare_until: Timestamp::default() };
    f.run(Verb::Sweep(sweep, vec![queue("q")]));
}

#[test]
fn beyond_the_most_keys_of_done_jobs_the_oldest_are_forgotten_and_own_ids_stay_held() {
    let mut f = Fixture::new();
    f.limits.finished_keys = 3;
    for n in 0..5 {
        let id = Some(JobId::parse(&format!("id-{n}")));
        f.enqueue(NewJob { id, ..with_key(&format!("key-{n}")) });
        let lease = f.claim();
        f.ack(lease);
        // One without a key counts for nothing.
        f.enqueue(with_id(&format!("alone-{n}")));
        let lease = f.claim();
        f.ack(lease);
        f.advance(SECOND);
    }
    f.enqueue(with_key("waits"));
    sweep(&mut f);
    let keys = f.read(Read::Scan(Table::Key, None, 10)).scanned().len();
    assert_eq!(keys, 3 + 1, "three of jobs that are done, and that of the one that waits");
    // Ids are held whatever becomes of the keys.
    for id in (0..5).flat_map(|n| [format!("id-{n}"), format!("alone-{n}")]) {
        let again = f.try_enqueue(with_id(&id)).unwrap();
        assert_eq!((again.outcome, again.state), (EnqueueOutcome::Existing, State::Completed), "{id}");
    }
    for n in 0..5 {
        let other = with_body(with_key(&format!("key-{n}")), "other");
        let added = f.try_enqueue(other).map(|added| added.outcome);
        let expected = if n < 2 { Ok(EnqueueOutcome::Added) } else { Err(Refusal::KeyTaken) };
        assert_eq!(added, expected, "key-{n}");
    }
    let waits = with_body(job("q"), "other");
    assert_eq!(f.try_enqueue(NewJob { key: Some("waits".into()), ..waits }), Err(Refusal::KeyTaken));
}
