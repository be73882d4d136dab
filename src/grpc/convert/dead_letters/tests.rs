use super::*;
use crate::{
    domain::{
        failure::Failure,
        ids::{JobId, QueueName},
        job::{Body, DeadReason, Progress, Spec, State},
        time::Timestamp,
    },
    grpc::convert::testing::{context, refusals},
    store::Death,
};

fn dead(number: u64, body: usize) -> JobView {
    let spec = Spec {
        id: JobId::parse(&format!("job-{number}")),
        key: None,
        job_type: "mail".into(),
        content_type: "text/plain".into(),
        headers: vec![("h".into(), "v".into())],
        body: Body::Text("x".repeat(body).into()),
        priority: 3,
        enqueued_at: Timestamp::from_millis(1),
        run_at: Timestamp::from_millis(1),
        expires_at: None,
        policy: None,
    };
    let progress = Progress { tries: 4, checkpoint: "c".into(), ..Progress::default() };
    let death = Death {
        number,
        reason: DeadReason::Exhausted,
        died_at: Timestamp::from_millis(9),
        overflow: false,
        context: vec![("depth".into(), "1".into())],
    };
    JobView {
        queue: QueueName::parse("q").unwrap(),
        spec,
        corrupt: false,
        state: State::Dead,
        ready_at: None,
        old_place: None,
        progress,
        delivery: None,
        death: Some(death),
        completed_at: None,
        result: Default::default(),
        attempts: Vec::new(),
        last_failure: Some(Failure::new("Timeout", "too slow")),
        ahead: None,
        pause: None,
        breaker: Default::default(),
    }
}

fn list(change: impl FnOnce(&mut pb::ListDeadLettersRequest)) -> Result<DeadLetterQuery, Invalid> {
    let mut request = pb::ListDeadLettersRequest { queue: "q".into(), ..Default::default() };
    change(&mut request);
    list_dead_letters(&context(), request)
}

fn fields<T>(result: Result<T, Invalid>) -> Vec<String> {
    let refused = refusals(result);
    refused.iter().filter_map(|r| Some(r.split_once(": ")?.0.to_owned())).collect()
}

#[test]
fn pages_are_a_hundred_by_default_and_a_thousand_at_most() {
    assert_eq!(list(|_| {}).unwrap().limit, 100);
    assert_eq!(list(|r| r.page_size = 7).unwrap().limit, 7);
    assert_eq!(list(|r| r.page_size = 50_000).unwrap().limit, 1_000);
}

#[test]
fn a_listing_with_bad_fields_names_them() {
    assert_eq!(fields(list(|r| r.queue = "dlq:".into())), ["queue"]);
    assert_eq!(fields(list(|r| r.view = 5)), ["view"]);
    assert_eq!(fields(list(|r| r.page_token = "x".into())), ["page_token"]);
    assert!(list(|r| r.filter = Some(Default::default())).is_ok());
    let filter = pb::DeadLetterFilter { reason: 77, ..Default::default() };
    assert_eq!(fields(list(|r| r.filter = Some(filter))), ["filter.reason"]);
}

#[test]
fn a_token_goes_on_where_the_page_ended_and_only_there() {
    let limits = Limits::default();
    let page = DeadLetterPage { jobs: vec![dead(4, 1)], next: Some(4), total: 9 };
    let page = dead_letters_page(&Settings::default(), &limits, &list(|_| {}).unwrap(), page);
    assert_eq!(page.total_count, 9);
    let token = page.next_page_token;
    assert_eq!(list(|r| r.page_token = token.clone()).unwrap().after, 4);
    let other = |r: &mut pb::ListDeadLettersRequest| {
        (r.queue, r.page_token) = ("dlq:overflow:q".into(), token);
    };
    assert_eq!(fields(list(other)), ["page_token"]);
}

#[test]
fn a_page_that_would_get_too_long_ends_early() {
    let limits = Limits { reply_bytes: 3_000, ..Limits::default() };
    let jobs = vec![dead(1, 1_000), dead(2, 1_000), dead(3, 1_000)];
    let page = DeadLetterPage { jobs, next: None, total: 3 };
    let page =
        dead_letters_page(&Settings::default(), &limits, &list(|r| r.view = 2).unwrap(), page);
    assert_eq!(page.dead_letters.len(), 2);
    assert_eq!(list(|r| r.page_token = page.next_page_token).unwrap().after, 2);
}

#[test]
fn a_basic_view_leaves_out_what_is_long() {
    let basic = dead_letter(&Settings::default(), dead(1, 5), View::Basic);
    let job = basic.job.unwrap();
    assert_eq!((job.body, job.headers.len(), job.checkpoint.as_str()), (None, 0, ""));
    assert_eq!((job.lease.as_str(), job.attempt), ("", 4));
    assert_eq!((basic.attempt_count, basic.reason), (4, pb::DeadReason::Exhausted.into()));
    assert_eq!(basic.fingerprint.len(), 16);
    let full = dead_letter(&Settings::default(), dead(1, 5), View::Full).job.unwrap();
    assert_eq!(full.body, Some(pb::job::Body::Text("xxxxx".into())));
    assert_eq!((full.headers.len(), full.checkpoint.as_str()), (1, "c"));
}

#[test]
fn a_token_is_bound_to_the_filter() {
    let timeouts = || pb::DeadLetterFilter { error_type: "Timeout*".into(), ..Default::default() };
    let query = list(|r| r.filter = Some(timeouts())).unwrap();
    let page = DeadLetterPage { jobs: Vec::new(), next: Some(4), total: 9 };
    let page = dead_letters_page(&Settings::default(), &Limits::default(), &query, page);
    let token = page.next_page_token;
    let again = |filter| list(|r| (r.filter, r.page_token) = (filter, token.clone()));
    assert_eq!(again(Some(timeouts())).unwrap().after, 4);
    assert_eq!(fields(again(None)), ["page_token"]);
    let other = pb::DeadLetterFilter { http_status: 503, ..timeouts() };
    assert_eq!(fields(again(Some(other))), ["page_token"]);
}
