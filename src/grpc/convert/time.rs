//! Durations and points in time. The wire's are signed and may be malformed; ours are neither.

use super::check::Check;
use crate::{domain::Timestamp, domain::duration::human};
use std::{fmt::Display, time::Duration};
use tonic::codegen::http::HeaderMap;
use tonic::metadata::MetadataMap;

const NANOS: i32 = 1_000_000_000;
/// The longest Duration and the last second that their definitions allow.
const LONGEST_SECONDS: i64 = 315_576_000_000;
const FIRST_SECOND: i64 = -62_135_596_800;
const LAST_SECOND: i64 = 253_402_300_799;
/// What is left of a caller's deadline for the way back.
const WAY_BACK: Duration = Duration::from_millis(250);

impl Check<'_> {
    pub(super) fn duration(&mut self, field: impl Display, given: Option<prost_types::Duration>) -> Option<Duration> {
        let prost_types::Duration { seconds, nanos } = given?;
        if !(-NANOS < nanos && nanos < NANOS) || seconds.unsigned_abs() > LONGEST_SECONDS.cast_unsigned() {
            self.refuse(field, "not a valid duration: seconds or nanos out of range");
            return None;
        }
        let (Ok(seconds), Ok(nanos)) = (u64::try_from(seconds), u32::try_from(nanos)) else {
            self.refuse(field, "must not be negative");
            return None;
        };
        Some(Duration::new(seconds, nanos))
    }

    /// A duration of at most the longest delay.
    pub(super) fn delay(&mut self, field: &str, given: Option<prost_types::Duration>) -> Option<Duration> {
        let duration = self.duration(field, given)?;
        let longest = self.limits.delay;
        if duration > longest {
            let (longest, given) = (human(longest), human(duration));
            self.refuse(field, format!("must be at most {longest}, not {given}"));
            return None;
        }
        Some(duration)
    }

    /// Rounded up to milliseconds; what lies before 1970 is long past.
    pub(super) fn timestamp(&mut self, field: &str, given: Option<prost_types::Timestamp>) -> Option<Timestamp> {
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
        &mut self, field: &str, given: Option<prost_types::Timestamp>, now: Timestamp,
    ) -> Option<Timestamp> {
        let at = self.timestamp(field, given)?;
        let longest = self.limits.delay;
        if at > now.after(longest) {
            self.refuse(field, format!("must be at most {} from now", human(longest)));
            return None;
        }
        Some(at)
    }

    pub(super) fn lease_duration(&mut self, given: Option<prost_types::Duration>) -> Option<Duration> {
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

pub fn duration_out(duration: Duration) -> prost_types::Duration {
    let duration = duration.min(Duration::from_secs(LONGEST_SECONDS.cast_unsigned()));
    let (seconds, nanos) = (duration.as_secs().cast_signed(), duration.subsec_nanos().cast_signed());
    prost_types::Duration { seconds, nanos }
}

pub fn timestamp_out(at: Timestamp) -> prost_types::Timestamp {
    let seconds = i64::try_from(at.millis() / 1_000).unwrap_or(LAST_SECOND).min(LAST_SECOND);
    let nanos = (at.millis() % 1_000) as i32 * 1_000_000;
    prost_types::Timestamp { seconds, nanos }
}

/// How long the caller can wait for an answer, by its deadline, less the way back. None: for ever.
pub fn caller_patience(metadata: &MetadataMap) -> Option<Duration> {
    Some(grpc_timeout(metadata.as_ref())?.saturating_sub(WAY_BACK))
}

/// The caller's deadline.
pub(crate) fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 {
        return None;
    }
    let amount: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(amount * 3_600),
        "M" => Duration::from_secs(amount * 60),
        "S" => Duration::from_secs(amount),
        "m" => Duration::from_millis(amount),
        "u" => Duration::from_micros(amount),
        "n" => Duration::from_nanos(amount),
        _ => return None,
    })
}
