//! A queue's breakers in memory: as they are on disk, what is counted for them, and the probes that are out.

use super::{
    leases::Held,
    memory::{Memory, QueueNumber},
};
use crate::domain::{
    breaker::{Breaker, BreakerState, Gate, Guarded, Tally, probes_out},
    settings::{BreakerSettings, QueueSettings, Settings},
    time::Timestamp,
};
use std::sync::Arc;

#[derive(Clone, Debug, Default)]
pub(super) struct Guards {
    pub(super) work: Breaker,
    pub(super) dead_letters: Breaker,
    pub(super) tally: Tally,
    /// Dead letters that found no room, one after the other.
    pub(super) full_in_a_row: u32,
    /// Jobs that were handed out as probes since the last transition, and when.
    probes: Vec<(u64, Timestamp)>,
    /// The transition after which the beginning of HALF_OPEN has been told.
    told: u64,
    /// When the gate may open by the clock.
    pub(super) gate_at: Option<Timestamp>,
}

impl Guards {
    pub(super) fn gate(&self, settings: &BreakerSettings, now: Timestamp) -> Gate<'_> {
        self.work.gate(settings, self.probes.iter().map(|(_, started)| *started), now)
    }

    /// Probes that have a slot.
    pub(super) fn probes_out(&self, settings: &BreakerSettings, now: Timestamp) -> usize {
        probes_out(settings, self.probes.iter().map(|(_, started)| *started), now).0
    }

    pub(super) fn of(&self, guarded: Guarded) -> &Breaker {
        match guarded {
            Guarded::Work => &self.work,
            Guarded::DeadLetters => &self.dead_letters,
        }
    }

    /// A lease that was out before a restart.
    pub(super) fn remember(&mut self, held: &Held) {
        let sent = held.sent();
        if sent.probe && sent.transitions == self.work.transitions {
            self.probes.push((held.lease.number, held.started_at));
        }
    }

    /// There has been a transition: probes from before it are none of its any more.
    pub(super) fn changed(&mut self) {
        self.probes.clear();
    }

    fn next_gate(&self, settings: &BreakerSettings, now: Timestamp) -> Option<Timestamp> {
        let open = self.work.open.as_ref().filter(|_| self.work.forced.is_none())?;
        if self.told != self.work.transitions {
            return Some(open.probe_at);
        }
        match self.gate(settings, now) {
            Gate::Limited { until } => Some(until),
            // A hold may have moved it after it was told.
            Gate::Held { until } => until,
            Gate::All | Gate::Probes { .. } => None,
        }
    }
}

pub(super) fn settings_of(settings: &QueueSettings, guarded: Guarded) -> &BreakerSettings {
    match guarded {
        Guarded::Work => &settings.breaker,
        Guarded::DeadLetters => &settings.dead_letters.breaker,
    }
}

impl Memory {
    /// The settings as the last call brought them. Others may open a gate, or move the time at which it opens.
    pub(super) fn follow(&mut self, settings: &Arc<Settings>, now: Timestamp) {
        if Arc::ptr_eq(&self.settings, settings) {
            return;
        }
        let guarded = self.queues().filter(|queue| !queue.guards.work.is_at_rest());
        let guarded: Vec<_> = guarded.map(|queue| queue.number).collect();
        let widths = |memory: &Self| -> Vec<usize> {
            guarded.iter().map(|queue| memory.gate(*queue, now).width()).collect()
        };
        let before = widths(self);
        self.settings = settings.clone();
        for ((queue, before), after) in guarded.iter().zip(before).zip(widths(self)) {
            self.refresh_gate(*queue, now);
            if after > before {
                self.left.push(*queue);
            }
        }
    }

    /// How many jobs of this queue may be handed out now.
    pub(super) fn gate(&self, number: QueueNumber, now: Timestamp) -> Gate<'_> {
        match self.queue(number) {
            Some(queue) => queue.guards.gate(&self.settings.queue(&queue.name).breaker, now),
            None => Gate::All,
        }
    }

    pub(super) fn breaker_state(
        &self,
        number: QueueNumber,
        guarded: Guarded,
        now: Timestamp,
    ) -> BreakerState {
        self.queue(number).map_or(BreakerState::Closed, |queue| {
            let settings = settings_of(self.settings.queue(&queue.name), guarded);
            queue.guards.of(guarded).state(settings, now)
        })
    }

    /// To be called whenever the breaker of its work or its probes have changed.
    pub(super) fn refresh_gate(&mut self, number: QueueNumber, now: Timestamp) {
        let Some(queue) = self.queues.get_mut(&number) else {
            return;
        };
        let next = queue.guards.next_gate(&self.settings.queue(&queue.name).breaker, now);
        if queue.guards.gate_at == next {
            return;
        }
        if let Some(before) = queue.guards.gate_at {
            self.gates.remove(&(before, number));
            if before <= now {
                // No sweep will come for it any more.
                self.left.push(number);
            }
        }
        queue.guards.gate_at = next;
        self.gates.extend(next.map(|next| (next, number)));
    }

    /// The gate that opens first.
    pub(super) fn first_gate(&self) -> Option<(Timestamp, QueueNumber)> {
        self.gates.first().copied()
    }

    /// The time of a gate has come. True: the breaker is half open from now on.
    pub(super) fn pass_gate(&mut self, number: QueueNumber, now: Timestamp) -> bool {
        let mut half_open = false;
        self.change(number, |queue| {
            let guards = &mut queue.guards;
            half_open = guards.told != guards.work.transitions;
            guards.told = guards.work.transitions;
            queue.made_available = true;
        });
        self.refresh_gate(number, now);
        half_open && self.breaker_state(number, Guarded::Work, now) == BreakerState::HalfOpen
    }

    pub(super) fn probe_out(&mut self, queue: QueueNumber, job: u64, now: Timestamp) {
        self.change(queue, |queue| queue.guards.probes.push((job, now)));
        self.refresh_gate(queue, now);
    }

    /// A job that was a probe is no longer out; its slot is free.
    pub(super) fn probe_back(&mut self, queue: QueueNumber, job: u64, now: Timestamp) {
        self.change(queue, |queue| {
            queue.guards.probes.retain(|(probe, _)| *probe != job);
            queue.made_available = true;
        });
        self.refresh_gate(queue, now);
    }
}
