//! Log lines that say the same again and again: at most one a minute.

use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(60);

/// Lines of one kind.
#[derive(Debug, Default)]
pub(crate) struct LogLimit {
    last: Option<Instant>,
    left_out: u64,
}

impl LogLimit {
    /// Whether a line may be written now, and then how many were left out since the last one.
    pub(crate) fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.duration_since(last) < EVERY) {
            self.left_out += 1;
            return None;
        }
        Some(self.always(now))
    }

    /// For a line that is never left out.
    pub(crate) fn always(&mut self, now: Instant) -> u64 {
        self.last = Some(now);
        std::mem::take(&mut self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_minute_stands_for_those_that_were_left_out() {
        let (start, mut limit) = (crate::env::instant(), LogLimit::default());
        let mut at = |seconds| limit.admit(start + Duration::from_secs(seconds));
        assert_eq!([at(0), at(1), at(59), at(60), at(61), at(600)], [Some(0), None, None, Some(2), None, Some(1)]);
        let (mut limit, later) = (LogLimit::default(), start + Duration::from_secs(1));
        assert_eq!((limit.admit(start), limit.admit(later), limit.always(later)), (Some(0), None, 1));
        assert_eq!(limit.admit(later), None);
    }
}
