//! A bar for people who watch; nothing where nobody does.

use super::load::Round;
use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

const EVERY: Duration = Duration::from_millis(100);
const WIDTH: usize = 30;

/// Shows how far the round is, until dropped by whoever waits for the round itself.
pub(super) async fn show(round: &Round, label: &str) -> std::convert::Infallible {
    let mut ticks = tokio::time::interval(EVERY);
    let terminal = io::stderr().is_terminal();
    loop {
        ticks.tick().await;
        if terminal {
            write(&line(label, round.progress(), round.acked(), round.elapsed()));
        }
    }
}

/// One thing that takes a while.
pub(super) fn say(text: &str) {
    if io::stderr().is_terminal() {
        write(text);
    }
}

pub(super) fn clear() {
    say("");
}

/// In place of what stood there.
fn write(text: &str) {
    // A bar that cannot be shown is no reason to stop.
    let _ = write!(io::stderr().lock(), "\r\x1b[K{text}");
}

fn line(label: &str, share: f64, jobs: u64, time: Duration) -> String {
    let full = (share * WIDTH as f64) as usize;
    let bar = "█".repeat(full) + &"░".repeat(WIDTH - full);
    let rate = jobs as f64 / time.as_secs_f64().max(0.001);
    format!("{label:<24}{bar} {:>3.0} %  {jobs} jobs  {rate:.0}/s", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills_up() {
        let half = line("round 1/2", 0.5, 1_000, Duration::from_secs(2));
        assert!(half.contains(&("█".repeat(15) + &"░".repeat(15))), "{half}");
        assert!(half.ends_with(" 50 %  1000 jobs  500/s"), "{half}");
    }
}
