//! What the writer keeps in memory: the queues' counters and the leases. It is read back from disk after a transaction
//! that failed; only which callers have gone is carried over.

use super::{
    guards::Guards,
    leases::{Leases, read_lease},
};
use crate::{
    domain::{breaker::Guarded, ids::QueueName, pause::Pause, settings::Settings, time::Timestamp},
    store::{Depths, Totals},
};
use rusqlite::{Connection, Row};
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

/// A queue's number in the database.
pub(super) type QueueNumber = i64;

#[derive(Debug)]
pub(super) struct QueueState {
    pub(super) number: QueueNumber,
    pub(super) name: QueueName,
    pub(super) used_at: Timestamp,
    pub(super) next_death: u64,
    pub(super) finished_keys: u64,
    pub(super) depths: Depths,
    pub(super) totals: Totals,
    /// The earliest of its scheduled jobs.
    pub(super) next_due: Option<Timestamp>,
    pub(super) pause: Option<Pause>,
    pub(super) guards: Guards,
    /// This transaction made a job available to claims.
    pub(super) made_available: bool,
    /// Has to be written with this transaction.
    pub(super) changed: bool,
}

impl QueueState {
    pub(super) fn is_paused(&self, now: Timestamp) -> bool {
        self.pause.as_ref().is_some_and(|pause| pause.holds(now))
    }
}

/// When jobs have been kept for long enough.
#[derive(Debug, Default)]
pub(super) struct Retention {
    /// The settings that `next` was found under; others may say otherwise.
    pub(super) under: Option<Arc<Settings>>,
    pub(super) next: Option<Timestamp>,
}

impl Retention {
    /// Whether `next` holds under these settings.
    pub(super) fn is_known(&self, settings: &Arc<Settings>) -> bool {
        self.under.as_ref().is_some_and(|under| Arc::ptr_eq(under, settings))
    }

    /// One more is kept until then.
    pub(super) fn kept_until(&mut self, at: Timestamp) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }
}

#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) queues: HashMap<QueueNumber, QueueState>,
    by_name: HashMap<QueueName, QueueNumber>,
    /// Queues with scheduled jobs by when the first of them is due.
    dues: BTreeSet<(Timestamp, QueueNumber)>,
    /// Paused queues by when they go on by themselves.
    pause_ends: BTreeSet<(Timestamp, QueueNumber)>,
    /// Queues that are held back by when that may change.
    pub(super) gates: BTreeSet<(Timestamp, QueueNumber)>,
    /// As the last call brought them.
    pub(super) settings: Arc<Settings>,
    changed: Vec<QueueNumber>,
    /// Queues that have work left, to be told of after the commit.
    pub(super) left: Vec<QueueNumber>,
    pub(super) leases: Leases,
    pub(super) next_number: u64,
    pub(super) next_deadline: Option<Timestamp>,
    pub(super) dead_kept: Retention,
    pub(super) completed_kept: Retention,
}

impl Memory {
    pub(super) fn load(connection: &Connection) -> rusqlite::Result<Self> {
        let mut memory = Self {
            next_number: connection
                .query_row("SELECT next_number FROM store", [], |row| unsigned(row, 0))?,
            ..Self::default()
        };
        // A number that a job has must never be given again, whatever became of the note of it.
        let highest: Option<i64> =
            connection.query_row("SELECT max(number) FROM jobs", [], |row| row.get(0))?;
        let highest = highest.map_or(0, i64::cast_unsigned);
        memory.next_number = memory.next_number.max(highest.saturating_add(1));
        let mut queues = connection.prepare("SELECT * FROM queues")?;
        let mut rows = queues.query([])?;
        while let Some(row) = rows.next()? {
            let queue = read_queue(row)?.ok_or_else(damaged_name)?;
            memory.by_name.insert(queue.name.clone(), queue.number);
            memory.queues.insert(queue.number, queue);
        }
        for (queue, pause) in super::pause::all(connection)? {
            memory.set_pause(queue, Some(pause));
        }
        for (number, guarded, breaker) in super::breakers::all(connection)? {
            if let Some(queue) = memory.queues.get_mut(&number) {
                match guarded {
                    Guarded::Work => queue.guards.work = breaker,
                    Guarded::DeadLetters => queue.guards.dead_letters = breaker,
                }
            }
        }
        let mut leases = connection.prepare(
            "SELECT number, queue, delivery, nonce, attempt, started_at, expires_at, duration, ready_at, \
             traits, request, breaker FROM leases",
        )?;
        let mut rows = leases.query([])?;
        while let Some(row) = rows.next()? {
            // Unknown numbers cannot come up, see `change`.
            if let Some(queue) = memory.queues.get_mut(&row.get(1)?) {
                let held = read_lease(row, queue.name.clone())?;
                queue.guards.remember(&held);
                memory.leases.insert(held);
            }
        }
        Ok(memory)
    }

    pub(super) fn queues(&self) -> impl Iterator<Item = &QueueState> {
        self.queues.values()
    }

    pub(super) fn queue_count(&self) -> usize {
        self.queues.len()
    }

    pub(super) fn find(&self, name: &QueueName) -> Option<QueueNumber> {
        self.by_name.get(name).copied()
    }

    pub(super) fn queue(&self, number: QueueNumber) -> Option<&QueueState> {
        self.queues.get(&number)
    }

    pub(super) fn add_queue(&mut self, number: QueueNumber, name: QueueName, now: Timestamp) {
        self.by_name.insert(name.clone(), number);
        let queue = QueueState {
            number,
            name,
            used_at: now,
            next_death: 1,
            finished_keys: 0,
            depths: Depths::default(),
            totals: Totals::default(),
            next_due: None,
            pause: None,
            guards: Guards::default(),
            made_available: false,
            changed: false,
        };
        self.queues.insert(number, queue);
    }

    pub(super) fn forget_queue(&mut self, number: QueueNumber) {
        if let Some(queue) = self.queues.remove(&number) {
            self.by_name.remove(&queue.name);
        }
        self.changed.retain(|changed| *changed != number);
    }

    /// The queue, to be changed and written with this transaction. Unknown numbers cannot come up: every row that names
    /// a queue was written together with it.
    pub(super) fn change(&mut self, number: QueueNumber, change: impl FnOnce(&mut QueueState)) {
        if let Some(queue) = self.queues.get_mut(&number) {
            change(queue);
            if !queue.changed {
                queue.changed = true;
                self.changed.push(number);
            }
        }
    }

    pub(super) fn changed(&self) -> impl Iterator<Item = &QueueState> {
        self.changed.iter().filter_map(|number| self.queues.get(number))
    }

    /// Somebody may want what this queue has left.
    pub(super) fn tell(&mut self, name: &QueueName) {
        self.left.extend(self.find(name));
    }

    /// The same for every queue: there is room for leases again.
    pub(super) fn tell_all(&mut self) {
        let with_work = self.queues.values().filter(|queue| queue.depths.ready > 0);
        self.left.extend(with_work.map(|queue| queue.number));
    }

    /// After the commit: the queues that changed were in use, and what has become available is told.
    pub(super) fn committed(&mut self, now: Timestamp, mut tell: impl FnMut(&QueueName, usize)) {
        for number in std::mem::take(&mut self.changed) {
            if let Some(queue) = self.queues.get_mut(&number) {
                queue.changed = false;
                queue.used_at = now;
                if std::mem::take(&mut queue.made_available) {
                    self.left.push(number);
                }
            }
        }
        // Each is told once, whatever the reasons.
        self.left.sort_unstable();
        self.left.dedup();
        for number in std::mem::take(&mut self.left) {
            let Some(queue) = self.queues.get(&number) else {
                continue;
            };
            let jobs = self.width(queue, now).min(queue.depths.ready as usize);
            if jobs > 0 {
                tell(&queue.name, jobs);
            }
        }
    }

    /// How many jobs could leave the queue now, if it had them: none while it is paused or held back.
    pub(super) fn width(&self, queue: &QueueState, now: Timestamp) -> usize {
        if queue.is_paused(now) { 0 } else { self.gate(queue.number, now).width() }
    }

    /// A job of this queue is scheduled for then.
    pub(super) fn due_at(&mut self, number: QueueNumber, at: Timestamp) {
        let next = self.queues.get(&number).and_then(|queue| queue.next_due);
        if next.is_none_or(|next| at < next) {
            self.set_next_due(number, Some(at));
        }
    }

    pub(super) fn set_next_due(&mut self, number: QueueNumber, next: Option<Timestamp>) {
        let Some(queue) = self.queues.get_mut(&number) else {
            return;
        };
        if let Some(before) = queue.next_due {
            self.dues.remove(&(before, number));
        }
        queue.next_due = next;
        if let Some(next) = next {
            self.dues.insert((next, number));
        }
    }

    /// Queues by when their first scheduled job is due.
    pub(super) fn dues(&self) -> impl Iterator<Item = (Timestamp, &QueueState)> {
        self.dues.iter().filter_map(|(at, number)| Some((*at, self.queue(*number)?)))
    }

    /// The queue whose scheduled job is due first.
    pub(super) fn first_due(&self) -> Option<(Timestamp, QueueNumber)> {
        self.dues.first().copied()
    }

    pub(super) fn set_pause(&mut self, number: QueueNumber, pause: Option<Pause>) {
        let Some(queue) = self.queues.get_mut(&number) else {
            return;
        };
        let end = |pause: &Option<Pause>| pause.as_ref().and_then(|pause| pause.until);
        if let Some(before) = end(&queue.pause) {
            self.pause_ends.remove(&(before, number));
        }
        if let Some(until) = end(&pause) {
            self.pause_ends.insert((until, number));
        }
        queue.pause = pause;
    }

    /// The pause that ends first.
    pub(super) fn first_pause_end(&self) -> Option<(Timestamp, QueueNumber)> {
        self.pause_ends.first().copied()
    }

    pub(super) fn deadline_at(&mut self, at: Timestamp) {
        if self.next_deadline.is_none_or(|next| at < next) {
            self.next_deadline = Some(at);
        }
    }

    /// When time next makes something due.
    pub(super) fn next_event(&self) -> Option<Timestamp> {
        let due = self.first_due().map(|(at, _)| at);
        due.into_iter().chain(self.next_but_due()).min()
    }

    /// The same, jobs that come due aside.
    pub(super) fn next_but_due(&self) -> Option<Timestamp> {
        let pause = self.first_pause_end().map(|(at, _)| at);
        let gate = self.first_gate().map(|(at, _)| at);
        let kept = [self.dead_kept.next, self.completed_kept.next];
        [self.leases.next_look(), self.next_deadline, pause, gate]
            .into_iter()
            .chain(kept)
            .flatten()
            .min()
    }
}

fn damaged_name() -> rusqlite::Error {
    let why =
        "a queue has a name that no queue can have: the database is damaged, bring back a backup";
    rusqlite::Error::FromSqlConversionFailure(1, rusqlite::types::Type::Text, why.into())
}

/// Columns hold non-negative numbers as SQLite's signed ones.
pub(super) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(i64::cast_unsigned)
}

pub(super) fn timestamp(row: &Row<'_>, column: usize) -> rusqlite::Result<Timestamp> {
    unsigned(row, column).map(Timestamp::from_millis)
}

/// `SELECT * FROM queues`; none if the name is not one that we could have written.
pub(super) fn read_queue(row: &Row<'_>) -> rusqlite::Result<Option<QueueState>> {
    let name: String = row.get(1)?;
    let Some(name) = QueueName::parse(&name) else {
        return Ok(None);
    };
    let number = |column| unsigned(row, column);
    Ok(Some(QueueState {
        number: row.get(0)?,
        name,
        used_at: timestamp(row, 2)?,
        next_death: number(3)?,
        finished_keys: number(4)?,
        depths: Depths {
            ready: number(5)?,
            scheduled: number(6)?,
            leased: number(7)?,
            completed: number(8)?,
            dead: number(9)?,
            overflow: number(10)?,
        },
        totals: read_totals(row, 11)?,
        next_due: None,
        pause: None,
        guards: Guards::default(),
        made_available: false,
        changed: false,
    }))
}

/// Totals as they stand in a row, from this column on.
pub(super) fn read_totals(row: &Row<'_>, first: usize) -> rusqlite::Result<Totals> {
    let mut values = [0; Totals::COUNT];
    for (column, value) in values.iter_mut().enumerate() {
        *value = unsigned(row, first + column)?;
    }
    Ok(Totals::of(values))
}
