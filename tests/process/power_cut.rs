//! The power goes, and what the disk then holds is the next server's data directory.

use crate::ledger::{Ledger, LedgerReport, Mark};
use crate::load::{self, Load};
use crate::power_cut_image::random::Random;
use crate::power_cut_image::{Lose, Report, copy_dir, crash_image, crash_image_at, differences};
use crate::server::{Launch, Refused, Server, config_file, rounds, scratch};
use crate::shim::Shim;
use redrive::{env, grpc::pb::EnqueueRequest};
use rusqlite::{Connection, OpenFlags};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// At least one, so that a round is a round; at most so many, so that it ends.
const ANSWERS_MAX: u64 = 700;

static SHIM: Shim = Shim::new("powercut.c");

/// One machine: its disk, and the power that goes.
struct Machine {
    place: TempDir,
    config: PathBuf,
    flags: &'static [&'static str],
    ledger: Arc<Ledger>,
    random: Random,
    /// Counts the lives; each has a directory and a log of its own.
    life: u64,
}

#[derive(Default)]
struct Totals {
    acknowledged: u64,
    lost: usize,
    returned: usize,
    unusable: usize,
    images: usize,
    writes: Report,
}

impl Totals {
    fn add(&mut self, checked: &LedgerReport, usable: bool, report: &Report) {
        self.images += 1;
        self.lost += checked.lost.len();
        self.returned += checked.returned.len();
        self.unusable += usize::from(!usable);
        self.writes.durable += report.durable;
        self.writes.kept += report.kept;
        self.writes.lost += report.lost;
        self.writes.torn += report.torn;
        self.writes.names_lost += report.names_lost;
        self.writes.syncs += report.syncs;
        self.writes.dir_syncs += report.dir_syncs;
    }
}

impl Machine {
    fn new(flags: &'static [&'static str], seed: u64) -> Self {
        let place = scratch();
        Self {
            config: config_file(place.path(), load::CONFIG),
            place,
            flags,
            ledger: Arc::new(Ledger::new()),
            random: Random(seed),
            life: 0,
        }
    }

    fn path(&self, kind: &str) -> PathBuf {
        self.place.path().join(format!("{kind}-{}", self.life))
    }

    fn launch(&self, data: &Path) -> Launch {
        let launch = Launch::on(data).arg("--config").arg(&self.config);
        self.flags.iter().fold(launch, |launch, flag| launch.arg(flag))
    }

    /// Starts under the shim, on what the disk holds.
    fn switch_on(&self) -> Result<Server, Refused> {
        let (data, log) = (self.path("data"), self.path("log"));
        if data.exists() {
            copy_dir(&data, &self.path("base")).unwrap();
        }
        self.ledger.measure(log.clone());
        self.launch(&data)
            .env("LD_PRELOAD", SHIM.library())
            .env("POWERCUT_DIR", data)
            .env("POWERCUT_LOG", log)
            .try_start()
    }

    /// What the disk holds if the power goes when the log is `cut` long.
    fn image(&mut self, cut: Mark, out: &Path, lose: Lose) -> Report {
        let (log, base) = (self.path("log"), self.path("base"));
        let base = base.exists().then_some(&*base);
        let seed = self.random.next();
        match cut {
            Mark::MAX => crash_image(&log, base, out, seed, lose).unwrap(),
            cut => crash_image_at(&log, cut, base, out, seed, lose).unwrap(),
        }
    }

    /// Looks at an image that is thrown away afterwards.
    async fn try_image(&mut self, cut: Mark, lose: Lose, totals: &mut Totals) -> LedgerReport {
        let out = self.place.path().join("extra");
        let report = self.image(cut, &out, lose);
        let sound = is_sound(&out);
        let (checked, usable) = match self.launch(&out).try_start() {
            Ok(server) => (self.ledger.check(&server, cut).await, sound),
            Err(_) => (LedgerReport::all_lost(&self.ledger), false),
        };
        fs::remove_dir_all(out).unwrap();
        totals.add(&checked, usable, &report);
        checked
    }

    /// Load, a power cut in the midst of it, and what is then there; again and again.
    async fn live_through(&mut self, rounds: u64, totals: &mut Totals) -> Vec<LedgerReport> {
        let mut reports = Vec::new();
        let mut server = self.switch_on().unwrap();
        for round in 1..=rounds {
            let before = self.ledger.acknowledged();
            let mut load = Load::on(&server, &self.ledger, self.random.next()).await;
            let answers = 1 + self.random.below(ANSWERS_MAX);
            load.run(&self.ledger, answers).await;
            server.kill();
            load.end().await;
            let acknowledged = self.ledger.acknowledged() - before;
            totals.acknowledged += acknowledged;

            let end = fs::metadata(self.path("log")).unwrap().len();
            let anywhere = self.random.below(end);
            reports.push(self.try_image(anywhere.max(32), Lose::Some, totals).await);
            let chance = self.random.next();
            if let Some(sharp) = self.ledger.a_moment_after_an_answer(chance) {
                reports.push(self.try_image(sharp, Lose::All, totals).await);
            }

            let lose = [Lose::Some, Lose::All, Lose::AllByTheLetter][(round % 3) as usize];
            let next = self.place.path().join(format!("data-{}", self.life + 1));
            let report = self.image(Mark::MAX, &next, lose);
            self.life += 1;
            let sound = is_sound(&next);
            let (mut checked, usable) = match self.switch_on() {
                Ok(again) => {
                    server = again;
                    (self.ledger.check(&server, Mark::MAX).await, sound)
                }
                Err(_) => {
                    let checked = LedgerReport::all_lost(&self.ledger);
                    // What cannot be used is thrown away, and life goes on with an empty disk.
                    self.life += 1;
                    server = self.switch_on().unwrap();
                    (checked, false)
                }
            };
            println!(
                "round {round}: {acknowledged} acknowledged, {} checked, {} lost, {} returned{}; {lose:?}: {report}",
                checked.checked,
                checked.lost.len(),
                checked.returned.len(),
                if usable { "" } else { ", damaged" },
            );
            totals.add(&checked, usable, &report);
            self.ledger.redeem(&server, &mut checked).await;
            self.ledger.begin_anew(&checked);
            reports.push(checked);
        }
        server.kill();
        println!(
            "in all: {} acknowledged, {} lost, {} returned, {} of {} images damaged; {}",
            totals.acknowledged, totals.lost, totals.returned, totals.unusable, totals.images, totals.writes
        );
        reports
    }
}

/// SQLite's own opinion, asked of a copy, since asking recovers.
fn is_sound(image: &Path) -> bool {
    if !image.join("redrive.db").exists() {
        return true;
    }
    let copy = scratch();
    copy_dir(image, copy.path()).unwrap();
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
    Connection::open_with_flags(copy.path().join("redrive.db"), flags)
        .and_then(|database| database.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0)))
        .is_ok_and(|answer| answer == "ok")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_loses_nothing_that_was_acknowledged() {
    let seed = env::random();
    println!("seed {seed}");
    let mut totals = Totals::default();
    let reports = Machine::new(&[], seed).live_through(rounds(20), &mut totals).await;
    for checked in reports {
        checked.assert_word_kept();
    }
    assert_eq!(totals.unusable, 0);
    // The cuts did cut something off.
    assert!(totals.writes.lost > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_around_a_checkpoint_loses_nothing_either() {
    let mut machine = Machine::new(&[], env::random());
    let mut totals = Totals::default();
    let mut server = machine.switch_on().unwrap();
    let database = machine.path("data").join("redrive.db");
    let made = fs::metadata(&database).unwrap().len();
    let mut load = Load::on(&server, &machine.ledger, machine.random.next()).await;
    // Only a checkpoint writes to the database itself.
    while fs::metadata(&database).unwrap().len() == made {
        load.run(&machine.ledger, 100).await;
    }
    load.run(&machine.ledger, 100).await;
    server.kill();
    load.end().await;
    let end = fs::metadata(machine.path("log")).unwrap().len();
    for back in 0..12 {
        // The last part of the log is that of the checkpoint.
        let cut = end - end / 100 * back;
        let lose = [Lose::Some, Lose::All][(back % 2) as usize];
        machine.try_image(cut, lose, &mut totals).await.assert_word_kept();
    }
    assert_eq!(totals.unusable, 0);
    println!("{} images, {}", totals.images, totals.writes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_fsync_the_same_check_finds_lost_jobs() {
    let seed = env::random();
    println!("seed {seed}");
    let mut totals = Totals::default();
    Machine::new(&["--durability", "none"], seed).live_through(3, &mut totals).await;
    assert!(totals.lost > 0, "the check cannot see a lost job");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shim_sees_every_write() {
    let mut machine = Machine::new(&[], 1);
    // Twice, so that a restart is seen too; its log goes on.
    for _ in 0..2 {
        let mut server = machine.switch_on().unwrap();
        let mut load = Load::on(&server, &machine.ledger, machine.random.next()).await;
        load.run(&machine.ledger, 300).await;
        server.stop();
        load.end().await;
        let image = machine.path("image");
        let report = machine.image(Mark::MAX, &image, Lose::Nothing);
        let found = differences(&image, &machine.path("data")).unwrap();
        assert!(found.is_empty(), "{found:?} differ; {report}");
        assert!(report.syncs > 20, "{report}");
        machine.life += 1;
        fs::rename(image, machine.path("data")).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_while_the_store_is_made_leaves_one_that_starts() {
    let mut machine = Machine::new(&[], 1);
    let mut server = machine.switch_on().unwrap();
    let made = fs::metadata(machine.path("log")).unwrap().len();
    server.kill();
    for part in 1..=12 {
        let cut = (made * part / 12).max(32);
        for lose in [Lose::All, Lose::Some] {
            let out = machine.path("image");
            machine.image(cut, &out, lose);
            assert!(is_sound(&out));
            let server = machine.launch(&out).start();
            let job = EnqueueRequest { queue: "q".into(), r#type: "t".into(), ..EnqueueRequest::default() };
            server.queue().await.enqueue(job).await.unwrap();
            drop(server);
            fs::remove_dir_all(out).unwrap();
        }
    }
}
