//! What a job costs beside ten million others, and beside a thousand: instructions (callgrind), pages read, and time.
//!
//!     cargo bench --bench backlog                       # a quarter of an hour, and 8 GB of disk
//!     cargo bench --bench backlog -- --waiting 100000   # a shorter line
//!
//! Needs valgrind, which script/bench-check installs. Fails where a backlog makes anything grow by more than its trees
//! get deeper.

mod subjects;

use redrive::{domain::Outcome, env::instant};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{env, fs};
use subjects::{Subject, callgrind, failure};

/// The same work may cost this much more: the trees get deeper, nothing else grows.
const GROWTH_MAX: f64 = 1.25;
const FEW: usize = 1_000;
const WAITING: usize = 10_000_000;
/// Scheduled retries, or dead letters.
const ASIDE: usize = 1_000_000;
/// Of one run, and of one call.
const JOBS: usize = 1_000;
const BATCH: usize = 100;
/// In this order: what is promoted has failed before. The last two are counted per call.
const VERBS: [&str; 6] = ["enqueue", "claim and ack", "claim and nack", "promote", "stats", "first page"];
/// What every job goes through.
const LIFE: [&str; 2] = ["enqueue", "claim and ack"];
/// What has to cost the same. An enqueue alone finds its place at the end of a deeper tree and shows that most.
const WAYS: [(&str, &[&str]); 4] = [
    ("a job's life", &LIFE),
    ("an attempt more", &["claim and nack", "promote"]),
    ("a look at stats", &["stats"]),
    ("a first page", &["first page"]),
];
/// Each store is timed so often, in turn, for so many jobs.
const ROUNDS: usize = 5;
const TIMED_JOBS: usize = 20_000;

fn main() {
    let args: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["work", task, directory] => {
            work(task, Path::new(directory));
            // Without closing the store: that is not part of the path.
            std::process::exit(0);
        }
        [] => compare(WAITING, ASIDE),
        ["--waiting", waiting] => {
            let waiting = waiting.parse().expect("a number of jobs");
            compare(waiting, ASIDE.min(waiting));
        }
        _ => panic!("backlog: the only flag is --waiting N"),
    }
}

// ---- what is measured ----

fn work(task: &str, directory: &Path) {
    let mut subject = Subject::open(directory);
    let read_before = bytes_read();
    match task {
        "open" => {}
        "promote" => {
            subject.pass(Duration::from_secs(60));
            let mut promoted = 0;
            while promoted < JOBS {
                promoted += subject.promote();
            }
        }
        _ => (0..JOBS / BATCH).for_each(|_| once(task, &mut subject)),
    }
    println!("{}", bytes_read() - read_before);
    // The process ends here; a store that is dropped would write its log into the database first.
    std::mem::forget(subject);
}

fn once(verb: &str, subject: &mut Subject) {
    match verb {
        "enqueue" => subject.enqueue(BATCH),
        "claim and ack" => {
            let leases = subject.claim(BATCH);
            subject.ack(leases);
        }
        "claim and nack" => {
            let leases = subject.claim(BATCH);
            subject.nack(leases);
        }
        "stats" => subject.stats(),
        "first page" => assert_eq!(subject.first_page(), 100),
        other => panic!("{other:?} is nothing to measure"),
    }
}

/// By this process, from wherever the system had it.
fn bytes_read() -> u64 {
    let io = fs::read_to_string("/proc/self/io").expect("the system counts");
    let read = io.lines().find_map(|line| line.strip_prefix("rchar: "));
    read.and_then(|count| count.parse().ok()).expect("a count")
}

// ---- the stores ----

/// A line of jobs, and what else the queue has.
struct Backlog {
    name: String,
    directory: PathBuf,
    waiting: usize,
}

fn fill(room: &Path, name: &str, waiting: usize, aside: usize, outcome: Option<&Outcome>) -> Backlog {
    let backlog = Backlog { name: name.to_owned(), directory: room.join(name), waiting };
    let began = instant();
    let mut subject = Subject::open(&backlog.directory);
    if let Some(outcome) = outcome {
        for _ in 0..aside / 1_000 {
            subject.enqueue(1_000);
            let leases = subject.claim(1_000);
            subject.end(leases, outcome);
        }
    }
    subject.close();
    backlog.top_up();
    println!("filled: {name} ({:.0?})", began.elapsed());
    backlog
}

impl Backlog {
    /// As many wait as should, and nothing is left in the log.
    fn top_up(&self) {
        let mut subject = Subject::open(&self.directory);
        let missing = self.waiting.saturating_sub(subject.depths().ready as usize);
        for _ in 0..missing / 1_000 {
            subject.enqueue(1_000);
        }
        subject.close();
    }

    /// Instructions and pages for each job, or for each call that only looks.
    fn cost(&self, verb: &str) -> Cost {
        let directory = self.directory.display().to_string();
        let of = if ["stats", "first page"].contains(&verb) { JOBS / BATCH } else { JOBS };
        self.top_up();
        let opened = callgrind::instructions(&["work", "open", &directory]);
        self.top_up();
        let whole = callgrind::instructions(&["work", verb, &directory]);
        let instructions = whole.saturating_sub(opened) as f64 / of as f64;
        self.top_up();
        let program = env::current_exe().expect("this program");
        let output = Command::new(program).args(["work", verb, &directory]).output();
        let said = output.expect("this program runs").stdout;
        let bytes: f64 = String::from_utf8_lossy(&said).trim().parse().expect("a count");
        Cost { instructions, pages: bytes / 4096.0 / of as f64 }
    }

    /// Jobs a second through their whole life.
    fn rate(&self) -> f64 {
        self.top_up();
        let mut subject = Subject::open(&self.directory);
        let began = instant();
        for _ in 0..TIMED_JOBS / BATCH {
            LIFE.iter().for_each(|verb| once(verb, &mut subject));
        }
        let rate = TIMED_JOBS as f64 / began.elapsed().as_secs_f64();
        subject.close();
        rate
    }
}

#[derive(Clone, Copy, Default)]
struct Cost {
    instructions: f64,
    pages: f64,
}

impl Cost {
    fn plus(self, other: Self) -> Self {
        Self { instructions: self.instructions + other.instructions, pages: self.pages + other.pages }
    }
}

fn row(name: &str, base: Cost, cost: Cost) {
    println!(
        "{name:<18}{:>17.0}{:>17.3}{:>15.0}{:>15.3}{:>8.2} ×{:>8.2} ×",
        base.instructions,
        base.pages,
        cost.instructions,
        cost.pages,
        cost.instructions / base.instructions,
        cost.pages / base.pages,
    );
}

// ---- side by side ----

fn compare(waiting: usize, aside: usize) {
    // On a disk, not in memory: /tmp may be too small.
    let room = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("there is room");
    let permanent = match failure() {
        Outcome::Failed { failure, .. } => Outcome::Failed { failure, permanent: true, retry_after: None },
        other => other,
    };
    let later = match failure() {
        Outcome::Failed { failure, .. } => {
            let retry_after = Some(Duration::from_secs(1_800));
            Outcome::Failed { failure, permanent: false, retry_after }
        }
        other => other,
    };
    let few = fill(room.path(), &format!("{FEW} waiting"), FEW, 0, None);
    let others = [
        fill(room.path(), &format!("{waiting} waiting"), waiting, 0, None),
        fill(room.path(), &format!("{aside} scheduled"), FEW, aside, Some(&later)),
        fill(room.path(), &format!("{aside} dead"), FEW, aside, Some(&permanent)),
    ];
    let mut problems = Vec::new();
    let base: Vec<Cost> = VERBS.iter().map(|verb| few.cost(verb)).collect();
    for other in &others {
        println!("\n{:<18}{:>34}{:>30}", "", few.name, other.name);
        println!("{:<18}{:>17}{:>17}{:>15}{:>15}", "", "instructions", "pages", "instr.", "pages");
        let costs: Vec<Cost> = VERBS.iter().map(|verb| other.cost(verb)).collect();
        for ((verb, base), cost) in VERBS.iter().zip(&base).zip(&costs) {
            row(verb, *base, *cost);
        }
        for (name, verbs) in WAYS {
            let whole = |costs: &[Cost]| {
                let parts = VERBS.iter().zip(costs).filter(|(verb, _)| verbs.contains(verb));
                parts.fold(Cost::default(), |sum, (_, cost)| sum.plus(*cost))
            };
            let (base, cost) = (whole(&base), whole(&costs));
            row(name, base, cost);
            let growth = (cost.instructions / base.instructions).max(cost.pages / base.pages);
            if growth > GROWTH_MAX {
                problems.push(format!("{name} with {}: {growth:.2} times", other.name));
            }
        }
    }
    println!("\njobs a second through their life, {BATCH} per call, without fsync, in turn:");
    for round in 1..=ROUNDS {
        let rates: Vec<String> = [&few].into_iter().chain(&others).map(rate_of).collect();
        println!("round {round}  {}", rates.join("   "));
    }
    assert!(problems.is_empty(), "grown with the backlog: {problems:#?}");
}

fn rate_of(backlog: &Backlog) -> String {
    format!("{}: {:.0}", backlog.name, backlog.rate())
}
