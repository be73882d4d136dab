//! What `INFO` says.

use redis::Value;

/// The fields of `INFO`, as text.
#[derive(Clone, Debug, Default)]
pub(super) struct Info(String);

impl Info {
    pub(super) fn read(reply: &Value) -> Result<Self, String> {
        match reply {
            Value::BulkString(bytes) => Ok(Self(String::from_utf8_lossy(bytes).into_owned())),
            Value::VerbatimString { text, .. } => Ok(Self(text.clone())),
            Value::ServerError(error) => {
                Err(format!("{} {}", error.code(), error.details().unwrap_or_default()))
            }
            other => Err(format!("INFO was answered with {other:?}")),
        }
    }

    pub(super) fn get(&self, field: &str) -> Option<&str> {
        let value = |line: &'_ str| {
            let (name, _) = line.split_once(':')?;
            (name == field).then(|| name.len() + 1)
        };
        self.0.lines().find_map(|line| value(line).map(|at| line[at..].trim()))
    }

    pub(super) fn number(&self, field: &str) -> Option<i64> {
        self.get(field)?.parse().ok()
    }
}

#[cfg(test)]
impl From<&str> for Info {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}
