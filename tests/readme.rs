//! The README shows what really happens: its grpcurl lines are run, in order, and their output compared.
//!
//! Ids, leases and times differ from run to run. Where the README shows one of them, what this run has instead is put
//! into the commands that follow, as a reader would.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const ADDRESS: &str = "127.0.0.1:7433";

/// What is different each time.
const CHANGING: [&str; 14] = [
    "jobId",
    "lease",
    "runAt",
    "leaseExpiresAt",
    "enqueuedAt",
    "serverTime",
    "retryAt",
    "delay",
    "explanation",
    "startedAt",
    "endedAt",
    "firstFailedAt",
    "lastFailedAt",
    "diedAt",
];

struct Server {
    child: Child,
    address: String,
    _data: tempfile::TempDir,
}

impl Server {
    fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_redrive"))
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(data.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines
            .map_while(Result::ok)
            .find_map(|line| line.trim().strip_prefix("gRPC").map(|rest| rest.trim().to_owned()))
            .expect("the banner names the address");
        Self { child, address, _data: data }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command and the output that the README shows for it.
struct Shown {
    command: String,
    output: Vec<String>,
}

fn shown(readme: &str) -> Vec<Shown> {
    let blocks = readme.split("```console\n").skip(1);
    let block = |text: &str| {
        let text = text.split("\n```").next().unwrap();
        let (command, output) = text.split_once('\n').unwrap_or((text, ""));
        let command = command.strip_prefix("$ ").expect("a block begins with its command");
        Shown { command: command.into(), output: output.lines().map(str::to_owned).collect() }
    };
    blocks.map(block).collect()
}

fn run(command: &str) -> Vec<String> {
    let output = Command::new("bash").args(["-c", command]).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let lines: Vec<_> = String::from_utf8(text).unwrap().lines().map(str::to_owned).collect();
    let missing = lines.iter().any(|line| line.contains("command not found"));
    assert!(!missing, "grpcurl is not there: script/test installs it");
    lines
}

/// `"key": value` of a line of JSON.
fn entry(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.trim().trim_end_matches(',').split_once(':')?;
    Some((key.trim().trim_matches('"'), value.trim()))
}

#[test]
fn the_readme_shows_what_really_happens() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let server = Server::start();
    let mut here: HashMap<String, String> = HashMap::from([(ADDRESS.into(), server.address.clone())]);
    let blocks = shown(&readme);
    assert!(blocks.len() >= 8, "the README lost its examples");
    for Shown { mut command, output } in blocks {
        for (readers, ours) in &here {
            command = command.replace(readers, ours);
        }
        let really = run(&command);
        let context = || format!("{command}\nshown:\n{}\nreally:\n{}", output.join("\n"), really.join("\n"));
        assert_eq!(output.len(), really.len(), "{}", context());
        for (shown, really) in output.iter().zip(&really) {
            let mut expected = shown.clone();
            if let (Some((key, value)), Some((real_key, real_value))) = (entry(shown), entry(really))
                && key == real_key
                && CHANGING.contains(&key)
            {
                let plain = |value: &str| value.trim_matches('"').to_owned();
                here.insert(plain(value), plain(real_value));
            }
            for (readers, ours) in &here {
                expected = expected.replace(readers, ours);
            }
            // grpcurl's own choice of blanks is not the point.
            let squeeze = |line: &str| line.split_whitespace().collect::<String>();
            assert_eq!(squeeze(&expected), squeeze(really), "{}", context());
        }
    }
}
