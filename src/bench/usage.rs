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
    read(&stat, &status, rustix::param::clock_ticks_per_second())
}

fn read(stat: &str, status: &str, ticks_per_second: u64) -> Option<Usage> {
    // The name, in brackets, may hold anything; the user's and the system's time are the 12th and 13th field after it.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map_while(|field| field.parse::<u64>().ok());
    let ticks = times.next()? + times.next()?;
    let kib = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    Some(Usage {
        cpu: Duration::from_secs_f64(ticks as f64 / ticks_per_second as f64),
        rss_bytes: kib("VmRSS:")? << 10,
        peak_rss_bytes: kib("VmHWM:")? << 10,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_proc_are_found_behind_any_name() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 1 0 100 1000 10";
        let status = "Name:\ta\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        let usage = read(stat, status, 100).unwrap();
        assert_eq!(usage.cpu, Duration::from_secs(2));
        assert_eq!((usage.rss_bytes, usage.peak_rss_bytes), (1 << 20, 2 << 20));
    }

    #[test]
    fn this_process_has_memory_and_one_that_is_not_there_has_none() {
        assert!(of(std::process::id()).unwrap().rss_bytes > 0);
        assert_eq!(of(u32::MAX), None);
    }
}
