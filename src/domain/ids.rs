//! Names and ids, valid by construction.

use super::time::Timestamp;
use std::{fmt, sync::Arc};

/// A queue's name: `[A-Za-z0-9][A-Za-z0-9._-]{0,99}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName(Arc<str>);

impl QueueName {
    pub const RULE: &str = "1 to 100 characters of A-Z a-z 0-9 . _ - and the first one a letter or digit";

    pub fn parse(name: &str) -> Option<Self> {
        let (&first, rest) = name.as_bytes().split_first()?;
        let fits = rest.len() < 100
            && first.is_ascii_alphanumeric()
            && rest.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        fits.then(|| Self(name.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::borrow::Borrow<str> for QueueName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Which dead letters a call names: `emails` and `dlq:emails` are all of them, `dlq:overflow:emails` the overflow alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadPart {
    pub queue: QueueName,
    pub overflow_only: bool,
}

impl DeadPart {
    pub fn parse(name: &str) -> Option<Self> {
        let overflow = name.strip_prefix("dlq:overflow:");
        let queue = overflow.or_else(|| name.strip_prefix("dlq:")).unwrap_or(name);
        Some(Self { queue: QueueName::parse(queue)?, overflow_only: overflow.is_some() })
    }
}

/// A job's id: a UUID, or any text that the caller chose.
///
/// UUIDs that the server makes are of version 7 and carry the store's number for the job, so that it is found without an
/// index, and ids sort in the order they were made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobId {
    Uuid(u128),
    Text(Arc<str>),
}

const NUMBER_BITS: u32 = 48;
const LOW_BITS: u32 = 36;
const RANDOM_BITS: u32 = 26;

impl JobId {
    /// Numbers above this do not fit into an id.
    pub const NUMBER_MAX: u64 = (1 << NUMBER_BITS) - 1;

    /// 48 bits of time, the upper 12 bits of the number, its lower 36, and 26 random ones.
    pub fn make(now: Timestamp, number: u64, random: u64) -> Self {
        let time = u128::from(now.millis() & 0xffff_ffff_ffff) << 80;
        let high = u128::from(number >> LOW_BITS & 0xfff) << 64;
        let low = u128::from(number & ((1 << LOW_BITS) - 1)) << RANDOM_BITS;
        let random = u128::from(random & ((1 << RANDOM_BITS) - 1));
        Self::Uuid(time | 0x7 << 76 | high | 0b10 << 62 | low | random)
    }

    /// The store's number, if this is an id that a server could have made.
    pub fn number(&self) -> Option<u64> {
        let Self::Uuid(uuid) = self else { return None };
        if uuid >> 76 & 0xf != 7 || uuid >> 62 & 0b11 != 0b10 {
            return None;
        }
        let high = (uuid >> 64 & 0xfff) as u64;
        let low = (uuid >> RANDOM_BITS & ((1 << LOW_BITS) - 1)) as u64;
        Some(high << LOW_BITS | low)
    }

    /// Reads any id; a UUID in its usual form (lower case, hyphens) is kept in 16 bytes.
    pub fn parse(text: &str) -> Self {
        parse_uuid(text).map_or_else(|| Self::Text(text.into()), Self::Uuid)
    }
}

fn parse_uuid(text: &str) -> Option<u128> {
    let bytes = text.as_bytes();
    if bytes.len() != 36 {
        return None;
    }
    let mut uuid = 0u128;
    for (at, byte) in bytes.iter().enumerate() {
        match (at, byte) {
            (8 | 13 | 18 | 23, b'-') => continue,
            (8 | 13 | 18 | 23, _) => return None,
            (_, b'0'..=b'9') => uuid = uuid << 4 | u128::from(byte - b'0'),
            (_, b'a'..=b'f') => uuid = uuid << 4 | u128::from(byte - b'a' + 10),
            _ => return None,
        }
    }
    Some(uuid)
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uuid(u) => write!(
                f,
                "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
                (u >> 96) as u32,
                (u >> 80) as u16,
                (u >> 64) as u16,
                (u >> 48) as u16,
                u & 0xffff_ffff_ffff
            ),
            Self::Text(text) => f.write_str(text),
        }
    }
}
