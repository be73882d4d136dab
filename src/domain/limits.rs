//! The limits of every call, published by GetServerInfo.

use super::macros::with_defaults;
use std::time::Duration;

with_defaults! {
    #[derive(Clone, Debug, PartialEq, Eq)]
    Limits {
        body_bytes: usize = 1 << 20,
        header_entries: usize = 64,
        headers_bytes: usize = 16 << 10,
        batch_items: usize = 1_000,
        batch_bytes: usize = 4 << 20,
        reply_bytes: usize = 7 << 19,
        wait: Duration = Duration::from_secs(30),
        lease_min: Duration = Duration::from_secs(1),
        lease_max: Duration = Duration::from_secs(24 * 3600),
        delay: Duration = Duration::from_secs(366 * 24 * 3600),
        /// Job type, id, key, request id, worker id, content type, error type and code, breaker key.
        name_bytes: usize = 256,
        note_bytes: usize = 1 << 10,
        checkpoint_bytes: usize = 16 << 10,
        details_bytes: usize = 16 << 10,
        result_bytes: usize = 64 << 10,
        queues: usize = 10_000,
        page_size_default: usize = 100,
        page_size_max: usize = 1_000,
        bulk_default: usize = 1_000,
        bulk_max: usize = 10_000,
        leases: usize = 1_000_000,
        /// Dead letters that one call with a filter looks at.
        filtered: usize = 10_000,
    }
}
