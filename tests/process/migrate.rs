//! `redrive migrate`: from a data directory to Redis and back, and from one Redis to another, looked at through real
//! servers; and killed on the way.

use crate::requests::{ack, claim, job, seconds};
use crate::server::{Launch, Server, config_file, scratch};
use crate::servers::{self, Kind, until};
use crate::shapes::after;
use redrive::grpc::pb::EnqueueOutcome;
use redrive::grpc::pb::{
    AckRequest, Breaker, BreakerState, BreakerStatusRequest, ClaimRequest, DeadLetter, EnqueueBatchRequest,
    EnqueueRequest, Failure, GetJobRequest, JobInfo, JobState, JobView, ListDeadLettersRequest, ListJobsRequest,
    ListQueuesRequest, NackKind, NackRequest, PauseQueueRequest, QueueInfo, SetBreakerRequest,
};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Nothing becomes due meanwhile, and the second dead letter is overflow.
const CONFIG: &str = r#"
[defaults]
policy = { base_delay = "1h", max_delay = "1h", max_retries = 3 }
breaker = { disabled = true }
completed_retention = "1h"
dead_letters = { max_entries = 1 }
"#;

fn migrate(config: &Path, from: &str, to: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    command.env_clear().current_dir(env!("CARGO_TARGET_TMPDIR"));
    command.args(["migrate", "--from", from, "--to", to, "--config"]).arg(config);
    command
}

fn said(output: &Output) -> (Option<i32>, String) {
    let (out, err) = (&output.stdout, &output.stderr);
    let text = [String::from_utf8_lossy(out), String::from_utf8_lossy(err)].concat();
    (output.status.code(), text)
}

#[track_caller]
fn assert_whole(command: &mut Command) -> String {
    let (code, text) = said(&command.output().unwrap());
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("everything is there\n"), "{text}");
    text
}

async fn fail(server: &Server, queue: &str, permanent: bool) {
    let mut client = server.queue().await;
    let mut job = client.claim(claim(queue)).await.unwrap().into_inner().jobs.remove(0);
    let error = Failure {
        r#type: "Timeout".into(),
        message: "too slow ".repeat(100),
        stack_trace: "at line 7".into(),
        ..Failure::default()
    };
    let lease = std::mem::take(&mut job.lease);
    let nack = NackRequest {
        lease,
        error: Some(error),
        kind: if permanent { NackKind::Permanent } else { NackKind::Unspecified }.into(),
        checkpoint: "half way".into(),
        ..NackRequest::default()
    };
    client.nack(nack).await.unwrap();
}

/// Ready, scheduled, out, retried, dead and overflow, completed, paused and forced.
async fn busy(server: &Server) {
    let mut queue = server.queue().await;
    for id in ["dead-1", "dead-2", "dead-3"] {
        queue.enqueue(EnqueueRequest { job_id: id.into(), ..job("dying") }).await.unwrap();
        fail(server, "dying", true).await;
    }
    queue.enqueue(job("q")).await.unwrap();
    fail(server, "q", false).await;
    let out = EnqueueRequest { job_id: "out".into(), ..job("q") };
    queue.enqueue(out).await.unwrap();
    let long = ClaimRequest { lease_duration: seconds(3_600), ..claim("q") };
    assert_eq!(queue.claim(long).await.unwrap().into_inner().jobs.len(), 1);
    for priority in [0, 9, 0] {
        queue.enqueue(EnqueueRequest { priority, ..job("q") }).await.unwrap();
    }
    let keyed = EnqueueRequest { job_id: "own".into(), idempotency_key: "key".into(), ..job("q") };
    queue.enqueue(keyed).await.unwrap();
    queue.enqueue(EnqueueRequest { start: after(seconds(3_600)), ..job("q") }).await.unwrap();
    queue.enqueue(job("done")).await.unwrap();
    let done = queue.claim(claim("done")).await.unwrap().into_inner().jobs.remove(0);
    let ack = AckRequest { result: "a result".into(), note: "well".into(), ..ack(&done.lease) };
    queue.ack(ack).await.unwrap();
    let mut admin = server.admin().await;
    let pause = PauseQueueRequest { queue: "q".into(), reason: "moving".into(), duration: seconds(3_600) };
    admin.pause_queue(pause).await.unwrap();
    let force =
        SetBreakerRequest { name: "queue:dying".into(), state: BreakerState::Open.into(), reason: "moving".into() };
    admin.set_breaker(force).await.unwrap();
}

/// All that a caller can see.
#[derive(Debug, PartialEq)]
struct Seen {
    jobs: Vec<JobInfo>,
    dead: Vec<DeadLetter>,
    breakers: Vec<Breaker>,
    /// Queues with their pauses.
    queues: Vec<(String, String)>,
}

async fn seen(server: &Server) -> Seen {
    let (mut admin, mut queue) = (server.admin().await, server.queue().await);
    let queues = admin.list_queues(ListQueuesRequest::default()).await.unwrap().into_inner().queues;
    let mut jobs = Vec::new();
    let mut dead = Vec::new();
    for name in queues.iter().map(|queue| queue.name.clone()) {
        let list = ListJobsRequest { queue: name.clone(), page_size: 1_000, ..Default::default() };
        for listed in admin.list_jobs(list).await.unwrap().into_inner().jobs {
            let job_id = listed.job.unwrap().job_id;
            let get = GetJobRequest { job_id, queue: name.clone(), ..GetJobRequest::default() };
            let mut info = admin.get_job(get).await.unwrap().into_inner().info.unwrap();
            // It tells of the time.
            info.waiting_because.clear();
            jobs.push(info);
        }
        let list = ListDeadLettersRequest { queue: name, view: JobView::Full.into(), ..Default::default() };
        dead.extend(queue.list_dead_letters(list).await.unwrap().into_inner().dead_letters);
    }
    let breakers = queue.breaker_status(BreakerStatusRequest::default()).await.unwrap();
    let mut breakers = breakers.into_inner().breakers;
    // What is counted toward a threshold does not come along.
    breakers.iter_mut().for_each(|breaker| breaker.failure_count = 0);
    let pause = |queue: &QueueInfo| format!("{} {:?} {}", queue.paused, queue.paused_until, queue.paused_reason);
    let queues = queues.iter().map(|queue| (queue.name.clone(), pause(queue))).collect();
    Seen { jobs, dead, breakers, queues }
}

/// The one that was out is ready, and what its worker did is not to be seen.
fn arrived(mut seen: Seen) -> Seen {
    let is_out = |info: &&mut JobInfo| info.job.as_ref().is_some_and(|job| job.job_id == "out");
    let out = seen.jobs.iter_mut().find(is_out).unwrap();
    out.set_state(JobState::Ready);
    out.attempts.clear();
    // When it became ready is told of those who wait.
    out.run_at = None;
    let job = out.job.as_mut().unwrap();
    (job.lease_duration, job.lease_expires_at) = (None, None);
    (job.attempt, job.is_last_attempt) = (0, false);
    seen
}

/// One that was out is listed elsewhere now.
fn by_id(mut seen: Seen) -> Seen {
    seen.jobs.sort_by_key(|info| info.job.as_ref().unwrap().job_id.clone());
    seen
}

fn on_redis(address: &str, config: &Path) -> Launch {
    let server = Launch::bare().arg("--redis").arg(address).arg("--listen").arg("127.0.0.1:0");
    server.arg("--config").arg(config)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_moves_to_redis_and_back_again() {
    let place = scratch();
    let config = config_file(place.path(), CONFIG);
    let (data, back) = (place.path().join("data"), place.path().join("back"));
    let redis = servers::Server::start(Kind::Redis);
    let address = redis.address();
    let on = |data: &Path| Launch::on(data).arg("--config").arg(&config);
    let mut server = on(&data).start();
    busy(&server).await;
    let before = seen(&server).await;
    assert_eq!((before.jobs.len(), before.dead.len()), (11, 3));
    let (code, text) = said(&migrate(&config, data.to_str().unwrap(), &address).output().unwrap());
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("another redrive uses it"), "{text}");
    server.stop();

    let text = assert_whole(&mut migrate(&config, data.to_str().unwrap(), &address));
    let table = "\n\n\
        queue    waiting       dead   overflow  completed  cancelled      added  there before\n\
        done           0          0          0          1          0          1             0\n\
        dying          0          3          2          0          0          3             0\n\
        q              7          0          0          0          0          7             0\n\n\
        everything is there\n";
    assert!(text.ends_with(table), "{text}");
    let mut server = on_redis(&address, &config).start();
    let there = seen(&server).await;
    assert_eq!(there.jobs.iter().filter(|info| info.state() == JobState::Ready).count(), 5);
    assert_eq!(by_id(arrived(seen(&server).await)), by_id(arrived(before)));
    let refused = said(&migrate(&config, &address, back.to_str().unwrap()).output().unwrap());
    assert_eq!(refused.0, Some(1), "{}", refused.1);
    assert!(refused.1.contains("is served: 1 servers listen to it"), "{}", refused.1);
    server.stop();

    assert_whole(&mut migrate(&config, &address, back.to_str().unwrap()));
    let server = on(&back).start();
    assert_eq!(seen(&server).await, there);
    // And it works: its key is held, and the dead go back to work.
    let again = EnqueueRequest { idempotency_key: "key".into(), job_id: "own".into(), ..job("q") };
    assert_eq!(server.queue().await.enqueue(again).await.unwrap().into_inner().outcome(), EnqueueOutcome::Existing);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_moves_from_one_redis_to_another() {
    let place = scratch();
    let config = config_file(place.path(), CONFIG);
    let (from, to) = (servers::Server::start(Kind::Redis), servers::Server::start(Kind::Valkey));
    let (from, to) = (from.address(), to.address());
    let mut server = on_redis(&from, &config).start();
    busy(&server).await;
    let before = seen(&server).await;
    assert_eq!((before.jobs.len(), before.dead.len()), (11, 3));
    let (code, text) = said(&migrate(&config, &from, &to).output().unwrap());
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("is served: 1 servers listen to it"), "{text}");
    server.stop();

    assert_whole(&mut migrate(&config, &from, &to));
    // Once more: it finds everything there.
    assert_whole(&mut migrate(&config, &from, &to));
    for redis in [&from, &to] {
        let (code, text) = verify(["--redis", redis]);
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains("11 jobs in 3 queues"), "{text}");
    }
    let server = on_redis(&to, &config).start();
    assert_eq!(by_id(arrived(seen(&server).await)), by_id(arrived(before)));
    let again = EnqueueRequest { idempotency_key: "key".into(), job_id: "own".into(), ..job("q") };
    assert_eq!(server.queue().await.enqueue(again).await.unwrap().into_inner().outcome(), EnqueueOutcome::Existing);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_that_was_killed_is_completed_by_the_next() {
    const JOBS: usize = 5_000;
    let place = scratch();
    let config = config_file(place.path(), CONFIG);
    let (data, back) = (place.path().join("data"), place.path().join("back"));
    let redis = servers::Server::start(Kind::Redis);
    let address = redis.address();
    let mut server = Launch::on(&data).arg("--config").arg(&config).start();
    let mut queue = server.queue().await;
    for _ in 0..JOBS / 1_000 {
        let jobs = vec![job("many"); 1_000];
        queue.enqueue_batch(EnqueueBatchRequest { jobs }).await.unwrap();
    }
    server.stop();

    let mut first = migrate(&config, data.to_str().unwrap(), &address).stdout(Stdio::null()).spawn().unwrap();
    let copied = || redis.ask::<usize>("HLEN redrive:{many}:j");
    until("some jobs are copied", || async { copied() > 0 }).await;
    first.kill().unwrap();
    first.wait().unwrap();
    let some = copied();
    println!("killed after {some} of {JOBS}");
    assert!(some < JOBS, "it was faster than the kill");
    let text = assert_whole(&mut migrate(&config, data.to_str().unwrap(), &address));
    println!("{text}");
    assert_eq!(copied(), JOBS);
    let there = format!("{:>9}  {some:>12}\n", JOBS - some);
    assert!(text.contains(&there), "{text}");

    let mut second = migrate(&config, &address, back.to_str().unwrap()).stdout(Stdio::null()).spawn().unwrap();
    until("the target is made", || async { back.join("redrive.db-wal").exists() }).await;
    second.kill().unwrap();
    second.wait().unwrap();
    assert_whole(&mut migrate(&config, &address, back.to_str().unwrap()));
    for place in [["--redis", &address], ["--data", back.to_str().unwrap()]] {
        let (code, text) = verify(place);
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains("5000 jobs in 1 queues"), "{text}");
        assert!(text.ends_with("everything adds up\n"), "{text}");
    }
    let _: i64 = redis.ask("ZREMRANGEBYRANK redrive:{many}:ready 0 0");
    let (code, text) = verify(["--redis", &address]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("is nowhere: no worker will be given it"), "{text}");
}

fn verify(place: [&str; 2]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    command.env_clear().current_dir(env!("CARGO_TARGET_TMPDIR"));
    let output = command.arg("verify").args(place).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn places_that_cannot_be_are_refused_and_nothing_is_made() {
    let place = scratch();
    let config = config_file(place.path(), "");
    let (none, to) = (place.path().join("none"), place.path().join("to"));
    let (none, to) = (none.to_str().unwrap(), to.to_str().unwrap());
    let (code, text) = said(&migrate(&config, none, to).output().unwrap());
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("is this the data directory of a server that has run?"), "{text}");
    let here = place.path().to_str().unwrap();
    let same = [(none, none), (here, &*format!("{here}/.")), ("redis://127.0.0.1:1/1", "redis://127.0.0.1:1/1")];
    for (from, to) in same {
        let (code, text) = said(&migrate(&config, from, to).output().unwrap());
        assert_eq!(code, Some(2), "{text}");
        assert!(text.contains("are the same place"), "{text}");
    }
    let (code, text) = said(&migrate(&config, "redis://127.0.0.1:1/1", "redis://127.0.0.1:1/2").output().unwrap());
    assert_eq!(code, Some(1), "another database is another place: {text}");
    let (code, text) = said(&migrate(&config, "http://here", to).output().unwrap());
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("--from: "), "{text}");
    assert!(!Path::new(none).exists() && !Path::new(to).exists(), "nothing is made");
}
