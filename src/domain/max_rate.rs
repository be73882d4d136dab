//! `200/s`, `30/m`, `1/h`: how many jobs a queue hands out.

use super::rate::Rate;
use std::fmt;

/// In each unit: seconds, minutes or hours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaxRate {
    count: f64,
    unit: char,
}

const MOST_PER_SECOND: f64 = 100_000.0;
const LEAST_PER_SECOND: f64 = 1.0 / 3_600.0;
/// So many seconds' worth may leave at once.
const BURST_SECONDS: f64 = 0.05;

impl MaxRate {
    pub fn parse(text: &str) -> Result<Self, String> {
        let expected = || format!("{text:?} is no rate: write for example \"200/s\", \"30/m\" or \"1/h\"");
        let (count, unit) = text.split_once('/').ok_or_else(expected)?;
        let unit = match unit {
            "s" => 's',
            "m" => 'm',
            "h" => 'h',
            _ => return Err(expected()),
        };
        let rate = Self { count: count.parse().map_err(|_| expected())?, unit };
        // A whisker, so that 1/h is within it.
        if !(LEAST_PER_SECOND * 0.999..=MOST_PER_SECOND).contains(&rate.per_second()) {
            return Err(format!("{text} is not between 1/h and 100000/s"));
        }
        Ok(rate)
    }

    pub fn per_second(&self) -> f64 {
        match self.unit {
            's' => self.count,
            'm' => self.count / 60.0,
            _ => self.count / 3_600.0,
        }
    }

    /// With the jobs that may leave at once.
    pub fn rate(&self) -> Rate {
        let per_second = self.per_second();
        Rate { per_second, burst: (per_second * BURST_SECONDS).max(1.0) }
    }
}

impl fmt::Display for MaxRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, self.unit)
    }
}
