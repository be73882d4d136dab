//! The machine's clock is set: an hour ahead, an hour back, while the server runs and while it does not.

use crate::requests::{ack, claim, job, seconds};
use crate::server::{Launch, Server, config_file, scratch};
use crate::wall_clock::WallClock;
use prost_types::Timestamp;
use redrive::grpc::pb::{ClaimRequest, EnqueueRequest, Failure, GetJobRequest, Job, JobState, NackKind, NackRequest};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use tokio::task::JoinHandle;

/// How long a retry waits here.
const DELAY: Duration = Duration::from_secs(5);
const CONFIG: &str = r#"
[defaults]
policy = { strategy = "fixed", base_delay = "5s", jitter = "none", max_retries = 3 }
breaker = { disabled = true }
"#;
const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;

fn start(clock: &WallClock, data: &Path, config: &Path) -> Server {
    clock.of(Launch::on(data).arg("--config").arg(config)).start()
}

/// Asks for the time over and over, and sees that it never goes back.
struct Watcher {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Timestamp>,
}

impl Watcher {
    async fn on(server: &Server, mut last: Timestamp) -> Self {
        let mut queue = server.queue().await;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                let request = ClaimRequest {
                    wait: Some(prost_types::Duration { seconds: 0, nanos: 5_000_000 }),
                    ..claim("nothing-here")
                };
                let reply = queue.claim(request).await.unwrap().into_inner();
                let now = reply.server_time.unwrap();
                assert!((now.seconds, now.nanos) >= (last.seconds, last.nanos), "time went from {last} back to {now}");
                last = now;
            }
            last
        });
        Self { stop, task }
    }

    async fn last(self) -> Timestamp {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

fn nack(job: &Job, kind: NackKind) -> NackRequest {
    NackRequest {
        lease: job.lease.clone(),
        error: Some(Failure { r#type: "Timeout".into(), ..Failure::default() }),
        kind: kind.into(),
        ..NackRequest::default()
    }
}

fn between(from: Timestamp, to: Timestamp) -> f64 {
    (to.seconds - from.seconds) as f64 + f64::from(to.nanos - from.nanos) / 1e9
}

/// Makes the server write to its log, and tells how far its wall clock is from ours.
async fn offset_seen(server: &Server, job: &Job) -> i64 {
    let mut queue = server.queue().await;
    queue.nack(nack(job, NackKind::Permanent)).await.unwrap();
    let line = server.log_line("dead-lettered");
    // As in "timestamp":"2026-01-31T12:34:56.789Z".
    let time = line.split('T').nth(1).unwrap().split('.').next().unwrap();
    let parts: Vec<i64> = time.split(':').map(|part| part.parse().unwrap()).collect();
    let theirs = parts[0] * HOUR + parts[1] * 60 + parts[2];
    let ours = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let apart = (theirs - ours.as_secs().cast_signed()).rem_euclid(DAY);
    match apart > DAY / 2 {
        true => apart - DAY,
        false => apart,
    }
}

async fn nothing_is_early_late_or_ended(jump: i64, over_a_restart: bool) {
    let place = scratch();
    let (data, config) = (place.path().join("data"), config_file(place.path(), CONFIG));
    let clock = WallClock::in_folder(place.path());
    let mut server = start(&clock, &data, &config);
    let mut queue = server.queue().await;
    for id in ["a-retried", "b-leased", "c-logged"] {
        let job = EnqueueRequest { job_id: id.into(), ..job("q") };
        queue.enqueue(job).await.unwrap();
    }
    let three = ClaimRequest { max_jobs: 3, lease_duration: seconds(60), ..claim("q") };
    let began = Instant::now();
    let reply = queue.claim(three).await.unwrap().into_inner();
    let begun = Instant::now();
    let first = reply.server_time.unwrap();
    let [retried, leased, logged] = &reply.jobs[..] else { panic!("{:?}", reply.jobs) };
    let mut watcher = Watcher::on(&server, first).await;

    let sent = Instant::now();
    let decision = queue.nack(nack(retried, NackKind::Retry)).await.unwrap();
    let answered = Instant::now();
    assert_eq!(decision.into_inner().delay, seconds(5));
    if over_a_restart {
        let last = watcher.last().await;
        server.kill();
        clock.set(jump);
        server = start(&clock, &data, &config);
        watcher = Watcher::on(&server, last).await;
        queue = server.queue().await;
    } else {
        clock.set(jump);
    }
    // Was the clock turned at all?
    let offset = offset_seen(&server, logged).await;
    assert!((offset - jump).abs() < 60, "{offset}");

    let patient = ClaimRequest { wait: seconds(20), ..claim("q") };
    let reply = queue.claim(patient).await.unwrap().into_inner();
    let came = Instant::now();
    assert_eq!(reply.jobs[0].job_id, "a-retried");
    let (at_most, at_least) = (came - sent, came - answered);
    assert!(at_most >= DELAY.mul_f64(0.98), "early: {at_most:?}");
    assert!(at_least <= DELAY.mul_f64(1.05), "late: {at_least:?}");

    let request = GetJobRequest { job_id: "b-leased".into(), queue: "q".into(), ..GetJobRequest::default() };
    let info = server.admin().await.get_job(request).await.unwrap();
    assert_eq!(info.into_inner().info.unwrap().state(), JobState::Leased);
    let acked = queue.ack(ack(&leased.lease)).await.unwrap().into_inner();
    assert!(!acked.already_gone);

    // Time went on as it does, within the one percent by which it may be steered.
    watcher.last().await;
    let ending = Instant::now();
    let last = queue.claim(claim("q")).await.unwrap().into_inner();
    let passed = between(first, last.server_time.unwrap());
    println!("{jump:+} s, restart {over_a_restart}: came after {at_least:?}, {passed:.3} s passed");
    assert!(passed >= (ending - begun).as_secs_f64() * 0.98, "{passed}");
    assert!(passed <= began.elapsed().as_secs_f64() * 1.02, "{passed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_neither_moves_retries_nor_ends_leases() {
    tokio::join!(
        nothing_is_early_late_or_ended(HOUR, false),
        nothing_is_early_late_or_ended(-HOUR, false),
        nothing_is_early_late_or_ended(HOUR, true),
        nothing_is_early_late_or_ended(-HOUR, true),
    );
}
