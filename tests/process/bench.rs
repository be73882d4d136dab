//! `redrive bench` in each of its modes: short, and what it prints is whole.

use crate::server::{Launch, scratch};
use serde_json::Value;
use std::{path::Path, process::Command};

fn bench(directory: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    command.args(["bench", "--warmup", "0s"]).args(args);
    command.current_dir(directory).env_clear();
    command
}

/// What it says as JSON.
fn measured(args: &[&str]) -> Value {
    let directory = scratch();
    let output = bench(directory.path(), &[&["-o", "json"], args].concat()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let left = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(left, 0, "the server's directory is still there");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn assert_counted(figures: &Value, jobs: u64, calls: &[(&str, u64)]) {
    assert_eq!(figures["jobs"], jobs, "{figures}");
    assert!(figures["jobs_per_second"].as_f64().unwrap() > 0.0, "{figures}");
    for (call, count) in calls {
        let spread = &figures[call];
        assert_eq!(spread["count"], *count, "{call}: {spread}");
        let at = |name: &str| spread[name].as_u64().unwrap();
        assert!(at("p50_us") <= at("p99_us") && at("p99_us") <= at("max_us"), "{spread}");
    }
    assert!(figures["process"]["rss_bytes"].as_u64().unwrap() > 1 << 20, "{figures}");
}

#[test]
fn unary_callers_make_three_calls_for_each_job() {
    let report = measured(&["--jobs", "300", "--workers", "8"]);
    assert_eq!(report["load"]["mode"], "unary");
    assert_eq!(report["server"]["durability"], "fsync");
    assert_eq!(report["server"]["engine"], "embedded");
    let figures = &report["rounds"][0]["redrive"];
    let calls = [("enqueue", 300), ("claim", 300), ("settle", 300), ("delivery", 300)];
    assert_counted(figures, 300, &calls);
    assert_eq!(figures["retry_lateness"], Value::Null);
}

#[test]
fn batches_carry_many_jobs_and_their_ceiling_stands_beside_them() {
    let args = ["--mode", "batch", "--jobs", "1000", "--workers", "2", "--keys", "--durability"];
    let report = measured(&[&args[..], &["none", "--ceiling", "--rounds", "2"]].concat());
    assert_eq!(report["server"]["durability"], "none");
    for round in report["rounds"].as_array().unwrap() {
        assert_counted(&round["redrive"], 1_000, &[("enqueue", 10), ("delivery", 1_000)]);
        assert_counted(&round["ceiling"], 1_000, &[("enqueue", 10), ("settle", 10)]);
        assert!(round["ratio"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(report["rounds"].as_array().unwrap().len(), 2);
    assert!(report["median"]["ratio"].as_f64().unwrap() > 0.0);
}

#[test]
fn streams_fail_some_jobs_and_say_how_late_the_retries_were() {
    let args = ["--mode", "stream", "--jobs", "1000", "--fail-rate", "0.2", "--window", "50"];
    let report = measured(&[&args[..], &["--ceiling"]].concat());
    let figures = &report["rounds"][0]["redrive"];
    let failed = figures["failed_attempts"].as_u64().unwrap();
    assert!(failed > 0, "{figures}");
    let calls = [("enqueue", 10), ("delivery", 1_000 + failed), ("retry_lateness", failed)];
    assert_counted(figures, 1_000, &calls);
    assert_eq!(figures["claim"], Value::Null);
    assert_counted(&report["rounds"][0]["ceiling"], 1_000, &[("enqueue", 10)]);
}

#[tokio::test]
async fn a_server_that_runs_already_is_measured_and_left_as_it_was() {
    let data = scratch();
    let server = Launch::on(data.path()).start();
    for mode in ["unary", "batch", "stream"] {
        let (address, pid) = (server.address.to_string(), server.id().to_string());
        let place = ["--address", &address, "--pid", &pid, "--mode", mode];
        let load = ["--jobs", "500", "--producers", "1", "--workers", "2", "--backlog", "700"];
        let report = measured(&[&place[..], &load[..]].concat());
        assert_eq!(report["server"]["started"], false);
        let figures = &report["rounds"][0]["redrive"];
        assert!(figures["jobs"].as_u64().unwrap() >= 500, "{figures}");
        assert!(figures["process"]["cpu_us_per_job"].is_number(), "{figures}");
    }
    let request = redrive::grpc::pb::GetStatsRequest { queue: "redrive-bench".into() };
    let stats = server.admin().await.get_stats(request).await.unwrap().into_inner();
    assert_eq!(stats.enqueued, stats.completed, "{stats:?}");
}

#[test]
fn the_table_has_the_same_figures_for_people() {
    let directory = scratch();
    let args = ["--jobs", "50", "--workers", "2", "--ceiling", "--rounds", "2"];
    let output = bench(directory.path(), &args).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["unary · embedded engine, durability fsync", "round 2", "median", "ratio", "p99.9"]
    {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert!(output.stderr.is_empty(), "nobody watches: no bar");
}

#[test]
fn a_flag_that_cannot_be_measured_with_is_a_usage_error_and_a_server_that_is_not_there_is_not() {
    let directory = scratch();
    let refused = |args: &[&str]| {
        let output = bench(directory.path(), args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = refused(&["--fail-rate", "1"]);
    assert_eq!(code, Some(2));
    assert!(text.starts_with("redrive: --fail-rate: it must be from 0 to 0.9"), "{text}");
    let (code, text) = refused(&["--address", "127.0.0.1:1"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("Connection refused") && text.contains("redrive serve"), "{text}");
    let (code, text) = refused(&["--", "--config", "nowhere.toml"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("nowhere.toml"), "{text}");
}
