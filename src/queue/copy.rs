//! Import: not written yet.

use super::context::CallContext;
use crate::store::{Newcomers, Refused, StoreError, TakenIn, storage::Storage};

pub(crate) async fn import<S: Storage>(
    _store: &mut S,
    _cx: &mut CallContext<'_>,
    _newcomers: Newcomers,
) -> Result<Result<Vec<TakenIn>, Refused>, StoreError> {
    Err(StoreError::Unavailable("import comes later".into()))
}
