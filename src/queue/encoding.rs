//! How values become bytes: varints, texts with their length before them, ids, and tagged fields that older readers skip.

use crate::domain::{JobId, Timestamp};
use std::time::Duration;

/// Why a record cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// The bytes are not what was written.
    Damaged,
    /// A newer server wrote it, in this format.
    Newer(u8),
}

use Unreadable::Damaged;

pub(crate) type Read<T> = Result<T, Unreadable>;

pub(crate) use crate::store::storage::FORMAT;

const CRC_BYTES: usize = 4;

pub(crate) fn put_u64(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u64(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_bytes(out, text.as_bytes());
}

pub(crate) fn put_id(out: &mut Vec<u8>, id: &JobId) {
    match id {
        JobId::Uuid(uuid) => {
            out.push(0);
            out.extend_from_slice(&uuid.to_be_bytes());
        }
        JobId::Text(text) => {
            out.push(1);
            put_text(out, text);
        }
    }
}

pub(crate) fn put_f64(out: &mut Vec<u8>, value: f64) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_option_f64(out: &mut Vec<u8>, value: Option<f64>) {
    out.push(u8::from(value.is_some()));
    value.into_iter().for_each(|value| put_f64(out, value));
}

/// Nothing, or one more than the value.
pub(crate) fn put_option(out: &mut Vec<u8>, value: Option<u64>) {
    put_u64(out, value.map_or(0, |value| value.saturating_add(1)));
}

pub(crate) fn put_list<T>(out: &mut Vec<u8>, items: &[T], one: impl Fn(&mut Vec<u8>, &T)) {
    put_u64(out, items.len() as u64);
    items.iter().for_each(|item| one(out, item));
}

/// One byte: the place of the value in this table, from one on. The table has every value, or the record is damaged.
pub(crate) fn put_place<T: PartialEq>(out: &mut Vec<u8>, table: &[T], value: &T) {
    let at = table.iter().position(|known| known == value);
    debug_assert!(at.is_some(), "a value that stands in no table");
    out.push(at.map_or(0, |at| at as u8 + 1));
}

/// Reads from the front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, length: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn u8(&mut self) -> Read<u8> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn u64(&mut self) -> Read<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Damaged)
    }

    pub(crate) fn u32(&mut self) -> Read<u32> {
        self.u64()?.try_into().map_err(|_| Damaged)
    }

    pub(crate) fn option(&mut self) -> Read<Option<u64>> {
        Ok(self.u64()?.checked_sub(1))
    }

    pub(crate) fn option_time(&mut self) -> Read<Option<Timestamp>> {
        Ok(self.option()?.map(Timestamp::from_millis))
    }

    pub(crate) fn option_duration(&mut self) -> Read<Option<Duration>> {
        Ok(self.option()?.map(Duration::from_millis))
    }

    pub(crate) fn time(&mut self) -> Read<Timestamp> {
        self.u64().map(Timestamp::from_millis)
    }

    pub(crate) fn f64(&mut self) -> Read<f64> {
        self.array().map(f64::from_le_bytes)
    }

    pub(crate) fn option_f64(&mut self) -> Read<Option<f64>> {
        Ok(if self.u8()? == 1 { Some(self.f64()?) } else { None })
    }

    /// Four and eight bytes, most significant first.
    pub(crate) fn be32(&mut self) -> Read<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn be64(&mut self) -> Read<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// From [`put_place`].
    pub(crate) fn place<T: Copy>(&mut self, table: &[T]) -> Read<T> {
        let at = usize::from(self.u8()?).checked_sub(1).ok_or(Damaged)?;
        table.get(at).copied().ok_or(Damaged)
    }

    pub(crate) fn list<T, L: FromIterator<T>>(&mut self, mut item: impl FnMut(&mut Self) -> Read<T>) -> Read<L> {
        let count = self.u64()?;
        (0..count).map(|_| item(self)).collect()
    }

    pub(crate) fn bytes(&mut self) -> Read<&'a [u8]> {
        let length = self.u64()?.try_into().map_err(|_| Damaged)?;
        self.take(length)
    }

    pub(crate) fn text(&mut self) -> Read<String> {
        Reader(self.bytes()?).rest_text()
    }

    pub(crate) fn id(&mut self) -> Read<JobId> {
        match self.u8()? {
            0 => Ok(JobId::Uuid(u128::from_be_bytes(self.array()?))),
            1 => Ok(JobId::Text(self.text()?.into())),
            _ => Err(Damaged),
        }
    }

    /// Six bytes, most significant first.
    pub(crate) fn u48(&mut self) -> Read<u64> {
        let mut all = [0; 8];
        all[2..].copy_from_slice(self.take(6)?);
        Ok(u64::from_be_bytes(all))
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| Damaged)
    }

    pub(crate) fn format(&mut self) -> Read<()> {
        match self.u8()? {
            0 => Err(Damaged),
            format if format > FORMAT => Err(Unreadable::Newer(format)),
            _ => Ok(()),
        }
    }

    /// The tagged fields up to the end. Those that `known` returns `false` for are kept as they are, for a rewrite.
    pub(crate) fn fields(&mut self, mut known: impl FnMut(u8, Reader<'a>) -> Read<bool>) -> Read<Unknown> {
        let mut unknown = Unknown::default();
        while !self.0.is_empty() {
            let before = self.0;
            let tag = self.u8()?;
            let value = self.bytes()?;
            if !known(tag, Reader(value))? {
                unknown.0.extend_from_slice(&before[..before.len() - self.0.len()]);
            }
        }
        Ok(unknown)
    }

    pub(crate) fn rest_text(self) -> Read<String> {
        std::str::from_utf8(self.0).map(str::to_owned).map_err(|_| Damaged)
    }
}

/// Tagged fields of a newer server, which a rewrite must not lose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unknown(Vec<u8>);

impl Unknown {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
}

pub(crate) fn put_u48(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_be_bytes()[2..]);
}

/// A field that readers who do not know its tag skip.
pub(crate) fn put_field(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
    out.push(tag);
    put_bytes(out, value);
}

pub(crate) fn put_field_u64(out: &mut Vec<u8>, tag: u8, value: u64) {
    out.extend_from_slice(&[tag, 0]);
    let from = out.len();
    put_u64(out, value);
    // Ten bytes at most: their number takes one.
    out[from - 1] = (out.len() - from) as u8;
}

/// Adds a checksum over the record and what belongs to it elsewhere.
pub(crate) fn seal_with(out: &mut Vec<u8>, beside: &[u8]) {
    let sum = crc32c::crc32c_append(crc32c::crc32c(out), beside);
    out.extend_from_slice(&sum.to_le_bytes());
}

pub(crate) fn seal(mut record: Vec<u8>) -> Vec<u8> {
    seal_with(&mut record, &[]);
    record
}

/// The record without its checksum, which has to be right.
pub(crate) fn open_with<'a>(record: &'a [u8], beside: &[u8]) -> Read<&'a [u8]> {
    let (body, sum) = split_sum(record)?;
    let right = crc32c::crc32c_append(crc32c::crc32c(body), beside).to_le_bytes() == sum;
    if right { Ok(body) } else { Err(Damaged) }
}

/// The same, whatever its checksum says.
pub(crate) fn open_unchecked(record: &[u8]) -> Read<&[u8]> {
    split_sum(record).map(|(body, _)| body)
}

fn split_sum(record: &[u8]) -> Read<(&[u8], &[u8])> {
    let at = record.len().checked_sub(CRC_BYTES).ok_or(Damaged)?;
    Ok(record.split_at(at))
}

/// A sealed record that begins with its format.
pub(crate) fn open(record: &[u8]) -> Read<Reader<'_>> {
    let mut read = Reader(open_with(record, &[])?);
    read.format()?;
    Ok(read)
}
