//! Dead letters that are removed for good.

use crate::server::{Server, error, job_of, text};
use crate::shapes::{by_all, by_filter, by_ids, by_oldest};
use redrive::grpc::pb;
use std::time::Duration;
use tonic::Code;

fn purge(queue: &str) -> pb::PurgeDeadLettersRequest {
    pb::PurgeDeadLettersRequest { queue: queue.into(), ..Default::default() }
}

fn all(queue: &str) -> pb::PurgeDeadLettersRequest {
    pb::PurgeDeadLettersRequest { selector: by_all(), ..purge(queue) }
}

async fn dead(ids: &[&str]) -> Server {
    let server = Server::start().await;
    for id in ids {
        server.dead_letter("q", id, error("E")).await;
    }
    server
}

async fn left(server: &Server) -> String {
    let list = pb::ListDeadLettersRequest { queue: "q".into(), ..Default::default() };
    let letters = server.list_dead(list).await.unwrap().dead_letters;
    letters.iter().filter_map(|letter| Some(letter.job.as_ref()?.job_id.as_str())).collect()
}

#[tokio::test]
async fn by_id_those_that_are_dead_go() {
    let server = dead(&["a", "b", "c"]).await;
    server.enqueue(job_of("q", "alive")).await.unwrap();
    let job_ids = ["c", "missing", "alive"].map(str::to_owned).into();
    let request = pb::PurgeDeadLettersRequest { selector: by_ids(job_ids), reason: "no use".into(), ..purge("dlq:q") };
    let reply = server.purge(request.clone()).await.unwrap();
    let skipped: Vec<_> = reply.skipped.iter().map(|job| job.job_id.as_str()).collect();
    assert_eq!((reply.purged, skipped), (1, vec!["missing", "alive"]));
    assert!(reply.skipped.iter().all(|job| job.reason == "JOB_NOT_FOUND"));
    assert!(!reply.has_more && reply.cutoff.is_empty());
    assert_eq!(left(&server).await, "ab");
    let again = server.purge(request).await.unwrap();
    assert_eq!((again.purged, again.skipped.len()), (0, 3));
}

#[tokio::test]
async fn a_purged_job_is_gone_and_its_id_is_free_after_a_while() {
    let server = dead(&["a"]).await;
    assert_eq!(server.purge(all("q")).await.unwrap().purged, 1);
    assert_eq!(server.get_job("a").await.unwrap_err().code(), Code::NotFound);
    let another = pb::EnqueueRequest { body: text("another"), ..job_of("q", "a") };
    assert_eq!(server.enqueue(another.clone()).await.unwrap_err().code(), Code::AlreadyExists);
    server.pass(Duration::from_secs(600)).await;
    assert_eq!(server.enqueue(another).await.unwrap().outcome(), pb::EnqueueOutcome::Added);
    let queue = server.list_queues().await.remove(0);
    assert_eq!((queue.ready, queue.dead), (1, 0));
}

#[tokio::test]
async fn going_on_with_the_cutoff_leaves_the_new_alone() {
    let server = dead(&["a", "b", "c"]).await;
    let two = pb::PurgeDeadLettersRequest { limit: 2, ..all("q") };
    let first = server.purge(two.clone()).await.unwrap();
    assert_eq!((first.purged, first.has_more), (2, true));
    server.dead_letter("q", "new", error("E")).await;
    let go_on = pb::PurgeDeadLettersRequest { cutoff: first.cutoff, ..two };
    let second = server.purge(go_on).await.unwrap();
    assert_eq!((second.purged, second.has_more), (1, false));
    assert_eq!(left(&server).await, "new");
}

#[tokio::test]
async fn the_oldest_and_what_a_filter_finds_can_go() {
    let server = dead(&["a", "b"]).await;
    server.dead_letter("q", "c", error("Timeout")).await;
    let filter = Some(pb::DeadLetterFilter { error_type: "Time*".into(), ..Default::default() });
    let found = pb::PurgeDeadLettersRequest { selector: filter.and_then(by_filter), ..purge("q") };
    let dry = pb::PurgeDeadLettersRequest { dry_run: true, ..found.clone() };
    assert_eq!(server.purge(dry).await.unwrap().purged, 1);
    assert_eq!(left(&server).await, "abc");
    assert_eq!(server.purge(found).await.unwrap().purged, 1);
    let oldest = pb::PurgeDeadLettersRequest { selector: by_oldest(1), ..purge("q") };
    let reply = server.purge(oldest).await.unwrap();
    assert_eq!((reply.purged, reply.has_more), (1, true));
    assert_eq!(left(&server).await, "b");
}

#[tokio::test]
async fn a_call_that_comes_again_gets_its_first_answer() {
    let server = dead(&["a", "b", "c"]).await;
    let one = pb::PurgeDeadLettersRequest { selector: by_oldest(1), request_id: "p".into(), ..purge("q") };
    let first = server.purge(one.clone()).await.unwrap();
    assert_eq!(server.purge(one.clone()).await.unwrap(), first);
    let back =
        pb::RequeueRequest { queue: "q".into(), selector: by_oldest(1), request_id: "r".into(), ..Default::default() };
    let requeued = server.requeue(back.clone()).await.unwrap();
    assert_eq!(requeued.job_ids, ["b"]);
    assert_eq!(server.requeue(back.clone()).await.unwrap(), requeued);
    assert_eq!(left(&server).await, "c");

    let other = pb::PurgeDeadLettersRequest { selector: by_oldest(2), ..one.clone() };
    let refused = [
        server.purge(other).await.unwrap_err(),
        server.requeue(pb::RequeueRequest { reason: "why".into(), ..back }).await.unwrap_err(),
    ];
    for status in refused {
        let code = Code::InvalidArgument;
        crate::scene::assert_refused(&status, code, "INVALID_FIELD", &["request_id"]);
        assert!(status.message().contains("other fields"), "{}", status.message());
    }
    server.pass(std::time::Duration::from_secs(600)).await;
    assert_eq!(server.purge(one).await.unwrap().purged, 1);
    assert_eq!(left(&server).await, "");
}
