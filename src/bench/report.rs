//! What was measured, for programs and for people.

use super::{plan::Plan, timings::Spread};
use serde::Serialize;
use std::fmt::Write;

/// The whole answer; with `-o json` this is what is printed.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) version: &'static str,
    pub(super) load: Plan,
    pub(super) server: ServerFacts,
    pub(super) rounds: Vec<Measured>,
    pub(super) median: Median,
    /// What a reader of the figures should know.
    pub(super) remarks: Vec<String>,
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
        let ratio =
            ceiling.as_ref().map(|ceiling| redrive.jobs_per_second / ceiling.jobs_per_second);
        Self { redrive, ceiling, ratio }
    }
}

/// What one server did in one round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figures {
    pub(super) jobs: u64,
    pub(super) seconds: f64,
    pub(super) jobs_per_second: f64,
    pub(super) failed_attempts: u64,
    pub(super) enqueue: Option<Spread>,
    /// Not there in mode stream.
    pub(super) claim: Option<Spread>,
    /// Ack, Nack or Settle.
    pub(super) settle: Option<Spread>,
    /// From the call that enqueues a job until a worker has it.
    pub(super) delivery: Option<Spread>,
    /// From a retry's time until a worker has it.
    pub(super) retry_lateness: Option<Spread>,
    /// Not there where nobody said which process the server is.
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

/// Of all rounds. The ratio is the median of the rounds' ratios.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Median {
    pub(super) jobs_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ceiling_jobs_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ratio: Option<f64>,
}

impl Median {
    pub(super) fn of(rounds: &[Measured]) -> Self {
        let ceiling = |round: &Measured| Some(round.ceiling.as_ref()?.jobs_per_second);
        Self {
            jobs_per_second: median(rounds.iter().map(|round| round.redrive.jobs_per_second))
                .unwrap_or_default(),
            ceiling_jobs_per_second: median(rounds.iter().filter_map(ceiling)),
            ratio: median(rounds.iter().filter_map(|round| round.ratio)),
        }
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
        for (number, round) in self.rounds.iter().enumerate() {
            let _ = write!(text, "round {:<3}", number + 1);
            text += &rates(
                round.redrive.jobs_per_second,
                round.ceiling.as_ref().map(|ceiling| ceiling.jobs_per_second),
                round.ratio,
            );
        }
        if self.rounds.len() > 1 {
            let median = &self.median;
            text += "median   ";
            text += &rates(median.jobs_per_second, median.ceiling_jobs_per_second, median.ratio);
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
            mode.as_str(),
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
        let distance =
            |round: &Measured| (round.redrive.jobs_per_second - self.median.jobs_per_second).abs();
        self.rounds.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)))
    }
}

fn rates(redrive: f64, ceiling: Option<f64>, ratio: Option<f64>) -> String {
    let mut text = format!("{redrive:>10.0} jobs/s");
    if let (Some(ceiling), Some(ratio)) = (ceiling, ratio) {
        let _ = write!(text, "   no-op server {ceiling:>10.0} jobs/s   ratio {ratio:.2}");
    }
    text + "\n"
}

fn figures(name: &str, figures: &Figures) -> String {
    let head = ["count", "p50", "p90", "p99", "p99.9", "max"];
    let mut text = format!("{name:<22}");
    for column in head {
        let _ = write!(text, "{column:>13}");
    }
    text += "\n";
    let rows = [
        ("enqueue", &figures.enqueue),
        ("claim", &figures.claim),
        ("settle", &figures.settle),
        ("enqueue to delivery", &figures.delivery),
        ("retry lateness", &figures.retry_lateness),
    ];
    for (label, spread) in rows {
        let Some(spread) = spread else { continue };
        let _ = write!(text, "  {label:<20}{:>13}", spread.count);
        let times = [spread.p50_us, spread.p90_us, spread.p99_us, spread.p999_us, spread.max_us];
        for time in times {
            let _ = write!(text, "{:>13}", milliseconds(time));
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

/// All in one unit, so that the eye can compare.
fn milliseconds(micros: u64) -> String {
    format!("{:.2} ms", micros as f64 / 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_lies_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), Some(2.5));
        assert_eq!(median([].into_iter()), None);
    }

    fn measured(redrive: f64, ceiling: f64) -> Measured {
        let figures = |jobs_per_second| Figures {
            jobs: 1,
            seconds: 1.0,
            jobs_per_second,
            failed_attempts: 0,
            enqueue: None,
            claim: None,
            settle: None,
            delivery: None,
            retry_lateness: None,
            process: None,
            client_cpu_us_per_job: None,
        };
        Measured::new(figures(redrive), Some(figures(ceiling)))
    }

    #[test]
    fn the_ratio_is_the_median_of_the_rounds_own() {
        // Both servers were twice as fast in the second round: the machine was, not redrive.
        let rounds = [measured(50.0, 100.0), measured(100.0, 200.0), measured(60.0, 100.0)];
        let median = Median::of(&rounds);
        assert_eq!((median.jobs_per_second, median.ratio), (60.0, Some(0.5)));
    }
}
