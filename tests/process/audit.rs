//! `redrive audit` beside a running server, after a kill, and over damage.

use crate::{
    requests::{claim, job},
    server::{Launch, scratch},
};
use redrive::grpc::pb::EnqueueRequest;
use std::{
    path::Path,
    process::{Command, Output},
};

fn audit(data: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    command.env_clear().current_dir(env!("CARGO_TARGET_TMPDIR"));
    command.arg("audit").arg("--data").arg(data).args(args).output().unwrap()
}

fn said(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_audit_runs_beside_a_server_and_after_its_death() {
    let place = scratch();
    let data = place.path().join("data");
    let mut server = Launch::on(&data).start();
    let mut queue = server.queue().await;
    for id in 0..50 {
        queue.enqueue(EnqueueRequest { job_id: format!("{id}"), ..job("q") }).await.unwrap();
    }
    queue.claim(claim("q")).await.unwrap();
    let (code, text) = said(&audit(&data, &[]));
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("50 jobs in 1 queues") && text.ends_with("everything adds up\n"),
        "{text}"
    );
    // The server has not noticed.
    queue.enqueue(job("q")).await.unwrap();
    server.kill();
    let (code, text) = said(&audit(&data, &["-o", "json"]));
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &json["ok"], &json["jobs"]), (Some(0), &true.into(), &51.into()));

    let database = rusqlite::Connection::open(data.join("redrive.db")).unwrap();
    database.execute("DELETE FROM ready WHERE member >> 8 = 31", []).unwrap();
    drop(database);
    let (code, text) = said(&audit(&data, &[]));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("2 things are off:\n"), "{text}");
    assert!(text.contains("places: queue q: job 31 (30) is nowhere"), "{text}");
    assert!(
        text.contains("counts: queue q: the index ready counts 50 entries and has 49"),
        "{text}"
    );
}

#[test]
fn an_audit_of_nothing_says_so() {
    let place = scratch();
    let output = audit(&place.path().join("none"), &[]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("is this the data directory of a server that has run?"), "{said}");
    assert!(!place.path().join("none").exists(), "an audit makes nothing");
}
