//! Durations as people write and read them: `500ms`, `30s`, `1h30m`, `30d`.

use std::time::Duration;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// The units, longest first: the order in which they may follow one another.
const UNITS: [(&str, u128); 5] = [
    ("d", 86_400 * NANOS_PER_SECOND),
    ("h", 3_600 * NANOS_PER_SECOND),
    ("m", 60 * NANOS_PER_SECOND),
    ("s", NANOS_PER_SECOND),
    ("ms", NANOS_PER_SECOND / 1_000),
];

/// Writes a duration exactly, so that [`parse`] gives the same one back.
pub fn human(d: Duration) -> String {
    let (seconds, nanos) = (d.as_secs(), d.subsec_nanos());
    if seconds == 0 && nanos > 0 {
        return decimal(u64::from(nanos / 1_000_000), nanos % 1_000_000, 6) + "ms";
    }
    let mut text = String::new();
    let mut rest = seconds;
    for (unit, size) in [("d", 86_400), ("h", 3_600), ("m", 60)] {
        if rest >= size {
            text += &format!("{}{unit}", rest / size);
            rest %= size;
        }
    }
    if rest > 0 || nanos > 0 || text.is_empty() {
        text += &decimal(rest, nanos, 9);
        text += "s";
    }
    text
}

/// `whole.fraction` without trailing zeros, where `fraction` counts units of 10^-places.
fn decimal(whole: u64, fraction: u32, places: usize) -> String {
    if fraction == 0 {
        return whole.to_string();
    }
    let fraction = format!("{fraction:0places$}");
    format!("{whole}.{}", fraction.trim_end_matches('0'))
}

/// Reads a duration such as `500ms`, `1.5s` or `1h30m`. The unit is required, because a bare number
/// means seconds to one reader and milliseconds to the next.
pub fn parse(text: &str) -> Result<Duration, String> {
    nanos(text).and_then(from_nanos).map_err(|why| {
        format!(
            "{text:?} is not a duration: {why}; write for example \"500ms\", \"30s\" or \"1h30m\""
        )
    })
}

fn nanos(text: &str) -> Result<u128, String> {
    if text.is_empty() {
        return Err("it is empty".into());
    }
    if text.starts_with('-') {
        return Err("it cannot be negative".into());
    }
    let mut total = 0;
    let mut rest = text;
    let mut units_left = UNITS.as_slice();
    while !rest.is_empty() {
        let (number, unit, after) = next_part(rest);
        let size = take_unit(&mut units_left, number, unit)?;
        // Five parts below 2^64 days each: far inside u128.
        total += amount(number, size)?;
        rest = after;
    }
    Ok(total)
}

/// Splits `1h30m` into `1`, `h` and `30m`.
fn next_part(text: &str) -> (&str, &str, &str) {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let (number, rest) = text.split_at(text.find(|c| !is_number(c)).unwrap_or(text.len()));
    let (unit, rest) = rest.split_at(rest.find(is_number).unwrap_or(rest.len()));
    (number, unit, rest)
}

/// The unit's size; only shorter units are left for the parts that follow.
fn take_unit(
    left: &mut &'static [(&'static str, u128)],
    number: &str,
    unit: &str,
) -> Result<u128, String> {
    if unit.is_empty() {
        return Err(format!("{number} has no unit (ms, s, m, h or d)"));
    }
    if UNITS.iter().all(|(name, _)| *name != unit) {
        return Err(format!("{unit:?} is not a unit (ms, s, m, h or d)"));
    }
    let Some(at) = left.iter().position(|(name, _)| *name == unit) else {
        return Err("each unit may come once, the longest first".into());
    };
    let size = left[at].1;
    *left = &left[at + 1..];
    Ok(size)
}

fn amount(number: &str, size: u128) -> Result<u128, String> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
        return Err(format!("{number:?} is not a number"));
    }
    if fraction.len() > 9 {
        return Err("at most nine digits may follow the point".into());
    }
    let whole: u64 = whole.parse().map_err(|_| "it is too long")?;
    let scale = 10_u128.pow(fraction.len() as u32);
    let fraction: u64 = fraction.parse().map_err(|_| "it is too long")?;
    Ok(u128::from(whole) * size + u128::from(fraction) * size / scale)
}

fn from_nanos(nanos: u128) -> Result<Duration, String> {
    let seconds = u64::try_from(nanos / NANOS_PER_SECOND).map_err(|_| "it is too long")?;
    Ok(Duration::new(seconds, (nanos % NANOS_PER_SECOND) as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

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
}
