//! Answers that are kept for calls that come again.

use super::writer::{Failure, Writer};
use crate::store::{REPLY_KEPT, RequestId};

/// Answers that one tidying forgets.
const FORGET_MAX: i64 = 1_000;

/// Whose request ids they are. Numbers are on disk: never change one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Requeue = 1,
    Purge = 2,
}

/// What is known of a request id.
pub(super) enum Earlier {
    Nothing,
    /// The answer of the first time.
    Answered(Vec<u8>),
    /// Another call had it.
    Another,
}

impl Writer<'_> {
    pub(super) fn earlier_reply(
        &mut self,
        call: Call,
        request: Option<&RequestId>,
    ) -> Result<Earlier, Failure> {
        let Some(request) = request else {
            return Ok(Earlier::Nothing);
        };
        let now = self.now.millis().cast_signed();
        let mut rows = self.sql.reply.query((call as i64, &request.id, now))?;
        let Some(row) = rows.next()? else {
            return Ok(Earlier::Nothing);
        };
        if row.get_ref(0)?.as_blob().unwrap_or_default() != request.asked {
            return Ok(Earlier::Another);
        }
        Ok(Earlier::Answered(row.get(1)?))
    }

    pub(super) fn keep_reply(
        &mut self,
        call: Call,
        request: Option<&RequestId>,
        record: impl FnOnce() -> Vec<u8>,
    ) -> Result<(), Failure> {
        if let Some(request) = request {
            let until = self.now.after(REPLY_KEPT).millis().cast_signed();
            let row = (call as i64, &request.id, request.asked, until, record());
            self.sql.save_reply.execute(row)?;
        }
        Ok(())
    }

    pub(super) fn forget_replies(&mut self) -> Result<(), Failure> {
        self.sql.delete_replies.execute((self.now.millis().cast_signed(), FORGET_MAX))?;
        Ok(())
    }
}
