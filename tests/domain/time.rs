use redrive::domain::{Pause, Timestamp};

#[test]
fn moments_are_shown_as_dates() {
    for (seconds, shown) in [
        (0, "1970-01-01T00:00:00Z"),
        (951_782_399, "2000-02-28T23:59:59Z"),
        (951_782_400, "2000-02-29T00:00:00Z"),
        (951_868_800, "2000-03-01T00:00:00Z"),
        (1_735_689_599, "2024-12-31T23:59:59Z"),
        (4_107_542_400, "2100-03-01T00:00:00Z"),
        (253_402_300_799, "9999-12-31T23:59:59Z"),
    ] {
        assert_eq!(Timestamp::from_millis(seconds * 1_000).to_string(), shown);
    }
    assert_eq!(Timestamp::from_millis(7).to_string(), "1970-01-01T00:00:00.007Z");
}

#[test]
fn a_pause_holds_until_its_time_and_says_so() {
    let pause = |until, reason: &str| Pause { until, reason: reason.into() };
    let end = Timestamp::from_millis(1_800_000_000_500);
    let deploy = pause(Some(end), "deploy");
    assert!(deploy.holds(Timestamp::from_millis(end.millis() - 1)) && !deploy.holds(end));
    assert_eq!(deploy.to_string(), "paused until 2027-01-15T08:00:00.500Z: deploy");
    assert!(pause(None, "").holds(Timestamp::MAX));
    assert_eq!(pause(None, "").to_string(), "paused until it is resumed");
}
