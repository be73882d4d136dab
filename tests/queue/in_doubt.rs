//! A call that fails says that its outcome is unknown only where a part of it was carried out.

use crate::overtaken::*;
use redrive::domain::{BreakerName, Failure, Lease, Outcome};
use redrive::queue::{
    Ack, Answer, BreakerOrder, Claim, Delivered, Event, Extend, Nack, Refusal, Settlements, Share, Verb,
};
use redrive::store::StoreError;

fn leases(f: &Fixture, jobs: usize) -> Vec<Lease> {
    for id in ids(0..jobs) {
        f.enqueue("q", &id, None);
    }
    let lease = |job: Delivered| job.delivery.lease;
    f.claim("q", jobs).into_iter().map(lease).collect()
}

fn ack(lease: &Lease) -> Ack {
    Ack { lease: lease.clone(), note: String::new(), result: Default::default(), breaker_key: String::new() }
}

fn nack(lease: &Lease) -> Nack {
    let outcome = Outcome::Failed { failure: Failure::new("E", ""), permanent: true, retry_after: None };
    Nack { lease: lease.clone(), outcome, checkpoint: String::new() }
}

fn nacks(leases: &[Lease]) -> Settlements {
    Settlements { nacks: leases.iter().map(nack).collect(), ..Settlements::default() }
}

/// Another server takes this lease away: it is lost from then on.
fn lose(f: &Fixture, lease: &Lease) {
    let Answer::Settle(settled) = f.run(Verb::Settle(nacks(std::slice::from_ref(lease)))) else { panic!() };
    assert!(settled.nacks[0].is_ok());
}

/// An operator sets the breaker all the time, so that no decision holds.
fn overtaken(f: &Fixture, lost: usize, batches: usize, then: Then) -> Then {
    let (others, mut open) = (f.clone(), false);
    let by = move || {
        open = !open;
        let order = BreakerOrder::Force { open, reason: String::new() };
        others.run(Verb::SetBreaker(BreakerName::parse("queue:q").unwrap(), order));
    };
    Then::Overtaken { lost, by: Box::new(by), batches, then: Box::new(then) }
}

fn run(f: &Fixture, batches: usize, then: Then, verb: Verb) -> Result<Answer, StoreError> {
    f.run_on(OneServer { batches, then, ..f.server() }, verb)
}

#[test]
fn a_nack_that_loses_twelve_rounds_is_carried_out_once() {
    let f = Fixture::new();
    let leases = leases(&f, 3);
    let then = overtaken(&f, 12, 0, Then::Nothing);
    let Ok(Answer::Settle(settled)) = run(&f, 0, then, Verb::Settle(nacks(&leases))) else { panic!("it failed") };
    assert!(settled.nacks.iter().all(Result::is_ok), "{settled:?}");
    assert_eq!(f.totals("q").failed_attempts, 3);
}

#[test]
fn a_nack_that_loses_every_round_has_done_nothing() {
    let f = Fixture::new();
    let leases = leases(&f, 2);
    lose(&f, &leases[0]);
    let settle = Settlements { acks: vec![ack(&leases[0])], ..nacks(&leases[1..]) };
    // The Ack is a batch of its own, which nothing is done by.
    let then = overtaken(&f, 100, 0, Then::Nothing);
    let error = run(&f, 1, then, Verb::Settle(settle)).expect_err("it was overtaken");
    assert!(matches!(error, StoreError::Overloaded(_)), "{error}");
    assert_eq!(f.totals("q").failed_attempts, 1);
}

#[test]
fn settlements_that_are_refused_leave_no_doubt_about_what_could_not_be_sent() {
    let f = Fixture::new();
    let leases = leases(&f, 2);
    lose(&f, &leases[0]);
    let (lost, own) = (&leases[0], &leases[1]);
    let extend = Extend { lease: lost.clone(), duration: None, checkpoint: String::new() };
    let refused = || Settlements { acks: vec![ack(lost)], nacks: vec![nack(lost)], extensions: vec![extend.clone()] };
    let Answer::Settle(settled) = f.run(Verb::Settle(refused())) else { panic!() };
    assert_eq!((&settled.acks[0], &settled.extensions[0]), (&Err(Refusal::LeaseLost), &Err(Refusal::LeaseLost)));
    let claim = Claim {
        shares: vec![Share { queue: named("q"), first: 1 }],
        max_jobs: 1,
        max_bytes: usize::MAX,
        lease_duration: None,
        worker_id: "w".into(),
        request_id: String::new(),
        settle: refused(),
    };
    let with_request = Claim { request_id: "r".into(), ..claim.clone() };
    let nacked = Settlements { acks: vec![ack(lost)], ..nacks(std::slice::from_ref(own)) };
    // A batch of the Ack and one of the Extend are sent; what comes then is not.
    let calls = [(2, Verb::Claim(claim)), (2, Verb::Claim(with_request)), (1, Verb::Settle(nacked))];
    for (batches, verb) in calls {
        let what = format!("{verb:?}");
        let error = run(&f, batches, Then::Unreachable, verb).expect_err("it was not sent");
        assert!(matches!(error, StoreError::Unavailable(_)), "{what}: {error}");
    }
}

#[test]
fn a_settlement_that_was_carried_out_is_in_doubt_when_the_rest_fails() {
    let f = Fixture::new();
    let leases = leases(&f, 4);
    // Overtaken as one batch, its nacks go one by one, and the second cannot be sent.
    let then = overtaken(&f, 2, 1, Then::Unreachable);
    let error = run(&f, 0, then, Verb::Settle(nacks(&leases[..2]))).expect_err("it was not sent");
    assert!(matches!(error, StoreError::OutcomeUnknown(_)), "{error}");
    assert_eq!(f.totals("q").failed_attempts, 1);
    let both = Settlements { acks: vec![ack(&leases[2])], ..nacks(&leases[3..]) };
    let error = run(&f, 1, Then::Unreachable, Verb::Settle(both)).expect_err("it was not sent");
    assert!(matches!(error, StoreError::OutcomeUnknown(_)), "{error}");
    assert_eq!(f.totals("q").completed, 1);
}

#[test]
fn a_death_that_was_not_written_is_not_told() {
    let f = Fixture::new();
    let leases = leases(&f, 2);
    let died = |events: &[Event]| events.iter().filter(|event| matches!(event, Event::DeadLettered(_))).count();
    let server = OneServer { batches: 0, then: Then::Unreachable, ..f.server() };
    let (answer, events) = f.run_and_tell(server, Verb::Settle(nacks(&leases[..1])));
    assert!(answer.is_err());
    assert_eq!(died(&events), 0, "the job is no dead letter");
    let (answer, events) = f.run_and_tell(f.server(), Verb::Settle(nacks(&leases)));
    assert!(answer.is_ok());
    assert_eq!(died(&events), 2);
}
