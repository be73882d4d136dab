//! What `INFO` says.

use super::fault;
use redis::Value;

/// The fields of `INFO`, as text.
#[derive(Clone, Debug, Default)]
pub struct Info(pub String);

impl Info {
    pub(super) fn read(reply: &Value) -> Result<Self, String> {
        match reply {
            Value::BulkString(bytes) => Ok(Self(String::from_utf8_lossy(bytes).into_owned())),
            Value::VerbatimString { text, .. } => Ok(Self(text.clone())),
            Value::ServerError(error) => Err(fault::text(error)),
            other => Err(format!("INFO was answered with {other:?}")),
        }
    }

    pub(super) fn get(&self, field: &str) -> Option<&str> {
        self.0.lines().find_map(|line| Some(line.strip_prefix(field)?.strip_prefix(':')?.trim()))
    }

    pub(super) fn number(&self, field: &str) -> Option<i64> {
        self.get(field)?.parse().ok()
    }
}
