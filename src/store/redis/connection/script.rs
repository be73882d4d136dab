//! Scripts, as the engine hands them over.

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

    pub(super) fn call(&self, keys: &[Vec<u8>], args: impl ToRedisArgs) -> Cmd {
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
