//! The limits in force, for clients.

use super::time::duration_out;
use crate::domain::{Bounds, Limits};
use crate::grpc::pb;

/// Each by its name. Counts fit: the configuration bounds them.
macro_rules! limits_out {
    ($($from:ident: bytes [$($bytes:ident)*] counts [$($count:ident)*] durations [$($duration:ident)*])*) => {
        pb::ServerLimits {
            $($($bytes: $from.$bytes as u64,)*
            $($count: super::count($from.$count as u64),)*
            $($duration: Some(duration_out($from.$duration)),)*)*
        }
    };
}

pub(crate) fn limits_out(limits: &Limits, bounds: &Bounds) -> pb::ServerLimits {
    limits_out!(
        limits:
            bytes [body_bytes headers_bytes batch_bytes reply_bytes note_bytes checkpoint_bytes details_bytes result_bytes]
            counts [header_entries batch_items name_bytes queues page_size_default page_size_max bulk_default bulk_max
                leases filtered]
            durations [wait lease_min lease_max delay]
        bounds:
            bytes [message_bytes_per_connection]
            counts [calls_per_connection waits_per_connection new_queues_per_minute]
            durations [read_timeout connection_age]
    )
}
