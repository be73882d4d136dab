//! What time makes due: the loop sleeps until something is, and never polls.

use super::Service;
use crate::domain::Timestamp;
use crate::queue::Host;
use crate::queue::{Sweep, Swept};
use crate::store::Result;
use std::{sync::Arc, time::Duration};

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
/// Store events may be missed; a sweep at least this often costs nothing.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(60);

/// The server did not run for a while.
struct Stalled;

/// Which leases a sweep leaves alone.
#[derive(Clone, Copy, Debug)]
struct Grace {
    since: Timestamp,
}

impl Grace {
    fn sweep(self) -> Sweep {
        Sweep { spare_made_before: self.since, spare_until: self.since.after(GRACE) }
    }
}

impl<H: Host> Service<H> {
    /// Runs until the server drains.
    pub async fn run_sweeper(self: Arc<Self>) {
        let mut grace = Grace { since: self.queues.now() };
        let (mut lost_since, mut stalled) = (None, false);
        let mut outages = self.queues.outages();
        let mut draining = self.draining.subscribe();
        loop {
            // Before the sweep that finds the store again: that one, too, must end no lease.
            let now = self.queues.now();
            let missed = std::mem::replace(&mut outages, self.queues.outages()) != outages;
            if missed || stalled || lost_since.is_some_and(|since| now.since(since) > LOST_STORE) {
                grace = Grace { since: now };
            }
            let next = match self.sweep_once(grace.sweep()).await {
                Ok(swept) => {
                    lost_since = None;
                    let now = self.queues.now();
                    swept.next.map_or(LOOK_AT_LEAST_EVERY, |next| next.since(now))
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
                slept = self.sleep_until_due(next.min(LOOK_AT_LEAST_EVERY)) => stalled = slept.is_err(),
                _ = draining.wait_for(|draining| *draining) => return,
            }
        }
    }

    /// One step of the loop.
    pub async fn sweep_once(&self, sweep: Sweep) -> Result<Swept> {
        let swept = self.queues.sweep(sweep).await?;
        for expired in &swept.expired {
            tracing::info!(
                queue = %expired.queue,
                job_id = %expired.id,
                worker_id = expired.attempt.worker_id,
                attempt = expired.attempt.number,
                "lease ran out"
            );
        }
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
                tracing::warn!(?slept, "the server did not run for a while: leases from before are spared for a time");
                return Err(Stalled);
            }
        }
    }
}
