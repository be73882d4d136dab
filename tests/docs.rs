//! The pages show what really happens: their grpcurl lines are run, in order, and their output compared.
//!
//! Each page has a server of its own, started with the block "```toml redrive.toml" of that page, if there is one.
//! Ids, leases and times differ from run to run. Where a page shows one of them, what this run has instead is put
//! into the commands that follow, as a reader would.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const ADDRESS: &str = "127.0.0.1:7433";
const DATA: &str = "/home/ada/redrive/redrive-data";

/// What is different each time.
const CHANGING: [&str; 18] = [
    "jobId",
    "lease",
    "runAt",
    "leaseExpiresAt",
    "enqueuedAt",
    "serverTime",
    "retryAt",
    "retryAfter",
    "delay",
    "explanation",
    "startedAt",
    "endedAt",
    "time",
    "firstFailedAt",
    "lastFailedAt",
    "diedAt",
    "openedAt",
    "probeAt",
];

struct Server {
    child: Child,
    address: String,
    banner: Vec<String>,
    folder: tempfile::TempDir,
}

impl Server {
    fn start(config: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(data(folder.path()));
        if let Some(text) = config {
            let file = folder.path().join("redrive.toml");
            fs::write(&file, text).unwrap();
            command.arg("--config").arg(file);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut banner = Vec::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
            banner.push(line);
            if banner.last().is_some_and(|line| line.contains("grpcurl")) {
                break;
            }
        }
        let address = banner
            .iter()
            .find_map(|line| line.trim().strip_prefix("gRPC").map(|rest| rest.trim().to_owned()))
            .expect("the banner names the address");
        Self { child, address, banner, folder }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn data(folder: &Path) -> PathBuf {
    folder.join("redrive-data")
}

/// A command and the output that a page shows for it.
struct Shown {
    command: String,
    output: Vec<String>,
}

fn page(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// The blocks of this kind, without their fences.
fn blocks<'a>(page: &'a str, fence: &str) -> impl Iterator<Item = &'a str> {
    let begin = format!("```{fence}\n");
    let mut rest = page;
    std::iter::from_fn(move || {
        rest = rest.split_once(&begin)?.1;
        rest.split("```").next()
    })
}

fn shown(page: &str) -> Vec<Shown> {
    let block = |text: &str| {
        let (command, output) = text.trim_end().split_once('\n').unwrap_or_else(|| (text.trim_end(), ""));
        let command = command.strip_prefix("$ ").expect("a block begins with its command");
        Shown { command: command.into(), output: output.lines().map(str::to_owned).collect() }
    };
    blocks(page, "console").map(block).collect()
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

/// Runs the examples of a page, of which it has so many.
#[track_caller]
fn assert_shows_what_happens(name: &str, examples: usize) {
    let page = page(name);
    let server = Server::start(blocks(&page, "toml redrive.toml").next());
    let mut here: HashMap<String, String> = HashMap::from([(ADDRESS.into(), server.address.clone())]);
    let shown = shown(&page);
    assert_eq!(shown.len(), examples, "{name} lost an example, or has one that is not counted here");
    for Shown { mut command, output } in shown {
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

#[test]
fn the_readme_shows_a_job_that_fails_and_comes_back() {
    assert_shows_what_happens("README.md", 5);
}

#[test]
fn the_readme_shows_what_serve_prints() {
    let server = Server::start(None);
    let shown = page("README.md");
    let shown = blocks(&shown, "text").find(|block| block.starts_with("$ cargo run --release -- serve\n"));
    let shown = shown.expect("the README shows how to start the server");
    let shown: Vec<_> = shown.lines().skip(1).map(str::to_owned).collect();
    let data = data(server.folder.path()).display().to_string();
    let really: Vec<_> =
        server.banner.iter().map(|line| line.replace(&server.address, ADDRESS).replace(&data, DATA)).collect();
    assert_eq!(shown, really);
}

#[test]
fn the_page_on_concepts_shows_what_happens() {
    assert_shows_what_happens("docs/concepts.md", 3);
}

#[test]
fn the_page_on_policies_shows_what_happens() {
    assert_shows_what_happens("docs/policies-and-error-rules.md", 1);
}

#[test]
fn the_page_on_breakers_and_dead_letters_shows_what_happens() {
    assert_shows_what_happens("docs/breakers-and-dead-letters.md", 18);
}

#[test]
fn the_page_on_errors_shows_what_happens() {
    assert_shows_what_happens("docs/errors-and-limits.md", 4);
}

#[test]
fn every_configuration_that_a_page_shows_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("redrive.toml");
    let names = ["policies-and-error-rules", "breakers-and-dead-letters", "configuration", "redis"];
    for name in names.map(|name| format!("docs/{name}.md")) {
        let page = page(&name);
        let shown: Vec<_> = blocks(&page, "toml").chain(blocks(&page, "toml redrive.toml")).collect();
        assert!(!shown.is_empty(), "{name} lost its example");
        for text in shown {
            fs::write(&file, text).unwrap();
            let checked = Command::new(env!("CARGO_BIN_EXE_redrive")).args(["config", "check"]).arg(&file).output();
            let checked = checked.unwrap();
            let problems = String::from_utf8_lossy(&checked.stderr);
            assert!(checked.status.success(), "{name} shows\n{text}\nwhich is refused:\n{problems}");
        }
    }
}
