//! How certain a change must be before it is answered.

use std::fmt;

/// A Redis has fewer replicas than this.
const REPLICAS_MAX: u32 = 100;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The primary has it: as durable as that Redis is.
    #[default]
    Primary,
    /// So many replicas have received it.
    Replicated(u32),
    /// It is in the append-only file, on the disk, of the primary and of so many replicas.
    Fsync(u32),
}

impl Durability {
    /// Reads `primary`, `replicated(1)`, `fsync(0)`.
    pub fn parse(word: &str) -> Option<Self> {
        let number = |word: &str| word.parse().ok().filter(|number| *number <= REPLICAS_MAX);
        match word.strip_suffix(')').and_then(|word| word.split_once('(')) {
            None => (word == "primary").then_some(Self::Primary),
            Some(("replicated", replicas)) => number(replicas).filter(|replicas| *replicas > 0).map(Self::Replicated),
            Some(("fsync", replicas)) => number(replicas).map(Self::Fsync),
            Some(_) => None,
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Primary => f.write_str("primary"),
            Self::Replicated(replicas) => write!(f, "replicated({replicas})"),
            Self::Fsync(replicas) => write!(f, "fsync({replicas})"),
        }
    }
}
