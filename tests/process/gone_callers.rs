//! Workers that hang up at the very moment a job comes.

use crate::power_cut_image::random::Random;
use crate::requests::{ack, claim, job, seconds};
use crate::server::{Launch, scratch};
use crate::shutdown::ping;
use crate::tap::Tap;
use redrive::env;
use redrive::grpc::pb::admin_service_client::AdminServiceClient;
use redrive::grpc::pb::queue_service_client::QueueServiceClient;
use redrive::grpc::pb::{AttemptStatus, ClaimRequest, EnqueueRequest, GetJobRequest};
use tokio::task::JoinSet;
use tonic::transport::Channel;

const CALLERS: u64 = 6;
const HANG_UPS: u64 = 60;

#[derive(Debug, Default)]
struct Counts {
    /// The answer was on its way before the caller hung up; only its lease can tell now.
    answered: usize,
    /// Handed out to the one who had gone, and taken back.
    given_back: usize,
    never_handed_out: usize,
    /// Neither answered nor given back.
    lost: usize,
}

/// Long-polls, hangs up when a job comes, and looks what became of the job; again and again.
async fn hang_up(number: u64, tap: Tap, worker: Channel, other: Channel) -> Counts {
    let mut random = Random(env::random());
    let mut counts = Counts::default();
    let queue = format!("queue-{number}");
    let mut client = QueueServiceClient::new(other.clone());
    let mut admin = AdminServiceClient::new(other.clone());
    for round in 0..HANG_UPS {
        let worker_id = format!("worker-{number}-{round}.");
        let request = ClaimRequest { wait: seconds(30), worker_id: worker_id.clone(), ..claim(&queue) };
        let mut waiting = QueueServiceClient::new(worker.clone());
        let waiting = tokio::spawn(async move { waiting.claim(request).await });
        tap.has_sent(worker_id.as_bytes()).await;
        ping(&worker).await;

        let id = format!("job-{number}-{round}.");
        let new = EnqueueRequest { job_id: id.clone(), ..job(&queue) };
        client.enqueue(new).await.unwrap();
        // Now the server hands it out. A little later or a lot, the worker is gone.
        for _ in 0..random.below(4) {
            ping(&other).await;
        }
        waiting.abort();
        drop(waiting.await);
        ping(&worker).await;
        if tap.has_received(id.as_bytes()) {
            counts.answered += 1;
            continue;
        }

        // Longer than any disk takes, shorter than the lease: a job that is lost does not come back meanwhile.
        let patient = ClaimRequest { wait: seconds(20), ..claim(&queue) };
        let reply = client.claim(patient).await.unwrap().into_inner();
        let Some(again) = reply.jobs.first() else {
            counts.lost += 1;
            continue;
        };
        assert_eq!((again.job_id.as_str(), again.attempt), (id.as_str(), 1));
        match again.deliveries {
            1 => counts.never_handed_out += 1,
            _ => counts.given_back += 1,
        }
        let request = GetJobRequest { job_id: id.clone(), queue: queue.clone(), ..GetJobRequest::default() };
        let info = admin.get_job(request).await.unwrap().into_inner().info;
        let attempts = info.unwrap().attempts;
        let statuses: Vec<_> = attempts.iter().map(|it| it.status()).collect();
        assert_eq!(statuses, [AttemptStatus::Running]);
        client.ack(ack(&again.lease)).await.unwrap();
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_is_gone_gives_its_claim_back() {
    let place = scratch();
    let server = Launch::on(place.path()).start();
    let mut callers = JoinSet::new();
    for number in 0..CALLERS {
        let tap = Tap::default();
        let (worker, other) = (tap.connect(&server).await, server.connect().await);
        callers.spawn(hang_up(number, tap, worker, other));
    }
    let counts = callers.join_all().await;
    println!("{counts:?}");
    let given_back: usize = counts.iter().map(|counts| counts.given_back).sum();
    let lost: usize = counts.iter().map(|counts| counts.lost).sum();
    println!("{given_back} given back, {lost} lost");
    assert!(given_back > 0, "the moment was never met");
    assert_eq!(lost, 0);
}
