//! Why a transaction did not happen, and what that means for the next one.

use crate::store::StoreError;
use rusqlite::ErrorCode;

#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// Nothing was written, and the next transaction may work.
    Refused(StoreError),
    /// Nothing was written, but something is wrong that a restart has to look at. No more writes until then.
    Stopped(String),
    /// What is on disk is not known. No more writes until a restart reads it afresh.
    Unknown(String),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Refused(StoreError::DiskFull(error.to_string())),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                Self::Refused(StoreError::Unavailable(error.to_string()))
            }
            _ => Self::Stopped(error.to_string()),
        }
    }
}

impl Failure {
    /// A commit that fails for want of room has written nothing that counts; any other may have.
    pub(super) fn of_commit(error: rusqlite::Error) -> Self {
        match error.into() {
            Self::Stopped(why) => Self::Unknown(why),
            refused => refused,
        }
    }

    /// What the callers get.
    pub(super) fn error(&self) -> StoreError {
        match self {
            Self::Refused(error) => error.clone(),
            Self::Stopped(why) => StoreError::Unavailable(why.clone()),
            Self::Unknown(why) => StoreError::OutcomeUnknown(why.clone()),
        }
    }
}
