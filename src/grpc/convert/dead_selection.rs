//! Which dead letters a call means: filters, selectors and cut-offs.

use super::check::{Check, bounded};
use super::page_token::{self, Kind};
use crate::domain::{DeadFilter, DeadPart, Glob, JobId, MESSAGE_CHARS};
use crate::grpc::pb;
use crate::grpc::pb::dead_letter_selector::By;
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
pub(super) fn filter(check: &mut Check<'_>, field: &str, given: Option<pb::DeadLetterFilter>) -> Option<DeadFilter> {
    let given = given?;
    let of = |name: &str| format!("{field}.{name}");
    check.name(of("error_type"), &given.error_type);
    check.name(of("type"), &given.r#type);
    let reason = check.one_of(of("reason"), given.reason);
    let chars = given.message_contains.chars().count();
    if chars > MESSAGE_CHARS {
        let message = format!("must be at most {MESSAGE_CHARS} characters, not {chars}");
        check.refuse(of("message_contains"), message);
    }
    if !given.fingerprint.is_empty() && !is_fingerprint(&given.fingerprint) {
        let message = "a fingerprint is 16 hexadecimal digits, as DeadLetter.fingerprint shows it";
        check.refuse(of("fingerprint"), message);
    }
    let text = |text: String| (!text.is_empty()).then_some(text);
    let died_after = given.died_after.map(whole_millis);
    Some(DeadFilter {
        error_type: text(given.error_type).map(Glob::new),
        job_type: text(given.r#type).map(Glob::new),
        reason,
        message_contains: text(given.message_contains),
        died_after: check.timestamp(&of("died_after"), died_after),
        died_before: check.timestamp(&of("died_before"), given.died_before),
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

/// What Requeue and PurgeDeadLetters have in common: the dead letters meant.
pub(super) struct Selection<'a> {
    /// Whose cut-offs they are.
    pub(super) call: &'a str,
    pub(super) queue: &'a str,
    pub(super) selector: Option<pb::DeadLetterSelector>,
    pub(super) limit: u32,
    pub(super) dry_run: bool,
    pub(super) cutoff: &'a str,
}

pub(super) fn selected(check: &mut Check<'_>, given: Selection<'_>) -> Option<(DeadPart, Which)> {
    let part = check.dead_part("queue", given.queue);
    let which = which(check, given.selector.and_then(|selector| selector.by), given.limit);
    let (part, mut which) = part.zip(which)?;
    let name = cutoff_name(given.call, &part, &which, given.dry_run);
    if name.is_none() && !given.cutoff.is_empty() {
        check.refuse("cutoff", "has no meaning with job_ids; leave it out");
    }
    let left = name.and_then(|name| check.token("cutoff", (Kind::Cutoff, &name), given.cutoff, page_token::numbers));
    if let Which::Oldest { among, .. } | Which::Found { among, .. } = &mut which {
        *among = left.map(|[after, up_to]| Deaths { after, up_to });
    }
    Some((part, which))
}

fn which(check: &mut Check<'_>, by: Option<By>, given_limit: u32) -> Option<Which> {
    const ONE_OF: &str = "say which dead letters: exactly one of job_ids, filter, oldest and all";
    let limits = check.limits;
    let limit = bounded(given_limit, limits.bulk_default, limits.bulk_max);
    match by {
        Some(By::JobIds(pb::JobIds { ids })) if !ids.is_empty() => {
            if given_limit > 0 {
                check.refuse("limit", "has no meaning with job_ids; leave it out");
            }
            let (most, count) = (limits.bulk_max, ids.len());
            if count > most {
                check.refuse("selector.job_ids.ids", format!("must be at most {most} ids, not {count}"));
                return None;
            }
            let ids = ids.iter().enumerate();
            let ids = ids.filter_map(|(at, id)| check.job_id(format_args!("selector.job_ids.ids[{at}]"), id));
            Some(Which::Ids(ids.collect()))
        }
        Some(By::Filter(given)) => {
            if given == pb::DeadLetterFilter::default() {
                check.refuse("selector.filter", "is empty; to mean all of them, say `all`");
            }
            let search = Search { filter: filter(check, "selector.filter", Some(given))?, look_at: limits.filtered };
            Some(Which::Found { search, limit, among: None })
        }
        Some(By::Oldest(oldest @ 1..)) => {
            // A limit can only make it fewer.
            let most = if given_limit > 0 { limit } else { limits.bulk_max };
            Some(Which::Oldest { limit: (oldest as usize).min(most), among: None })
        }
        Some(By::All(true)) => Some(Which::Oldest { limit, among: None }),
        Some(By::JobIds(_) | By::Oldest(0) | By::All(false)) | None => {
            check.refuse("selector", ONE_OF);
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
