//! Dead letters, listed.

use super::check::{Check, Invalid};
use super::dead_selection::{filter, query_name};
use super::failure::failure_out;
use super::job::{View, attempt_out, event_out, viewed};
use super::page_token::{self, Kind};
use super::same_name::SameName;
use super::time::{duration_out, timestamp_out};
use super::{Context, count};
use crate::domain::{Limits, Settings, Spec};
use crate::grpc::pb;
use crate::queue::{DeadLetterPage, DeadLetterQuery, DeathContext, JobView, Search};

pub(crate) fn list_dead_letters(
    context: &Context<'_>, request: pb::ListDeadLettersRequest,
) -> Result<DeadLetterQuery, Invalid> {
    let mut check = Check::new(context.limits);
    let part = check.dead_part("queue", &request.queue);
    let filter = filter(&mut check, "filter", request.filter).filter(|filter| !filter.is_empty());
    let search = filter.map(|filter| Search { filter, look_at: context.limits.filtered });
    let full = check.one_of("view", request.view) == Some(View::Full);
    let after = part.as_ref().and_then(|part| {
        let query = query_name(part, search.as_ref().map(|search| &search.filter));
        check.token("page_token", (Kind::DeadLetters, &query), &request.page_token, page_token::numbers)
    });
    let [after] = after.unwrap_or_default();
    let query = part.map(|part| DeadLetterQuery {
        part,
        after,
        limit: check.page_size(request.page_size),
        search,
        full,
        max_bytes: context.limits.reply_bytes,
    });
    check.done(query)
}

/// A page, cut where the whole reply would get too long.
pub(crate) fn dead_letters_page(
    settings: &Settings, limits: &Limits, query: &DeadLetterQuery, page: DeadLetterPage,
) -> pb::ListDeadLettersResponse {
    let view = if query.full { View::Full } else { View::Basic };
    let letters = page.jobs.into_iter().map(|job| {
        let number = job.death.as_ref().map_or(0, |death| death.number);
        (number, dead_letter(settings, job, view))
    });
    let name = query_name(&query.part, query.search.as_ref().map(|search| &search.filter));
    let (dead_letters, next_page_token) =
        page_token::page((Kind::DeadLetters, &name), limits, letters, page.next, u64::to_be_bytes);
    pb::ListDeadLettersResponse { dead_letters, next_page_token, queue_total: count(page.total) }
}

fn dead_letter(settings: &Settings, job: JobView, view: View) -> pb::DeadLetter {
    let delays = job.attempts.iter().filter_map(|attempt| attempt.delay);
    let retry_delays = delays.map(duration_out).collect();
    let (attempts, events) = match view {
        View::Basic => (Vec::new(), Vec::new()),
        View::Full => {
            let events = job.events.into_iter().map(event_out).collect();
            (job.attempts.into_iter().map(attempt_out).collect(), events)
        }
    };
    let failure = job.last_failure;
    let mut letter = pb::DeadLetter {
        attempt_count: job.progress.tries,
        first_failed_at: job.progress.first_failed_at.map(timestamp_out),
        last_failed_at: job.progress.last_failed_at.map(timestamp_out),
        retry_delays,
        attempts,
        events,
        redrives: job.progress.redrives,
        fingerprint: failure.as_ref().map(|f| f.fingerprint(&job.spec.job_type)).unwrap_or_default(),
        failure: failure.map(failure_out),
        ..pb::DeadLetter::default()
    };
    if let Some(death) = job.death {
        letter.reason = death.reason.out();
        letter.died_at = Some(timestamp_out(death.died_at));
        letter.context = Some(context_out(death.context));
        letter.overflow = death.overflow;
    }
    let now = (job.state, None);
    let spec = Spec { breaker_key: job.learnt_key.or(job.spec.breaker_key), ..job.spec };
    letter.job = Some(viewed(settings, &job.queue, spec, job.progress, now, view));
    letter
}

fn context_out(context: DeathContext) -> pb::DeathContext {
    pb::DeathContext {
        ready: context.ready,
        scheduled: context.scheduled,
        retrying: context.retrying,
        leased: context.leased,
        dead: context.dead,
        overflow: context.overflow,
        queue_breaker: context.queue_breaker.out(),
        dlq_breaker: context.dlq_breaker.out(),
    }
}
