//! The fence: who may settle a job, and for how long.

use crate::scene::assert_refused;
use crate::server::{Server, Setup, at, claim, extend, job, job_of, nack, time};
use crate::shapes::by_all;
use redrive::{domain::QueueSettings, grpc::pb};
use std::time::Duration;
use tonic::Code;

const LOST: (Code, &str) = (Code::FailedPrecondition, "LEASE_LOST");

/// Nothing opens with this lease any more.
async fn is_lost(server: &Server, lease: &str) {
    let before = server.list_queues().await;
    assert_refused(&server.ack(lease).await.unwrap_err(), LOST.0, LOST.1, &[]);
    assert_refused(&server.nack(nack(lease, "E")).await.unwrap_err(), LOST.0, LOST.1, &[]);
    assert_refused(&server.extend(extend(lease)).await.unwrap_err(), LOST.0, LOST.1, &[]);
    assert_eq!(server.list_queues().await, before);
}

#[tokio::test]
async fn a_repeated_nack_gets_the_same_answer_until_the_job_is_delivered_again() {
    let server = Server::start().await;
    server.enqueue(job("q")).await.unwrap();
    let lease = server.take("q").await.lease;
    let first = server.nack(nack(&lease, "E")).await.unwrap();
    for pause in [0, 3, 6] {
        server.pass(Duration::from_secs(pause)).await;
        // Even if the repetition tells another story.
        let again = server.nack(nack(&lease, "Another")).await.unwrap();
        assert_eq!(again, first);
    }
    assert_refused(&server.ack(&lease).await.unwrap_err(), LOST.0, LOST.1, &[]);
    assert_refused(&server.extend(extend(&lease)).await.unwrap_err(), LOST.0, LOST.1, &[]);
    // Due, but not delivered.
    server.pass(Duration::from_secs(1)).await;
    assert_eq!(server.nack(nack(&lease, "E")).await.unwrap(), first);
    let second = server.take("q").await;
    assert_eq!((second.attempt, second.deliveries), (2, 2));
    is_lost(&server, &lease).await;
    server.ack(&second.lease).await.unwrap();
}

#[tokio::test]
async fn a_repeated_release_and_a_repeated_death_answer_alike_too() {
    let server = Server::start().await;
    for kind in [pb::NackKind::Release, pb::NackKind::Permanent] {
        server.enqueue(job("q")).await.unwrap();
        let lease = server.take("q").await.lease;
        let request = pb::NackRequest { kind: kind.into(), ..nack(&lease, "E") };
        let first = server.nack(request.clone()).await.unwrap();
        assert_eq!(server.nack(request).await.unwrap(), first);
        if kind == pb::NackKind::Release {
            let lease = server.take("q").await.lease;
            server.ack(&lease).await.unwrap();
        }
    }
}

#[tokio::test]
async fn an_ack_of_a_job_that_is_gone_is_fine_and_says_so() {
    let server = Server::start().await;
    server.enqueue(job("q")).await.unwrap();
    let lease = server.take("q").await.lease;
    assert!(!server.ack(&lease).await.unwrap().already_gone);
    assert!(server.ack(&lease).await.unwrap().already_gone);
    assert_refused(&server.nack(nack(&lease, "E")).await.unwrap_err(), LOST.0, LOST.1, &[]);
    assert_refused(&server.extend(extend(&lease)).await.unwrap_err(), LOST.0, LOST.1, &[]);
}

#[tokio::test]
async fn an_ack_after_its_lease_counts_until_the_job_is_delivered_again() {
    let server = Server::start().await;
    server.enqueue(job_of("q", "slow")).await.unwrap();
    let lease = server.take("q").await.lease;
    server.pass(Duration::from_secs(30)).await;
    assert_eq!(server.get_job("slow").await.unwrap().state(), pb::JobState::Retrying);
    assert!(!server.ack(&lease).await.unwrap().already_gone);
    assert_eq!(server.get_job("slow").await.unwrap_err().code(), Code::NotFound);
    let stats = server.stats("q").await.unwrap();
    assert_eq!((stats.completed, stats.held), (1, 0));
}

#[tokio::test]
async fn a_worker_learns_how_long_it_may_run_and_why_its_delivery_has_ended() {
    let defaults = QueueSettings { max_run_time: Duration::from_secs(40), ..QueueSettings::default() };
    let server = Server::with(Setup { defaults, ..Setup::default() }).await;
    server.enqueue(job_of("q", "endless")).await.unwrap();
    let job = server.take("q").await;
    let started = server.get_job("endless").await.unwrap().attempts[0].started_at.unwrap();
    server.pass(Duration::from_secs(20)).await;
    let answer = server.extend(extend(&job.lease)).await.unwrap();
    let until = prost_types::Timestamp { seconds: started.seconds + 40, ..started };
    assert_eq!((answer.run_until, answer.lease_expires_at), (Some(until), Some(until)));
    server.pass(Duration::from_secs(20)).await;
    let failure = server.get_job("endless").await.unwrap().attempts[0].failure.clone().unwrap();
    assert_eq!(failure.r#type, "MaxRunTimeExceeded");
    assert!(failure.message.ends_with("ran for longer than the queue's max_run_time, 40s"), "{}", failure.message);
}

#[tokio::test]
async fn an_expired_lease_is_lost_and_the_attempt_failed() {
    let server = Server::start().await;
    server.enqueue(job_of("q", "slow")).await.unwrap();
    let request = pb::ClaimRequest { lease_duration: time(5, 0), worker_id: "snail".into(), ..claim("q") };
    let lease = server.take_by(request).await.lease;
    server.pass(Duration::from_millis(4_999)).await;
    assert_eq!(server.get_job("slow").await.unwrap().state(), pb::JobState::Leased);
    server.pass(Duration::from_millis(1)).await;
    // An Ack would still count.
    assert_refused(&server.nack(nack(&lease, "E")).await.unwrap_err(), LOST.0, LOST.1, &[]);
    assert_refused(&server.extend(extend(&lease)).await.unwrap_err(), LOST.0, LOST.1, &[]);
    let info = server.get_job("slow").await.unwrap();
    assert_eq!(info.state(), pb::JobState::Retrying);
    let attempt = &info.attempts[0];
    assert_eq!(attempt.status(), pb::AttemptStatus::LeaseExpired);
    assert!(attempt.counted);
    assert_eq!(attempt.failure.as_ref().unwrap().r#type, "LeaseExpired");
    assert_eq!(attempt.worker_id, "snail");
    server.pass(Duration::from_secs(10)).await;
    let job = server.take("q").await;
    assert_eq!((job.attempt, job.last_failure.unwrap().r#type), (2, "LeaseExpired".into()));
    is_lost(&server, &lease).await;
}

/// Until a server applies the expiry, its worker may settle.
#[tokio::test]
async fn a_lease_is_good_until_its_expiry_is_applied() {
    let server = Server::start().await;
    server.enqueue(job("q")).await.unwrap();
    let job = server.take("q").await;
    let span = at(job.lease_expires_at) - at(job.enqueued_at);
    assert_eq!((span, job.lease_duration), (30_000, time(30, 0)));
    server.ack(&job.lease).await.unwrap();
}

#[tokio::test]
async fn a_requeue_does_not_bring_old_leases_back_to_life() {
    let server = Server::start().await;
    server.enqueue(job_of("q", "x")).await.unwrap();
    let lease = server.take("q").await.lease;
    let permanent = pb::NackRequest { kind: pb::NackKind::Permanent.into(), ..nack(&lease, "E") };
    server.nack(permanent).await.unwrap();
    let all = pb::RequeueRequest { queue: "q".into(), selector: by_all(), ..Default::default() };
    assert_eq!(server.requeue(all).await.unwrap().requeued, 1);
    assert_refused(&server.ack(&lease).await.unwrap_err(), LOST.0, LOST.1, &[]);
    assert_refused(&server.extend(extend(&lease)).await.unwrap_err(), LOST.0, LOST.1, &[]);
    let second = server.take("q").await;
    assert_ne!(second.lease, lease);
    assert_eq!((second.attempt, second.deliveries), (1, 2));
    is_lost(&server, &lease).await;
    server.ack(&second.lease).await.unwrap();
}

#[tokio::test]
async fn an_extension_lengthens_and_never_shortens() {
    let server = Server::start().await;
    server.enqueue(job("q")).await.unwrap();
    let job = server.take("q").await;
    let end = at(job.lease_expires_at);
    for (asked, expected) in [(time(1, 0), end), (None, end), (time(60, 0), end + 30_000)] {
        let request = pb::ExtendRequest { lease_duration: asked, ..extend(&job.lease) };
        let reply = server.extend(request).await.unwrap();
        assert_eq!(at(reply.lease_expires_at), expected, "{asked:?}");
        assert!(!reply.cancel_requested);
    }
    server.pass(Duration::from_millis(59_999)).await;
    server.ack(&job.lease).await.unwrap();
}

#[tokio::test]
async fn a_delivery_lasts_no_longer_than_its_queue_allows() {
    let server = Server::start().await;
    server.enqueue(job("q")).await.unwrap();
    let job = server.take("q").await;
    let day = 24 * 3_600;
    server.pass(Duration::from_secs(10)).await;
    let request = pb::ExtendRequest { lease_duration: time(day, 0), ..extend(&job.lease) };
    let reply = server.extend(request).await.unwrap();
    let began = at(job.lease_expires_at) - 30_000;
    assert_eq!(at(reply.lease_expires_at), began + day * 1_000);
}

#[tokio::test]
async fn a_checkpoint_reaches_the_next_attempt_and_an_empty_one_keeps_it() {
    let server = Server::start().await;
    server.enqueue(job("q")).await.unwrap();
    let first = server.take("q").await;
    assert_eq!(first.checkpoint, "");
    let save = pb::ExtendRequest { checkpoint: "page 3".into(), ..extend(&first.lease) };
    server.extend(save).await.unwrap();
    server.extend(extend(&first.lease)).await.unwrap();
    server.nack(nack(&first.lease, "E")).await.unwrap();
    server.pass(Duration::from_secs(10)).await;
    let second = server.take("q").await;
    assert_eq!(second.checkpoint, "page 3");
    let save = pb::NackRequest { checkpoint: "page 5".into(), ..nack(&second.lease, "E") };
    server.nack(save).await.unwrap();
    server.pass(Duration::from_secs(10)).await;
    assert_eq!(server.take("q").await.checkpoint, "page 5");
}
