use super::*;
use crate::{
    domain::{dead_filter::DeadFilter, ids::JobId},
    grpc::convert::testing::{context, refusals},
    store::{Deaths, SkipReason},
};

fn send(change: impl FnOnce(&mut pb::RequeueRequest)) -> Result<RequeueRequest, Invalid> {
    let mut request = pb::RequeueRequest { queue: "dlq:q".into(), ..Default::default() };
    change(&mut request);
    requeue(&context(), request)
}

fn remove(change: impl FnOnce(&mut pb::PurgeDeadLettersRequest)) -> Result<PurgeRequest, Invalid> {
    let mut request = pb::PurgeDeadLettersRequest { queue: "dlq:q".into(), ..Default::default() };
    change(&mut request);
    purge(&context(), request)
}

fn asked() -> Asked {
    Asked::from(&send(|r| r.all = true).unwrap())
}

fn fields<T>(result: Result<T, Invalid>) -> Vec<String> {
    let refused = refusals(result);
    refused.iter().filter_map(|r| Some(r.split_once(": ")?.0.to_owned())).collect()
}

fn of_status(http_status: u32) -> Option<pb::DeadLetterFilter> {
    Some(pb::DeadLetterFilter { http_status, ..Default::default() })
}

#[test]
fn exactly_one_selector_must_be_named() {
    assert_eq!(fields(send(|_| {})), ["job_ids"]);
    assert_eq!(fields(send(|r| (r.all, r.oldest) = (true, 1))), ["oldest", "all"]);
    assert_eq!(fields(send(|r| r.filter = Some(Default::default()))), ["filter"]);
    let ids = |r: &mut pb::RequeueRequest| r.job_ids = vec!["a".into()];
    assert_eq!(send(ids).unwrap().which, Selector::Ids(vec![JobId::parse("a")]));
    assert_eq!(send(|r| r.oldest = 5).unwrap().which, Selector::Oldest(5));
    assert_eq!(send(|r| r.oldest = 50_000).unwrap().which, Selector::Oldest(10_000));
    assert_eq!(send(|r| r.all = true).unwrap().which, Selector::All { limit: 1_000 });
    let limited = |r: &mut pb::RequeueRequest| (r.all, r.limit) = (true, 99_999);
    assert_eq!(send(limited).unwrap().which, Selector::All { limit: 10_000 });
}

#[test]
fn a_requeue_with_bad_fields_names_them() {
    let bad = pb::RequeueRequest {
        queue: "!".into(),
        target_queue: "?".into(),
        request_id: "r".repeat(257),
        reason: "x".repeat(1_025),
        job_ids: vec!["ok".into(), String::new(), "x".repeat(257)],
        limit: 5,
        ..Default::default()
    };
    assert_eq!(
        fields(requeue(&context(), bad)),
        ["request_id", "queue", "limit", "job_ids[1]", "job_ids[2]", "target_queue", "reason"]
    );
    assert_eq!(fields(send(|r| (r.all, r.cutoff) = (true, "x".into()))), ["cutoff"]);
}

#[test]
fn a_cutoff_goes_on_with_the_same_set() {
    let requeued =
        Requeued { left: Deaths { after: 3, up_to: 17 }, has_more: true, ..Requeued::default() };
    let cutoff = requeue_response(&asked(), requeued).cutoff;
    let again = send(|r| (r.all, r.cutoff) = (true, cutoff.clone())).unwrap();
    assert_eq!(again.among, Some(Deaths { after: 3, up_to: 17 }));
    let other = |r: &mut pb::RequeueRequest| {
        (r.queue, r.all, r.cutoff) = ("other".into(), true, cutoff);
    };
    assert_eq!(fields(send(other)), ["cutoff"]);
}

#[test]
fn skipped_jobs_come_with_their_reason() {
    let skipped = [
        (SkipReason::JobNotFound, "JOB_NOT_FOUND"),
        (SkipReason::KeyTaken, "KEY_TAKEN"),
        (SkipReason::IdTaken, "ID_TAKEN"),
        (SkipReason::DataCorrupt, "DATA_CORRUPT"),
    ];
    let id = JobId::parse("a");
    let requeued = Requeued {
        skipped: skipped.iter().map(|(reason, _)| (id.clone(), *reason)).collect(),
        ids: vec![id],
        ..Requeued::default()
    };
    let named = Asked::from(&send(|r| r.job_ids = vec!["a".into()]).unwrap());
    let response = requeue_response(&named, requeued);
    assert_eq!((response.requeued, response.cutoff.as_str()), (1, ""));
    let words: Vec<_> = response.skipped.iter().map(|skipped| skipped.reason.as_str()).collect();
    assert_eq!(words, skipped.map(|(_, word)| word));
}

#[test]
fn a_filter_selects_up_to_the_limit() {
    let filter = DeadFilter { http_status: Some(503), ..DeadFilter::default() };
    let which = Selector::Filter { filter, limit: 1_000 };
    assert_eq!(send(|r| r.filter = of_status(503)).unwrap().which, which);
    assert_eq!(remove(|r| r.filter = of_status(503)).unwrap().which, which);
}

#[test]
fn a_purge_is_as_careful_about_what_is_meant() {
    assert_eq!(fields(remove(|_| {})), ["job_ids"]);
    assert_eq!(fields(remove(|r| (r.all, r.oldest) = (true, 1))), ["oldest", "all"]);
    assert_eq!(fields(remove(|r| r.filter = Some(Default::default()))), ["filter"]);
    assert_eq!(fields(remove(|r| (r.all, r.reason) = (true, "x".repeat(1_025)))), ["reason"]);
    assert_eq!(remove(|r| r.all = true).unwrap().which, Selector::All { limit: 1_000 });
}

#[test]
fn a_cutoff_is_good_only_for_the_call_it_came_from() {
    let left = Deaths { after: 3, up_to: 17 };
    let requeued = || Requeued { left, ..Requeued::default() };
    let filtered = Asked::from(&send(|r| r.filter = of_status(503)).unwrap());
    let dry = Asked::from(&send(|r| (r.all, r.dry_run) = (true, true)).unwrap());
    let of_all = requeue_response(&asked(), requeued()).cutoff;
    let of_filter = requeue_response(&filtered, requeued()).cutoff;
    let of_dry_run = requeue_response(&dry, requeued()).cutoff;
    let purged = Purged { left, ..Purged::default() };
    let of_purge = purge_response(&asked(), purged).cutoff;

    let all = |cutoff: &str| send(|r| (r.all, r.cutoff) = (true, cutoff.into()));
    let some =
        |status, cutoff: &str| send(|r| (r.filter, r.cutoff) = (of_status(status), cutoff.into()));
    assert_eq!(some(503, &of_filter).unwrap().among, Some(left));
    for bad in [all(&of_filter), all(&of_dry_run), all(&of_purge), some(503, &of_all)] {
        assert_eq!(fields(bad), ["cutoff"]);
    }
    assert_eq!(fields(some(500, &of_filter)), ["cutoff"]);
    let remove_all = |cutoff: &str| remove(|r| (r.all, r.cutoff) = (true, cutoff.into()));
    assert_eq!(remove_all(&of_purge).unwrap().among, Some(left));
    assert_eq!(fields(remove_all(&of_all)), ["cutoff"]);
    let named = |r: &mut pb::RequeueRequest| {
        (r.job_ids, r.cutoff) = (vec!["a".into()], of_all.clone());
    };
    assert_eq!(fields(send(named)), ["cutoff"]);
}

#[test]
fn a_request_id_stands_for_the_whole_call() {
    let call = |id: &str, oldest| send(|r| (r.request_id, r.oldest) = (id.into(), oldest)).unwrap();
    assert_eq!(call("", 1).request, None);
    assert_eq!(call("r", 1).request, call("r", 1).request);
    assert_ne!(call("r", 1).request, call("r", 2).request);
    assert_eq!(fields(remove(|r| (r.all, r.request_id) = (true, "x".repeat(257)))), ["request_id"]);
}
