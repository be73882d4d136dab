//! Dead letters, listed.

use super::{
    Context,
    check::{Check, Invalid},
    count,
    dead_selection::{filter, query_name},
    failure::failure_out,
    job::{View, attempt_out, dead_reason_out, viewed},
    page_token::{self, Kind},
    time::{duration_out, timestamp_out},
};
use crate::{
    domain::{limits::Limits, settings::Settings},
    grpc::pb,
    store::{DeadLetterPage, DeadLetterQuery, JobView, Search},
};

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
    let filter = filter(&mut check, request.filter).filter(|filter| !filter.is_empty());
    let search = filter.map(|filter| Search { filter, look_at: context.limits.filtered });
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
            let query = query_name(part, search.as_ref().map(|search| &search.filter));
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
        search,
        full,
        max_bytes: context.limits.reply_bytes,
    });
    check.done(query)
}

/// A page, cut where the whole reply would get too long.
pub(in crate::grpc) fn dead_letters_page(
    settings: &Settings,
    limits: &Limits,
    query: &DeadLetterQuery,
    page: DeadLetterPage,
) -> pb::ListDeadLettersResponse {
    let view = if query.full { View::Full } else { View::Basic };
    let letters = page.jobs.into_iter().map(|job| {
        let number = job.death.as_ref().map_or(0, |death| death.number);
        (number, dead_letter(settings, job, view))
    });
    let (dead_letters, cut_after) = page_token::fit(letters, limits.reply_bytes);
    let next = cut_after.or(page.next);
    let name = query_name(&query.part, query.search.as_ref().map(|search| &search.filter));
    let token = |next| page_token::encode_numbers(Kind::DeadLetters, &name, &[next]);
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

#[cfg(test)]
mod tests;
