//! Which dead letters a call means: filters, selectors and cut-offs.

use super::check::{Check, bounded};
use super::page_token::{self, Kind};
use crate::domain::{DeadFilter, DeadPart, Glob, JobId, MESSAGE_CHARS};
use crate::grpc::pb;
use crate::queue::{Deaths, Search, SkipReason, Which};

/// Cut-offs of a requeue are its own; those of a purge are told apart from them.
pub(super) const REQUEUE: &str = "";
pub(super) const PURGE: &str = "purge:";

/// What tokens are bound to.
pub(super) fn query_name(part: &DeadPart, filter: Option<&DeadFilter>) -> String {
    let filter = filter.map_or_else(String::new, |filter| format!(":{filter:?}"));
    format!("{}:{}{filter}", part.overflow_only, part.queue)
}

/// None: not given, or something in it was refused.
pub(super) fn filter(check: &mut Check<'_>, given: Option<pb::DeadLetterFilter>) -> Option<DeadFilter> {
    let given = given?;
    check.name("filter.error_type", &given.error_type);
    check.name("filter.type", &given.r#type);
    let reason = check.one_of("filter.reason", given.reason);
    let chars = given.message_contains.chars().count();
    if chars > MESSAGE_CHARS {
        let message = format!("must be at most {MESSAGE_CHARS} characters, not {chars}");
        check.refuse("filter.message_contains", message);
    }
    if !given.fingerprint.is_empty() && !is_fingerprint(&given.fingerprint) {
        let message = "a fingerprint is 16 hexadecimal digits, as DeadLetter.fingerprint shows it";
        check.refuse("filter.fingerprint", message);
    }
    let text = |text: String| (!text.is_empty()).then_some(text);
    let died_after = given.died_after.map(whole_millis);
    Some(DeadFilter {
        error_type: text(given.error_type).map(Glob::new),
        job_type: text(given.r#type).map(Glob::new),
        reason,
        message_contains: text(given.message_contains),
        died_after: check.timestamp("filter.died_after", died_after),
        died_before: check.timestamp("filter.died_before", given.died_before),
        fingerprint: text(given.fingerprint),
        http_status: (given.http_status != 0).then_some(given.http_status),
    })
}

fn is_fingerprint(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Rounded down: what died in the millisecond after it did die after it.
fn whole_millis(mut time: prost_types::Timestamp) -> prost_types::Timestamp {
    const MILLI: i32 = 1_000_000;
    time.nanos -= time.nanos.max(0) % MILLI;
    time
}

/// Reads what Requeue and PurgeDeadLetters have in common: the dead letters meant.
pub(super) fn selected(check: &mut Check<'_>, call: &str, given: &pb::RequeueRequest) -> Option<(DeadPart, Which)> {
    let part = check.dead_part("queue", &given.queue);
    let which = selector(check, given);
    let (part, mut which) = part.zip(which)?;
    let name = cutoff_name(call, &part, &which, given.dry_run);
    if name.is_none() && !given.cutoff.is_empty() {
        check.refuse("cutoff", "has no meaning with job_ids; leave it out");
    }
    let left = name.and_then(|name| check.token("cutoff", (Kind::Cutoff, &name), &given.cutoff, page_token::numbers));
    if let Which::Oldest { among, .. } | Which::Found { among, .. } = &mut which {
        *among = left.map(|[after, up_to]| Deaths { after, up_to });
    }
    Some((part, which))
}

/// Exactly one of job_ids, filter, oldest and all.
fn selector(check: &mut Check<'_>, given: &pb::RequeueRequest) -> Option<Which> {
    let limits = check.limits;
    let selectors = [
        ("job_ids", !given.job_ids.is_empty()),
        ("filter", given.filter.is_some()),
        ("oldest", given.oldest > 0),
        ("all", given.all),
    ];
    let named: Vec<_> = selectors.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect();
    let limit = bounded(given.limit, limits.bulk_default, limits.bulk_max);
    match named[..] {
        ["job_ids"] => {
            if given.limit > 0 {
                check.refuse("limit", "has no meaning with job_ids; leave it out");
            }
            let (most, ids) = (limits.bulk_max, given.job_ids.len());
            if ids > most {
                check.refuse("job_ids", format!("must be at most {most} ids, not {ids}"));
                return None;
            }
            let ids = given.job_ids.iter().enumerate();
            let ids = ids.filter_map(|(at, id)| check.job_id(format_args!("job_ids[{at}]"), id));
            Some(Which::Ids(ids.collect()))
        }
        ["filter"] => {
            let filter = filter(check, given.filter.clone())?;
            if given.filter == Some(pb::DeadLetterFilter::default()) {
                check.refuse("filter", "is empty; to mean all of them, say `all`");
            }
            let search = Search { filter, look_at: limits.filtered };
            Some(Which::Found { search, limit, among: None })
        }
        ["oldest"] => {
            // A limit can only make it fewer.
            let most = if given.limit > 0 { limit } else { limits.bulk_max };
            Some(Which::Oldest { limit: (given.oldest as usize).min(most), among: None })
        }
        ["all"] => Some(Which::Oldest { limit, among: None }),
        [] => {
            let message = "say which dead letters: exactly one of job_ids, filter, oldest and all";
            check.refuse("job_ids", message);
            None
        }
        _ => {
            for name in named {
                check.refuse(name, "give exactly one of job_ids, filter, oldest and all");
            }
            None
        }
    }
}

/// What a cut-off is bound to. None: the ids were named, and nothing goes on.
pub(super) fn cutoff_name(call: &str, part: &DeadPart, which: &Which, dry_run: bool) -> Option<String> {
    let filter = match which {
        Which::Ids(_) => return None,
        Which::Found { search, .. } => Some(&search.filter),
        Which::Oldest { .. } => None,
    };
    // Going on after a dry run would pass over all that it only spoke of.
    let dry = if dry_run { "dry:" } else { "" };
    Some(format!("{call}{dry}{}", query_name(part, filter)))
}

pub(super) fn skipped_out(skipped: Vec<(JobId, SkipReason)>) -> Vec<pb::SkippedJob> {
    let skipped = skipped.into_iter().map(|(id, reason)| {
        let reason = match reason {
            SkipReason::JobNotFound => "JOB_NOT_FOUND",
            SkipReason::KeyTaken => "KEY_TAKEN",
            SkipReason::IdTaken => "ID_TAKEN",
            SkipReason::DataCorrupt => "DATA_CORRUPT",
        };
        pb::SkippedJob { job_id: id.to_string(), reason: reason.to_owned() }
    });
    skipped.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other reasons are met over the wire.
    #[test]
    fn a_damaged_job_is_passed_over_as_such() {
        let skipped = vec![(JobId::parse("a"), SkipReason::DataCorrupt)];
        assert_eq!(skipped_out(skipped)[0].reason, "DATA_CORRUPT");
    }
}
