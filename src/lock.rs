//! Locks of data that stays in use.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A panic of another holder, which was one call's, says nothing about the data.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
