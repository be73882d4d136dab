//! What time makes due: the loop sleeps until something is, and never polls.

use super::Service;
use crate::domain::{QueueName, Timestamp};
use crate::env;
use crate::log_limit::LogLimit;
use crate::queue::{ExpiredLease, Host, Sweep, Swept};
use crate::store::Result;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// For so long after a start, leases from before it are left alone: a restart burns no attempts.
const GRACE: Duration = Duration::from_secs(30);
/// A store that was lost for longer than this starts the grace again.
const LOST_STORE: Duration = Duration::from_secs(2);
/// A server that did not run for longer than this, stopped or suspended, starts it again: what was sent to it in time waits in
/// its sockets.
const STALL: Duration = Duration::from_secs(1);
/// Sleeps are no longer than this, so that a stall is noticed whenever it was.
const LOOK_FOR_STALL: Duration = Duration::from_millis(500);
/// After a failed sweep.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(200);
const MINUTE: Duration = Duration::from_secs(60);
const LINES_A_MINUTE: u64 = 20;
/// Store events may be missed; a sweep at least this often costs nothing.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(60);

/// The server did not run, for so long.
struct Stalled(Duration);

/// Which leases a sweep leaves alone.
#[derive(Clone, Copy, Debug)]
struct Grace {
    since: Timestamp,
}

impl Grace {
    fn sweep(self, asked_at: Timestamp) -> Sweep {
        Sweep { asked_at, spare_made_before: self.since, spare_until: self.since.after(GRACE) }
    }
}

/// Lines about leases that ran out: so many for each queue in a minute, and a sum of the others.
#[derive(Debug, Default)]
pub(super) struct LeaseLines {
    since: Option<Instant>,
    by_queue: HashMap<QueueName, u64>,
}

impl LeaseLines {
    fn log(&mut self, expired: &[ExpiredLease], now: Instant) {
        for (queue, left_out) in self.begin(now) {
            tracing::info!(%queue, left_out, "more leases ran out than have lines of their own");
        }
        for expired in expired {
            if !self.admits(&expired.queue) {
                continue;
            }
            tracing::info!(
                queue = %expired.queue,
                job_id = %expired.id,
                worker_id = expired.attempt.worker_id,
                attempt = expired.attempt.number,
                "lease ran out"
            );
        }
    }

    /// Where a minute is over, what got no line in it.
    fn begin(&mut self, now: Instant) -> Vec<(QueueName, u64)> {
        if self.since.is_some_and(|since| now.duration_since(since) < MINUTE) {
            return Vec::new();
        }
        self.since = Some(now);
        let left_out = self.by_queue.drain().map(|(queue, leases)| (queue, leases.saturating_sub(LINES_A_MINUTE)));
        left_out.filter(|(_, leases)| *leases > 0).collect()
    }

    fn admits(&mut self, queue: &QueueName) -> bool {
        let leases = self.by_queue.entry(queue.clone()).or_default();
        *leases += 1;
        *leases <= LINES_A_MINUTE
    }
}

impl<H: Host> Service<H> {
    /// Runs until the server drains.
    pub async fn run_sweeper(self: Arc<Self>) {
        let mut grace = Grace { since: self.queues.now() };
        let (mut lost_since, mut stalled, mut stalls) = (None, None, LogLimit::default());
        let mut outages = self.queues.outages();
        let mut draining = self.draining.subscribe();
        loop {
            // Before the sweep that finds the store again: that one, too, must end no lease.
            let now = self.queues.now();
            let missed = std::mem::replace(&mut outages, self.queues.outages()) != outages;
            if let Some(Stalled(took)) = &stalled
                && let Some(left_out) = stalls.admit(env::instant())
            {
                let left_out = (left_out > 0).then_some(left_out);
                let what = "the server did not run for a while: leases from before are spared for a time";
                tracing::warn!(?took, left_out, "{what}");
            }
            if missed || stalled.is_some() || lost_since.is_some_and(|since| now.since(since) > LOST_STORE) {
                grace = Grace { since: now };
            }
            stalled = None;
            let next = match self.sweep_once(grace.sweep(now)).await {
                Ok(swept) => {
                    lost_since = None;
                    let then = self.queues.now();
                    // A stop may come while it waits for the store, too.
                    stalled = swept.late.then(|| Stalled(then.since(now)));
                    swept.next.map_or(LOOK_AT_LEAST_EVERY, |next| next.since(then))
                }
                Err(error) => {
                    if lost_since.is_none() {
                        tracing::error!(%error, "cannot look after what is due; trying again");
                    }
                    lost_since.get_or_insert(now);
                    PAUSE_AFTER_FAILURE
                }
            };
            tokio::select! {
                slept = self.sleep_until_due(next.min(LOOK_AT_LEAST_EVERY)) => stalled = stalled.or_else(|| slept.err()),
                _ = draining.wait_for(|draining| *draining) => return,
            }
        }
    }

    /// One step of the loop.
    pub async fn sweep_once(&self, sweep: Sweep) -> Result<Swept> {
        let swept = self.queues.sweep(sweep).await?;
        let mut lines = self.lease_lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.log(&swept.expired, env::instant());
        drop(lines);
        if swept.retention_expired > 0 {
            tracing::info!(dead_letters = swept.retention_expired, "their retention is over");
        }
        Ok(swept)
    }

    /// Sleeps for `rest`, or less if something earlier is announced meanwhile.
    async fn sleep_until_due(&self, rest: Duration) -> std::result::Result<(), Stalled> {
        let mut wake_at = self.queues.now().after(rest);
        loop {
            if let Some(due) = self.waiters.take_due() {
                wake_at = wake_at.min(due);
            }
            let now = self.queues.now();
            let rest = wake_at.since(now);
            if rest.is_zero() {
                return Ok(());
            }
            tokio::select! {
                () = tokio::time::sleep(rest.min(LOOK_FOR_STALL)) => {}
                () = self.waiters.due_changed() => {}
            }
            let slept = self.queues.now().since(now);
            if slept > LOOK_FOR_STALL + STALL {
                return Err(Stalled(slept));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_queue_has_so_many_lines_about_its_leases_in_a_minute() {
        let (start, mut lines) = (env::instant(), LeaseLines::default());
        let queue = |name| QueueName::parse(name).expect("a name");
        lines.begin(start);
        assert_eq!((0..25).filter(|_| lines.admits(&queue("a"))).count(), 20);
        assert!(lines.admits(&queue("b")));
        assert_eq!(lines.begin(start + Duration::from_secs(59)), []);
        assert!(!lines.admits(&queue("a")));
        assert_eq!(lines.begin(start + Duration::from_secs(60)), [(queue("a"), 6)]);
        assert!(lines.admits(&queue("a")));
    }
}
