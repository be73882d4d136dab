//! What was measured, for programs and for people.

use super::{plan::Plan, timings::KINDS, timings::Spread};
use serde::Serialize;
use std::{collections::BTreeMap, fmt::Write};

/// The whole answer; with `-o json` this is what is printed.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) version: &'static str,
    pub(super) load: Plan,
    pub(super) server: ServerFacts,
    pub(super) rounds: Vec<Measured>,
    pub(super) median: Rates,
    /// What a reader of the figures should know.
    pub(super) remarks: Vec<&'static str>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ServerFacts {
    pub(super) address: String,
    /// By this very run.
    pub(super) started: bool,
    pub(super) version: String,
    pub(super) engine: String,
    pub(super) durability: String,
}

/// One round; where there is a ceiling, both were measured one after the other.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measured {
    pub(super) redrive: Figures,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ceiling: Option<Figures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio: Option<f64>,
}

impl Measured {
    pub(super) fn new(redrive: Figures, ceiling: Option<Figures>) -> Self {
        let ratio = ceiling.as_ref().map(|ceiling| redrive.jobs_per_second / ceiling.jobs_per_second);
        Self { redrive, ceiling, ratio }
    }
}

/// What one server did in one round.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Figures {
    pub(super) jobs: u64,
    pub(super) seconds: f64,
    pub(super) jobs_per_second: f64,
    pub(super) failed_attempts: u64,
    /// By the names of their kinds; none where nothing of the kind happened.
    #[serde(flatten)]
    pub(super) times: BTreeMap<&'static str, Option<Spread>>,
    /// Not there where it is not known which process the server is.
    pub(super) process: Option<Process>,
    pub(super) client_cpu_us_per_job: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Process {
    pub(super) cpu_us_per_job: f64,
    /// How many cores it kept busy.
    pub(super) cores: f64,
    pub(super) rss_bytes: u64,
    pub(super) peak_rss_bytes: u64,
}

/// Of one round, or the median of all. The ratio is then the median of the rounds' ratios.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Rates {
    pub(super) jobs_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ceiling_jobs_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio: Option<f64>,
}

impl Rates {
    pub(super) fn median(rounds: &[Measured]) -> Self {
        let ceilings = rounds.iter().filter_map(|round| round.ceiling.as_ref());
        Self {
            jobs_per_second: median(rounds.iter().map(|round| round.redrive.jobs_per_second)).unwrap_or_default(),
            ceiling_jobs_per_second: median(ceilings.map(|ceiling| ceiling.jobs_per_second)),
            ratio: median(rounds.iter().filter_map(|round| round.ratio)),
        }
    }

    fn line(&self) -> String {
        let mut text = format!("{:>10.0} jobs/s", self.jobs_per_second);
        if let (Some(ceiling), Some(ratio)) = (self.ceiling_jobs_per_second, self.ratio) {
            let _ = write!(text, "   no-op server {ceiling:>10.0} jobs/s   ratio {ratio:.2}");
        }
        text + "\n"
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

impl Report {
    pub(super) fn json(&self) -> String {
        // Nothing in it can fail to be written.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Latencies are those of the round with the median rate.
    pub(super) fn table(&self) -> String {
        let mut text = self.head();
        for (number, round) in self.rounds.chunks(1).enumerate() {
            let _ = write!(text, "round {:<3}{}", number + 1, Rates::median(round).line());
        }
        if self.rounds.len() > 1 {
            let _ = write!(text, "median   {}", self.median.line());
        }
        if let Some(round) = self.typical() {
            text += "\n";
            text += &figures("redrive", &round.redrive);
            if let Some(ceiling) = &round.ceiling {
                text += "\n";
                text += &figures("no-op server", ceiling);
            }
        }
        for remark in &self.remarks {
            let _ = write!(text, "\nnote: {remark}\n");
        }
        text
    }

    fn head(&self) -> String {
        let Plan { mode, producers, workers, connections, payload, batch, .. } = &self.load;
        let mut text = format!(
            "{} · {} engine, durability {} · {workers} workers, {producers} producers, \
             {connections} connections, {payload} bytes",
            format!("{mode:?}").to_lowercase(),
            self.server.engine,
            self.server.durability,
        );
        if *batch > 1 {
            let _ = write!(text, ", {batch} per call");
        }
        if self.load.keys {
            text += ", with keys";
        }
        if self.load.fail_rate > 0.0 {
            let _ = write!(text, ", {} of the attempts fail", self.load.fail_rate);
        }
        if self.load.backlog > 0 {
            let _ = write!(text, ", {} jobs waiting", self.load.backlog);
        }
        text + "\n\n"
    }

    fn typical(&self) -> Option<&Measured> {
        let distance = |round: &Measured| (round.redrive.jobs_per_second - self.median.jobs_per_second).abs();
        self.rounds.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)))
    }
}

fn figures(name: &str, figures: &Figures) -> String {
    let mut text = format!("{name:<22}");
    for column in ["count", "p50", "p90", "p99", "p99.9", "max"] {
        let _ = write!(text, "{column:>13}");
    }
    text += "\n";
    for (_, name, label) in KINDS {
        let Some(Some(spread)) = figures.times.get(name) else { continue };
        let _ = write!(text, "  {label:<20}{:>13}", spread.count);
        for micros in [spread.p50_us, spread.p90_us, spread.p99_us, spread.p999_us, spread.max_us] {
            // All in one unit, so that the eye can compare.
            let _ = write!(text, "{:>10.2} ms", micros as f64 / 1_000.0);
        }
        text += "\n";
    }
    if let Some(process) = &figures.process {
        let _ = writeln!(
            text,
            "  server: {:.1} µs of CPU per job ({:.2} cores), {} MB memory, {} MB at most",
            process.cpu_us_per_job,
            process.cores,
            process.rss_bytes >> 20,
            process.peak_rss_bytes >> 20,
        );
    }
    if let Some(cpu) = figures.client_cpu_us_per_job {
        let _ = writeln!(text, "  client: {cpu:.1} µs of CPU per job");
    }
    text
}
