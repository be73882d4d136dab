//! Counters against the rows that they count.

use super::Audit;
use crate::store::{
    Check,
    embedded::memory::{QueueNumber, unsigned},
};
use rusqlite::Result;

impl Audit<'_> {
    pub(super) fn counts(&mut self) -> Result<()> {
        self.progress("counts", 0, None);
        self.deaths()?;
        self.dead_types()?;
        self.finished_keys()?;
        let mut off = Vec::new();
        for (number, queue) in &self.queues {
            let (says, has) = (queue.depths, queue.counted);
            let pairs = [
                ("READY", says.ready, has.ready),
                ("SCHEDULED", says.scheduled, has.scheduled),
                ("LEASED", says.leased, has.leased),
                ("COMPLETED", says.completed, has.completed),
                ("DEAD", says.dead, has.dead),
                ("overflow", says.overflow, has.overflow),
            ];
            for (what, says, has) in pairs.into_iter().filter(|(_, says, has)| says != has) {
                off.push((*number, format!("it counts {says} {what} and there are {has}")));
            }
        }
        off.sort();
        for (number, what) in off {
            self.found(Check::Counts, number, what);
        }
        Ok(())
    }

    /// Deaths are numbered; a number must not come again.
    fn deaths(&mut self) -> Result<()> {
        let mut statement = self
            .connection
            .prepare("SELECT queue, sum(overflow), max(death) FROM dead GROUP BY queue")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (queue, last) = (row.get::<_, QueueNumber>(0)?, unsigned(row, 2)?);
            let Some(state) = self.queues.get_mut(&queue) else {
                continue;
            };
            state.counted.overflow = unsigned(row, 1)?;
            let next = state.next_death;
            if last >= next {
                let what = format!("the next dead letter gets number {next}, again");
                self.found(Check::Counts, queue, what);
            }
        }
        Ok(())
    }

    fn dead_types(&mut self) -> Result<()> {
        const COUNTED: &str = "SELECT queue, counted_as, count(*) FROM dead GROUP BY 1, 2";
        const SAID: &str = "SELECT queue, error_type, count FROM dead_types";
        for (sql, side) in [
            (format!("{COUNTED} EXCEPT {SAID}"), "died of"),
            (format!("{SAID} EXCEPT {COUNTED}"), "are said to have died of"),
        ] {
            let mut statement = self.connection.prepare(&sql)?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let (error_type, count): (String, i64) = (row.get(1)?, row.get(2)?);
                let what = format!("{count} dead letters {side} {error_type:?}, but not both ways");
                self.found(Check::Counts, row.get(0)?, what);
            }
        }
        Ok(())
    }

    fn finished_keys(&mut self) -> Result<()> {
        let mut statement = self.connection.prepare(
            "SELECT q.queue, q.finished_keys, count(k.key) FROM queues q \
             LEFT JOIN keys k ON k.queue = q.queue AND k.free_at IS NOT NULL GROUP BY q.queue",
        )?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let queue: QueueNumber = row.get(0)?;
            let says = self.queues.get(&queue).map_or(0, |queue| queue.finished_keys);
            let has = unsigned(row, 2)?;
            if says != has {
                let what = format!("it counts {says} keys of finished jobs and there are {has}");
                self.found(Check::Counts, queue, what);
            }
        }
        Ok(())
    }
}
