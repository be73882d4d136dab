//! `redrive verify` beside a running server, after a kill, and over damage.

use crate::requests::{claim, job};
use crate::server::{Launch, scratch};
use redrive::grpc::pb::{EnqueueBatchRequest, EnqueueRequest};
use std::path::Path;
use std::process::{Command, Output};

fn verify(data: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    command.env_clear().current_dir(env!("CARGO_TARGET_TMPDIR"));
    command.arg("verify").arg("--data").arg(data).args(args).output().unwrap()
}

fn said(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verify_runs_beside_a_server_and_after_its_death() {
    let place = scratch();
    let data = place.path().join("data");
    let mut server = Launch::on(&data).start();
    let mut queue = server.queue().await;
    for id in 0..50 {
        queue.enqueue(EnqueueRequest { job_id: format!("{id}"), ..job("q") }).await.unwrap();
    }
    queue.claim(claim("q")).await.unwrap();
    let (code, text) = said(&verify(&data, &[]));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.starts_with(&format!("{}: 50 jobs in 1 queues, ", data.display())), "{text}");
    let table = "\n\n\
        queue   enqueued   moved_in  completed     purged  cancelled  retention_expired  moved_out       held\n\
        q             50          0          0          0          0                  0          0         50\n\n\
        everything adds up\n";
    assert!(text.ends_with(table), "{text}");
    // The server has not noticed.
    queue.enqueue_batch(EnqueueBatchRequest { jobs: vec![job("q"); 1_000] }).await.unwrap();
    server.kill();
    let (code, text) = said(&verify(&data, &["-o", "json"]));
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &json["ok"], &json["jobs"]), (Some(0), &true.into(), &1_050.into()));

    let database = rusqlite::Connection::open(data.join("redrive.db")).unwrap();
    database.execute("DELETE FROM ready WHERE member >> 8 = 31", []).unwrap();
    let (code, text) = said(&verify(&data, &[]));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("2 things are off:\n"), "{text}");
    assert!(text.contains("places: queue q: job 31 (30) is nowhere"), "{text}");
    assert!(text.contains("counts: queue q: the index ready counts 1049 entries and has 1048"), "{text}");

    // More is counted, but not listed.
    database.execute("DELETE FROM ready", []).unwrap();
    let (code, text) = said(&verify(&data, &[]));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("1050 things are off:\n") && text.ends_with("\n  and 50 more\n"), "{text}");
    let (_, text) = said(&verify(&data, &["-o", "json"]));
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&json["ok"], &json["findings_left_out"]), (&false.into(), &50.into()));
    assert_eq!((&json["queues"][0]["held"], &json["findings"][0]["check"]), (&1_050.into(), &"places".into()));
}

#[test]
fn verify_of_an_empty_place_says_so() {
    let place = scratch();
    let output = verify(&place.path().join("none"), &[]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("is this the data directory of a server that has run?"), "{said}");
    assert!(!place.path().join("none").exists(), "verify creates nothing");
}
