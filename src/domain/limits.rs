//! The limits of every call, published by GetServerInfo.

use super::duration::human;
use std::{collections::HashMap, time::Duration};

/// Each limit once: its name, its value, and how it is put into words.
macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $default:expr, $words:ident;)*) => {
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Limits {
            $($(#[$doc])* pub $name: $type,)*
        }

        impl Default for Limits {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        impl Limits {
            /// In words that people read.
            pub fn published(&self) -> HashMap<String, String> {
                let all = [$((stringify!($name).trim_end_matches("_bytes"), $words(self.$name)),)*];
                all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
            }
        }
    };
}

limits! {
    body_bytes: usize = 1 << 20, size;
    header_entries: usize = 64, count;
    headers_bytes: usize = 16 << 10, size;
    batch_items: usize = 1_000, count;
    batch_bytes: usize = 4 << 20, size;
    reply_bytes: usize = 7 << 19, size;
    wait: Duration = Duration::from_secs(30), human;
    lease_min: Duration = Duration::from_secs(1), human;
    lease_max: Duration = Duration::from_secs(24 * 3600), human;
    delay: Duration = Duration::from_secs(366 * 24 * 3600), human;
    /// Job type, id, key, request id, worker id, content type, error type.
    name_bytes: usize = 256, size;
    note_bytes: usize = 1 << 10, size;
    checkpoint_bytes: usize = 16 << 10, size;
    details_bytes: usize = 16 << 10, size;
    result_bytes: usize = 64 << 10, size;
    queues: usize = 10_000, count;
    page_size_default: usize = 100, count;
    page_size_max: usize = 1_000, count;
    bulk_default: usize = 1_000, count;
    bulk_max: usize = 10_000, count;
    leases: usize = 1_000_000, count;
    /// Dead letters that one call with a filter looks at.
    filtered: usize = 10_000, count;
}

fn count(number: usize) -> String {
    number.to_string()
}

/// `1 MiB`, `3.5 MiB`, `256 B`.
fn size(bytes: usize) -> String {
    let (unit, name) = match bytes {
        0..1_024 => return format!("{bytes} B"),
        1_024..1_048_576 => (1_024.0, "KiB"),
        _ => (1_048_576.0, "MiB"),
    };
    let rounded = (bytes as f64 / unit * 100.0).round() / 100.0;
    format!("{rounded} {name}")
}
