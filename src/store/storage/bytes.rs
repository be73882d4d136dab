//! The bytes that an engine knows: keys, members, positions, and the fronts of some records.

use super::{HAS_HISTORY_TAG, Index, Member, NO_GROUP, Position, RecordKey, Table};
use crate::domain::Timestamp;

//
// A lease: delivery 4, nonce 8, flags 1, epoch 4, started_at 6, duration 4 (these never change while it lives, and are in its
// token), attempt 4, position 16, then the tail of the template. A Job begins with its size in a reply 4, traits 1. A History
// begins with its size in a reply 4, traits 1, deliveries 4, tries 4. flags = those of the rule | traits of Job and History.

/// The bytes of a lease that its token holds.
pub const LEASE_FENCE: usize = 27;
/// Where a lease's tail begins.
pub const LEASE_TAIL: usize = LEASE_FENCE + 4 + Position::LENGTH;

/// The group of a lease, from its record.
pub fn lease_group(record: &[u8]) -> u16 {
    match record.get(LEASE_TAIL - Position::LENGTH..LEASE_TAIL) {
        Some([high, low, ..]) => u16::from_be_bytes([*high, *low]),
        _ => NO_GROUP,
    }
}

/// Traits and flags: one byte, the same bits in Job, History, rules and leases.
pub mod flag {
    /// Its id is the caller's own: there is a record in `Id`.
    pub const OWN_ID: u8 = 1;
    /// It has a deadline, events, or an id that no token holds: an Ack has to read the job.
    pub const LOOK: u8 = 2;
    /// There is a `History`.
    pub const HISTORY: u8 = 4;
    /// The body is in `Body`.
    pub const BODY: u8 = 8;
    /// It has been retried.
    pub const RETRIED: u8 = 16;
    /// A failure of it was counted: its outcomes say little of what its queue calls.
    pub const FAILED: u8 = 32;
    /// It is a breaker's probe.
    pub const PROBE: u8 = 64;
    /// It was handed out while its queue recovers: the breaker hears of its end.
    pub const RAMP: u8 = 128;
}

fn put_48(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_be_bytes()[2..]);
}

fn read_48(bytes: &[u8]) -> Option<u64> {
    let mut all = [0; 8];
    all[2..].copy_from_slice(bytes.get(..6)?);
    Some(u64::from_be_bytes(all))
}

impl Position {
    pub const LENGTH: usize = 16;

    /// In `Keyed`, `Scheduled`, `Retrying` and leases: all of it.
    pub fn bytes(&self) -> [u8; Self::LENGTH] {
        let mut out = [0; Self::LENGTH];
        out[..2].copy_from_slice(&self.group.to_be_bytes());
        out[2] = self.rank;
        out[3..9].copy_from_slice(&self.ready_at.millis().to_be_bytes()[2..]);
        out[9..15].copy_from_slice(&self.number.to_be_bytes()[2..]);
        out[15] = self.tag;
        out
    }

    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LENGTH] = bytes.try_into().ok()?;
        Some(Self {
            group: u16::from_be_bytes([bytes[0], bytes[1]]),
            rank: bytes[2],
            ready_at: Timestamp::from_millis(read_48(&bytes[3..])?),
            number: read_48(&bytes[9..])?,
            tag: bytes[15],
        })
    }

    pub fn has_history(&self) -> bool {
        self.tag & HAS_HISTORY_TAG != 0
    }
}

impl RecordKey {
    /// The key as a field name.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::Only => {}
            Self::Group(group) => out.extend_from_slice(&group.to_be_bytes()),
            Self::Number(number) => put_48(&mut out, *number),
            Self::Part(number, part) => {
                put_48(&mut out, *number);
                out.push(*part);
            }
            Self::Text(text) => out.extend_from_slice(text.as_bytes()),
        }
        out
    }

    pub fn read(table: Table, bytes: &[u8]) -> Option<Self> {
        Some(match table {
            Table::Queue => Self::Only,
            Table::Version | Table::Breaker | Table::Outcomes => {
                Self::Group(u16::from_be_bytes(bytes.try_into().ok()?))
            }
            Table::Attempt | Table::Event | Table::Failure => Self::Part(read_48(bytes)?, *bytes.get(6)?),
            Table::Group | Table::Id | Table::Key | Table::Request => {
                Self::Text(std::str::from_utf8(bytes).ok()?.into())
            }
            Table::Job | Table::Body | Table::History | Table::Lease | Table::Dead | Table::Result | Table::Move => {
                Self::Number(read_48(bytes)?)
            }
        })
    }
}

impl Member {
    /// The member as an index holds it.
    pub fn bytes(&self, index: Index) -> Vec<u8> {
        match self {
            // Its group is 0.
            Self::Position(position) if index == Index::Ready => position.bytes()[2..].to_vec(),
            Self::Position(position) => position.bytes().to_vec(),
            Self::Number(number) => RecordKey::Number(*number).bytes(),
            Self::Probe { epoch, number } => {
                let mut out = epoch.to_be_bytes().to_vec();
                put_48(&mut out, *number);
                out
            }
            Self::Text(text) => text.as_bytes().to_vec(),
            Self::Record(table, key) => {
                let mut out = vec![table.letter() as u8];
                out.extend(key.bytes());
                out
            }
        }
    }

    pub fn read(index: Index, bytes: &[u8]) -> Option<Self> {
        Some(match index {
            Index::Ready => {
                let mut whole = [0; Position::LENGTH];
                whole[2..].copy_from_slice(bytes.get(..14)?);
                Self::Position(Position::read(&whole)?)
            }
            Index::Keyed | Index::Scheduled | Index::Retrying => Self::Position(Position::read(bytes)?),
            Index::Leased
            | Index::LeasedByGroup
            | Index::Dead
            | Index::Overflow
            | Index::Completed
            | Index::Cancelled
            | Index::Deadline => Self::Number(read_48(bytes)?),
            Index::Probe => Self::Probe {
                epoch: u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?),
                number: read_48(&bytes[4..])?,
            },
            Index::FinishedKey => Self::Text(std::str::from_utf8(bytes).ok()?.into()),
            Index::Expires => {
                let (letter, key) = bytes.split_first()?;
                let table = Table::of_letter(*letter)?;
                Self::Record(table, RecordKey::read(table, key)?)
            }
        })
    }

    /// The job that it is about.
    pub fn job(&self) -> Option<u64> {
        match self {
            Self::Position(position) => Some(position.number),
            Self::Number(number) | Self::Probe { number, .. } => Some(*number),
            Self::Text(_) | Self::Record(..) => None,
        }
    }
}
