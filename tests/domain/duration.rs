use super::ms;
use proptest::prelude::*;
use redrive::domain::duration::{human, parse};
use std::time::Duration;

#[test]
fn people_read_the_largest_units_first() {
    for (millis, text) in [
        (0, "0s"),
        (250, "250ms"),
        (1_000, "1s"),
        (1_500, "1.5s"),
        (2_312, "2.312s"),
        (120_000, "2m"),
        (90_500, "1m30.5s"),
        (5_400_000, "1h30m"),
        (3 * 86_400_000, "3d"),
        (86_400_000 + 1, "1d0.001s"),
    ] {
        assert_eq!(human(ms(millis)), text);
        assert_eq!(parse(text), Ok(ms(millis)));
    }
}

#[test]
fn less_than_a_millisecond_is_not_shown_as_nothing() {
    assert_eq!(human(Duration::from_micros(500)), "0.5ms");
    assert_eq!(human(Duration::from_nanos(1)), "0.000001ms");
}

#[test]
fn a_fraction_may_stand_before_any_unit() {
    assert_eq!(parse("1.5h"), Ok(ms(5_400_000)));
    assert_eq!(parse("0.25ms"), Ok(Duration::from_micros(250)));
}

#[test]
fn a_mistake_is_named_and_an_example_given() {
    for (text, why) in [
        ("", "it is empty"),
        ("30", "30 has no unit"),
        ("1h30", "30 has no unit"),
        ("-5s", "cannot be negative"),
        ("5 s", "\" s\" is not a unit"),
        ("5sec", "\"sec\" is not a unit"),
        ("5S", "\"S\" is not a unit"),
        ("s", "\"\" is not a number"),
        (".5s", "\".5\" is not a number"),
        ("1.s", "\"1.\" is not a number"),
        ("1.2.3s", "\"1.2.3\" is not a number"),
        ("+5s", "\"+\" is not a unit"),
        ("30m1h", "the longest first"),
        ("1s1s", "each unit may come once"),
        ("1.0000000001s", "at most nine digits"),
        ("99999999999999999999s", "it is too long"),
        ("18446744073709551615d", "it is too long"),
    ] {
        let error = parse(text).expect_err(text);
        assert!(error.contains(why), "{text:?}: {error}");
        assert!(error.contains("for example \"500ms\""), "{text:?}: {error}");
    }
}

proptest! {
    #[test]
    fn what_is_written_reads_back_the_same(millis in 0..u64::MAX / 1_000) {
        prop_assert_eq!(parse(&human(ms(millis))), Ok(ms(millis)));
    }

    #[test]
    fn short_and_finer_durations_read_back_too(nanos in 0..10_000_000_000_u64) {
        let d = Duration::from_nanos(nanos);
        prop_assert_eq!(parse(&human(d)), Ok(d));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "[0-9.hmsd é-]{0,40}") {
        let _ = parse(&text);
    }
}

#[test]
fn the_longest_duration_reads_back_too() {
    assert_eq!(parse(&human(Duration::MAX)), Ok(Duration::MAX));
}
