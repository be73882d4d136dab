//! Random downstreams: whatever they are like, an outage costs no job, and they are seldom knocked over by what has waited.

use super::downstream::Downstream;
use super::scenario::{Results, Scenario};
use super::simulation::Simulation;
use redrive::domain::Rng;

const DOWNSTREAMS: usize = 2_000;
const SEED: u64 = 20_260_101;

/// Between these, each order of magnitude as likely as the others.
fn log_uniform(rng: &mut Rng, least: f64, most: f64) -> f64 {
    least * (most / least).powf(rng.unit())
}

fn uniform(rng: &mut Rng, least: f64, most: f64) -> f64 {
    least + (most - least) * rng.unit()
}

/// A queue that its downstream may bear, with one to three outages.
fn draw(rng: &mut Rng, seed: u64) -> Scenario {
    let rate = log_uniform(rng, 0.5, 20.0);
    let capacity = rate / uniform(rng, 0.05, 0.7);
    let takes_ms = log_uniform(rng, 2.0, 2_000.0);
    let overhead_ms = log_uniform(rng, 1.0, 200.0);
    let in_flight = rate * (takes_ms + overhead_ms) / 1_000.0;
    let slots = (in_flight * log_uniform(rng, 2.0, 20.0)).ceil() as usize + 1;
    let falls_above = if rng.unit() < 0.8 { capacity * uniform(rng, 1.2, 3.0) } else { f64::MAX };
    // The lower the rate, the longer an outage may be for the same number of jobs.
    let longest = (600.0 / rate).clamp(20.0, 300.0);
    let outages = 1 + (rng.next_u64() % 5).saturating_sub(2);
    let mut down: Vec<(f64, f64)> = Vec::new();
    for _ in 0..outages {
        let from = match down.last() {
            None => uniform(rng, 10.0, 40.0),
            Some((_, to)) => to + log_uniform(rng, 5.0, 60.0),
        };
        down.push((from, from + log_uniform(rng, 5.0, longest)));
    }
    let downstream = Downstream {
        capacity,
        takes_ms,
        slows: rng.unit() < 0.5,
        falls_above,
        down,
        hangs_ms: (rng.unit() < 0.25).then(|| log_uniform(rng, 100.0, 10_000.0)),
        usual_failures: if rng.unit() < 0.5 { 0.0 } else { log_uniform(rng, 0.001, 0.3) },
        ..Downstream::default()
    };
    let stale_ms = if rng.unit() < 0.5 { 0 } else { uniform(rng, 0.0, 500.0) as u64 };
    Scenario { jobs: usize::MAX, rate, slots, overhead_ms, stale_ms, seed, ..Scenario::of(downstream) }
}

/// Seconds to work off what waits, if everything is used that there is.
fn ideal(scenario: &Scenario, backlog: usize) -> f64 {
    let downstream = &scenario.downstreams[0];
    let by_slots = scenario.slots as f64 * 1_000.0 / (downstream.takes_ms + scenario.overhead_ms);
    let calls = 1.0 / (1.0 - downstream.usual_failures);
    let spare = (downstream.capacity.min(by_slots) / calls - scenario.rate).max(1e-3);
    backlog as f64 / spare + (downstream.takes_ms + scenario.overhead_ms) / 1_000.0
}

/// Its own load does not knock it over, and nothing has to wait for long.
fn bears_its_load(scenario: &Scenario) -> bool {
    let downstream = &scenario.downstreams[0];
    let back = downstream.down.last().map_or(0.0, |(_, to)| *to);
    let control = Simulation::run(Scenario { end: back, ..scenario.without_outage() });
    let usual = downstream.takes_ms + scenario.overhead_ms;
    let waits = &control.waits[0];
    let median = waits.get(waits.len() / 2).copied().unwrap_or_default() as f64;
    control.falls == 0 && control.trips == 0 && median <= 2.0 * usual + 10.0
}

#[derive(Debug, Default)]
struct Bars {
    runs: usize,
    drawn: usize,
    dead: usize,
    knocked_over: usize,
    most_falls: u32,
    late: usize,
    never: usize,
    idle: usize,
    longest_idle: f64,
}

impl Bars {
    fn note(&mut self, scenario: &Scenario, results: &Results) {
        let ideal = ideal(scenario, results.backlog);
        self.runs += 1;
        self.dead += usize::from(scenario.downstreams[0].usual_failures == 0.0 && results.dead > 0);
        self.knocked_over += usize::from(results.falls_of_one_recovery > 2);
        self.most_falls = self.most_falls.max(results.falls_of_one_recovery);
        self.late += usize::from(results.drained.is_none_or(|drained| drained > 3.0 * ideal + 20.0));
        self.never += usize::from(results.drained.is_none());
        self.idle += usize::from(results.idle_while_well > 12.0);
        self.longest_idle = self.longest_idle.max(results.idle_while_well);
    }
}

#[test]
fn whatever_a_downstream_is_like_an_outage_costs_no_job_and_no_stampede() {
    let mut rng = Rng::new(SEED);
    let mut bars = Bars::default();
    while bars.runs < DOWNSTREAMS {
        bars.drawn += 1;
        let scenario = draw(&mut rng, bars.drawn as u64);
        if !bears_its_load(&scenario) {
            continue;
        }
        let back = scenario.downstreams[0].down.last().map_or(0.0, |(_, to)| *to);
        let waiting = (back * scenario.rate) as usize;
        let end = back + 3.0 * ideal(&scenario, waiting) + 60.0;
        let results = Simulation::run(Scenario { end, end_after_drained: 15.0, ..scenario.clone() });
        bars.note(&scenario, &results);
    }
    println!("{bars:?}");
    assert_eq!(bars.dead, 0, "{bars:?}");
    assert!(bars.knocked_over * 100 <= bars.runs * 2, "{bars:?}");
    assert!(bars.late * 100 <= bars.runs * 5, "{bars:?}");
    assert_eq!(bars.idle, 0, "{bars:?}");
}
