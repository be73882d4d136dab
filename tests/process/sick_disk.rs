//! A disk that fails: nothing is guessed, nothing acknowledged is lost, and every caller gets an error.

use crate::requests::{ack, claim, job};
use crate::server::{LONG, Launch, Server, scratch};
use crate::shapes::after;
use crate::shim::Shim;
use redrive::grpc::pb::admin_service_client::AdminServiceClient;
use redrive::grpc::pb::enqueue_request::Body;
use redrive::grpc::pb::queue_service_client::QueueServiceClient;
use redrive::grpc::pb::{ClaimRequest, EnqueueRequest, GetJobRequest, JobState};
use std::{fs, path::PathBuf, time::Duration};
use tempfile::TempDir;
use tonic::{Code, Status, transport::Channel};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

static SHIM: Shim = Shim::new("sickdisk.c");

/// A server whose disk falls ill when told.
struct Patient {
    place: TempDir,
    server: Server,
    channel: Channel,
}

impl Patient {
    async fn start() -> Self {
        let place = scratch();
        let server = Launch::on(&place.path().join("data"))
            .env("LD_PRELOAD", SHIM.library())
            .env("SICKDISK", place.path().join("sick"))
            .start();
        let channel = server.connect().await;
        Self { place, server, channel }
    }

    fn sickness(&self) -> PathBuf {
        self.place.path().join("sick")
    }

    fn falls_ill(&self, how: &str) {
        // All at once: the shim must not read half a word.
        let new = self.place.path().join("sick.new");
        fs::write(&new, how).unwrap();
        fs::rename(new, self.sickness()).unwrap();
    }

    fn recovers(&self) {
        fs::remove_file(self.sickness()).unwrap();
    }

    async fn enqueue(&self) -> Result<String, Status> {
        let reply = QueueServiceClient::new(self.channel.clone()).enqueue(job("q")).await?;
        Ok(reply.into_inner().job_id)
    }

    async fn claim(&self) -> Result<String, Status> {
        let reply = QueueServiceClient::new(self.channel.clone()).claim(claim("q")).await?;
        Ok(reply.into_inner().jobs[0].lease.clone())
    }

    async fn ack(&self, lease: &str) -> Result<(), Status> {
        QueueServiceClient::new(self.channel.clone()).ack(ack(lease)).await.map(|_| ())
    }

    async fn assert_there(&self, id: &str) {
        let request = GetJobRequest { job_id: id.into(), ..GetJobRequest::default() };
        AdminServiceClient::new(self.channel.clone()).get_job(request).await.unwrap();
    }
}

#[track_caller]
fn assert_unavailable<T: std::fmt::Debug>(result: Result<T, Status>, reason: &str) {
    let status = result.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    let details = status.get_error_details();
    assert_eq!(details.error_info().map(|info| info.reason.as_str()), Some(reason));
    assert!(details.retry_info().is_some(), "waiting may help, and the answer says so");
}

#[tokio::test]
async fn an_fsync_that_fails_stops_all_writes_until_a_restart() {
    let mut patient = Patient::start().await;
    let before = patient.enqueue().await.unwrap();
    patient.falls_ill("fsync");
    // It may be on the disk or not.
    assert_unavailable(patient.enqueue().await, "OUTCOME_UNKNOWN");
    // The disk claims to be well again. What it has kept is not known, so the store takes no writes.
    patient.recovers();
    assert_unavailable(patient.enqueue().await, "STORE_UNAVAILABLE");
    assert_unavailable(patient.claim().await, "STORE_UNAVAILABLE");
    patient.server.log_line("takes no more writes");
    let mut health = HealthClient::new(patient.channel.clone());
    let watched = health.watch(HealthCheckRequest::default()).await.unwrap();
    let mut watched = watched.into_inner();
    let not_serving =
        async { while watched.message().await.unwrap().unwrap().status() != ServingStatus::NotServing {} };
    tokio::time::timeout(LONG, not_serving).await.expect("the health tells of it");

    patient.server.kill();
    patient.server = Launch::on(&patient.place.path().join("data")).start();
    patient.channel = patient.server.connect().await;
    patient.assert_there(&before).await;
    let lease = patient.claim().await.unwrap();
    patient.ack(&lease).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_cannot_be_copied_into_the_database_stops_all_writes_too() {
    let mut patient = Patient::start().await;
    patient.falls_ill("copy");
    let mut there = Vec::new();
    let refused = async {
        loop {
            // The log is copied once it is longer than 16 MiB.
            let large = EnqueueRequest { body: Some(Body::Data(vec![1; 256 << 10].into())), ..job("q") };
            match QueueServiceClient::new(patient.channel.clone()).enqueue(large).await {
                Ok(reply) => there.push(reply.into_inner().job_id),
                Err(status) => return status,
            }
        }
    };
    let refused = tokio::time::timeout(LONG, refused).await.expect("it is noticed");
    assert_unavailable(Err::<(), _>(refused), "STORE_UNAVAILABLE");
    assert!(there.len() > 50, "{} jobs are not yet 16 MiB", there.len());
    patient.server.log_line("takes no more writes");

    // The disk claims to be well again, but what was copied may be lost: all of it must stay in the log.
    patient.recovers();
    let log = patient.place.path().join("data/redrive.db-wal");
    let length = || fs::metadata(&log).unwrap().len();
    let before = length();
    patient.server.stop();
    assert_eq!(length(), before);
    patient.server = Launch::on(&patient.place.path().join("data")).start();
    patient.channel = patient.server.connect().await;
    for id in &there {
        patient.assert_there(id).await;
    }
}

#[tokio::test]
async fn what_time_makes_due_waits_for_no_disk() {
    let patient = Patient::start().await;
    let later =
        EnqueueRequest { start: after(Some(prost_types::Duration { seconds: 0, nanos: 300_000_000 })), ..job("q") };
    let mut queue = QueueServiceClient::new(patient.channel.clone());
    let id = queue.enqueue(later).await.unwrap().into_inner().job_id;
    patient.falls_ill("fsync");
    let mut admin = AdminServiceClient::new(patient.channel.clone());
    let due = async {
        loop {
            let request = GetJobRequest { job_id: id.clone(), ..GetJobRequest::default() };
            let info = admin.get_job(request).await.unwrap().into_inner().info.unwrap();
            if info.state() == JobState::Ready {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, due).await.expect("it is due");
    // The worker gets it only once the disk has all of that.
    assert_unavailable(patient.claim().await, "OUTCOME_UNKNOWN");
}

#[tokio::test]
async fn a_lease_that_runs_out_is_shown_only_once_the_disk_has_it() {
    let patient = Patient::start().await;
    let id = patient.enqueue().await.unwrap();
    let short = ClaimRequest { lease_duration: Some(prost_types::Duration { seconds: 1, nanos: 0 }), ..claim("q") };
    QueueServiceClient::new(patient.channel.clone()).claim(short).await.unwrap();
    patient.falls_ill("fsync");
    patient.server.log_line("takes no more writes");
    let mut admin = AdminServiceClient::new(patient.channel.clone());
    let request = GetJobRequest { job_id: id, ..GetJobRequest::default() };
    let info = admin.get_job(request).await.unwrap().into_inner().info.unwrap();
    assert_eq!(info.state(), JobState::Leased);
}

#[tokio::test]
async fn a_full_disk_refuses_and_goes_on_when_there_is_room() {
    let patient = Patient::start().await;
    let before = patient.enqueue().await.unwrap();
    let lease = patient.claim().await.unwrap();
    patient.falls_ill("full");
    assert_unavailable(patient.enqueue().await, "DISK_LOW");
    for _ in 0..20 {
        let refused = patient.ack(&lease).await;
        let said = refused.as_ref().unwrap_err().message();
        assert!(said.starts_with("the disk is full, and nothing was changed; free some space"), "{said}");
        assert_unavailable(refused, "DISK_LOW");
    }
    patient.assert_there(&before).await;
    // In its log, which is whole once it says that it has read its configuration again.
    patient.server.reload();
    patient.server.log_line("configuration reloaded");
    assert_eq!(patient.server.log_lines("nothing was written"), 1, "at most one a minute");

    patient.recovers();
    let after = patient.enqueue().await.unwrap();
    patient.ack(&lease).await.unwrap();
    patient.assert_there(&after).await;
}
