//! How an engine says that it is unwell.

/// What a call of a store comes to.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// The engine is unwell.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum StoreError {
    #[error("the store cannot be reached: {0}")]
    Unavailable(String),
    #[error("the disk is nearly full: {0}")]
    DiskLow(String),
    /// Also of what was kept for settling nothing is left.
    #[error("the disk is full: {0}")]
    DiskFull(String),
    #[error("the memory of the store is full: {0}")]
    MemoryLow(String),
    #[error("too much is waiting to be written: {0}")]
    Overloaded(String),
    #[error("the outcome is unknown: {0}")]
    OutcomeUnknown(String),
    /// It was carried out, but not as durably as the operator asks.
    #[error("not as durable as it must be: {0}")]
    DurabilityNotConfirmed(String),
    /// A newer server has written to this store.
    #[error("the store is of a newer format: {0}")]
    NewerFormat(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Well,
    /// Enqueue is refused, everything else goes on.
    DiskLow(String),
    /// No writes.
    Stopped(String),
}
