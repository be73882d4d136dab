//! `redrive bench` in each of its modes: short, and what it prints is whole.

use crate::server::{Launch, scratch};
use serde_json::{Value, json};
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
    let process = &figures["process"];
    let (rss, peak) = (process["rss_bytes"].as_u64().unwrap(), process["peak_rss_bytes"].as_u64().unwrap());
    assert!(1 << 20 < rss && rss <= peak && peak < 1 << 30, "{figures}");
    assert!(process["cores"].as_f64().unwrap() < 1_000.0, "{figures}");
}

/// What the flags and their defaults come to.
#[track_caller]
fn assert_load(report: &Value, expected: Value) {
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(report["load"][name], *value, "{name}");
    }
}

#[test]
fn each_mode_has_its_own_defaults() {
    let report = measured(&["--duration", "10ms"]);
    assert_load(&report, json!({"producers": 0, "workers": 64, "batch": 1, "jobs": null, "duration_seconds": 0.01}));
    let report = measured(&["--mode", "batch", "--jobs", "10"]);
    assert_load(&report, json!({"producers": 0, "workers": 16, "batch": 100, "jobs": 10, "duration_seconds": null}));
    let report = measured(&["--mode", "stream", "--jobs", "10"]);
    assert_load(&report, json!({"producers": 4, "workers": 4, "ahead": 8_000}));
    // A body with room remembers when it was made.
    assert_eq!(report["rounds"][0]["redrive"]["delivery"]["count"], 10);
    let report = measured(&["--mode", "batch", "--jobs", "10", "--payload", "7"]);
    assert_eq!(report["rounds"][0]["redrive"]["delivery"], Value::Null);
}

#[test]
fn unary_callers_make_three_calls_for_each_job() {
    let report = measured(&["--jobs", "300", "--workers", "8"]);
    assert_load(&report, json!({"mode": "unary", "producers": 0, "batch": 1, "jobs": 300, "duration_seconds": null}));
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
    let report = measured(&[&args[..], &["none", "--ceiling", "--rounds", "3"]].concat());
    assert_eq!(report["server"]["durability"], "none");
    for round in report["rounds"].as_array().unwrap() {
        assert_counted(&round["redrive"], 1_000, &[("enqueue", 10), ("delivery", 1_000)]);
        assert_counted(&round["ceiling"], 1_000, &[("enqueue", 10), ("settle", 10)]);
        let rate = |of: &str| round[of]["jobs_per_second"].as_f64().unwrap();
        assert_eq!(round["ratio"], rate("redrive") / rate("ceiling"));
    }
    assert_eq!(report["rounds"].as_array().unwrap().len(), 3);
    // Not the ratio of the medians: if a round was faster for both, the machine was.
    assert_eq!(report["median"]["ratio"], middle(&report, |round| &round["ratio"]));
    let redrive = middle(&report, |round| &round["redrive"]["jobs_per_second"]);
    let ceiling = middle(&report, |round| &round["ceiling"]["jobs_per_second"]);
    let median = &report["median"];
    assert_eq!((&median["jobs_per_second"], &median["ceiling_jobs_per_second"]), (&redrive.into(), &ceiling.into()));
}

/// The figure that as many of the rounds are below as above.
fn middle(report: &Value, figure: fn(&Value) -> &Value) -> f64 {
    let mut figures: Vec<f64> =
        report["rounds"].as_array().unwrap().iter().flat_map(|it| figure(it).as_f64()).collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
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
        // Jobs that only wait remember nothing.
        assert!(figures["delivery"]["count"].as_u64().unwrap_or(0) <= 500, "{figures}");
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
    for part in ["unary · embedded engine, durability fsync", "round 2", "median", "ratio", "p99.9"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert!(output.stderr.is_empty(), "not on a terminal: no bar");
}

#[test]
fn a_flag_that_cannot_be_measured_with_is_a_usage_error_and_a_server_that_is_not_there_is_not() {
    let directory = scratch();
    let refused = |args: &[&str]| {
        let output = bench(directory.path(), args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (line, problem) in [
        ("--workers 0", "--workers: it must be at least 1"),
        ("--rounds 0", "--rounds: it must be at least 1"),
        ("--mode stream --producers 0", "--producers: streams only work"),
        ("--jobs 0", "--jobs: it must be at least 1"),
        ("--fail-rate 1", "--fail-rate: it must be from 0 to 0.9"),
        ("--fail-rate NaN", "--fail-rate: it must be from 0 to 0.9"),
        ("--rate 0", "--rate: it must be more than 0"),
        ("--payload 2000000", "--payload: a body has at most 1048576 bytes"),
        ("--mode batch --batch 1001", "--batch: a call takes at most 1000 jobs"),
        ("--mode batch --batch 1000 --payload 10000", "--batch: a call takes at most 1000 jobs and 4 MiB together"),
    ] {
        let (code, text) = refused(&line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(code, Some(2), "{line}");
        assert!(text.starts_with(&format!("redrive: {problem}")), "{text}");
    }
    let (code, text) = refused(&["--address", "127.0.0.1:1"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("Connection refused") && text.contains("redrive serve"), "{text}");
    let (code, text) = refused(&["--", "--config", "nowhere.toml"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("nowhere.toml"), "{text}");
}
