use super::downstream::Downstream;
use super::simulation::{Results, Scenario, Simulation};

fn outage(seconds: f64, phase: f64, seed: u64) -> Results {
    let down = vec![(20.0, 20.0 + seconds + phase)];
    let downstreams = vec![Downstream { down, ..Downstream::default() }];
    Simulation::run(Scenario { downstreams, seed, ..Scenario::default() })
}

#[test]
fn an_outage_costs_no_attempt_and_no_stampede() {
    for seconds in [120.0, 85.0] {
        for seed in 1..=20 {
            let results = outage(seconds, seed as f64 / 2.0, seed);
            println!("{seconds} s, seed {seed}: done {} dead {} counted {} failed {} falls {} peak {} first {:.1?} drained {:.1?} trips {}", results.done, results.dead, results.counted, results.failed, results.falls, results.peak, results.first_success, results.drained, results.trips);
        }
    }
}
