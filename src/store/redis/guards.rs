//! A queue's breakers: durable and shared by all servers, as is what is counted of its work.
//!
//! A breaker is one field of the queue's state. Whoever changes it says which one it knew; where that is no longer the one,
//! the decision is made again.

use super::{
    Core,
    connection::Arg,
    ending::AtDeath,
    registry::Queue,
    scripts::{GUARDS, SET_GUARD},
    tally::{Counted, Counts},
};
use crate::{
    domain::{
        breaker::{Breaker, BreakerName, BreakerState, Forced, Gate, Guarded, Open, Sent, Tally},
        ids::JobId,
        settings::{BreakerSettings, QueueSettings, Settings},
        time::Timestamp,
    },
    store::{
        BreakerNotice, StoreError, codec,
        notation::{Read, put_option, put_text, put_u64},
    },
};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::Mutex;

/// Probes that are read; more are never let out at the same time.
pub(super) const PROBES_MAX: u64 = 100;
/// How often a breaker may change between looking at it and changing it.
pub(super) const TRIES_MAX: usize = 20;

/// What a server knows of a queue's breakers.
#[derive(Debug, Default)]
pub(super) struct Guards {
    /// Whoever decides something about them takes its turn.
    pub(super) memory: Mutex<Memory>,
    /// As they were last seen.
    seen: RwLock<Seen>,
}

/// Everything as it is kept.
#[derive(Debug, Default)]
struct Seen {
    breakers: [Vec<u8>; 2],
    counts: Counts,
}

/// What is counted here alone.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Dead letters that found no room, one after the other.
    pub(super) full_in_a_row: u32,
    /// The transition after which the beginning of HALF_OPEN has been told.
    told: u64,
}

/// Both breakers at one moment, and what they depend on.
#[derive(Debug)]
pub(super) struct Looked {
    pub(super) now: Timestamp,
    work: Breaker,
    /// In line; none while the queue is paused.
    ready: usize,
    /// Dead letters that are not overflow.
    listed: u64,
    pub(super) probes: Vec<Timestamp>,
}

impl Guards {
    pub(super) fn see(&self, work: Vec<u8>, graves: Vec<u8>) {
        self.seen.write().unwrap_or_else(PoisonError::into_inner).breakers = [work, graves];
    }

    pub(super) fn see_counts(&self, counts: Counts) {
        self.seen.write().unwrap_or_else(PoisonError::into_inner).counts = counts;
    }

    pub(super) fn see_one(&self, guarded: Guarded, record: Vec<u8>) {
        let mut seen = self.seen.write().unwrap_or_else(PoisonError::into_inner);
        seen.breakers[index(guarded)] = record;
    }

    /// As it is kept, as far as is known.
    pub(super) fn record(&self, guarded: Guarded) -> Vec<u8> {
        let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
        seen.breakers[index(guarded)].clone()
    }

    /// What is counted of the work, as far as is known.
    pub(super) fn counts(&self) -> Counts {
        self.seen.read().unwrap_or_else(PoisonError::into_inner).counts.clone()
    }

    pub(super) fn breaker(&self, guarded: Guarded) -> Breaker {
        read(&self.record(guarded))
    }

    fn is_at_rest(&self) -> bool {
        let seen = self.seen.read().unwrap_or_else(PoisonError::into_inner);
        seen.breakers[0].first().is_none_or(|rests| *rests == 1)
    }
}

impl Looked {
    fn width(&self, settings: &BreakerSettings) -> usize {
        self.work.gate(settings, self.probes.iter().copied(), self.now).width()
    }
}

fn index(guarded: Guarded) -> usize {
    match guarded {
        Guarded::Work => 0,
        Guarded::DeadLetters => 1,
    }
}

fn field(guarded: Guarded) -> &'static str {
    match guarded {
        Guarded::Work => "work",
        Guarded::DeadLetters => "graves",
    }
}

pub(super) fn settings_of(settings: &QueueSettings, guarded: Guarded) -> &BreakerSettings {
    match guarded {
        Guarded::Work => &settings.breaker,
        Guarded::DeadLetters => &settings.dead_letters.breaker,
    }
}

// ---- as it is kept ----

/// Whether it is at rest, then a sealed record.
pub(super) fn write(breaker: &Breaker) -> Vec<u8> {
    let mut out = vec![codec::VERSION];
    put_u64(&mut out, breaker.transitions);
    put_u64(&mut out, u64::from(breaker.trips));
    put_text(&mut out, &breaker.last_error);
    put_option(&mut out, breaker.open.as_ref().map(|open| open.since.millis()));
    if let Some(open) = &breaker.open {
        put_u64(&mut out, open.probe_at.millis());
        put_u64(&mut out, u64::from(open.successes));
        let probe = open.failed_probe.as_ref().map(ToString::to_string);
        put_text(&mut out, &probe.unwrap_or_default());
    }
    put_option(&mut out, breaker.forced.as_ref().map(|forced| forced.since.millis()));
    if let Some(forced) = &breaker.forced {
        out.push(u8::from(forced.open));
        put_text(&mut out, &forced.reason);
    }
    [vec![u8::from(breaker.is_at_rest())], codec::seal(out)].concat()
}

/// One that is damaged is as new: its queue goes on.
pub(super) fn read(record: &[u8]) -> Breaker {
    let read = |record| -> Read<Breaker> {
        let mut read = codec::open(record)?;
        let (transitions, trips) = (read.u64()?, read.u32()?);
        let last_error = read.text()?;
        let open = match read.option()? {
            None => None,
            Some(since) => {
                let (since, probe_at) = (Timestamp::from_millis(since), read.u64()?);
                let (probe_at, successes) = (Timestamp::from_millis(probe_at), read.u32()?);
                let probe = read.text()?;
                let failed_probe = (!probe.is_empty()).then(|| JobId::parse(&probe));
                Some(Open { since, probe_at, successes, failed_probe })
            }
        };
        let forced = match read.option()? {
            None => None,
            Some(since) => {
                let (open, reason) = (read.u8()? == 1, read.text()?);
                Some(Forced { open, since: Timestamp::from_millis(since), reason })
            }
        };
        Ok(Breaker { transitions, trips, open, forced, last_error })
    };
    record.get(1..).and_then(|record| read(record).ok()).unwrap_or_default()
}

/// How the breakers stand, as far as is known, for a job that dies now.
pub(super) fn at_death(queue: &Queue, settings: &QueueSettings, now: Timestamp) -> AtDeath {
    let [work, graves] =
        [Guarded::Work, Guarded::DeadLetters].map(|guarded| queue.guards.breaker(guarded));
    let breaker = &settings.dead_letters.breaker;
    let states = [work.state(&settings.breaker, now), graves.state(breaker, now)];
    let spill_until = match (states[1], &graves.open) {
        (BreakerState::Open, Some(open)) if graves.forced.is_none() => open.probe_at,
        (BreakerState::Open, _) => Timestamp::MAX,
        _ => Timestamp::default(),
    };
    AtDeath { states, spill_until }
}

impl Core {
    pub(super) async fn look_at_guards(&self, queue: &Queue) -> Result<Looked, StoreError> {
        let (now, mut reply) = self.run(&GUARDS, queue, vec![PROBES_MAX.into()]).await?;
        let (work, graves) = (reply.bytes()?, reply.bytes()?);
        let (ready, listed) = (reply.count()? as usize, reply.count()?);
        let mut started = reply.list()?;
        let mut probes = Vec::new();
        while started.left() > 0 {
            probes.push(started.time()?);
        }
        let breaker = read(&work);
        queue.guards.see(work, graves);
        queue.guards.see_counts(Counts::read(&mut reply)?);
        Ok(Looked { now, work: breaker, ready, listed, probes })
    }

    /// Something has become available, as far as the breaker lets it through.
    pub(super) async fn tell(&self, queue: &Queue, jobs: i64) {
        let Some(jobs) = usize::try_from(jobs).ok().filter(|jobs| *jobs > 0) else { return };
        if queue.guards.is_at_rest() {
            self.listener.available(&queue.name, jobs);
        } else {
            self.tell_of_gate(queue).await;
        }
    }

    /// Somebody else may have changed the breaker, or have put something into line.
    pub(super) async fn look_at_gate(&self, queue: &Queue) -> Result<(), StoreError> {
        let settings = self.settings().queue(&queue.name).clone();
        let looked = self.look_at_guards(queue).await?;
        self.note_gate(queue, &looked.work);
        let jobs = looked.ready.min(looked.width(&settings.breaker));
        if jobs > 0 {
            self.listener.available(&queue.name, jobs);
        }
        Ok(())
    }

    /// The same, where the breaker has changed.
    pub(super) async fn tell_of_gate(&self, queue: &Queue) {
        // Whoever is not told now hears of it by the next look.
        drop(self.look_at_gate(queue).await);
    }

    /// Changes a breaker, and that of the work with what is counted for it, which starts over where `change` leaves none of
    /// it; as often as it takes. None: the queue was forgotten; the breaker is as it was if `change` says so.
    pub(super) async fn move_guard(
        &self,
        queue: &Queue,
        guarded: Guarded,
        settings: &QueueSettings,
        mut change: impl FnMut(&mut Breaker, &mut Option<Tally>, Timestamp) -> bool,
    ) -> Result<Option<Breaker>, StoreError> {
        for _ in 0..TRIES_MAX {
            let before = queue.guards.record(guarded);
            let mut breaker = read(&before);
            let transitions = breaker.transitions;
            let counts = queue.guards.counts();
            let known =
                (guarded == Guarded::Work).then(|| counts.tally(transitions, &settings.breaker));
            let mut tally = known.clone();
            let changed = change(&mut breaker, &mut tally, self.now());
            if !changed && tally == known {
                return Ok(Some(breaker));
            }
            let record = write(&breaker);
            let moved = breaker.transitions != transitions;
            let mut args: Vec<Arg> = vec![
                queue.number.into(),
                field(guarded).into(),
                before.into(),
                Arg::from(&record[..]),
                (moved && guarded == Guarded::Work).into(),
            ];
            args.extend(match &tally {
                same if *same == known => ["*".into(), Arg::default(), Arg::default()],
                None => [Arg::default(), Arg::default(), Arg::default()],
                Some(tally) => {
                    let counted = counts.counted(tally, transitions, breaker.transitions, &[]);
                    let Counted { after, before, known, .. } = counted;
                    [after.into(), before.into(), known.into()]
                }
            });
            let (_, mut reply) = self.run(&SET_GUARD, queue, args).await?;
            match reply.int()? {
                1 => {
                    queue.guards.see_one(guarded, record);
                    if moved {
                        self.tell_breaker(queue, guarded, settings, &breaker);
                    }
                    if guarded == Guarded::Work {
                        self.note_gate(queue, &breaker);
                        if moved {
                            self.tell_of_gate(queue).await;
                        }
                    }
                    return Ok(Some(breaker));
                }
                0 => drop(self.look_at_guards(queue).await?),
                _ => return Ok(None),
            }
        }
        Err(StoreError::OutcomeUnknown("a breaker changes all the time".into()))
    }

    pub(super) fn note_gate(&self, queue: &Queue, breaker: &Breaker) {
        let open = breaker.open.as_ref().filter(|_| breaker.forced.is_none());
        if let Some(open) = open.filter(|open| open.probe_at > self.now()) {
            self.agenda.note(queue.number, open.probe_at);
        }
    }

    pub(super) fn tell_breaker(
        &self,
        queue: &Queue,
        guarded: Guarded,
        settings: &QueueSettings,
        breaker: &Breaker,
    ) {
        let (settings, now) = (settings_of(settings, guarded), self.now());
        self.listener.breaker(&BreakerNotice {
            name: BreakerName { queue: queue.name.clone(), guarded },
            state: breaker.state(settings, now),
            probe_at: breaker.probe_at(settings, now),
            error: breaker.last_error.clone(),
            forced: breaker.forced.clone(),
        });
    }

    /// Deliveries ended with an Ack. Those of probes may close the breaker; the others are counted by the script.
    pub(super) async fn heed_successes(
        &self,
        queue: &Queue,
        settings: &QueueSettings,
        sent: &[Sent],
    ) -> Result<(), StoreError> {
        if !sent.iter().any(|sent| sent.probe) {
            return Ok(());
        }
        let _turn = queue.guards.memory.lock().await;
        self.look_at_guards(queue).await?;
        for sent in sent.iter().filter(|sent| sent.probe) {
            self.move_guard(queue, Guarded::Work, settings, |breaker, tally, now| {
                let tally = tally.get_or_insert_default();
                breaker.succeed(tally, *sent, &settings.breaker, now)
            })
            .await?;
        }
        Ok(())
    }

    /// Others counted at the same time, and nobody knew of all: together it may be an outage.
    pub(super) async fn reconsider(
        &self,
        queue: &Queue,
        settings: &QueueSettings,
        error: &str,
    ) -> Result<(), StoreError> {
        let reconsidered = |breaker: &mut Breaker, tally: &mut Option<Tally>, now| {
            let tally = tally.get_or_insert_default();
            breaker.reconsider(tally, error.to_owned(), &settings.breaker, now)
        };
        self.move_guard(queue, Guarded::Work, settings, reconsidered).await.map(|_| ())
    }

    /// Jobs have died, and for each it is known whether there was no room.
    pub(super) async fn heed_deaths(
        &self,
        queue: &Queue,
        memory: &mut Memory,
        settings: &QueueSettings,
        full: &[bool],
    ) -> Result<(), StoreError> {
        for full in full {
            let mut row = memory.full_in_a_row;
            self.move_guard(queue, Guarded::DeadLetters, settings, |breaker, _, now| {
                row = memory.full_in_a_row;
                breaker.bury(*full, &mut row, &settings.dead_letters.breaker, now).changed
            })
            .await?;
            memory.full_in_a_row = row;
        }
        Ok(())
    }

    /// Dead letters have left: where that made room, nobody needs to try whether there is some.
    pub(super) async fn made_room(&self, queue: &Queue) -> Result<(), StoreError> {
        let settings = self.settings().queue(&queue.name).clone();
        let looked = self.look_at_guards(queue).await?;
        let graves = queue.guards.breaker(Guarded::DeadLetters);
        if graves.open.is_some() && looked.listed < settings.dead_letters.max_entries {
            self.move_guard(queue, Guarded::DeadLetters, &settings, |breaker, _, _| {
                breaker.room_made()
            })
            .await?;
        }
        Ok(())
    }

    /// The time of a gate may have come: breakers turn half open, slots of probes that never came back are free.
    pub(super) async fn pass_gate(
        &self,
        queue: &Queue,
        settings: &QueueSettings,
        probes: &[Timestamp],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let work = queue.guards.breaker(Guarded::Work);
        let Some(open) = work.open.as_ref().filter(|_| work.forced.is_none()) else {
            return Ok(());
        };
        let mut memory = queue.guards.memory.lock().await;
        let breaker = &settings.breaker;
        let half_open = memory.told != work.transitions && open.probe_at <= now;
        if half_open {
            memory.told = work.transitions;
            self.tell_breaker(queue, Guarded::Work, settings, &work);
        }
        let freed = probes.iter().any(|started| started.after(breaker.recovery_timeout) <= now);
        if half_open || freed {
            self.tell_of_gate(queue).await;
        }
        let next = match work.gate(breaker, probes.iter().copied(), now) {
            Gate::Limited { until } => Some(until),
            Gate::Held { until } => until,
            Gate::All | Gate::Probes { .. } => None,
        };
        if let Some(at) = next {
            self.agenda.keep(queue.number, at);
        }
        Ok(())
    }

    /// The settings as the last call brought them. Others may open a gate.
    pub(super) async fn follow(
        self: &Arc<Self>,
        settings: &Arc<Settings>,
    ) -> Result<(), StoreError> {
        let before = {
            let mut last = self.settings.write().unwrap_or_else(PoisonError::into_inner);
            if last.as_ref().is_some_and(|last| Arc::ptr_eq(last, settings)) {
                return Ok(());
            }
            last.replace(settings.clone()).unwrap_or_default()
        };
        for queue in self.registry.all().iter().filter(|queue| !queue.guards.is_at_rest()) {
            let looked = self.look_at_guards(queue).await?;
            let width = |settings: &Settings| looked.width(&settings.queue(&queue.name).breaker);
            if width(settings) > width(&before) {
                self.tell_of_gate(queue).await;
            }
            self.note_gate(queue, &looked.work);
        }
        Ok(())
    }

    /// None: no call has brought any yet.
    pub(super) fn followed(&self) -> Option<Arc<Settings>> {
        self.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn settings(&self) -> Arc<Settings> {
        self.followed().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breakers_read_back_and_tell_whether_they_are_at_rest() {
        let at = Timestamp::from_millis;
        let open = Open {
            since: at(5),
            probe_at: at(9),
            successes: 2,
            failed_probe: Some(JobId::parse("x")),
        };
        let forced = Forced { open: true, since: at(7), reason: "why".into() };
        for (open, forced) in
            [(None, None), (Some(open.clone()), None), (None, Some(forced.clone()))]
        {
            let rests = open.is_none() && forced.is_none();
            let last_error = "Timeout: no".to_owned();
            let breaker = Breaker { transitions: 300, trips: 4, open, forced, last_error };
            let record = write(&breaker);
            assert_eq!((record[0], read(&record)), (u8::from(rests), breaker));
        }
        assert_eq!(read(b""), Breaker::default());
        assert_eq!(read(b"\x00nonsense"), Breaker::default());
    }
}
