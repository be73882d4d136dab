//! Durations and points in time. The wire's are signed and may be malformed; ours are neither.

use super::check::Check;
use crate::domain::{duration::human, time::Timestamp};
use std::{fmt::Display, time::Duration};
use tonic::metadata::MetadataMap;

const NANOS: i32 = 1_000_000_000;
/// The longest Duration and the last second that their definitions allow.
const LONGEST_SECONDS: i64 = 315_576_000_000;
const FIRST_SECOND: i64 = -62_135_596_800;
const LAST_SECOND: i64 = 253_402_300_799;
/// What is left of a caller's deadline for the way back.
const WAY_BACK: Duration = Duration::from_millis(250);

impl Check<'_> {
    pub(super) fn duration(
        &mut self,
        field: impl Display,
        given: Option<prost_types::Duration>,
    ) -> Option<Duration> {
        let prost_types::Duration { seconds, nanos } = given?;
        if !(-NANOS < nanos && nanos < NANOS)
            || seconds.unsigned_abs() > LONGEST_SECONDS.cast_unsigned()
        {
            self.refuse(field, "not a valid duration: seconds or nanos out of range");
            return None;
        }
        let (Ok(seconds), Ok(nanos)) = (u64::try_from(seconds), u32::try_from(nanos)) else {
            self.refuse(field, "must not be negative");
            return None;
        };
        Some(Duration::new(seconds, nanos))
    }

    pub(super) fn duration_at_most(
        &mut self,
        field: impl Display + Copy,
        given: Option<prost_types::Duration>,
        longest: Duration,
    ) -> Option<Duration> {
        let duration = self.duration(field, given)?;
        if duration > longest {
            let (longest, given) = (human(longest), human(duration));
            self.refuse(field, format!("must be at most {longest}, not {given}"));
            return None;
        }
        Some(duration)
    }

    /// Rounded up to milliseconds; what lies before 1970 is long past.
    pub(super) fn timestamp(
        &mut self,
        field: impl Display,
        given: Option<prost_types::Timestamp>,
    ) -> Option<Timestamp> {
        let prost_types::Timestamp { seconds, nanos } = given?;
        if !(0..NANOS).contains(&nanos) || !(FIRST_SECOND..=LAST_SECOND).contains(&seconds) {
            self.refuse(field, "not a valid time: outside of years 1 to 9999, or bad nanos");
            return None;
        }
        let since_epoch = match (u64::try_from(seconds), u32::try_from(nanos)) {
            (Ok(seconds), Ok(nanos)) => Duration::new(seconds, nanos),
            _ => Duration::ZERO,
        };
        Some(Timestamp::default().after(since_epoch))
    }

    /// A time at most the longest delay from now.
    pub(super) fn timestamp_before(
        &mut self,
        field: impl Display + Copy,
        given: Option<prost_types::Timestamp>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let at = self.timestamp(field, given)?;
        let longest = self.limits.delay;
        if at > now.after(longest) {
            self.refuse(field, format!("must be at most {} from now", human(longest)));
            return None;
        }
        Some(at)
    }

    pub(super) fn lease_duration(
        &mut self,
        given: Option<prost_types::Duration>,
    ) -> Option<Duration> {
        let duration = self.duration("lease_duration", given)?;
        let (least, most) = (self.limits.lease_min, self.limits.lease_max);
        if !(least..=most).contains(&duration) {
            let (least, most, given) = (human(least), human(most), human(duration));
            self.refuse("lease_duration", format!("must be {least} to {most}, not {given}"));
            return None;
        }
        Some(duration)
    }
}

pub(in crate::grpc) fn duration_out(duration: Duration) -> prost_types::Duration {
    let seconds = i64::try_from(duration.as_secs()).unwrap_or(LONGEST_SECONDS);
    if seconds >= LONGEST_SECONDS {
        return prost_types::Duration { seconds: LONGEST_SECONDS, nanos: 0 };
    }
    prost_types::Duration { seconds, nanos: duration.subsec_nanos().cast_signed() }
}

pub(in crate::grpc) fn timestamp_out(at: Timestamp) -> prost_types::Timestamp {
    let seconds = i64::try_from(at.millis() / 1_000).unwrap_or(LAST_SECOND).min(LAST_SECOND);
    let nanos = (at.millis() % 1_000) as i32 * 1_000_000;
    prost_types::Timestamp { seconds, nanos }
}

/// How long the caller can wait for an answer, by its deadline, less the way back. None: for ever.
pub(in crate::grpc) fn caller_patience(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 {
        return None;
    }
    let amount: u64 = digits.parse().ok()?;
    let timeout = match unit {
        "H" => Duration::from_secs(amount * 3_600),
        "M" => Duration::from_secs(amount * 60),
        "S" => Duration::from_secs(amount),
        "m" => Duration::from_millis(amount),
        "u" => Duration::from_micros(amount),
        "n" => Duration::from_nanos(amount),
        _ => return None,
    };
    Some(timeout.saturating_sub(WAY_BACK))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::limits::Limits;
    use proptest::prelude::*;

    fn read_duration(seconds: i64, nanos: i32) -> Option<Duration> {
        let limits = Limits::default();
        let mut check = Check::new(&limits);
        let value = check.duration("d", Some(prost_types::Duration { seconds, nanos }));
        check.done(value).ok()
    }

    fn read_timestamp(seconds: i64, nanos: i32) -> Option<Timestamp> {
        let limits = Limits::default();
        let mut check = Check::new(&limits);
        let value = check.timestamp("t", Some(prost_types::Timestamp { seconds, nanos }));
        check.done(value).ok()
    }

    #[test]
    fn durations_that_are_negative_or_not_normal_are_refused() {
        for (seconds, nanos) in [
            (-1, 0),
            (0, -1),
            (1, -1),
            (0, 1_000_000_000),
            (0, i32::MIN),
            (LONGEST_SECONDS + 1, 0),
            (i64::MIN + 1, 0),
        ] {
            assert_eq!(read_duration(seconds, nanos), None, "{seconds} {nanos}");
        }
        assert_eq!(read_duration(0, 0), Some(Duration::ZERO));
        assert_eq!(read_duration(2, 500_000_000), Some(Duration::from_millis(2_500)));
    }

    #[test]
    fn times_outside_of_the_calendar_are_refused_and_old_ones_are_long_past() {
        for (seconds, nanos) in
            [(LAST_SECOND + 1, 0), (FIRST_SECOND - 1, 0), (0, -1), (0, NANOS), (i64::MIN, 0)]
        {
            assert_eq!(read_timestamp(seconds, nanos), None, "{seconds} {nanos}");
        }
        assert_eq!(read_timestamp(-5, 3), Some(Timestamp::from_millis(0)));
        assert_eq!(read_timestamp(1, 1), Some(Timestamp::from_millis(1_001)));
    }

    #[test]
    fn the_end_of_time_is_the_year_9999() {
        assert_eq!(timestamp_out(Timestamp::MAX).seconds, LAST_SECOND);
        assert_eq!(duration_out(Duration::MAX).seconds, LONGEST_SECONDS);
    }

    #[test]
    fn a_caller_waits_for_its_deadline_less_the_way_back() {
        for (header, patience) in [
            ("30S", Some(29_750)),
            ("1000m", Some(750)),
            ("100m", Some(0)),
            ("1M", Some(59_750)),
            ("1H", Some(3_599_750)),
            ("5000000u", Some(4_750)),
            ("99999999n", Some(0)),
            ("S", None),
            ("", None),
            ("123456789S", None),
            ("5x", None),
        ] {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", header.parse().unwrap());
            assert_eq!(caller_patience(&metadata), patience.map(Duration::from_millis), "{header}");
        }
        assert_eq!(caller_patience(&MetadataMap::new()), None);
    }

    proptest! {
        #[test]
        fn durations_read_back(seconds in 0..LONGEST_SECONDS, nanos in 0..NANOS) {
            let duration = read_duration(seconds, nanos).unwrap();
            prop_assert_eq!(duration_out(duration), prost_types::Duration { seconds, nanos });
        }

        #[test]
        fn times_read_back(millis in 0..LAST_SECOND as u64 * 1_000) {
            let at = Timestamp::from_millis(millis);
            let wire = timestamp_out(at);
            prop_assert_eq!(read_timestamp(wire.seconds, wire.nanos), Some(at));
        }

        #[test]
        fn no_duration_or_time_makes_reading_stumble(seconds: i64, nanos: i32) {
            read_duration(seconds, nanos);
            read_timestamp(seconds, nanos);
        }
    }
}
