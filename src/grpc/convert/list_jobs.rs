//! The jobs of a queue, a page at a time.

use super::{
    Context,
    admin::job_info,
    check::{Check, Invalid},
    dead_letters::page_size,
    job::View,
    page_token::{self, Kind},
};
use crate::{
    broker::JobListing,
    domain::{ids::QueueName, job::State, limits::Limits, settings::Settings, time::Timestamp},
    grpc::pb,
    store::{JobPosition, JobQuery, LOOKS_MAX},
};

/// What tokens are bound to: another view of the same jobs is no other query.
#[derive(Clone, Debug)]
pub(in crate::grpc) struct Listed {
    query: String,
    view: View,
}

pub(in crate::grpc) fn list_jobs(
    context: &Context<'_>,
    request: pb::ListJobsRequest,
) -> Result<(JobQuery, Listed), Invalid> {
    let limits = context.limits;
    let mut check = Check::new(limits);
    let queue = check.queue("queue", &request.queue);
    let state = match pb::JobState::try_from(request.state) {
        Ok(state) => state_in(state),
        Err(_) => {
            check.unknown_value("state", request.state);
            None
        }
    };
    check.name("type", &request.r#type);
    let view = match pb::View::try_from(request.view) {
        Ok(pb::View::Unspecified | pb::View::Basic) => View::Basic,
        Ok(pb::View::Full) => View::Full,
        Err(_) => {
            check.unknown_value("view", request.view);
            View::Basic
        }
    };
    let name = queue.as_ref().map_or("", QueueName::as_str);
    let query = format!("{name}:{}:{}", request.state, request.r#type);
    let mut after = None;
    if queue.is_some() && !request.page_token.is_empty() {
        match page_token::decode(Kind::Jobs, &query, &request.page_token) {
            Ok(position) => {
                after = read_position(&position);
                if after.is_none() {
                    check.refuse("page_token", "not a token of this server");
                }
            }
            Err(problem) => check.refuse("page_token", problem),
        }
    }
    let found = queue.map(|queue| JobQuery {
        queue,
        state,
        job_type: Some(request.r#type).filter(|job_type| !job_type.is_empty()),
        after,
        limit: page_size(request.page_size, limits),
        full: view == View::Full,
        max_bytes: limits.reply_bytes,
        looks_max: LOOKS_MAX,
    });
    check.done(found.map(|found| (found, Listed { query, view })))
}

/// A page, cut where the whole reply would get too long.
pub(in crate::grpc) fn jobs_page(
    settings: &Settings,
    limits: &Limits,
    listed: &Listed,
    listing: JobListing,
) -> pb::ListJobsResponse {
    let jobs = listing.jobs.into_iter();
    let jobs = jobs.map(|(position, report)| (position, job_info(settings, report, listed.view)));
    let (jobs, cut_after) = page_token::fit(jobs, limits.reply_bytes);
    let next = cut_after.or(listing.next);
    let token = |next| page_token::encode(Kind::Jobs, &listed.query, &position_out(next));
    pb::ListJobsResponse { jobs, next_page_token: next.as_ref().map(token).unwrap_or_default() }
}

fn state_in(state: pb::JobState) -> Option<State> {
    Some(match state {
        pb::JobState::Unspecified => return None,
        pb::JobState::Scheduled => State::Scheduled,
        pb::JobState::Ready => State::Ready,
        pb::JobState::Leased => State::Leased,
        pb::JobState::Completed => State::Completed,
        pb::JobState::Dead => State::Dead,
    })
}

/// `state, priority, at, number, id`.
fn position_out(position: &JobPosition) -> Vec<u8> {
    let mut out = vec![super::job::state_out(position.state) as u8];
    out.extend(position.priority.to_be_bytes());
    out.extend(position.at.millis().to_be_bytes());
    out.extend(position.number.to_be_bytes());
    out.extend(position.id.as_bytes());
    out
}

fn read_position(bytes: &[u8]) -> Option<JobPosition> {
    let (state, rest) = bytes.split_first()?;
    let (priority, rest) = rest.split_first()?;
    let (at, rest) = rest.split_first_chunk()?;
    let (number, id) = rest.split_first_chunk()?;
    Some(JobPosition {
        state: pb::JobState::try_from(i32::from(*state)).ok().and_then(state_in)?,
        priority: priority.cast_signed(),
        at: Timestamp::from_millis(u64::from_be_bytes(*at)),
        number: u64::from_be_bytes(*number),
        id: String::from_utf8(id.to_vec()).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::convert::testing::{context, refusals};
    use proptest::prelude::*;

    fn read(request: pb::ListJobsRequest) -> Result<JobQuery, Invalid> {
        list_jobs(&context(), request).map(|(query, _)| query)
    }

    fn request() -> pb::ListJobsRequest {
        pb::ListJobsRequest { queue: "q".into(), ..Default::default() }
    }

    #[test]
    fn defaults_are_a_hundred_of_every_state_and_type() {
        let query = read(request()).unwrap();
        assert_eq!((query.state, query.job_type, query.after), (None, None, None));
        assert_eq!((query.limit, query.full, query.looks_max), (100, false, 10_000));
        let greedy = pb::ListJobsRequest { page_size: u32::MAX, ..request() };
        assert_eq!(read(greedy).unwrap().limit, 1_000);
    }

    #[test]
    fn bad_fields_are_named() {
        let bad = pb::ListJobsRequest {
            queue: "a b".into(),
            state: 9,
            r#type: "x".repeat(257),
            view: 9,
            ..Default::default()
        };
        let refused = refusals(read(bad));
        let fields: Vec<_> = refused.iter().filter_map(|r| r.split(':').next()).collect();
        assert_eq!(fields, ["queue", "state", "type", "view"]);
    }

    #[test]
    fn a_token_is_good_for_its_own_query_only() {
        let position = JobPosition {
            state: State::Ready,
            priority: -3,
            at: Timestamp::from_millis(5),
            number: 7,
            id: "own".into(),
        };
        let (_, listed) = list_jobs(&context(), request()).unwrap();
        let listing = JobListing { jobs: Vec::new(), next: Some(position.clone()) };
        let limits = Limits::default();
        let page = jobs_page(&Settings::default(), &limits, &listed, listing);
        let with = |request: pb::ListJobsRequest| pb::ListJobsRequest {
            page_token: page.next_page_token.clone(),
            ..request
        };
        assert_eq!(read(with(request())).unwrap().after, Some(position.clone()));
        let full = pb::ListJobsRequest { view: pb::View::Full.into(), page_size: 7, ..request() };
        assert_eq!(read(with(full)).unwrap().after, Some(position));
        for other in [
            pb::ListJobsRequest { queue: "r".into(), ..Default::default() },
            pb::ListJobsRequest { state: pb::JobState::Ready.into(), ..request() },
            pb::ListJobsRequest { r#type: "t".into(), ..request() },
        ] {
            let refused = refusals(read(with(other)));
            assert!(refused[0].starts_with("page_token: belongs to another query"), "{refused:?}");
        }
    }

    proptest! {
        #[test]
        fn positions_read_back(
            state in 1i32..=5, priority: i8, at: u64, number: u64, id in ".{0,20}"
        ) {
            let state = pb::JobState::try_from(state).ok().and_then(state_in).unwrap();
            let at = Timestamp::from_millis(at);
            let position = JobPosition { state, priority, at, number, id };
            prop_assert_eq!(read_position(&position_out(&position)), Some(position));
        }

        #[test]
        fn no_bytes_make_reading_stumble(bytes: Vec<u8>) {
            read_position(&bytes);
        }
    }
}
