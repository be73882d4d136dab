//! An outage gives attempts back while others change its breaker.

use crate::fixture::{Fixture, SETTLING, nack_of};
use crate::schedule::{Choices, complete, interleave};
use redrive::domain::{Failure, JobEventKind, JobId, Outcome};
use redrive::queue::{self, Verb, View};

/// A service that is down asks for some time: the wait for the next probe is longer, and the breaker is written anew.
fn hold(fixture: &Fixture) -> Verb {
    let failure = Failure { http_status: 429, ..Failure::new("TooManyRequests", "") };
    nack_of(fixture.lease.clone(), Outcome::Failed { failure, permanent: false, retry_after: None })
}

fn sweep() -> fn(&Fixture) -> Verb {
    SETTLING.iter().find(|(name, _)| *name == "sweep").unwrap().1
}

#[test]
fn an_attempt_is_returned_once_whatever_changes_the_breaker_meanwhile() {
    let mut choices = Choices::default();
    let mut runs = 0;
    loop {
        let fixture = Fixture::of_an_outage(5);
        interleave(&fixture, &[sweep(), hold], &mut choices, 2, None);
        fixture.run(sweep()(&fixture));
        for number in 0..5 {
            let id = JobId::parse(&format!("failed{number}"));
            let view = complete(queue::view(&mut fixture.storage.clone(), View::Job(id, None))).unwrap();
            let queue::Viewed::Job(jobs) = view else { panic!("{view:?}") };
            let [job] = jobs.as_slice() else { panic!("{jobs:?}") };
            let returned = job.events.iter().filter(|event| event.kind == JobEventKind::ReturnedByBreaker).count();
            let found = (job.progress.tries, job.progress.uncounted, returned);
            assert_eq!(found, (1, 1, 1), "job {number}, in the order {:?}", choices.taken());
        }
        fixture.verify();
        runs += 1;
        if !choices.next() {
            break;
        }
    }
    println!("{runs} interleavings");
    assert!(runs > 20, "{runs}");
}
