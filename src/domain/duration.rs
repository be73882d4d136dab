//! Durations as people write and read them: `500ms`, `30s`, `1h30m`, `30d`.

use std::fmt::{self, Display, Formatter};
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

/// A duration written exactly, so that [`parse`] gives the same one back.
pub fn human(d: Duration) -> String {
    Human(d).to_string()
}

/// The same, written to where it is needed.
pub(super) struct Human(pub(super) Duration);

impl Display for Human {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.0.as_secs(), self.0.subsec_nanos());
        if seconds == 0 && nanos > 0 {
            decimal(f, u64::from(nanos / 1_000_000), nanos % 1_000_000, 6)?;
            return f.write_str("ms");
        }
        let mut rest = seconds;
        for (unit, size) in [("d", 86_400), ("h", 3_600), ("m", 60)] {
            if rest >= size {
                write!(f, "{}{unit}", rest / size)?;
                rest %= size;
            }
        }
        if rest > 0 || nanos > 0 || seconds == 0 {
            decimal(f, rest, nanos, 9)?;
            f.write_str("s")?;
        }
        Ok(())
    }
}

/// `whole.fraction` without trailing zeros, where `fraction` counts units of 10^-places.
fn decimal(f: &mut Formatter<'_>, whole: u64, mut fraction: u32, mut places: usize) -> fmt::Result {
    if fraction == 0 {
        return write!(f, "{whole}");
    }
    while fraction.is_multiple_of(10) {
        (fraction, places) = (fraction / 10, places - 1);
    }
    write!(f, "{whole}.{fraction:0places$}")
}

/// Reads a duration such as `500ms`, `1.5s` or `1h30m`. The unit is required, because a bare number
/// means seconds to one reader and milliseconds to the next.
pub fn parse(text: &str) -> Result<Duration, String> {
    read(text)
        .map_err(|why| format!("{text:?} is not a duration: {why}; write for example \"500ms\", \"30s\" or \"1h30m\""))
}

fn read(text: &str) -> Result<Duration, String> {
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
    let seconds = u64::try_from(total / NANOS_PER_SECOND).map_err(|_| "it is too long")?;
    Ok(Duration::new(seconds, (total % NANOS_PER_SECOND) as u32))
}

/// Splits `1h30m` into `1`, `h` and `30m`.
fn next_part(text: &str) -> (&str, &str, &str) {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let (number, rest) = text.split_at(text.find(|c| !is_number(c)).unwrap_or(text.len()));
    let (unit, rest) = rest.split_at(rest.find(is_number).unwrap_or(rest.len()));
    (number, unit, rest)
}

/// The unit's size; only shorter units are left for the parts that follow.
fn take_unit(left: &mut &'static [(&'static str, u128)], number: &str, unit: &str) -> Result<u128, String> {
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
