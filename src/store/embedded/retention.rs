//! Dead letters whose retention is over go, oldest first, a bounded part at a time.

use super::{
    dead::Dead,
    memory::{QueueNumber, Retention},
    writer::{Failure, Writer},
};
use crate::domain::{settings::Settings, time::Timestamp};
use std::{sync::Arc, time::Duration};

/// So many in one transaction; the rest is due at once.
const REMOVALS_MAX: usize = 500;

impl Writer<'_> {
    /// Says how many went.
    pub(super) fn end_retention(&mut self, settings: &Arc<Settings>) -> Result<usize, Failure> {
        let Retention { under, next } = &self.memory.retention;
        let known = under.as_ref().is_some_and(|under| Arc::ptr_eq(under, settings));
        if known && next.is_none_or(|next| next > self.now) {
            return Ok(0);
        }
        let retention = |name| -> Option<Duration> { settings.queue(name).dead_letters.retention };
        let queues: Vec<_> = self
            .memory
            .queues()
            .filter(|queue| queue.depths.dead > 0)
            .filter_map(|queue| Some((queue.number, retention(&queue.name)?)))
            .collect();
        let (mut removed, mut next) = (0, None);
        for (queue, retention) in queues {
            let (gone, due) = self.end_retention_in(queue, retention, REMOVALS_MAX - removed)?;
            removed += gone;
            next = [next, due].into_iter().flatten().min();
        }
        self.memory.retention = Retention { under: Some(settings.clone()), next };
        Ok(removed)
    }

    /// How many went, and when the first of the others has to go.
    fn end_retention_in(
        &mut self,
        queue: QueueNumber,
        retention: Duration,
        limit: usize,
    ) -> Result<(usize, Option<Timestamp>), Failure> {
        let mut rows = self.sql.oldest_dead.query((queue, 0, i64::MAX, false, limit as i64 + 1))?;
        let (mut over, mut due) = (Vec::new(), None);
        while let Some(row) = rows.next()? {
            let dead = Dead::read(row)?;
            // Whoever died later is kept for longer.
            let until = dead.died_at.after(retention);
            if until > self.now || over.len() == limit {
                due = Some(until);
                break;
            }
            over.push(dead);
        }
        drop(rows);
        for dead in &over {
            self.remove_dead(queue, dead)?;
        }
        let gone = over.len() as u64;
        if gone > 0 {
            self.memory.change(queue, |queue| queue.totals.retention_expired += gone);
        }
        Ok((over.len(), due))
    }
}
