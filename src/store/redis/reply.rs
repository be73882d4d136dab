//! Reading what scripts reply. A reply that is not what its script says is an unknown outcome.

use super::columns::SCORE_MAX;
use crate::domain::Timestamp;
use crate::store::{Result, StoreError};
use bytes::Bytes;
use redis::Value;
use std::str::FromStr;

pub(super) fn unexpected() -> StoreError {
    StoreError::OutcomeUnknown("Redis replied something that no script of redrive replies".into())
}

/// A list, read from the front.
#[derive(Debug)]
pub(super) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    pub(super) fn of(value: Value) -> Result<Self> {
        match value {
            Value::Array(items) => Ok(Self(items.into_iter())),
            _ => Err(unexpected()),
        }
    }

    /// All that is left, each read by `read`.
    pub(super) fn rest<T>(&mut self, read: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut all = Vec::with_capacity(self.left());
        while self.left() > 0 {
            all.push(read(self)?);
        }
        Ok(all)
    }

    pub(super) fn left(&self) -> usize {
        self.0.len()
    }

    pub(super) fn value(&mut self) -> Result<Value> {
        self.0.next().ok_or_else(unexpected)
    }

    pub(super) fn int(&mut self) -> Result<i64> {
        int_of(&self.value()?)
    }

    pub(super) fn count(&mut self) -> Result<u64> {
        u64::try_from(self.int()?).map_err(|_| unexpected())
    }

    /// None: nil.
    pub(super) fn bytes(&mut self) -> Result<Option<Bytes>> {
        bytes_of(self.value()?)
    }

    pub(super) fn text(&mut self) -> Result<String> {
        let bytes = self.bytes()?.unwrap_or_default();
        String::from_utf8(bytes.into()).map_err(|_| unexpected())
    }

    pub(super) fn score(&mut self) -> Result<Option<u64>> {
        score_of(&self.value()?)
    }

    /// Of an entry in a range: one that is damaged is passed by whatever goes on behind it.
    pub(super) fn score_up(&mut self) -> Result<u64> {
        Ok(double_of(&self.value()?)?.unwrap_or_default().ceil() as u64)
    }

    /// A time, or a negative number for none.
    pub(super) fn maybe_time(&mut self) -> Result<Option<Timestamp>> {
        Ok(u64::try_from(self.int()?).ok().map(Timestamp::from_millis))
    }

    /// TIME's seconds and microseconds.
    pub(super) fn micros(&mut self) -> Result<i64> {
        Ok(self.int()? * 1_000_000 + self.int()?)
    }

    /// None: nil.
    pub(super) fn maybe_list(&mut self) -> Result<Option<Self>> {
        match self.value()? {
            Value::Nil => Ok(None),
            list => Self::of(list).map(Some),
        }
    }

    pub(super) fn list(&mut self) -> Result<Self> {
        Self::of(self.value()?)
    }
}

fn parsed<T: FromStr>(text: &[u8]) -> Result<T> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or_else(unexpected)
}

pub(super) fn int_of(value: &Value) -> Result<i64> {
    match value {
        Value::Int(number) => Ok(*number),
        Value::BulkString(text) => parsed(text),
        _ => Err(unexpected()),
    }
}

/// As Redis formats a score. None: nil, or one that no entry has.
pub(super) fn score_of(value: &Value) -> Result<Option<u64>> {
    let whole = |score: &f64| score.fract() == 0.0 && (0.0..=SCORE_MAX as f64).contains(score);
    Ok(double_of(value)?.filter(whole).map(|score| score as u64))
}

fn double_of(value: &Value) -> Result<Option<f64>> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(text) => parsed(text).map(Some),
        _ => Err(unexpected()),
    }
}

pub(super) fn bytes_of(value: Value) -> Result<Option<Bytes>> {
    match value {
        Value::BulkString(bytes) => Ok(Some(bytes.into())),
        Value::Nil => Ok(None),
        _ => Err(unexpected()),
    }
}
