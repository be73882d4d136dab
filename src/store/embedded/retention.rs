//! Dead letters and completed jobs whose retention is over go, oldest first, a bounded part at a time.

use super::{
    completed::Completed,
    dead::Dead,
    memory::{Memory, QueueNumber, Retention},
    writer::{Failure, Writer},
};
use crate::{
    domain::{
        settings::{QueueSettings, Settings},
        time::Timestamp,
    },
    store::Depths,
};
use rusqlite::{Row, Rows};
use std::{sync::Arc, time::Duration};

/// So many of each kind in one transaction; the rest is due at once.
const REMOVALS_MAX: usize = 500;
/// What is over within so long after a removal waits for the next: jobs that came one by one need not go one by one.
const REMOVALS_APART: Duration = Duration::from_secs(1);

/// What is kept for a while.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kept {
    Dead,
    Completed,
}

impl Kept {
    /// None: for ever.
    fn retention(self, settings: &QueueSettings) -> Option<Duration> {
        match self {
            Self::Dead => settings.dead_letters.retention,
            // Those of a queue that no longer keeps any have been kept for long enough.
            Self::Completed => Some(settings.completed_retention.unwrap_or_default()),
        }
    }

    fn depth(self, depths: &Depths) -> u64 {
        match self {
            Self::Dead => depths.dead,
            Self::Completed => depths.completed,
        }
    }

    fn known(self, memory: &mut Memory) -> &mut Retention {
        match self {
            Self::Dead => &mut memory.dead_kept,
            Self::Completed => &mut memory.completed_kept,
        }
    }
}

impl Writer<'_> {
    /// Says how many went.
    pub(super) fn end_retention(
        &mut self,
        kept: Kept,
        settings: &Arc<Settings>,
    ) -> Result<usize, Failure> {
        let known = kept.known(&mut self.memory);
        if known.is_known(settings) && known.next.is_none_or(|next| next > self.now) {
            return Ok(0);
        }
        let queues: Vec<_> = self
            .memory
            .queues()
            .filter(|queue| kept.depth(&queue.depths) > 0)
            .filter_map(|queue| Some((queue.number, kept.retention(settings.queue(&queue.name))?)))
            .collect();
        let (mut removed, mut next) = (0, None);
        for (queue, retention) in queues {
            let most = REMOVALS_MAX - removed;
            let (gone, due) = match kept {
                Kept::Dead => self.end_dead_in(queue, retention, most)?,
                Kept::Completed => self.end_completed_in(queue, retention, most)?,
            };
            removed += gone;
            next = [next, due].into_iter().flatten().min();
        }
        if removed > 0 {
            let later = self.now.after(REMOVALS_APART);
            next = next.map(|next| if next > self.now { next.max(later) } else { next });
        }
        *kept.known(&mut self.memory) = Retention { under: Some(settings.clone()), next };
        Ok(removed)
    }

    /// How many went, and when the first of the others has to go.
    fn end_dead_in(
        &mut self,
        queue: QueueNumber,
        retention: Duration,
        most: usize,
    ) -> Result<(usize, Option<Timestamp>), Failure> {
        let rows = self.sql.oldest_dead.query((queue, 0, i64::MAX, false, most as i64 + 1))?;
        let until = |dead: &Dead| dead.died_at.after(retention);
        let (over, due) = over(rows, Dead::read, until, self.now, most)?;
        for dead in &over {
            self.remove_dead(queue, dead)?;
        }
        let gone = over.len() as u64;
        if gone > 0 {
            self.memory.change(queue, |queue| queue.totals.retention_expired += gone);
        }
        Ok((over.len(), due))
    }

    /// The same for completed jobs, which have been counted already.
    fn end_completed_in(
        &mut self,
        queue: QueueNumber,
        retention: Duration,
        most: usize,
    ) -> Result<(usize, Option<Timestamp>), Failure> {
        let rows = self.sql.oldest_completed.query((queue, most as i64 + 1))?;
        let until = |done: &Completed| done.at.after(retention);
        let (over, due) = over(rows, Completed::read, until, self.now, most)?;
        for done in &over {
            self.remove_completed(queue, done)?;
        }
        Ok((over.len(), due))
    }
}

/// Those whose time is over, at most so many, and when that of the first of the others is. Oldest first: whoever came
/// later is kept for longer.
fn over<T>(
    mut rows: Rows<'_>,
    read: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
    until: impl Fn(&T) -> Timestamp,
    now: Timestamp,
    most: usize,
) -> rusqlite::Result<(Vec<T>, Option<Timestamp>)> {
    let mut over = Vec::new();
    while let Some(row) = rows.next()? {
        let kept = read(row)?;
        let until = until(&kept);
        if until > now || over.len() == most {
            return Ok((over, Some(until)));
        }
        over.push(kept);
    }
    Ok((over, None))
}
