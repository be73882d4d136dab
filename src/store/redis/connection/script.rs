//! Scripts and their arguments, as the engine hands them over.

use redis::{Cmd, ToRedisArgs};
use std::sync::Arc;

/// A Lua script, and the sum by which Redis knows it.
#[derive(Clone, Debug)]
pub struct Script {
    text: Arc<str>,
    sum: Arc<str>,
    /// Redis holds it to that: `EVALSHA_RO` refuses whatever would write.
    pub(super) reads_only: bool,
}

impl Script {
    /// One that may change something, put together from its parts.
    pub fn new(parts: &[&str]) -> Self {
        let text = parts.concat();
        let sum = redis::Script::new(&text).get_hash().into();
        Self { text: text.into(), sum, reads_only: false }
    }

    /// One that only looks: it waits for no replica, and an answer that is missing leaves nothing in doubt.
    pub fn reading(parts: &[&str]) -> Self {
        Self { reads_only: true, ..Self::new(parts) }
    }

    pub(super) fn call(&self, keys: &[Vec<u8>], args: &[Arg]) -> Cmd {
        let mut cmd = redis::cmd(if self.reads_only { "EVALSHA_RO" } else { "EVALSHA" });
        cmd.arg(&*self.sum).arg(keys.len()).arg(keys).arg(args);
        cmd
    }

    pub(super) fn load(&self) -> Cmd {
        let mut cmd = redis::cmd("SCRIPT");
        cmd.arg("LOAD").arg(&*self.text);
        cmd
    }
}

/// One argument of a script, as bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Arg(pub Vec<u8>);

impl ToRedisArgs for Arg {
    fn write_redis_args<W: ?Sized + redis::RedisWrite>(&self, out: &mut W) {
        out.write_arg(&self.0);
    }
}

impl From<u64> for Arg {
    fn from(number: u64) -> Self {
        Self(number.to_string().into_bytes())
    }
}

impl From<&[u8]> for Arg {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl From<Vec<u8>> for Arg {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<&str> for Arg {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<bool> for Arg {
    fn from(is: bool) -> Self {
        Self(vec![if is { b'1' } else { b'0' }])
    }
}
