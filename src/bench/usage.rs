//! What a process costs: its CPU time and memory, as /proc shows them.

use std::{fs, time::Duration};

/// At one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    /// Of all its threads since it started.
    pub(super) cpu: Duration,
    pub(super) rss_bytes: u64,
    pub(super) peak_rss_bytes: u64,
}

/// None: there is no such process, or no /proc.
pub(super) fn of(pid: u32) -> Option<Usage> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    // The name, in brackets, may hold anything; the user's and the system's time are the 12th and 13th field after it.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map_while(|field| field.parse::<u64>().ok());
    let ticks = times.next()? + times.next()?;
    let kib = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    Some(Usage {
        cpu: Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64),
        rss_bytes: kib("VmRSS:")? << 10,
        peak_rss_bytes: kib("VmHWM:")? << 10,
    })
}
