//! A server that did not run for a while.

use crate::beside::job;
use crate::server::{Launch, Server, scratch};
use redrive::grpc::pb::{ClaimRequest, ExtendRequest, GetStatsRequest};
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;

fn signal(server: &Server, signal: Signal) {
    kill_process(Pid::from_raw(server.id() as i32).unwrap(), signal).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_in_time_to_a_stopped_server_counts() {
    let data = scratch();
    let server = Launch::on(data.path()).start();
    let mut client = server.queue().await;
    let lease_duration = Some(prost_types::Duration { seconds: 1, nanos: 0 });
    let claim = ClaimRequest { queues: vec!["q".into()], max_jobs: 20, lease_duration, ..ClaimRequest::default() };
    for _ in 0..20 {
        client.enqueue(job("q", 10)).await.unwrap();
    }
    let jobs = client.claim(claim).await.unwrap().into_inner().jobs;
    assert_eq!(jobs.len(), 20);
    signal(&server, Signal::STOP);
    let sent: Vec<_> = jobs
        .into_iter()
        .map(|job| {
            let mut client = client.clone();
            let extend = ExtendRequest { lease: job.lease, ..ExtendRequest::default() };
            tokio::spawn(async move { client.extend(extend).await })
        })
        .collect();
    // That time passes is what is tested: the leases run out meanwhile.
    tokio::time::sleep(Duration::from_secs(4)).await;
    signal(&server, Signal::CONT);
    for extended in sent {
        extended.await.unwrap().expect("the lease was extended in time");
    }
    let stats = server.admin().await.get_stats(GetStatsRequest::default()).await.unwrap().into_inner();
    assert_eq!((stats.lease_expired, stats.failed_attempts), (0, 0));
    server.log_line("did not run for a while");
}
