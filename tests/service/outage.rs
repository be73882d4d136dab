//! Ten minutes without what the workers call: the reason why redrive has breakers.

use crate::server::{Server, Setup, ack, claim, nack};
use redrive::{domain::QueueSettings, grpc::pb};
use std::time::Duration;

const JOBS: usize = 1_000;
const DOWN: Duration = Duration::from_secs(600);

#[derive(Debug, Default, PartialEq)]
struct Tale {
    dead: u32,
    done: u32,
    /// Deliveries that failed while the downstream was down.
    failures: u32,
    /// Those among them that used up a try when they were reported.
    counted: u32,
    /// Tries that jobs had lost when they were delivered for the last time.
    lost: u32,
    probes: u32,
    /// How long after the downstream was back the last job was done.
    drained_after: Duration,
}

/// A worker that takes what it gets, up to fifty jobs at a time, and asks again when the server says so. Everything that it
/// calls fails for ten minutes, then works.
async fn live_through(breaker: bool) -> Tale {
    let mut queue = QueueSettings::default();
    queue.breaker.disabled = !breaker;
    // As for a queue that sets max_retries: by default what is down is waited for.
    queue.patient = None;
    let server = Server::with(Setup { defaults: queue, ..Setup::default() }).await;
    let jobs = vec![crate::server::job("q"); JOBS];
    server.queue().enqueue_batch(pb::EnqueueBatchRequest { jobs }).await.unwrap();
    let (mut tale, mut now) = (Tale::default(), Duration::ZERO);
    while (tale.done + tale.dead) < JOBS as u32 {
        assert!(now < Duration::from_secs(7_200), "it comes to no end: {tale:?}");
        let up_to = pb::ClaimRequest { max_jobs: 50, ..claim("q") };
        let claimed = server.claim(up_to).await.unwrap();
        if claimed.jobs.is_empty() {
            let after = claimed.idle[0].retry_after.expect("the server knows when to come again");
            let after = Duration::try_from(after).unwrap();
            now += after;
            server.pass(after).await;
            continue;
        }
        let mut settle = pb::SettleRequest::default();
        for job in &claimed.jobs {
            if now < DOWN {
                settle.nacks.push(nack(&job.lease, "ConnectionRefused"));
            } else {
                tale.lost += job.attempt - 1;
                settle.acks.push(ack(&job.lease));
            }
        }
        assert!(now >= DOWN || breaker || claimed.jobs.iter().all(|job| job.attempt <= 4));
        let failed = u32::try_from(settle.nacks.len()).unwrap();
        tale.done += u32::try_from(settle.acks.len()).unwrap();
        tale.failures += failed;
        for nack in server.settle(settle).await.unwrap().nacks {
            let Some(pb::nack_result::Outcome::Ok(answer)) = nack.outcome else { panic!("every lease is out") };
            tale.counted += u32::from(answer.attempt_counted);
            tale.dead += u32::from(answer.outcome() == pb::NackOutcome::DeadLettered);
        }
        // One round of work takes this long.
        now += Duration::from_millis(20);
        server.pass(Duration::from_millis(20)).await;
    }
    tale.drained_after = now.saturating_sub(DOWN);
    let dead = server.stats("q").await.unwrap().dead_lettered;
    assert_eq!(dead, u64::from(tale.dead));
    let request = pb::ListJobsRequest { queue: "q".into(), ..Default::default() };
    let left = crate::server::inner(server.admin().list_jobs(request).await).unwrap();
    assert_eq!(left.jobs.len().min(100), (tale.dead as usize).min(100), "no job is forgotten");
    tale.probes = server.breaker("queue:q").await.unwrap().trips.saturating_sub(1);
    tale
}

#[tokio::test]
async fn an_outage_of_ten_minutes_costs_no_job_with_the_breaker_and_every_job_without() {
    let with = live_through(true).await;
    let without = live_through(false).await;
    println!("ten minutes down, {JOBS} jobs, policy standard");
    println!("  with the breaker:    {with:?}");
    println!("  without the breaker: {without:?}");
    assert_eq!((with.dead, with.done), (0, 1_000));
    assert_eq!(with.lost, 0, "the failures that were counted before it opened are returned");
    // After the first fifty, probes that double their wait, ten seconds at most.
    assert_eq!(with.failures, 50 + with.probes);
    assert!((60..=75).contains(&with.probes), "{with:?}");
    assert!(with.drained_after < Duration::from_secs(120), "{with:?}");
    assert_eq!((without.dead, without.done), (1_000, 0));
    assert_eq!((without.failures, without.counted), (4_000, 4_000));
}

#[tokio::test]
async fn three_jobs_without_configuration_outlive_a_minute_without_what_they_call() {
    let server = Server::with(Setup::default()).await;
    let jobs = vec![crate::server::job("q"); 3];
    server.queue().enqueue_batch(pb::EnqueueBatchRequest { jobs }).await.unwrap();
    let (mut now, mut failures, mut done) = (Duration::ZERO, 0, 0);
    while done < 3 {
        assert!(now < Duration::from_secs(300), "{done} done after {now:?}");
        let claimed = server.claim(pb::ClaimRequest { max_jobs: 3, ..claim("q") }).await.unwrap();
        for job in &claimed.jobs {
            if now >= Duration::from_secs(60) {
                server.ack(&job.lease).await.unwrap();
                done += 1;
                continue;
            }
            let answer = server.nack(nack(&job.lease, "ConnectionRefused")).await.unwrap();
            assert_eq!(answer.outcome(), pb::NackOutcome::RetryScheduled);
            assert!(answer.explanation.contains("patient, because the failure is unreachable"), "{answer:?}");
            assert_eq!(answer.rule, "default: category=unreachable");
            failures += 1;
        }
        let after = claimed.idle.first().and_then(|idle| idle.retry_after);
        let after = after.map_or(Duration::from_millis(20), |after| after.try_into().unwrap());
        now += after;
        server.pass(after).await;
    }
    // Each failed, and the queue was held.
    assert!(failures >= 5, "{failures}");
    assert!(server.breaker("queue:q").await.unwrap().trips >= 1);
    assert_eq!(server.stats("q").await.unwrap().dead_lettered, 0);
}
