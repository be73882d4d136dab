//! Reading what scripts reply. A reply that is not what its script says is an unknown outcome.

use super::columns::SCORE_MAX;
use crate::{domain::time::Timestamp, store::StoreError};
use bytes::Bytes;
use redis::Value;

pub(super) type Read<T> = Result<T, StoreError>;

pub(super) fn unexpected() -> StoreError {
    StoreError::OutcomeUnknown("Redis replied something that no script of redrive replies".into())
}

/// A list, read from the front.
#[derive(Debug)]
pub(super) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    pub(super) fn of(value: Value) -> Read<Self> {
        match value {
            Value::Array(items) => Ok(Self(items.into_iter())),
            Value::Map(pairs) => {
                let items: Vec<_> =
                    pairs.into_iter().flat_map(|(key, value)| [key, value]).collect();
                Ok(Self(items.into_iter()))
            }
            _ => Err(unexpected()),
        }
    }

    pub(super) fn left(&self) -> usize {
        self.0.len()
    }

    pub(super) fn value(&mut self) -> Read<Value> {
        self.0.next().ok_or_else(unexpected)
    }

    pub(super) fn int(&mut self) -> Read<i64> {
        int_of(&self.value()?)
    }

    pub(super) fn count(&mut self) -> Read<u64> {
        u64::try_from(self.int()?).map_err(|_| unexpected())
    }

    /// None: nil.
    pub(super) fn bytes(&mut self) -> Read<Option<Bytes>> {
        bytes_of(self.value()?)
    }

    pub(super) fn text(&mut self) -> Read<String> {
        let bytes = self.bytes()?.unwrap_or_default();
        String::from_utf8(bytes.into()).map_err(|_| unexpected())
    }

    /// As Redis formats a score. None: nil, or one that no entry has.
    pub(super) fn score(&mut self) -> Read<Option<u64>> {
        let whole = |score: &f64| score.fract() == 0.0 && (0.0..=SCORE_MAX as f64).contains(score);
        Ok(self.double()?.filter(whole).map(|score| score as u64))
    }

    /// Of an entry in a range: one that is damaged is passed by whatever goes on behind it.
    pub(super) fn score_up(&mut self) -> Read<u64> {
        Ok(self.double()?.unwrap_or_default().ceil() as u64)
    }

    fn double(&mut self) -> Read<Option<f64>> {
        match self.value()? {
            Value::Nil => Ok(None),
            Value::Double(score) => Ok(Some(score)),
            Value::BulkString(text) => {
                let score = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
                score.map(Some).ok_or_else(unexpected)
            }
            _ => Err(unexpected()),
        }
    }

    /// A time, or a negative number for none.
    pub(super) fn maybe_time(&mut self) -> Read<Option<Timestamp>> {
        Ok(u64::try_from(self.int()?).ok().map(Timestamp::from_millis))
    }

    /// TIME's seconds and microseconds.
    pub(super) fn micros(&mut self) -> Read<i64> {
        Ok(self.int()? * 1_000_000 + self.int()?)
    }

    pub(super) fn list(&mut self) -> Read<Self> {
        Self::of(self.value()?)
    }
}

pub(super) fn int_of(value: &Value) -> Read<i64> {
    match value {
        Value::Int(number) => Ok(*number),
        Value::BulkString(text) => {
            let text = std::str::from_utf8(text).map_err(|_| unexpected())?;
            text.parse().map_err(|_| unexpected())
        }
        _ => Err(unexpected()),
    }
}

pub(super) fn bytes_of(value: Value) -> Read<Option<Bytes>> {
    match value {
        Value::BulkString(bytes) => Ok(Some(bytes.into())),
        Value::Nil => Ok(None),
        _ => Err(unexpected()),
    }
}
