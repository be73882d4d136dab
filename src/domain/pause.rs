//! A paused queue: it hands out nothing, and everything else goes on.

use super::time::Timestamp;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pause {
    /// None: until it is resumed.
    pub until: Option<Timestamp>,
    /// For operators who wonder why nothing runs.
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
