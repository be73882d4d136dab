//! What is wrong with a job, from all that belongs to it at one moment. Pure.

use super::moment::{Moment, WAITING, owner, shown};
use crate::domain::{QueueName, Spec};
use crate::queue::encoding::{FORMAT, Read, Unreadable};
use crate::queue::records::{self, DeadRecord, History, LeaseRecord, Whereabouts};
use crate::queue::state_changes::{FIRST_FAILURE, LAST_FAILURE};
use crate::store::storage::{Index, Member, NO_GROUP, Position, RecordKey, Table, flag, group_of};
use crate::store::{Check, Result, StoreError};
use bytes::Bytes;

pub(super) type Findings = Vec<(Check, String)>;

/// A record that a newer server wrote is an error that names it; a damaged one is `None`.
pub(super) fn readable<T>(queue: &QueueName, what: &str, read: Read<T>) -> Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(Unreadable::Damaged) => Ok(None),
        Err(Unreadable::Newer(format)) => Err(StoreError::NewerFormat(format!(
            "queue {queue}: {what} has format {format}, and this server reads formats up to {FORMAT}: use the newer \
             redrive that wrote it"
        ))),
    }
}

pub(super) fn findings(queue: &QueueName, moment: &Moment) -> Result<Findings> {
    // By its number, and its id where its record can be read.
    let name = match &moment.head {
        Some(spec) => format!("job {} ({})", moment.number, spec.id),
        None => format!("job {}", moment.number),
    };
    let found = Vec::new();
    let (spec, history, lease, dead, places) = (None, None, None, None, places(moment));
    let mut finder = Finder { queue, moment, name, found, spec, history, lease, dead, places };
    finder.read()?;
    if moment.record(Table::Job).is_some() {
        finder.where_it_is();
        finder.lease();
        finder.dead();
        finder.completed();
        finder.deadline();
        finder.names()?;
        finder.parts();
    } else {
        finder.without_job()?;
    }
    Ok(finder.found)
}

struct Finder<'a> {
    queue: &'a QueueName,
    moment: &'a Moment,
    name: String,
    found: Findings,
    // What could be read. Of damaged records nothing else is asked.
    spec: Option<Spec>,
    /// None inside: it has none. None: it is damaged.
    history: Option<Option<History>>,
    lease: Option<LeaseRecord>,
    dead: Option<(u64, DeadRecord)>,
    places: Vec<Place>,
}

/// Where a job is; its position where it waits.
type Place = (Index, Option<Position>);

fn place_name(index: Index) -> &'static str {
    match index {
        Index::Ready | Index::Keyed => "READY",
        Index::Scheduled => "SCHEDULED",
        Index::Retrying => "RETRYING",
        Index::Leased => "LEASED",
        Index::Completed => "COMPLETED",
        Index::Cancelled => "CANCELLED",
        Index::Overflow => "DEAD (overflow)",
        _ => "DEAD",
    }
}

impl<'a> Finder<'a> {
    fn is_in(&self, indexes: &[Index]) -> bool {
        self.places.iter().any(|(index, _)| indexes.contains(index))
    }

    /// When it came to where its history says that it is, if that can be this index.
    fn came_at(&self, index: Index) -> Option<u64> {
        let history = self.history.as_ref()?.as_ref()?;
        agrees(Some(history.whereabouts), index).then(|| history.at.millis())
    }

    fn add(&mut self, check: Check, what: String) {
        self.found.push((check, what));
    }

    /// Something is wrong with the job at a place.
    fn at(&mut self, place: &str, what: &str) {
        self.add(Check::Places, format!("{}, {place}: {what}", self.name));
    }

    fn not_found_by(&mut self, what: &str) {
        self.add(Check::Indexes, format!("{} cannot be found by its {what}", self.name));
    }

    fn wrongly(&mut self, one: &str) {
        self.add(Check::Indexes, format!("one {one} leads to {}, wrongly", self.name));
    }

    /// A damaged record is a finding, and `None`.
    fn check<T>(&mut self, what: &str, read: Read<T>) -> Result<Option<T>> {
        let value = readable(self.queue, what, read)?;
        if value.is_none() {
            self.add(Check::Checksums, format!("{what} is not what was written"));
        }
        Ok(value)
    }

    /// The same for the records of the job in one table; the last of them.
    fn check_all<T>(&mut self, what: &str, table: Table, read: impl Fn(&Bytes) -> Read<T>) -> Result<Option<T>> {
        let mut last = None;
        for (_, record) in self.moment.all(table) {
            last = self.check(&format!("{what} of {}", self.name), read(record))?;
        }
        Ok(last)
    }

    fn read(&mut self) -> Result<()> {
        let (queue, moment) = (self.queue, self.moment);
        let body = moment.record(Table::Body);
        self.spec = self.check_all("the record", Table::Job, |it| records::read_job(it, body))?;
        let history = self.check_all("the history", Table::History, |it| records::read_history(it))?;
        let is_damaged = history.is_none() && moment.record(Table::History).is_some();
        self.history = (!is_damaged).then_some(history);
        let lease = |it: &Bytes| records::read_lease(queue, moment.number, it);
        self.lease = self.check_all("the lease", Table::Lease, lease)?;
        self.dead = self.check_all("the dead-letter record", Table::Dead, |it| records::read_dead(it))?;
        self.check_all("one result", Table::Result, records::read_result)?;
        self.check_all("one attempt", Table::Attempt, |it| records::read_attempt(it))?;
        self.check_all("one event", Table::Event, |it| records::read_event(it))?;
        self.check_all("one failure", Table::Failure, |it| records::read_failure(it))?;
        Ok(())
    }

    // ---- where it is ----

    fn where_it_is(&mut self) {
        let names: Vec<_> = self.places.iter().map(|(index, _)| place_name(*index)).collect();
        let name = &self.name;
        match names.len() {
            1 => {}
            0 => self.add(Check::Places, format!("{name} is nowhere: no worker will be given it")),
            count => self.add(Check::Places, format!("{name} is in {count} places: {}", names.join(", "))),
        }
        let off: Vec<_> = self.places.iter().map(|place| self.misplaced(*place)).collect();
        for (name, what) in names.into_iter().zip(off) {
            what.into_iter().for_each(|what| self.at(name, what));
        }
    }

    /// How a place is not the one that the records of the job say.
    fn misplaced(&self, (index, position): Place) -> Vec<&'static str> {
        let Some(history) = &self.history else { return Vec::new() };
        if !agrees(history.as_ref().map(|history| history.whereabouts), index) {
            return vec!["its history says that it is elsewhere"];
        }
        let leased = self.lease.as_ref().map(|lease| lease.position).filter(|_| index == Index::Leased);
        // A job whose record is damaged says nothing, unless it has a history.
        let expected = self.moment.position().filter(|_| history.is_some() || self.spec.is_some());
        let (Some(is), Some(should)) = (position.or(leased), expected) else { return Vec::new() };
        let off = [
            (is.rank != should.rank, "its position is not that of its priority"),
            (is.ready_at != should.ready_at, "its time is not the one that its records say"),
            (is.tag != should.tag, "whether it has a history is said twice, differently"),
            (is.group != should.group, "its position is that of another breaker key"),
            (is.number != should.number, "its position is that of another job"),
        ];
        off.into_iter().filter(|(is_off, _)| *is_off).map(|(_, what)| what).collect()
    }

    fn lease(&mut self) {
        let moment = self.moment;
        let has_record = moment.record(Table::Lease).is_some();
        match (has_record, moment.score(Index::Leased)) {
            (true, None) => self.at("LEASED", "its lease has no end"),
            (false, Some(_)) => self.at("LEASED", "its lease is not there"),
            _ => {}
        }
        let group = self.lease.as_ref().map(|it| it.position.group);
        let by_group = moment.score(Index::LeasedByGroup);
        match group.filter(|group| *group != NO_GROUP) {
            Some(group) if by_group != Some(group.into()) => {
                self.at("LEASED", "its lease is not among those of its breaker key");
            }
            None if by_group.is_some() && (group.is_some() || !has_record) => self.wrongly("lease of a breaker key"),
            _ => {}
        }
        let lease = self.lease.as_ref().map(|it| it.lease.clone());
        if lease.as_ref().is_some_and(|it| Some(group_of(it.epoch)) != group) {
            self.at("LEASED", "its lease is under the breaker of another key");
        }
        let own = lease.as_ref().filter(|it| it.flags & flag::PROBE != 0).map(|it| {
            let member = Member::Probe { epoch: it.epoch, number: moment.number };
            (member, it.started_at.millis())
        });
        let (counted, others): (Vec<_>, Vec<_>) = moment
            .entries(Index::Probe)
            .partition(|(member, score)| own.as_ref().is_some_and(|own| (&own.0, own.1) == (*member, *score)));
        if own.is_some() && counted.is_empty() {
            let what = format!("{}, LEASED: it is a probe that is not counted", self.name);
            self.add(Check::Indexes, what);
        }
        // Of a lease that cannot be read it is not known.
        if !has_record || lease.is_some() {
            others.iter().for_each(|_| self.wrongly("probe"));
        }
        let bits = |table| moment.record(table).map_or(0, |it: &Bytes| records::traits(it));
        let traits = bits(Table::Job) | bits(Table::History);
        if self.spec.is_some() && lease.is_some_and(|it| it.flags & !(flag::PROBE | flag::RAMP) != traits) {
            self.at("LEASED", "its lease does not know what belongs to it");
        }
    }

    fn dead(&mut self) {
        let moment = self.moment;
        let scores = [Index::Dead, Index::Overflow].map(|index| moment.score(index));
        let mut scores = scores.into_iter().flatten().peekable();
        match (moment.record(Table::Dead), scores.peek()) {
            (None, None) => return,
            (None, Some(_)) => self.at("DEAD", "its dead-letter record is not there"),
            (Some(_), None) => self.at("DEAD", "it is not in the order of deaths"),
            (Some(record), Some(_)) => {
                let death = records::death_of(record);
                if scores.any(|score| score != death) {
                    self.at("DEAD", "its position is not that of its death");
                }
            }
        }
        let died_at = self.dead.as_ref().map(|(_, dead)| dead.died_at.millis());
        if self.came_at(Index::Dead).zip(died_at).is_some_and(|(came, died)| came != died) {
            self.at("DEAD", "its history says that it died at another time");
        }
    }

    fn completed(&mut self) {
        for (index, name) in [(Index::Completed, "COMPLETED"), (Index::Cancelled, "CANCELLED")] {
            let score = self.moment.score(index);
            if self.came_at(index).zip(score).is_some_and(|(came, over)| came != over) {
                self.at(name, "its history says that it came to this at another time");
            }
        }
        if self.moment.record(Table::Result).is_some() && self.moment.score(Index::Completed).is_none() {
            self.wrongly("result");
        }
    }

    // ---- what leads to it ----

    fn deadline(&mut self) {
        let (Some(spec), Some(history)) = (&self.spec, &self.history) else { return };
        let deadline = match history {
            Some(history) => history.progress.deadline(spec.expires_at),
            None => spec.expires_at,
        };
        let deadline = deadline.map(|at| at.millis());
        let score = self.moment.score(Index::Deadline);
        // While it is leased its deadline may have been passed over.
        if self.is_in(&WAITING) && deadline.is_some() && score.is_none() {
            self.not_found_by("deadline");
        }
        let has_ended = self.is_in(&[Index::Dead, Index::Overflow, Index::Completed, Index::Cancelled]);
        if score.is_some() && (has_ended || score != deadline) {
            self.wrongly("deadline");
        }
    }

    /// Its id and its idempotency key.
    fn names(&mut self) -> Result<()> {
        let (moment, number) = (self.moment, self.moment.number);
        let ids = self.names_in(Table::Id)?;
        let keys = self.names_in(Table::Key)?;
        let Some(spec) = &self.spec else { return Ok(()) };
        let (own_id, own_key) = (records::own_id(spec, number), spec.key.clone());
        let starts = |record: Option<&Bytes>| record.is_some_and(|it| it.starts_with(&records::owner(number)));
        if own_id.as_ref().is_some_and(|id| !starts(moment.of_text(Table::Id, id))) {
            self.not_found_by("id");
        }
        let own_key = own_key.as_deref();
        let live = self.is_in(&WAITING) || self.is_in(&[Index::Leased]);
        if own_key.is_some_and(|key| live && !keys.contains(&key)) {
            self.not_found_by("idempotency key");
        }
        for _ in ids.iter().filter(|id| own_id.as_deref() != Some(**id)) {
            self.wrongly("id");
        }
        for _ in keys.iter().filter(|key| own_key != Some(**key)) {
            self.wrongly("idempotency key");
        }
        for _ in moment.entries(Index::Expires) {
            self.wrongly("end of an id");
        }
        Ok(())
    }

    /// The ids that name this job, or the keys that it has.
    fn names_in(&mut self, table: Table) -> Result<Vec<&'a str>> {
        let mut names = Vec::new();
        for (key, record) in self.moment.all(table) {
            let what = format!("the record of {}", shown(table, key));
            let owner = self.check(&what, owner(table, key, record))?.flatten();
            if let (RecordKey::Text(text), true) = (key, owner == Some(self.moment.number)) {
                names.push(&**text);
            }
        }
        Ok(names)
    }

    /// Its body, attempts, events and failures.
    fn parts(&mut self) {
        let moment = self.moment;
        let traits = moment.record(Table::Job).map_or(0, |it| records::traits(it));
        if moment.record(Table::Body).is_some() && traits & flag::BODY == 0 {
            self.wrongly("body");
        }
        let Some(history) = &self.history else { return };
        let failed = history.as_ref().is_some_and(|it| it.progress.first_failed_at.is_some());
        let parts = |table| {
            let part = |(key, _): (&RecordKey, _)| match key {
                RecordKey::Part(_, part) => Some(*part),
                _ => None,
            };
            moment.all(table).filter_map(part).collect::<Vec<u8>>()
        };
        let (attempts, events): (Vec<_>, Vec<_>) = (moment.attempts().collect(), moment.events().collect());
        for (table, one, known) in [(Table::Attempt, "attempt", attempts), (Table::Event, "event", events)] {
            let found = parts(table);
            let gaps = known.iter().filter(|part| !found.contains(part)).count();
            if gaps > 0 {
                self.add(Check::Indexes, format!("{gaps} {one}s of {} are not there", self.name));
            }
            for _ in found.iter().filter(|part| !known.contains(part)) {
                self.wrongly(one);
            }
        }
        let failures = parts(Table::Failure);
        if failed && !failures.contains(&FIRST_FAILURE) {
            self.add(Check::Indexes, format!("the first failure of {} is not there", self.name));
        }
        for _ in failures.iter().filter(|part| !failed || **part > LAST_FAILURE) {
            self.wrongly("failure");
        }
    }

    // ---- a job that is not there ----

    /// All that is left of it.
    fn without_job(&mut self) -> Result<()> {
        let (moment, number) = (self.moment, self.moment.number);
        for (index, _) in self.places.clone() {
            self.add(Check::Places, format!("{} holds job {number}, which is not there", place_name(index)));
        }
        let of_table = [
            (Table::History, "the history"),
            (Table::Lease, "a lease"),
            (Table::Body, "a body"),
            (Table::Dead, "a dead-letter record"),
            (Table::Result, "a result"),
            (Table::Attempt, "an attempt"),
            (Table::Event, "an event"),
            (Table::Failure, "a failure"),
        ];
        for (table, one) in of_table {
            for _ in moment.all(table) {
                self.add(Check::Indexes, format!("{one} of job {number} is there without it"));
            }
        }
        let names = [
            // An own id may outlive its job, where it has an end.
            ("id", self.names_in(Table::Id)?.len().saturating_sub(moment.entries(Index::Expires).count())),
            ("idempotency key", self.names_in(Table::Key)?.len()),
            ("deadline", moment.entries(Index::Deadline).count()),
            ("lease of a breaker key", moment.entries(Index::LeasedByGroup).count()),
            ("probe", moment.entries(Index::Probe).count()),
        ];
        for (one, count) in names {
            for _ in 0..count {
                self.add(Check::Indexes, format!("one {one} leads to job {number}, which is not there"));
            }
        }
        Ok(())
    }
}

/// Wherever something says that the job is.
fn places(moment: &Moment) -> Vec<Place> {
    let mut places = Vec::new();
    for index in WAITING {
        places.extend(moment.entries(index).map(|(member, _)| match member {
            Member::Position(position) => (index, Some(*position)),
            _ => (index, None),
        }));
    }
    let has = |index| moment.score(index).is_some();
    let lease = moment.record(Table::Lease).is_some();
    let dead = moment.record(Table::Dead).is_some() && !has(Index::Overflow);
    let over = [Index::Overflow, Index::Completed, Index::Cancelled].map(|index| (index, false));
    let numbered = [(Index::Leased, lease), (Index::Dead, dead)].into_iter().chain(over);
    let there = numbered.filter(|(index, by_record)| *by_record || has(*index));
    places.extend(there.map(|(index, _)| (index, None)));
    places
}

/// Whether a job that has been there last can be in this index. `None`: it has no history.
fn agrees(whereabouts: Option<Whereabouts>, index: Index) -> bool {
    let waits = |first: Index| [Index::Ready, Index::Keyed, Index::Leased, first].contains(&index);
    match whereabouts {
        // A promotion and a take write nothing about it.
        None | Some(Whereabouts::Scheduled) => waits(Index::Scheduled),
        Some(Whereabouts::Ready) => waits(Index::Ready),
        Some(Whereabouts::Retrying) => waits(Index::Retrying),
        Some(Whereabouts::Completed) => index == Index::Completed,
        Some(Whereabouts::Cancelled) => index == Index::Cancelled,
        Some(Whereabouts::Dead | Whereabouts::Overflow) => [Index::Dead, Index::Overflow].contains(&index),
    }
}
