//! Reading what scripts reply. A reply that is not what its script says is an unknown outcome.

use crate::{domain::time::Timestamp, store::StoreError};
use redis::Value;

pub(super) type Read<T> = Result<T, StoreError>;

fn strange() -> StoreError {
    StoreError::OutcomeUnknown("Redis replied something that no script of ours replies".into())
}

/// A list, read from the front.
#[derive(Debug)]
pub(super) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    pub(super) fn of(value: Value) -> Read<Self> {
        match value {
            Value::Array(items) => Ok(Self(items.into_iter())),
            _ => Err(strange()),
        }
    }

    pub(super) fn left(&self) -> usize {
        self.0.len()
    }

    fn value(&mut self) -> Read<Value> {
        self.0.next().ok_or_else(strange)
    }

    pub(super) fn int(&mut self) -> Read<i64> {
        match self.value()? {
            Value::Int(number) => Ok(number),
            Value::BulkString(text) => {
                let text = std::str::from_utf8(&text).map_err(|_| strange())?;
                text.parse().map_err(|_| strange())
            }
            _ => Err(strange()),
        }
    }

    pub(super) fn count(&mut self) -> Read<u64> {
        u64::try_from(self.int()?).map_err(|_| strange())
    }

    pub(super) fn bytes(&mut self) -> Read<Vec<u8>> {
        match self.value()? {
            Value::BulkString(bytes) => Ok(bytes),
            Value::Nil => Ok(Vec::new()),
            Value::Int(number) => Ok(number.to_string().into_bytes()),
            _ => Err(strange()),
        }
    }

    pub(super) fn text(&mut self) -> Read<String> {
        String::from_utf8(self.bytes()?).map_err(|_| strange())
    }

    pub(super) fn time(&mut self) -> Read<Timestamp> {
        self.count().map(Timestamp::from_millis)
    }

    /// A time, or a negative number for none.
    pub(super) fn maybe_time(&mut self) -> Read<Option<Timestamp>> {
        Ok(u64::try_from(self.int()?).ok().map(Timestamp::from_millis))
    }

    pub(super) fn list(&mut self) -> Read<Self> {
        Self::of(self.value()?)
    }
}

/// Nothing for a command that found nothing.
pub(super) fn bytes_of(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}
