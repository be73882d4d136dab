//! What may leave a queue, or why nothing may, and until when.

use super::breaker::{ALL, Subject, at};
use redrive::domain::{Admission, Allowed, Gate, Guard, HeldBy, MaxRate, Measured, Pause, Rate, Timestamp};

fn admission<'a>(gate: &Gate<'a>, seconds: f64) -> Admission<'a> {
    gate.admission(std::iter::empty(), at(seconds))
}

fn guard(subject: &Subject) -> Option<Guard<'_>> {
    Some(Guard { breaker: &subject.breaker, settings: &subject.settings, took_ms: 50.0 })
}

fn rate(text: &str) -> Option<MaxRate> {
    Some(MaxRate::parse(text).unwrap())
}

#[test]
fn a_pause_goes_before_a_breaker_and_a_breaker_before_limits() {
    let mut open = Subject::open();
    let pause = Pause { until: Some(at(30.0)), reason: String::new() };
    let gate = Gate { pause: Some(&pause), guard: guard(&open), max_in_flight: Some(3), max_rate: rate("10/s") };
    assert_eq!(admission(&gate, 0.5), Admission::Held { by: HeldBy::Pause, until: Some(at(30.0)) });
    assert_eq!(
        admission(&Gate { pause: None, ..gate }, 0.5),
        Admission::Held { by: HeldBy::Breaker, until: Some(at(1.0)) }
    );
    assert_eq!(admission(&gate, 30.0).limit(), 1, "a pause that is over holds nothing, and a probe may go");
    open.breaker.force(true, "move".into(), at(31.0));
    let forced = Gate { guard: guard(&open), ..Gate::default() };
    assert_eq!(admission(&forced, 1_000.0), Admission::Held { by: HeldBy::Breaker, until: None });
    open.breaker.force(false, "moved".into(), at(32.0));
    assert_eq!(admission(&Gate { guard: guard(&open), ..Gate::default() }, 40.0), ALL);
}

#[test]
fn limits_hold_in_every_state_that_lets_jobs_out() {
    let closed = Subject::default();
    let gate = Gate { guard: guard(&closed), max_in_flight: Some(3), max_rate: rate("200/s"), ..Gate::default() };
    let limits = Allowed { leased: Some(3), rate: Some(Rate { per_second: 200.0, burst: 10.0 }), ..Allowed::default() };
    assert_eq!(admission(&gate, 0.0), Admission::Jobs(limits));
    let open = Subject::open();
    let Admission::Jobs(probing) = admission(&Gate { guard: guard(&open), ..gate }, 1.0) else { panic!("held") };
    assert_eq!((probing.leased, probing.rate, probing.probes.map(|it| it.most)), (Some(3), limits.rate, Some(1)));
    let mut recovering = Subject::open();
    recovering.probe_succeeds(at(1.0));
    recovering.breaker.outage.as_mut().unwrap().recovery.load = 7.5;
    let ramp = |most| match admission(&Gate { guard: guard(&recovering), max_in_flight: most, ..gate }, 1.0) {
        Admission::Jobs(allowed) => (allowed.leased, allowed.rate, allowed.ramp.map(|ramp| ramp.per_second)),
        held => panic!("{held:?}"),
    };
    assert_eq!(ramp(Some(3)), (Some(3), limits.rate, Some(150.0)), "the lower of both");
    assert_eq!(ramp(Some(100)).0, Some(8));
}

#[test]
fn no_breaker_and_no_limit_let_all_out() {
    assert_eq!(admission(&Gate::default(), 0.0), ALL);
    assert_eq!(admission(&Gate::default(), 0.0).limit(), usize::MAX);
    assert_eq!(ALL, Admission::Jobs(Allowed::default()));
}

#[test]
fn of_several_limits_that_bind_the_last_to_let_go_is_named() {
    let limits =
        Allowed { leased: Some(2), rate: Some(Rate { per_second: 10.0, burst: 1.0 }), ramp: None, probes: None };
    let measured = |leased, tokens| Measured { leased, tokens, ramp_tokens: None, at: at(0.0) };
    let held = |allowed: Allowed<'_>, measured, seconds| allowed.held_by(&measured, at(seconds));
    assert_eq!(held(limits, measured(1, None), 0.0), None, "nothing has left under the rate yet");
    assert_eq!(held(limits, measured(1, Some(1.0)), 0.0), None);
    assert_eq!(held(limits, measured(1, Some(0.25)), 0.0), Some((HeldBy::MaxRate, Some(at(0.075)))));
    assert_eq!(held(limits, measured(1, Some(0.25)), 0.025), Some((HeldBy::MaxRate, Some(at(0.075)))));
    assert_eq!(held(limits, measured(1, Some(0.25)), 0.075), None);
    assert_eq!(held(limits, measured(2, Some(0.25)), 0.0), Some((HeldBy::MaxInFlight, None)), "a lease may take long");
    let ramp = Allowed { ramp: Some(Rate { per_second: 2.0, burst: 1.0 }), ..limits };
    let both = Measured { leased: 1, tokens: Some(0.0), ramp_tokens: Some(0.0), at: at(0.0) };
    assert_eq!(held(ramp, both, 0.0), Some((HeldBy::Load, Some(at(0.5)))));
    assert_eq!(held(ramp, Measured { leased: 2, ..both }, 0.0), Some((HeldBy::Load, None)));
}

#[test]
fn a_rate_gives_out_whole_tokens_and_says_when_the_next_is_there() {
    let rate = Rate { per_second: 3.0, burst: 2.0 };
    assert_eq!([rate.refilled(0.0, 500), rate.refilled(1.0, 5_000)], [1.5, 2.0]);
    assert_eq!([Rate::whole(0.999_999_9), Rate::whole(0.99), Rate::whole(-3.0)], [1, 0, 0]);
    assert_eq!(rate.next_at(0.0, at(0.0)), Some(at(0.334)), "rounded up to a millisecond");
    let hourly = MaxRate::parse("1/h").unwrap().rate();
    assert_eq!((hourly.burst, hourly.next_at(0.0, at(0.0))), (1.0, Some(at(3_600.0))));
    assert_eq!(Rate { per_second: 1e-12, burst: 1.0 }.next_at(0.0, Timestamp::default()), None);
}
