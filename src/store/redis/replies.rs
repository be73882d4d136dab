//! Answers that are kept for calls that come again, and before that what such a call has begun.

use super::{Core, reply::bytes_of};
use crate::{
    domain::time::Timestamp,
    store::{REPLY_KEPT, RequestId, StoreError},
};

/// Whose request ids they are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Requeue,
    Purge,
}

impl Call {
    fn name(self) -> &'static str {
        match self {
            Self::Requeue => "requeue",
            Self::Purge => "purge",
        }
    }
}

/// What is known of a request id.
pub(super) enum Earlier {
    Nothing,
    /// It was begun, and nobody has answered it yet: what it chose.
    Begun(Vec<u8>),
    /// The answer of the first time.
    Answered(Vec<u8>),
    /// Another call had it.
    Another,
}

/// What is kept: the sum of what was asked 32 bytes, until when it counts 8, which of the two it is 1, the record.
const ASKED_BYTES: usize = 32;
const UNTIL_BYTES: usize = 8;
const RECORD_AT: usize = ASKED_BYTES + UNTIL_BYTES + 1;
const BEGUN: u8 = 0;
const ANSWERED: u8 = 1;

impl Core {
    pub(super) async fn earlier_reply(
        &self,
        call: Call,
        request: Option<&RequestId>,
    ) -> Result<Earlier, StoreError> {
        let Some(request) = request else { return Ok(Earlier::Nothing) };
        let key = self.names.reply(call.name(), &request.id);
        let mut command = redis::cmd("GET");
        command.arg(&key);
        let kept = bytes_of(self.redis.command(&key, command).await?).unwrap_or_default();
        let Some((head, record)) = kept.split_at_checked(RECORD_AT) else {
            return Ok(Earlier::Nothing);
        };
        let (asked, rest) = head.split_at(ASKED_BYTES);
        let (until, kind) = rest.split_at(UNTIL_BYTES);
        let until = u64::from_be_bytes(until.try_into().unwrap_or_default());
        if Timestamp::from_millis(until) <= self.now() {
            let mut command = redis::cmd("DEL");
            command.arg(&key);
            self.redis.command(&key, command).await?;
            return Ok(Earlier::Nothing);
        }
        // It may be that nobody has confirmed it yet: this write is answered when it and all before it are durable. Until when
        // the answer counts stands in itself.
        let mut keep = redis::cmd("PEXPIRE");
        keep.arg(&key).arg(REPLY_KEPT.as_millis() as u64);
        self.redis.command(&key, keep).await?;
        Ok(match kind {
            _ if asked != request.asked => Earlier::Another,
            [BEGUN] => Earlier::Begun(record.to_vec()),
            _ => Earlier::Answered(record.to_vec()),
        })
    }

    /// What a call is about to do. Only one call can begin under a request id.
    pub(super) async fn keep_begun(
        &self,
        call: Call,
        request: &RequestId,
        record: &[u8],
    ) -> Result<(), StoreError> {
        let key = self.names.reply(call.name(), &request.id);
        let mut command = self.kept(&key, request, BEGUN, record);
        command.arg("NX");
        match self.redis.command(&key, command).await? {
            redis::Value::Nil => {
                Err(StoreError::Unavailable("the same call is under way: repeat it".into()))
            }
            _ => Ok(()),
        }
    }

    pub(super) async fn keep_reply(
        &self,
        call: Call,
        request: Option<&RequestId>,
        record: impl FnOnce() -> Vec<u8>,
    ) -> Result<(), StoreError> {
        let Some(request) = request else { return Ok(()) };
        let key = self.names.reply(call.name(), &request.id);
        let command = self.kept(&key, request, ANSWERED, &record());
        self.redis.command(&key, command).await.map(|_| ())
    }

    fn kept(&self, key: &[u8], request: &RequestId, kind: u8, record: &[u8]) -> redis::Cmd {
        let until = self.now().after(REPLY_KEPT).millis();
        let value = [&request.asked[..], &until.to_be_bytes(), &[kind], record].concat();
        let mut command = redis::cmd("SET");
        command.arg(key).arg(value).arg("PX").arg(REPLY_KEPT.as_millis() as u64);
        command
    }
}
