//! Breakers: what ended deliveries, deaths and operators do to them, and their rows on disk.

use super::{
    guards::{Guards, settings_of},
    memory::{QueueNumber, timestamp, unsigned},
    writer::{Failure, Writer},
};
use crate::{
    domain::{
        breaker::{Breaker, BreakerName, BreakerState, Forced, Guarded, Open, Sent, Signal},
        ids::{JobId, QueueName},
        settings::QueueSettings,
        time::Timestamp,
        verdict::Standing,
    },
    store::{Ask, BreakerNotice, BreakerOrder, BreakerView, BreakerViews, QueueRefused},
};
use rusqlite::{Connection, OptionalExtension, Row};

const COLUMNS: &str = "transitions, trips, last_error, opened_at, probe_at, successes, failed_probe, \
     forced_open, forced_at, forced_reason";

/// Every breaker that is not as new.
pub(super) fn all(
    connection: &Connection,
) -> rusqlite::Result<Vec<(QueueNumber, Guarded, Breaker)>> {
    let mut all =
        connection.prepare(&format!("SELECT {COLUMNS}, queue, dead_letters FROM breakers"))?;
    let rows = all.query_map([], |row| {
        let guarded = if row.get(11)? { Guarded::DeadLetters } else { Guarded::Work };
        Ok((row.get(10)?, guarded, read(row)?))
    })?;
    rows.collect()
}

/// The breaker of a queue's work.
pub(super) fn of(connection: &Connection, queue: QueueNumber) -> rusqlite::Result<Breaker> {
    let sql = format!("SELECT {COLUMNS} FROM breakers WHERE queue = ?1 AND dead_letters = 0");
    let breaker = connection.prepare_cached(&sql)?.query_row([queue], read).optional()?;
    Ok(breaker.unwrap_or_default())
}

fn read(row: &Row<'_>) -> rusqlite::Result<Breaker> {
    let given = |column| -> rusqlite::Result<bool> {
        Ok(row.get_ref(column)? != rusqlite::types::ValueRef::Null)
    };
    let failed_probe: Option<String> = row.get(6)?;
    let open = if given(3)? {
        Some(Open {
            since: timestamp(row, 3)?,
            probe_at: timestamp(row, 4)?,
            successes: row.get(5)?,
            failed_probe: failed_probe.as_deref().map(JobId::parse),
        })
    } else {
        None
    };
    let forced = if given(7)? {
        Some(Forced { open: row.get(7)?, since: timestamp(row, 8)?, reason: row.get(9)? })
    } else {
        None
    };
    Ok(Breaker {
        transitions: unsigned(row, 0)?,
        trips: row.get(1)?,
        last_error: row.get(2)?,
        open,
        forced,
    })
}

impl Writer<'_> {
    // ---- what work does to them ----

    /// How the breaker stands for a delivery that ends now.
    pub(super) fn standing(
        &self,
        queue: QueueNumber,
        sent: Sent,
        settings: &QueueSettings,
    ) -> Standing {
        let Some(guards) = self.memory.queue(queue).map(|queue| &queue.guards) else {
            return Standing::default();
        };
        Standing {
            state: guards.work.state(&settings.breaker, self.now),
            heeds_hold: guards.work.heeds_hold(sent, &settings.breaker, self.now),
        }
    }

    /// A delivery ended with an Ack.
    pub(super) fn heed_success(
        &mut self,
        queue: QueueNumber,
        sent: Sent,
        settings: &QueueSettings,
    ) -> Result<(), Failure> {
        let now = self.now;
        self.move_breaker(queue, Guarded::Work, settings, |guards| {
            guards.work.succeed(&mut guards.tally, sent, &settings.breaker, now)
        })
    }

    /// A delivery ended otherwise. Says how the breaker stands after that.
    pub(super) fn heed(
        &mut self,
        queue: QueueNumber,
        sent: Sent,
        job: &JobId,
        signal: Signal,
        settings: &QueueSettings,
    ) -> Result<BreakerState, Failure> {
        let now = self.now;
        self.move_breaker(queue, Guarded::Work, settings, |guards| {
            guards.work.heed(&mut guards.tally, sent, job, signal, &settings.breaker, now)
        })?;
        Ok(self.memory.breaker_state(queue, Guarded::Work, now))
    }

    /// A job dies. True: its place is in the overflow.
    pub(super) fn finds_no_room(
        &mut self,
        queue: QueueNumber,
        settings: &QueueSettings,
    ) -> Result<bool, Failure> {
        let now = self.now;
        let full = self.memory.queue(queue).is_some_and(|queue| {
            queue.depths.dead - queue.depths.overflow >= settings.dead_letters.max_entries
        });
        let mut overflow = full;
        self.move_breaker(queue, Guarded::DeadLetters, settings, |guards| {
            let breaker = &settings.dead_letters.breaker;
            let row = &mut guards.full_in_a_row;
            let room = guards.dead_letters.bury(full, row, breaker, now);
            overflow = room.overflow;
            room.changed
        })?;
        Ok(overflow)
    }

    /// A dead letter has left: where that made room, nobody needs to try whether there is some.
    pub(super) fn made_room(&mut self, queue: QueueNumber) -> Result<(), Failure> {
        let Some(state) = self.memory.queue(queue) else { return Ok(()) };
        let settings = self.memory.settings.queue(&state.name).clone();
        let listed = state.depths.dead - state.depths.overflow;
        if state.guards.dead_letters.open.is_none() || listed >= settings.dead_letters.max_entries {
            return Ok(());
        }
        self.move_breaker(queue, Guarded::DeadLetters, &settings, |guards| {
            guards.dead_letters.room_made()
        })
    }

    /// Changes a breaker; where `change` says so, it is kept, and a transition is told.
    pub(super) fn move_breaker(
        &mut self,
        queue: QueueNumber,
        guarded: Guarded,
        settings: &QueueSettings,
        change: impl FnOnce(&mut Guards) -> bool,
    ) -> Result<(), Failure> {
        let (mut changed, mut before) = (false, 0);
        self.memory.change(queue, |queue| {
            before = queue.guards.of(guarded).transitions;
            changed = change(&mut queue.guards);
        });
        if !changed {
            return Ok(());
        }
        let Some(state) = self.memory.queue(queue) else { return Ok(()) };
        let breaker = state.guards.of(guarded).clone();
        self.save_breaker(queue, guarded, &breaker)?;
        if breaker.transitions != before {
            self.tell_breaker(queue, guarded, settings, &breaker);
            if guarded == Guarded::Work {
                self.memory.change(queue, |queue| {
                    queue.guards.changed();
                    queue.made_available = true;
                });
            }
        }
        self.memory.refresh_gate(queue, self.now);
        Ok(())
    }

    fn tell_breaker(
        &mut self,
        queue: QueueNumber,
        guarded: Guarded,
        settings: &QueueSettings,
        breaker: &Breaker,
    ) {
        let Some(queue) = self.memory.queue(queue) else { return };
        let settings = settings_of(settings, guarded);
        self.breaker_notices.push(BreakerNotice {
            name: BreakerName { queue: queue.name.clone(), guarded },
            state: breaker.state(settings, self.now),
            probe_at: breaker.probe_at(settings, self.now),
            error: breaker.last_error.clone(),
            forced: breaker.forced.clone(),
        });
    }

    fn save_breaker(
        &mut self,
        queue: QueueNumber,
        guarded: Guarded,
        breaker: &Breaker,
    ) -> Result<(), Failure> {
        let (open, forced) = (breaker.open.as_ref(), breaker.forced.as_ref());
        let millis = |at: Timestamp| at.millis().cast_signed();
        self.sql.save_breaker.execute(rusqlite::params![
            queue,
            guarded == Guarded::DeadLetters,
            breaker.transitions.cast_signed(),
            breaker.trips,
            breaker.last_error,
            open.map(|open| millis(open.since)),
            open.map(|open| millis(open.probe_at)),
            open.map(|open| open.successes),
            open.and_then(|open| open.failed_probe.as_ref()).map(ToString::to_string),
            forced.map(|forced| forced.open),
            forced.map(|forced| millis(forced.since)),
            forced.map(|forced| forced.reason.as_str()),
        ])?;
        Ok(())
    }

    // ---- what time does ----

    /// Breakers whose time has come are half open, and slots of probes that never came back are free.
    pub(super) fn open_gates(&mut self) {
        while let Some((at, queue)) = self.memory.first_gate()
            && at <= self.now
        {
            if !self.memory.pass_gate(queue, self.now) {
                continue;
            }
            if let Some(state) = self.memory.queue(queue) {
                let breaker = state.guards.work.clone();
                let settings = self.memory.settings.queue(&state.name).clone();
                self.tell_breaker(queue, Guarded::Work, &settings, &breaker);
            }
        }
    }

    // ---- operators ----

    pub(super) fn breakers(&self, ask: &Ask, queues: &[QueueName]) -> Vec<BreakerViews> {
        let views = |name: &QueueName| {
            let queue = self.memory.find(name).and_then(|number| self.memory.queue(number));
            let settings = ask.settings.queue(name);
            queue.map_or_else(BreakerViews::default, |queue| BreakerViews {
                work: self.breaker_view(&queue.guards, Guarded::Work, settings),
                dead_letters: self.breaker_view(&queue.guards, Guarded::DeadLetters, settings),
            })
        };
        queues.iter().map(views).collect()
    }

    fn breaker_view(
        &self,
        guards: &Guards,
        guarded: Guarded,
        settings: &QueueSettings,
    ) -> BreakerView {
        let (failures, probes) = match guarded {
            Guarded::Work => {
                (guards.tally.failed(), guards.probes_out(&settings.breaker, self.now))
            }
            Guarded::DeadLetters => (guards.full_in_a_row, 0),
        };
        BreakerView { breaker: guards.of(guarded).clone(), failures, probes }
    }

    pub(super) fn set_breaker(
        &mut self,
        ask: &Ask,
        name: &BreakerName,
        order: BreakerOrder,
    ) -> Result<Result<BreakerView, QueueRefused>, Failure> {
        let queue = match self.memory.find(&name.queue) {
            Some(queue) => queue,
            None if !ask.settings.queues.contains_key(&name.queue) => {
                return Ok(Err(QueueRefused::NoSuchQueue));
            }
            None => match self.queue_for(&name.queue)? {
                Ok(queue) => queue,
                Err(refused) => return Ok(Err(QueueRefused::NotMade(refused))),
            },
        };
        let now = self.now;
        let settings = ask.settings.queue(&name.queue).clone();
        self.move_breaker(queue, name.guarded, &settings, |guards| {
            let breaker = match name.guarded {
                Guarded::Work => {
                    guards.tally = Default::default();
                    &mut guards.work
                }
                Guarded::DeadLetters => {
                    guards.full_in_a_row = 0;
                    &mut guards.dead_letters
                }
            };
            match order {
                BreakerOrder::Force { open, reason } => breaker.force(open, reason, now),
                BreakerOrder::Reset => breaker.reset(),
            }
            true
        })?;
        let view = |state: &super::memory::QueueState| {
            self.breaker_view(&state.guards, name.guarded, &settings)
        };
        Ok(Ok(self.memory.queue(queue).map(view).unwrap_or_default()))
    }
}
