//! The limits as GetServerInfo publishes them.

use crate::domain::{duration::human, limits::Limits};
use std::collections::HashMap;

/// Every limit, in words that people read. Taken apart by name, so that none is forgotten.
pub(super) fn published(limits: &Limits) -> HashMap<String, String> {
    let Limits {
        body_bytes,
        header_entries,
        header_bytes,
        batch_items,
        batch_bytes,
        reply_bytes,
        wait,
        lease_min,
        lease_max,
        delay,
        name_bytes,
        note_bytes,
        checkpoint_bytes,
        details_bytes,
        result_bytes,
        queues,
        page_size_default,
        page_size_max,
        bulk_default,
        bulk_max,
        leases,
        filtered,
    } = limits;
    [
        ("body", size(*body_bytes)),
        ("header_entries", header_entries.to_string()),
        ("headers", size(*header_bytes)),
        ("batch_items", batch_items.to_string()),
        ("batch", size(*batch_bytes)),
        ("reply", size(*reply_bytes)),
        ("wait", human(*wait)),
        ("lease_min", human(*lease_min)),
        ("lease_max", human(*lease_max)),
        ("delay", human(*delay)),
        ("name", size(*name_bytes)),
        ("note", size(*note_bytes)),
        ("checkpoint", size(*checkpoint_bytes)),
        ("details", size(*details_bytes)),
        ("result", size(*result_bytes)),
        ("queues", queues.to_string()),
        ("page_size_default", page_size_default.to_string()),
        ("page_size_max", page_size_max.to_string()),
        ("bulk_default", bulk_default.to_string()),
        ("bulk_max", bulk_max.to_string()),
        ("leases", leases.to_string()),
        ("filtered", filtered.to_string()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_published_as_people_read_them() {
        let published = published(&Limits::default());
        for (name, value) in [
            ("body", "1 MiB"),
            ("reply", "3.5 MiB"),
            ("headers", "16 KiB"),
            ("name", "256 B"),
            ("wait", "30s"),
            ("lease_max", "1d"),
            ("delay", "366d"),
            ("batch_items", "1000"),
        ] {
            assert_eq!(published[name], value, "{name}");
        }
    }
}
