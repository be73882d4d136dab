//! The limits of spec section 8, published by GetServerInfo.

use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    pub body_bytes: usize,
    pub header_entries: usize,
    pub header_bytes: usize,
    pub batch_items: usize,
    pub batch_bytes: usize,
    pub reply_bytes: usize,
    pub wait: Duration,
    pub lease_min: Duration,
    pub lease_max: Duration,
    pub delay: Duration,
    /// Job type, id, key, request id, worker id, content type, error type.
    pub name_bytes: usize,
    pub note_bytes: usize,
    pub checkpoint_bytes: usize,
    pub details_bytes: usize,
    pub result_bytes: usize,
    pub queues: usize,
    pub page_size_default: usize,
    pub page_size_max: usize,
    pub bulk_default: usize,
    pub bulk_max: usize,
    pub leases: usize,
    /// Dead letters that one call with a filter looks at.
    pub filtered: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 1 << 20,
            header_entries: 64,
            header_bytes: 16 << 10,
            batch_items: 1_000,
            batch_bytes: 4 << 20,
            reply_bytes: 7 << 19,
            wait: Duration::from_secs(30),
            lease_min: Duration::from_secs(1),
            lease_max: Duration::from_secs(24 * 3600),
            delay: Duration::from_secs(366 * 24 * 3600),
            name_bytes: 256,
            note_bytes: 1 << 10,
            checkpoint_bytes: 16 << 10,
            details_bytes: 16 << 10,
            result_bytes: 64 << 10,
            queues: 10_000,
            page_size_default: 100,
            page_size_max: 1_000,
            bulk_default: 1_000,
            bulk_max: 10_000,
            leases: 1_000_000,
            filtered: 10_000,
        }
    }
}
