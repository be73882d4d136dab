//! SIGKILL at any moment: the machine goes on, the process does not.

use crate::ledger::{Ledger, Mark, QUEUE};
use crate::load::{self, Load};
use crate::power_cut_image::random::Random;
use crate::requests::{ack, claim, job, seconds};
use crate::server::{Launch, config_file, rounds, scratch};
use redrive::env;
use redrive::grpc::pb::{AttemptStatus, ClaimRequest, EnqueueRequest, GetJobRequest, JobState};
use std::{sync::Arc, time::Duration};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_loses_nothing_and_its_leases_still_hold() {
    let place = scratch();
    let (data, config) = (place.path().join("data"), config_file(place.path(), load::CONFIG));
    let launch = || Launch::on(&data).arg("--config").arg(&config);
    let ledger = Arc::new(Ledger::new());
    let mut random = Random(env::random());
    let mut server = launch().start();
    for round in 1..=rounds(10) {
        let before = ledger.acknowledged();
        let mut load = Load::on(&server, &ledger, random.next()).await;
        load.run(&ledger, 1 + random.below(600)).await;
        server.kill();
        let cut_off = load.end().await;

        server = launch().start();
        let fresh = EnqueueRequest {
            job_id: format!("first-{round}"),
            // Before everything that waits.
            priority: 100,
            ..job(QUEUE)
        };
        let mut queue = server.queue().await;
        queue.enqueue(fresh).await.unwrap();
        let first = queue.claim(claim(QUEUE)).await.unwrap().into_inner();
        assert_eq!(first.jobs[0].job_id, format!("first-{round}"));
        queue.ack(ack(&first.jobs[0].lease)).await.unwrap();

        let mut report = ledger.check(&server, Mark::MAX).await;
        ledger.redeem(&server, &mut report).await;
        println!(
            "round {round}: {} acknowledged, {} checked, {} lost, {} returned, {cut_off} calls cut off",
            ledger.acknowledged() - before,
            report.checked,
            report.lost.len(),
            report.returned.len()
        );
        report.assert_word_kept();
        ledger.begin_anew(&report);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_burns_no_attempt() {
    let place = scratch();
    let launch = || Launch::on(&place.path().join("data"));
    let mut server = launch().start();
    let mut queue = server.queue().await;
    for id in ["acked-after", "looked-at"] {
        let job = EnqueueRequest { job_id: id.into(), ..job("q") };
        queue.enqueue(job).await.unwrap();
    }
    let request = ClaimRequest { max_jobs: 2, lease_duration: seconds(1), ..claim("q") };
    let jobs = queue.claim(request).await.unwrap().into_inner().jobs;
    assert_eq!(jobs.len(), 2);
    server.kill();

    // The leases run out while no server runs.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let server = launch().start();
    let mut queue = server.queue().await;
    let acked = jobs.iter().find(|job| job.job_id == "acked-after").unwrap();
    let reply = queue.ack(ack(&acked.lease)).await.unwrap().into_inner();
    assert!(!reply.already_gone);
    // Long enough for expiry to be applied, were it not for the grace.
    let waiting = ClaimRequest { wait: seconds(1), ..claim("q") };
    let nothing = queue.claim(waiting).await.unwrap().into_inner();
    assert_eq!(nothing.jobs, []);
    let request = GetJobRequest { job_id: "looked-at".into(), queue: String::new(), ..GetJobRequest::default() };
    let info = server.admin().await.get_job(request).await.unwrap();
    let info = info.into_inner().info.unwrap();
    assert_eq!(info.state(), JobState::Leased);
    let statuses: Vec<_> = info.attempts.iter().map(|it| it.status()).collect();
    assert_eq!(statuses, [AttemptStatus::Running]);
}
