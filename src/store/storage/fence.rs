//! Whether fences hold, for engines that look in Rust.

use super::{Fence, RecordKey, Table};

impl Fence {
    /// The record that it is on.
    pub fn record(&self) -> Option<(Table, &RecordKey)> {
        match self {
            Self::Begins(table, key, _) | Self::Tell(table, key, _) | Self::Is(table, key, _) => Some((*table, key)),
            Self::Absent(table, key) => Some((*table, key)),
            Self::At(..) | Self::Room { .. } => None,
        }
    }

    /// Of a fence on a record: whether it holds.
    pub fn holds(&self, record: Option<&[u8]>) -> bool {
        match (self, record) {
            (Self::Begins(.., prefix) | Self::Tell(.., prefix), Some(record)) => record.starts_with(prefix),
            (Self::Is(.., whole), Some(record)) => record == whole,
            (Self::Absent(..), None) => true,
            _ => false,
        }
    }
}
