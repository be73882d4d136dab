//! Dead letters: listed, and sent back to work.

use super::{
    Context,
    check::{Check, Invalid},
    count,
    failure::failure_out,
    job::{View, attempt_out, dead_reason_out, viewed},
    page_token::{self, Kind},
    time::{duration_out, timestamp_out},
};
use crate::{
    broker::{RequeueRequest, RequeueSelector},
    domain::{ids::DeadPart, limits::Limits, settings::Settings},
    grpc::pb,
    store::{DeadLetterPage, DeadLetterQuery, Deaths, JobView, Requeued, SkipReason},
};

/// What tokens are bound to.
fn query_name(part: &DeadPart) -> String {
    format!("{}:{}", part.overflow_only, part.queue)
}

pub(super) fn page_size(given: u32, limits: &Limits) -> usize {
    match given {
        0 => limits.page_size_default,
        given => (given as usize).min(limits.page_size_max),
    }
}

pub(in crate::grpc) fn list_dead_letters(
    context: &Context<'_>,
    request: pb::ListDeadLettersRequest,
) -> Result<DeadLetterQuery, Invalid> {
    let mut check = Check::new(context.limits);
    let part = check.dead_part("queue", &request.queue);
    let filtered = request.filter.is_some_and(|filter| filter != Default::default());
    check.without_meaning("filter", filtered);
    let full = match pb::View::try_from(request.view) {
        Ok(pb::View::Unspecified | pb::View::Basic) => false,
        Ok(pb::View::Full) => true,
        Err(_) => {
            check.unknown_value("view", request.view);
            false
        }
    };
    let after = match &part {
        Some(part) if !request.page_token.is_empty() => {
            let query = query_name(part);
            page_token::decode_numbers(Kind::DeadLetters, &query, &request.page_token)
                .map(|[after]| after)
                .unwrap_or_else(|problem| {
                    check.refuse("page_token", problem);
                    0
                })
        }
        _ => 0,
    };
    let query = part.map(|part| DeadLetterQuery {
        part,
        after,
        limit: page_size(request.page_size, context.limits),
        full,
        max_bytes: context.limits.reply_bytes,
    });
    check.done(query)
}

/// A page, cut where the whole reply would get too long.
pub(in crate::grpc) fn dead_letters_page(
    settings: &Settings,
    limits: &Limits,
    (part, full): (&DeadPart, bool),
    page: DeadLetterPage,
) -> pb::ListDeadLettersResponse {
    let view = if full { View::Full } else { View::Basic };
    let letters = page.jobs.into_iter().map(|job| {
        let number = job.death.as_ref().map_or(0, |death| death.number);
        (number, dead_letter(settings, job, view))
    });
    let (dead_letters, cut_after) = page_token::fit(letters, limits.reply_bytes);
    let next = cut_after.or(page.next);
    let token = |next| page_token::encode_numbers(Kind::DeadLetters, &query_name(part), &[next]);
    pb::ListDeadLettersResponse {
        dead_letters,
        next_page_token: next.map_or_else(String::new, token),
        total_count: count(page.total),
    }
}

fn dead_letter(settings: &Settings, job: JobView, view: View) -> pb::DeadLetter {
    let delays = job.attempts.iter().filter_map(|attempt| attempt.delay);
    let attempts = match view {
        View::Basic => Vec::new(),
        View::Full => job.attempts.iter().map(attempt_out).collect(),
    };
    let failure = job.last_failure.as_ref();
    let mut letter = pb::DeadLetter {
        failure: failure.map(failure_out),
        attempt_count: job.progress.tries,
        first_failed_at: job.progress.first_failed_at.map(timestamp_out),
        last_failed_at: job.progress.last_failed_at.map(timestamp_out),
        retry_delays: delays.map(duration_out).collect(),
        attempts,
        redrives: job.progress.redrives,
        fingerprint: failure.map(|f| f.fingerprint(&job.spec.job_type)).unwrap_or_default(),
        ..pb::DeadLetter::default()
    };
    if let Some(death) = job.death {
        letter.reason = dead_reason_out(death.reason).into();
        letter.died_at = Some(timestamp_out(death.died_at));
        letter.context = death.context.into_iter().collect();
        letter.overflow = death.overflow;
    }
    let now = (job.state, None);
    letter.job = Some(viewed(settings, &job.queue, job.spec, job.progress, now, view));
    letter
}

pub(in crate::grpc) fn requeue(
    context: &Context<'_>,
    request: pb::RequeueRequest,
) -> Result<RequeueRequest, Invalid> {
    let mut check = Check::new(context.limits);
    let part = check.dead_part("queue", &request.queue);
    let target = check.queue_if_given("target_queue", &request.target_queue);
    check.without_meaning("request_id", !request.request_id.is_empty());
    check.at_most("reason", request.reason.len(), context.limits.note_bytes);
    let among = match &part {
        Some(part) if !request.cutoff.is_empty() => {
            let query = query_name(part);
            page_token::decode_numbers(Kind::Cutoff, &query, &request.cutoff)
                .map(|[after, up_to]| Deaths { after, up_to })
                .map_err(|problem| check.refuse("cutoff", problem))
                .ok()
        }
        _ => None,
    };
    let (keep_attempts, dry_run) = (request.keep_attempts, request.dry_run);
    let which = selector(&mut check, request);
    let requeue = part.zip(which).map(|(part, which)| RequeueRequest {
        part,
        which,
        target,
        keep_attempts,
        dry_run,
        among,
    });
    check.done(requeue)
}

/// Exactly one of job_ids, filter, oldest and all.
fn selector(check: &mut Check<'_>, request: pb::RequeueRequest) -> Option<RequeueSelector> {
    let limits = check.limits;
    let given = [
        ("job_ids", !request.job_ids.is_empty()),
        ("filter", request.filter.is_some()),
        ("oldest", request.oldest > 0),
        ("all", request.all),
    ];
    let named: Vec<_> = given.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect();
    let limit = match request.limit {
        0 => limits.bulk_default,
        limit => (limit as usize).min(limits.bulk_max),
    };
    match named[..] {
        ["job_ids"] => {
            if request.limit > 0 {
                check.refuse("limit", "has no meaning with job_ids; leave it out");
            }
            if !request.cutoff.is_empty() {
                check.refuse("cutoff", "has no meaning with job_ids; leave it out");
            }
            let (most, ids) = (limits.bulk_max, request.job_ids.len());
            if ids > most {
                check.refuse("job_ids", format!("must be at most {most} ids, not {ids}"));
                return None;
            }
            let ids = request.job_ids.iter().enumerate();
            let ids = ids.filter_map(|(at, id)| check.job_id(format_args!("job_ids[{at}]"), id));
            Some(RequeueSelector::Ids(ids.collect()))
        }
        ["oldest"] => {
            // A limit can only make it fewer.
            let most = if request.limit > 0 { limit } else { limits.bulk_max };
            Some(RequeueSelector::Oldest((request.oldest as usize).min(most)))
        }
        ["all"] => Some(RequeueSelector::All { limit }),
        ["filter"] => {
            check.without_meaning("filter", true);
            None
        }
        [] => {
            let message = "say which dead letters: exactly one of job_ids, oldest and all";
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

/// `part`: whose cut-off it is. None: the ids were named, and nothing goes on.
pub(in crate::grpc) fn requeue_response(
    part: Option<&DeadPart>,
    requeued: Requeued,
) -> pb::RequeueResponse {
    let Deaths { after, up_to } = requeued.left;
    let cutoff =
        |part| page_token::encode_numbers(Kind::Cutoff, &query_name(part), &[after, up_to]);
    let skipped = requeued.skipped.into_iter().map(|(id, reason)| {
        let reason = match reason {
            SkipReason::JobNotFound => "JOB_NOT_FOUND",
            SkipReason::KeyTaken => "KEY_TAKEN",
            SkipReason::IdTaken => "ID_TAKEN",
            SkipReason::DataCorrupt => "DATA_CORRUPT",
        };
        pb::SkippedJob { job_id: id.to_string(), reason: reason.to_owned() }
    });
    pb::RequeueResponse {
        requeued: count(requeued.ids.len() as u64),
        job_ids: requeued.ids.iter().map(ToString::to_string).collect(),
        skipped: skipped.collect(),
        has_more: requeued.has_more,
        cutoff: part.map(cutoff).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
