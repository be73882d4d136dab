//! A paused queue: it hands out nothing, and everything else goes on.

use super::time::Timestamp;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// None: until somebody resumes it.
    pub until: Option<Timestamp>,
    /// For whoever wonders why nothing runs.
    pub reason: String,
}

impl Pause {
    /// It ends at its time, whether or not anybody has noticed yet.
    pub fn holds(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| until > now)
    }
}

/// One clause: `paused until … : why`.
impl std::fmt::Display for Pause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.until {
            Some(until) => write!(f, "paused until {until}")?,
            None => f.write_str("paused until it is resumed")?,
        }
        if !self.reason.is_empty() {
            write!(f, ": {}", self.reason)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
