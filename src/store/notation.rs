//! A small binary notation: variable-length integers, texts with their length before them, and ids.

use crate::domain::ids::JobId;

/// The bytes are not what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damaged;

pub(super) type Read<T> = Result<T, Damaged>;

pub(super) fn put_u64(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u64(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_bytes(out, text.as_bytes());
}

pub(super) fn put_id(out: &mut Vec<u8>, id: &JobId) {
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

pub(super) fn put_f64(out: &mut Vec<u8>, value: f64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Nothing, or one more than the value.
pub(super) fn put_option(out: &mut Vec<u8>, value: Option<u64>) {
    put_u64(out, value.map_or(0, |value| value.saturating_add(1)));
}

/// Reads from the front.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, length: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn u8(&mut self) -> Read<u8> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn u64(&mut self) -> Read<u64> {
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

    pub(super) fn u32(&mut self) -> Read<u32> {
        self.u64()?.try_into().map_err(|_| Damaged)
    }

    pub(super) fn option(&mut self) -> Read<Option<u64>> {
        Ok(self.u64()?.checked_sub(1))
    }

    pub(super) fn f64(&mut self) -> Read<f64> {
        let bytes = self.take(8)?.try_into().map_err(|_| Damaged)?;
        Ok(f64::from_le_bytes(bytes))
    }

    pub(super) fn bytes(&mut self) -> Read<&'a [u8]> {
        let length = self.u64()?.try_into().map_err(|_| Damaged)?;
        self.take(length)
    }

    pub(super) fn text(&mut self) -> Read<String> {
        std::str::from_utf8(self.bytes()?).map(str::to_owned).map_err(|_| Damaged)
    }

    pub(super) fn id(&mut self) -> Read<JobId> {
        match self.u8()? {
            0 => {
                let uuid = self.take(16)?.try_into().map_err(|_| Damaged)?;
                Ok(JobId::Uuid(u128::from_be_bytes(uuid)))
            }
            1 => Ok(JobId::Text(self.text()?.into())),
            _ => Err(Damaged),
        }
    }

    pub(super) fn end(self) -> Read<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Damaged) }
    }
}
