//! The jobs of a queue, a page at a time.

use super::Context;
use super::admin::job_info;
use super::check::{Check, Invalid};
use super::job::View;
use super::page_token::{self, Kind};
use super::same_name::SameName;
use crate::domain::{QueueName, State, Timestamp};
use crate::grpc::pb;
use crate::queue::{JobPage, JobPosition, JobQuery, LOOKS_MAX};

/// What tokens are bound to: another view of the same jobs is no other query.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    query: String,
    view: View,
}

pub(crate) fn list_jobs(context: &Context<'_>, request: pb::ListJobsRequest) -> Result<(JobQuery, Listed), Invalid> {
    let limits = context.limits;
    let mut check = Check::new(limits);
    let queue = check.queue("queue", &request.queue);
    let state = check.one_of("state", request.state);
    check.name("type", &request.r#type);
    let view = check.one_of("view", request.view).unwrap_or_default();
    let name = queue.as_ref().map_or("", QueueName::as_str);
    let query = format!("{name}:{}:{}", request.state, request.r#type);
    // Without its queue the query is not known, so no token is checked against it.
    let token = queue.as_ref().map_or("", |_| &request.page_token);
    let after = check.token("page_token", (Kind::Jobs, &query), token, read_position);
    let found = queue.map(|queue| JobQuery {
        queue,
        state,
        job_type: Some(request.r#type).filter(|job_type| !job_type.is_empty()),
        after,
        limit: check.page_size(request.page_size),
        full: view == View::Full,
        max_bytes: limits.reply_bytes,
        looks_max: LOOKS_MAX,
    });
    check.done(found.map(|found| (found, Listed { query, view })))
}

/// A page, cut where the whole reply would get too long.
pub(crate) fn jobs_page(context: &Context<'_>, listed: &Listed, page: JobPage) -> pb::ListJobsResponse {
    let jobs = page.jobs.into_iter().map(|(position, view)| (position, job_info(context, view, listed.view)));
    let query = (Kind::Jobs, listed.query.as_str());
    let (jobs, next_page_token) = page_token::page(query, context.limits, jobs, page.next, |next| position_out(&next));
    pb::ListJobsResponse { jobs, next_page_token }
}

/// `state, group, priority, at, number, id`.
fn position_out(position: &JobPosition) -> Vec<u8> {
    let mut out = vec![position.state.out() as u8];
    out.extend(position.group.to_be_bytes());
    out.extend(position.priority.to_be_bytes());
    out.extend(position.at.millis().to_be_bytes());
    out.extend(position.number.to_be_bytes());
    out.extend(position.id.as_bytes());
    out
}

fn read_position(bytes: &[u8]) -> Option<JobPosition> {
    let (state, rest) = bytes.split_first()?;
    let (group, rest) = rest.split_first_chunk()?;
    let (priority, rest) = rest.split_first()?;
    let (at, rest) = rest.split_first_chunk()?;
    let (number, id) = rest.split_first_chunk()?;
    Some(JobPosition {
        state: State::ALL.iter().copied().find(|known| known.out() as u8 == *state)?,
        group: u16::from_be_bytes(*group),
        priority: priority.cast_signed(),
        at: Timestamp::from_millis(u64::from_be_bytes(*at)),
        number: u64::from_be_bytes(*number),
        id: String::from_utf8(id.to_vec()).ok()?,
    })
}
