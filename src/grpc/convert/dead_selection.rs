//! Which dead letters a call means: filters, selectors and cut-offs.

use super::{
    check::Check,
    job::dead_reason_in,
    page_token::{self, Kind},
};
use crate::{
    broker::Selector,
    domain::{dead_filter::DeadFilter, failure::MESSAGE_CHARS, glob::Glob, ids::DeadPart},
    grpc::pb,
    store::{Deaths, SkipReason},
};

/// What tokens are bound to.
pub(super) fn query_name(part: &DeadPart, filter: Option<&DeadFilter>) -> String {
    let filter = filter.map_or_else(String::new, |filter| format!(":{filter:?}"));
    format!("{}:{}{filter}", part.overflow_only, part.queue)
}

/// None: not given, or something in it was refused.
pub(super) fn filter(
    check: &mut Check<'_>,
    given: Option<pb::DeadLetterFilter>,
) -> Option<DeadFilter> {
    let given = given?;
    check.name("filter.error_type", &given.error_type);
    check.name("filter.type", &given.r#type);
    let reason = match pb::DeadReason::try_from(given.reason) {
        Ok(reason) => dead_reason_in(reason),
        Err(_) => {
            check.unknown_value("filter.reason", given.reason);
            None
        }
    };
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
    if time.nanos > 0 {
        time.nanos -= time.nanos % MILLI;
    }
    time
}

/// What Requeue and PurgeDeadLetters have in common.
pub(super) struct Selection<'a> {
    pub(super) call: &'static str,
    pub(super) queue: &'a str,
    pub(super) job_ids: &'a [String],
    pub(super) filter: Option<pb::DeadLetterFilter>,
    pub(super) oldest: u32,
    pub(super) all: bool,
    pub(super) limit: u32,
    pub(super) dry_run: bool,
    pub(super) cutoff: &'a str,
}

/// The dead letters meant, and how going on is told from starting.
pub(super) struct Selected {
    pub(super) part: DeadPart,
    pub(super) which: Selector,
    pub(super) among: Option<Deaths>,
}

impl Selection<'_> {
    pub(super) fn read(self, check: &mut Check<'_>) -> Option<Selected> {
        let part = check.dead_part("queue", self.queue);
        let which = self.selector(check);
        let (part, which) = part.zip(which)?;
        let among = match (self.cutoff, cutoff_name(self.call, &part, &which, self.dry_run)) {
            ("", _) => None,
            (_, None) => {
                check.refuse("cutoff", "has no meaning with job_ids; leave it out");
                None
            }
            (cutoff, Some(name)) => page_token::decode_numbers(Kind::Cutoff, &name, cutoff)
                .map(|[after, up_to]| Deaths { after, up_to })
                .map_err(|problem| check.refuse("cutoff", problem))
                .ok(),
        };
        Some(Selected { part, which, among })
    }

    /// Exactly one of job_ids, filter, oldest and all.
    fn selector(&self, check: &mut Check<'_>) -> Option<Selector> {
        let limits = check.limits;
        let given = [
            ("job_ids", !self.job_ids.is_empty()),
            ("filter", self.filter.is_some()),
            ("oldest", self.oldest > 0),
            ("all", self.all),
        ];
        let named: Vec<_> =
            given.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect();
        let limit = match self.limit {
            0 => limits.bulk_default,
            limit => (limit as usize).min(limits.bulk_max),
        };
        match named[..] {
            ["job_ids"] => {
                if self.limit > 0 {
                    check.refuse("limit", "has no meaning with job_ids; leave it out");
                }
                let (most, ids) = (limits.bulk_max, self.job_ids.len());
                if ids > most {
                    check.refuse("job_ids", format!("must be at most {most} ids, not {ids}"));
                    return None;
                }
                let ids = self.job_ids.iter().enumerate();
                let ids =
                    ids.filter_map(|(at, id)| check.job_id(format_args!("job_ids[{at}]"), id));
                Some(Selector::Ids(ids.collect()))
            }
            ["filter"] => {
                let filter = filter(check, self.filter.clone())?;
                if self.filter == Some(pb::DeadLetterFilter::default()) {
                    check.refuse("filter", "is empty; to mean all of them, say `all`");
                }
                Some(Selector::Filter { filter, limit })
            }
            ["oldest"] => {
                // A limit can only make it fewer.
                let most = if self.limit > 0 { limit } else { limits.bulk_max };
                Some(Selector::Oldest((self.oldest as usize).min(most)))
            }
            ["all"] => Some(Selector::All { limit }),
            [] => {
                let message =
                    "say which dead letters: exactly one of job_ids, filter, oldest and all";
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
}

/// What a cut-off is bound to. None: the ids were named, and nothing goes on.
fn cutoff_name(call: &str, part: &DeadPart, which: &Selector, dry_run: bool) -> Option<String> {
    let filter = match which {
        Selector::Ids(_) => return None,
        Selector::Filter { filter, .. } => Some(filter),
        Selector::Oldest(_) | Selector::All { .. } => None,
    };
    // Going on after a dry run would pass over all that it only spoke of.
    let dry = if dry_run { "dry:" } else { "" };
    Some(format!("{call}{dry}{}", query_name(part, filter)))
}

/// Where the next call goes on. Empty where nothing does.
pub(super) fn cutoff(
    call: &str,
    (part, which, dry_run): (&DeadPart, &Selector, bool),
    left: Deaths,
) -> String {
    let token =
        |name: String| page_token::encode_numbers(Kind::Cutoff, &name, &[left.after, left.up_to]);
    cutoff_name(call, part, which, dry_run).map(token).unwrap_or_default()
}

pub(super) fn skipped_out(
    skipped: Vec<(crate::domain::ids::JobId, SkipReason)>,
) -> Vec<pb::SkippedJob> {
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
mod tests;
