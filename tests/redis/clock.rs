//! Store time where the clock of Redis or of a server jumps: the arithmetic alone.

use redrive::env::ManualClock;
use redrive::store::redis::TimeSource;
use redrive::store::redis::clock::{Offset, Sample, StoreTime};
use std::{sync::Arc, time::Duration};

const HOURS_2: i64 = 7_200_000_000;

/// A server, and a Redis whose clock it samples.
struct Fixture {
    local: Arc<ManualClock>,
    time: StoreTime,
}

impl Fixture {
    fn new() -> Self {
        let local = Arc::new(ManualClock::at(Duration::from_secs(5)));
        Self { time: StoreTime::new(TimeSource::Redis, local.clone()), local }
    }

    /// Samples a Redis that is so much ahead of the boot clock; a proposal goes into the catalogue.
    fn hear(&self, ahead_us: i64, catalogue: &mut Offset) {
        let sent_us = self.time.boot_us();
        self.local.advance(Duration::from_millis(2));
        let time_us = self.time.boot_us() + ahead_us;
        self.local.advance(Duration::from_millis(2));
        let sample = Sample { time_us, sent_us, received_us: self.time.boot_us() };
        if let Some(to) = self.time.observe(sample, *catalogue) {
            *catalogue = to;
            self.time.proposed(to, to);
        }
    }

    fn ahead_ms(&self) -> i64 {
        self.time.now().millis().cast_signed() - self.time.boot_us() / 1_000
    }
}

#[test]
fn store_time_is_a_lower_bound_of_time_and_runs_on() {
    let (server, mut catalogue) = (Fixture::new(), Offset::default());
    for _ in 0..20 {
        server.hear(1_000_000_000, &mut catalogue);
        assert!((999_995..=1_000_000).contains(&server.ahead_ms()), "{}", server.ahead_ms());
        server.local.advance(Duration::from_secs(1));
    }
    assert_eq!(catalogue, Offset::default());
    // A small step is followed.
    server.hear(1_000_100_000, &mut catalogue);
    assert!(server.ahead_ms() >= 1_000_095);
}

#[test]
fn a_jump_becomes_an_offset_that_all_servers_share_and_goes_back_slowly() {
    for jump in [HOURS_2, -HOURS_2] {
        let (one, other, mut catalogue) = (Fixture::new(), Fixture::new(), Offset::default());
        let base = 100_000_000_000;
        one.hear(base, &mut catalogue);
        other.hear(base, &mut catalogue);
        one.hear(base + jump, &mut catalogue);
        other.hear(base + jump, &mut catalogue);
        let late = Fixture::new();
        late.hear(base + jump, &mut catalogue);
        for server in [&one, &other, &late] {
            assert!((server.ahead_ms() - base / 1_000).abs() < 100, "{}", server.ahead_ms());
        }
        assert_eq!(Offset::read(&catalogue.to_string()), catalogue);
        // Those that saw it spare leases for a while.
        assert_eq!([&one, &other, &late].map(|server| server.time.jumps()), [1, 1, 0]);
        // After 100 s, one second of it is gone.
        one.local.advance(Duration::from_secs(100));
        one.hear(base + jump, &mut catalogue);
        let gone_ms = (one.ahead_ms() - base / 1_000) * jump.signum();
        assert!((900..1_100).contains(&gone_ms), "{gone_ms}");
    }
}

#[test]
fn a_server_whose_own_clock_stood_still_is_overruled() {
    let (one, paused, mut catalogue) = (Fixture::new(), Fixture::new(), Offset::default());
    let base = 100_000_000_000;
    one.hear(base, &mut catalogue);
    paused.hear(base, &mut catalogue);
    // Redis goes on for 30 s, and so does `one`; the boot clock of `paused` does not.
    one.local.advance(Duration::from_secs(30));
    paused.hear(base + 30_000_000, &mut catalogue);
    assert_ne!(catalogue, Offset::default());
    one.hear(base, &mut catalogue);
    let now = catalogue;
    for _ in 0..5 {
        paused.hear(base + 30_000_000, &mut catalogue);
        one.hear(base, &mut catalogue);
    }
    assert_eq!(catalogue, now, "they do not contradict each other for ever");
    assert!((one.ahead_ms() - base / 1_000).abs() < 50, "{}", one.ahead_ms());
    assert!((paused.ahead_ms() - base / 1_000 - 30_000).abs() < 50, "{}", paused.ahead_ms());
}
