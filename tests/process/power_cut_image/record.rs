//! The log that `powercut.c` writes, one record at a time.

use std::{io, ops::Range, path::PathBuf};

const HEADER: usize = 32;
pub(super) const MAGIC: u32 = 0x5455_4350;

pub(super) struct Record {
    pub(super) op: u8,
    pub(super) inode: u64,
    pub(super) offset: u64,
    pub(super) payload: Range<usize>,
}

impl Record {
    /// None if the log ends within the record.
    pub(super) fn parse(log: &[u8], at: usize) -> io::Result<Option<Record>> {
        let Some(header) = log.get(at..at + HEADER) else {
            return Ok(None);
        };
        if header[..4] != MAGIC.to_le_bytes() {
            return Err(bad(format!("no record at byte {at} of the log")));
        }
        let start = at + HEADER;
        let len = usize::try_from(number(header, 24)?).unwrap_or(usize::MAX);
        let end = start.saturating_add(len);
        if end > log.len() {
            return Ok(None);
        }
        Ok(Some(Record { op: header[4], inode: number(header, 8)?, offset: number(header, 16)?, payload: start..end }))
    }
}

pub(super) fn number(bytes: &[u8], at: usize) -> io::Result<u64> {
    let bytes = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
    let bytes = bytes.ok_or_else(|| bad("a record is too short".into()))?;
    Ok(u64::from_le_bytes(bytes))
}

pub(super) fn to_path(bytes: &[u8]) -> io::Result<PathBuf> {
    let path = std::str::from_utf8(bytes).map_err(|_| bad("a path is not UTF-8".into()))?;
    Ok(PathBuf::from(path))
}

pub(super) fn bad(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
