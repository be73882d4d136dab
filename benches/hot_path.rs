//! How many instructions the hot path takes, counted by callgrind: the same on a busy machine as on an idle one.
//!
//!     script/bench-check             # compares with benches/instructions.toml
//!     script/bench-check --record    # writes it
//!
//! Each figure is the difference between two runs of this program under valgrind, one that does the work and one that
//! only opens the same store, divided by the number of jobs. The stores are filled before, without valgrind.

mod subjects;

use redrive::{domain::Preset, queue::measured};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use std::{env, fs};
use subjects::{Subject, callgrind};

/// A count that is higher by more than this share fails the check.
const TOLERANCE: f64 = 0.03;
/// The same work may cost this much more with a hundred times the backlog: the trees get deeper, nothing else grows.
const BACKLOG_MAX: f64 = 1.25;
const BACKLOGS: [usize; 2] = [1_000, 100_000];
const BATCHES: [usize; 2] = [1, 100];
const VERBS: [&str; 4] = ["enqueue", "claim", "claim and ack", "claim and nack"];
const FUNCTIONS: [&str; 4] = ["decide", "backoff", "write job", "read job"];
/// Jobs of one run; the smaller backlog has as many.
const JOBS: usize = 1_000;

type Counts = BTreeMap<String, u64>;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["work", task, directory, batch] => {
            work(task, Path::new(directory), batch.parse().expect("a number"));
            // Without closing the store: that is not part of the path.
            std::process::exit(0);
        }
        [] => check(),
        ["--record"] => record(),
        _ => {
            eprintln!("bench-check: the only flag is --record");
            ExitCode::from(2)
        }
    }
}

// ---- under valgrind ----

fn work(task: &str, directory: &Path, batch: usize) {
    if task == "nothing" || FUNCTIONS.contains(&task) {
        return call(task);
    }
    let mut subject = Subject::open(directory);
    for _ in 0..JOBS / batch {
        match task {
            "open" => break,
            "enqueue" => subject.enqueue(batch),
            "claim" => drop(subject.claim(batch)),
            "claim and ack" => {
                let leases = subject.claim(batch);
                subject.ack(leases);
            }
            "claim and nack" => {
                let leases = subject.claim(batch);
                subject.nack(leases);
            }
            other => panic!("{other:?} is nothing to count"),
        }
    }
    // The process ends here; a store that is dropped would write its log into the database first.
    std::mem::forget(subject);
}

fn call(function: &str) {
    let policy = Preset::Standard.policy();
    let spec = subjects::spec();
    let record = measured::write_job(&spec);
    // What is made once is no part of it.
    drop(black_box(subjects::decided()));
    for _ in 0..JOBS {
        match function {
            "nothing" => return,
            "decide" => drop(black_box(subjects::decided())),
            "backoff" => drop(black_box(policy.backoff(3, Some(Duration::from_secs(2)), 0.4))),
            "write job" => drop(black_box(measured::write_job(black_box(&spec)))),
            "read job" => drop(black_box(measured::read_job(black_box(&record)))),
            other => panic!("{other:?} is nothing to count"),
        }
    }
}

// ---- around valgrind ----

fn count_all() -> Counts {
    let room = tempfile::tempdir().expect("there is room for a directory");
    let mut counts = Counts::new();
    let mut keep = |name: String, instructions: u64| {
        println!("{name:<42}{:>10}", instructions / JOBS as u64);
        counts.insert(name, instructions / JOBS as u64);
    };
    let nothing = instructions("nothing", room.path(), 1);
    for function in FUNCTIONS {
        let whole = instructions(function, room.path(), 1);
        keep(function.to_owned(), whole.saturating_sub(nothing));
    }
    for backlog in BACKLOGS {
        let full = filled(room.path(), backlog);
        let opened = instructions("open", &copy(&full), 1);
        for (verb, batch) in VERBS.iter().flat_map(|verb| BATCHES.map(|batch| (verb, batch))) {
            let whole = instructions(verb, &copy(&full), batch);
            keep(name(verb, batch, backlog), whole.saturating_sub(opened));
        }
    }
    for held in BACKLOGS {
        let full = filled_behind(room.path(), held);
        let opened = instructions("open", &copy(&full), 1);
        for batch in BATCHES {
            let whole = instructions("claim", &copy(&full), batch);
            keep(name_behind(batch, held), whole.saturating_sub(opened));
        }
    }
    counts
}

fn name_behind(batch: usize, held: usize) -> String {
    format!("claim, {batch} per call, behind {held} held")
}

/// A store with as many jobs as are claimed, behind so many whose breaker key an operator holds.
fn filled_behind(room: &Path, held: usize) -> PathBuf {
    let directory = room.join(format!("behind-{held}"));
    let mut subject = Subject::open(&directory);
    for _ in 0..held / 1_000 {
        subject.enqueue_of("down", 1_000);
    }
    subject.hold("down");
    subject.enqueue(JOBS);
    subject.close();
    directory
}

fn name(verb: &str, batch: usize, backlog: usize) -> String {
    format!("{verb}, {batch} per call, {backlog} waiting")
}

/// A store with so many jobs waiting.
fn filled(room: &Path, backlog: usize) -> PathBuf {
    let directory = room.join(backlog.to_string());
    let mut subject = Subject::open(&directory);
    for _ in 0..backlog / 1_000 {
        subject.enqueue(1_000);
    }
    subject.close();
    directory
}

/// Every run begins with the same store.
fn copy(directory: &Path) -> PathBuf {
    let copy = directory.with_extension("copy");
    let _ = fs::remove_dir_all(&copy);
    fs::create_dir(&copy).expect("there is room for a directory");
    for entry in fs::read_dir(directory).expect("a directory") {
        let entry = entry.expect("a file");
        fs::copy(entry.path(), copy.join(entry.file_name())).expect("there is room for a file");
    }
    copy
}

/// All that this program executes for one task.
fn instructions(task: &str, directory: &Path, batch: usize) -> u64 {
    callgrind::instructions(&["work", task, &directory.display().to_string(), &batch.to_string()])
}

// ---- what was counted before ----

#[derive(serde::Deserialize)]
struct Recorded {
    /// Another compiler makes other instructions.
    compiler: String,
    /// Per job or call.
    instructions: Counts,
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/instructions.toml")
}

fn compiler() -> String {
    let output = Command::new("rustc").arg("--version").output().expect("rustc is there");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn record() -> ExitCode {
    let mut text = String::from(
        "# Instructions per job or call, counted by callgrind. Written by script/bench-check --record, which\n\
         # a change that costs or saves instructions on purpose runs; script/bench-check compares.\n",
    );
    text += &format!("compiler = {:?}\n\n[instructions]\n", compiler());
    for (name, count) in count_all() {
        text += &format!("{name:?} = {count}\n");
    }
    fs::write(path(), text).expect("the file can be written");
    println!("\nwritten to {}", path().display());
    ExitCode::SUCCESS
}

fn check() -> ExitCode {
    let text =
        fs::read_to_string(path()).expect("benches/instructions.toml is there: script/bench-check --record writes it");
    let recorded: Recorded = toml::from_str(&text).expect("benches/instructions.toml can be read");
    if recorded.compiler != compiler() {
        println!("note: recorded with {}, this is {}\n", recorded.compiler, compiler());
    }
    let counts = count_all();
    let mut problems = against_recorded(&counts, &recorded.instructions);
    problems.extend(against_backlog(&counts));
    if problems.is_empty() {
        println!("\nOK: nothing takes over {:.0} % more than recorded", TOLERANCE * 100.0);
        return ExitCode::SUCCESS;
    }
    println!();
    problems.iter().for_each(|problem| println!("FAILED {problem}"));
    println!("If that is meant to be: script/bench-check --record, and say why in the commit.");
    ExitCode::FAILURE
}

fn against_recorded(counts: &Counts, recorded: &Counts) -> Vec<String> {
    let mut problems = Vec::new();
    for (name, &count) in counts {
        let Some(&before) = recorded.get(name) else {
            problems.push(format!("{name}: {count}, and nothing is recorded"));
            continue;
        };
        let change = count as f64 / before as f64 - 1.0;
        if change > TOLERANCE {
            problems.push(format!("{name}: {count} after {before}, {:+.1} %", change * 100.0));
        } else if change < -TOLERANCE {
            println!("better: {name}: {count} after {before}: record it");
        }
    }
    let gone = recorded.keys().filter(|name| !counts.contains_key(*name));
    problems.extend(gone.map(|name| format!("{name} is recorded but no longer counted")));
    problems
}

fn against_backlog(counts: &Counts) -> Vec<String> {
    let mut problems = Vec::new();
    for (verb, batch) in VERBS.iter().flat_map(|verb| BATCHES.map(|batch| (verb, batch))) {
        let [few, many] = BACKLOGS.map(|backlog| counts[&name(verb, batch, backlog)] as f64);
        if many > few * BACKLOG_MAX {
            let ratio = many / few;
            problems.push(format!("{verb}, {batch} per call: {ratio:.2} times as many with a backlog"));
        }
    }
    for batch in BATCHES {
        let [few, many] = BACKLOGS.map(|held| counts[&name_behind(batch, held)] as f64);
        if many > few * BACKLOG_MAX {
            problems
                .push(format!("claim, {batch} per call: {:.2} times as many behind jobs that are held", many / few));
        }
    }
    problems
}
