//! What a check of a store finds.

use std::fmt;

/// Something that is off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub check: Check,
    /// Empty: it belongs to no queue.
    pub queue: String,
    pub what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// The engine's own files.
    Files,
    /// What came in is what went out and what is held.
    Law,
    /// Counters say how many there are.
    Counts,
    /// Every job is in exactly one place.
    Places,
    /// What leads to a job leads to it, and to nothing else.
    Indexes,
    /// Bytes are those that were written.
    Checksums,
}

impl Check {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Law => "law",
            Self::Counts => "counts",
            Self::Places => "places",
            Self::Indexes => "indexes",
            Self::Checksums => "checksums",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { check, queue, what } = self;
        match queue.as_str() {
            "" => write!(f, "{}: {what}", check.as_str()),
            queue => write!(f, "{}: queue {queue}: {what}", check.as_str()),
        }
    }
}
