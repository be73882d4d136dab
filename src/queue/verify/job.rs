//! What is wrong with a job, from all that belongs to it at one moment. Pure.

use super::moment::{Moment, WAITING, agrees};
use crate::{
    domain::{ids::QueueName, job::Spec},
    queue::{
        encoding::{FORMAT, Read, Unreadable},
        records::{self, DeadRecord, History, LeaseRecord},
        state_changes::{FIRST_FAILURE, LAST_FAILURE},
    },
    store::{
        Check, StoreError,
        storage::{Index, Member, Position, RecordKey, Table, flag},
    },
};
use bytes::Bytes;

pub(super) type Findings = Vec<(Check, String)>;

/// A record that a newer server wrote is an error that names it; a damaged one is `None`.
pub(super) fn readable<T>(
    queue: &QueueName,
    what: &str,
    read: Read<T>,
) -> Result<Option<T>, StoreError> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(Unreadable::Damaged) => Ok(None),
        Err(Unreadable::Newer(format)) => Err(StoreError::NewerFormat(format!(
            "queue {queue}: {what} has format {format}, and this server reads formats up to {FORMAT}: use the newer \
             redrive that wrote it"
        ))),
    }
}

/// How a job is named to people: by its number, and its id where its record can be read.
pub(super) fn named(number: u64, job: Option<&Bytes>) -> String {
    match job.map(|record| records::read_job_head(record)) {
        Some(Ok(spec)) => format!("job {number} ({})", spec.id),
        _ => format!("job {number}"),
    }
}

pub(super) fn findings(queue: &QueueName, moment: &Moment) -> Result<Findings, StoreError> {
    let name = named(moment.number, moment.record(Table::Job));
    let mut found = Finder { queue, moment, name, found: Vec::new() };
    let facts = found.read()?;
    if facts.exists {
        found.places(&facts);
        found.lease(&facts);
        found.dead(&facts);
        found.completed(&facts);
        found.deadline(&facts);
        found.names(&facts)?;
        found.parts(&facts);
    } else {
        found.without_job()?;
    }
    Ok(found.found)
}

/// What could be read. Of damaged records nothing else is asked.
struct Facts {
    exists: bool,
    spec: Option<Spec>,
    /// None inside: it has none. None: it is damaged.
    history: Option<Option<History>>,
    lease: Option<LeaseRecord>,
    dead: Option<(u64, DeadRecord)>,
    places: Vec<Place>,
}

/// Where a job is.
#[derive(Clone, Copy)]
struct Place {
    index: Index,
    position: Option<Position>,
}

impl Place {
    fn name(&self) -> &'static str {
        match self.index {
            Index::Ready => "READY",
            Index::Scheduled | Index::Retrying => "SCHEDULED",
            Index::Leased => "LEASED",
            Index::Completed => "COMPLETED",
            Index::Overflow => "DEAD (overflow)",
            _ => "DEAD",
        }
    }
}

impl Facts {
    fn is_in(&self, indexes: &[Index]) -> bool {
        self.places.iter().any(|place| indexes.contains(&place.index))
    }

    fn waits(&self) -> bool {
        self.is_in(&WAITING)
    }

    fn has_ended(&self) -> bool {
        self.is_in(&[Index::Dead, Index::Overflow, Index::Completed])
    }
}

struct Finder<'a> {
    queue: &'a QueueName,
    moment: &'a Moment,
    name: String,
    found: Findings,
}

impl Finder<'_> {
    fn add(&mut self, check: Check, what: impl Into<String>) {
        self.found.push((check, what.into()));
    }

    fn damaged(&mut self, what: &str) {
        self.add(Check::Checksums, format!("{what} is not what was written"));
    }

    /// A damaged record is a finding, and `None`.
    fn check<T>(&mut self, what: &str, read: Read<T>) -> Result<Option<T>, StoreError> {
        let value = readable(self.queue, what, read)?;
        if value.is_none() {
            self.damaged(what);
        }
        Ok(value)
    }

    fn read(&mut self) -> Result<Facts, StoreError> {
        let moment = self.moment;
        let name = self.name.clone();
        let body = moment.record(Table::Body);
        let mut facts = Facts {
            exists: moment.record(Table::Job).is_some(),
            spec: None,
            history: Some(None),
            lease: None,
            dead: None,
            places: places(moment),
        };
        if let Some(record) = moment.record(Table::Job) {
            let what = format!("the record of {name}");
            facts.spec = self.check(&what, records::read_job(record, body))?;
        }
        if let Some(record) = moment.record(Table::History) {
            let what = format!("the history of {name}");
            facts.history = self.check(&what, records::read_history(record))?.map(Some);
        }
        if let Some(record) = moment.record(Table::Lease) {
            let what = format!("the lease of {name}");
            let lease = records::read_lease(self.queue, moment.number, record);
            facts.lease = self.check(&what, lease)?;
        }
        if let Some(record) = moment.record(Table::Dead) {
            let what = format!("the dead-letter record of {name}");
            facts.dead = self.check(&what, records::read_dead(record))?;
        }
        if let Some(record) = moment.record(Table::Result) {
            self.check(&format!("one result of {name}"), records::read_result(record))?;
        }
        for (_, record) in moment.all(Table::Attempt) {
            self.check(&format!("one attempt of {name}"), records::read_attempt(record))?;
        }
        for (_, record) in moment.all(Table::Failure) {
            self.check(&format!("one failure of {name}"), records::read_failure(record))?;
        }
        Ok(facts)
    }

    // ---- where it is ----

    fn places(&mut self, facts: &Facts) {
        let name = self.name.clone();
        match &facts.places[..] {
            [_] => {}
            [] => self.add(Check::Places, format!("{name} is nowhere: no worker will be given it")),
            several => {
                let names: Vec<_> = several.iter().map(Place::name).collect();
                let what = format!("{name} is in {} places: {}", names.len(), names.join(", "));
                self.add(Check::Places, what);
            }
        }
        for place in &facts.places {
            for what in misplaced(facts, place, self.moment.position()) {
                self.add(Check::Places, format!("{name}, {}: {what}", place.name()));
            }
        }
    }

    fn lease(&mut self, facts: &Facts) {
        let (moment, name) = (self.moment, self.name.clone());
        let scored = moment.score(Index::Leased).is_some();
        if moment.record(Table::Lease).is_some() && !scored {
            self.add(Check::Places, format!("{name}, LEASED: its lease has no end"));
        }
        if moment.record(Table::Lease).is_none() && scored {
            self.add(Check::Places, format!("{name}, LEASED: its lease is not there"));
        }
        let probe = facts.lease.as_ref().filter(|it| it.lease.flags & flag::PROBE != 0).map(|it| {
            let epoch = it.lease.epoch;
            (Member::Probe { epoch, number: moment.number }, it.lease.started_at.millis())
        });
        let entries: Vec<_> = moment.entries(Index::Probe).collect();
        if let Some((member, started)) = &probe
            && !entries.contains(&(member, *started))
        {
            let what = format!("{name}, LEASED: it is a probe that is not counted");
            self.add(Check::Indexes, what);
        }
        // Of a lease that cannot be read it is not known.
        let known = moment.record(Table::Lease).is_none() || facts.lease.is_some();
        let own = probe.as_ref().map(|(member, started)| (member, *started));
        for _ in entries.into_iter().filter(|entry| known && Some(*entry) != own) {
            self.add(Check::Indexes, format!("one probe leads to {name}, wrongly"));
        }
        let Some(lease) = &facts.lease else { return };
        let bits = |table| moment.record(table).map_or(0, |it: &Bytes| records::traits(it));
        let traits = bits(Table::Job) | bits(Table::History);
        if facts.spec.is_some() && lease.lease.flags & !flag::PROBE != traits {
            let what = format!("{name}, LEASED: its lease does not know what belongs to it");
            self.add(Check::Places, what);
        }
    }

    fn dead(&mut self, facts: &Facts) {
        let (moment, name) = (self.moment, self.name.clone());
        let entries = [Index::Dead, Index::Overflow].map(|index| moment.score(index));
        let scores: Vec<u64> = entries.into_iter().flatten().collect();
        match moment.record(Table::Dead) {
            None if scores.is_empty() => return,
            None => self
                .add(Check::Places, format!("{name}, DEAD: its dead-letter record is not there")),
            Some(_) if scores.is_empty() => {
                self.add(Check::Places, format!("{name}, DEAD: it is not in the order of deaths"));
            }
            Some(record) => {
                let death = records::death_of(record);
                if scores.iter().any(|score| *score != death) {
                    let what = format!("{name}, DEAD: its position is not that of its death");
                    self.add(Check::Places, what);
                }
            }
        }
        if let (Some((_, dead)), Some(Some(history))) = (&facts.dead, &facts.history)
            && agrees(Some(history.whereabouts), Index::Dead)
            && history.at != dead.died_at
        {
            let what = format!("{name}, DEAD: its history says that it died at another time");
            self.add(Check::Places, what);
        }
    }

    fn completed(&mut self, facts: &Facts) {
        let (moment, name) = (self.moment, self.name.clone());
        let score = moment.score(Index::Completed);
        if let (Some(score), Some(Some(history))) = (score, &facts.history)
            && agrees(Some(history.whereabouts), Index::Completed)
            && history.at.millis() != score
        {
            let what =
                format!("{name}, COMPLETED: its history says that it was done at another time");
            self.add(Check::Places, what);
        }
        if moment.record(Table::Result).is_some() && score.is_none() {
            self.add(Check::Indexes, format!("one result leads to {name}, wrongly"));
        }
    }

    // ---- what leads to it ----

    fn deadline(&mut self, facts: &Facts) {
        let (Some(spec), Some(history)) = (&facts.spec, &facts.history) else { return };
        let deadline = match history {
            Some(history) => history.progress.deadline(spec.expires_at),
            None => spec.expires_at,
        };
        let deadline = deadline.map(|at| at.millis());
        let score = self.moment.score(Index::Deadline);
        let name = self.name.clone();
        // While it is leased its deadline may have been passed over.
        if facts.waits() && deadline.is_some() && score.is_none() {
            self.add(Check::Indexes, format!("{name} cannot be found by its deadline"));
        }
        if score.is_some() && (facts.has_ended() || score != deadline) {
            self.add(Check::Indexes, format!("one deadline leads to {name}, wrongly"));
        }
    }

    /// Its id and its idempotency key.
    fn names(&mut self, facts: &Facts) -> Result<(), StoreError> {
        let (moment, number) = (self.moment, self.moment.number);
        let name = self.name.clone();
        let own_id = facts.spec.as_ref().and_then(|spec| records::own_id(spec, number));
        let starts = |record: Option<&Bytes>| {
            record.is_some_and(|record| record.starts_with(&records::owner(number)))
        };
        if let Some(id) = &own_id
            && !starts(moment.of_text(Table::Id, id))
        {
            self.add(Check::Indexes, format!("{name} cannot be found by its id"));
        }
        let completed = facts.is_in(&[Index::Completed]);
        let live = facts.waits() || facts.is_in(&[Index::Leased]);
        let key = facts.spec.as_ref().and_then(|spec| spec.key.as_deref());
        let holds = |record: &Bytes| records::read_key(record).is_ok_and(|it| it.free_at.is_none());
        if let Some(key) = key.filter(|_| live) {
            let record = moment.of_text(Table::Key, key);
            if !starts(record) || !record.is_some_and(holds) {
                self.add(Check::Indexes, format!("{name} cannot be found by its idempotency key"));
            }
        }
        for (text, _) in self.own_ids()? {
            if facts.spec.is_some() && own_id.as_deref() != Some(&*text) {
                self.add(Check::Indexes, format!("one id leads to {name}, wrongly"));
            }
        }
        for text in self.own_keys()? {
            if facts.spec.is_some() && (key != Some(&*text) || completed) {
                self.add(Check::Indexes, format!("one idempotency key leads to {name}, wrongly"));
            }
        }
        Ok(())
    }

    /// The ids that name this job.
    fn own_ids(&mut self) -> Result<Vec<(Box<str>, u64)>, StoreError> {
        let mut own = Vec::new();
        for (key, record) in self.moment.all(Table::Id) {
            let RecordKey::Text(text) = key else { continue };
            let id =
                self.check(&format!("the record of the id {text:?}"), records::read_id(record))?;
            own.extend(id.map(|id| (text.clone(), id.number)));
        }
        let number = self.moment.number;
        own.retain(|(_, of)| *of == number);
        Ok(own)
    }

    /// The keys that this job holds and that are not free at a time.
    fn own_keys(&mut self) -> Result<Vec<Box<str>>, StoreError> {
        let mut own = Vec::new();
        for (key, record) in self.moment.all(Table::Key) {
            let RecordKey::Text(text) = key else { continue };
            let what = format!("the record of the idempotency key {text:?}");
            let record = self.check(&what, records::read_key(record))?;
            let record =
                record.filter(|it| it.number == self.moment.number && it.free_at.is_none());
            own.extend(record.map(|_| text.clone()));
        }
        Ok(own)
    }

    /// Its body, attempts and failures.
    fn parts(&mut self, facts: &Facts) {
        let (moment, name) = (self.moment, self.name.clone());
        let traits = moment.record(Table::Job).map_or(0, |it| records::traits(it));
        if moment.record(Table::Body).is_some() && traits & flag::BODY == 0 {
            self.add(Check::Indexes, format!("one body leads to {name}, wrongly"));
        }
        let Some(history) = &facts.history else { return };
        let known = moment.attempts();
        let there: Vec<_> = parts_of(moment, Table::Attempt).collect();
        let gaps = known.iter().filter(|part| !there.contains(part)).count();
        if gaps > 0 {
            self.add(Check::Indexes, format!("{gaps} attempts of {name} are not there"));
        }
        for _ in there.iter().filter(|part| !known.contains(part)) {
            self.add(Check::Indexes, format!("one attempt leads to {name}, wrongly"));
        }
        let failed = history.as_ref().is_some_and(|it| it.progress.first_failed_at.is_some());
        let failures: Vec<_> = parts_of(moment, Table::Failure).collect();
        if failed && !failures.contains(&FIRST_FAILURE) {
            self.add(Check::Indexes, format!("the first failure of {name} is not there"));
        }
        let wrong = |part: &&u8| !failed || ![FIRST_FAILURE, LAST_FAILURE].contains(*part);
        for _ in failures.iter().filter(wrong) {
            self.add(Check::Indexes, format!("one failure leads to {name}, wrongly"));
        }
    }

    // ---- a job that is not there ----

    /// All that is left of it.
    fn without_job(&mut self) -> Result<(), StoreError> {
        let moment = self.moment;
        let number = moment.number;
        for place in places(moment) {
            let what = format!("{} holds job {number}, which is not there", place.name());
            self.add(Check::Places, what);
        }
        let of_table = [
            (Table::History, "the history"),
            (Table::Lease, "a lease"),
            (Table::Body, "a body"),
            (Table::Dead, "a dead-letter record"),
            (Table::Result, "a result"),
            (Table::Attempt, "an attempt"),
            (Table::Failure, "a failure"),
        ];
        for (table, one) in of_table {
            for _ in moment.all(table) {
                self.add(Check::Indexes, format!("{one} of job {number} is there without it"));
            }
        }
        let ids = self.own_ids()?.into_iter().map(|_| "id");
        let keys = self.own_keys()?.into_iter().map(|_| "idempotency key");
        let deadline = moment.score(Index::Deadline).map(|_| "deadline");
        let probes = moment.entries(Index::Probe).map(|_| "probe");
        for one in ids.chain(keys).chain(deadline).chain(probes) {
            let what = format!("one {one} leads to job {number}, which is not there");
            self.add(Check::Indexes, what);
        }
        Ok(())
    }
}

fn parts_of(moment: &Moment, table: Table) -> impl Iterator<Item = u8> {
    moment.all(table).filter_map(|(key, _)| match key {
        RecordKey::Part(_, part) => Some(*part),
        _ => None,
    })
}

/// Wherever something says that the job is.
fn places(moment: &Moment) -> Vec<Place> {
    let mut places = Vec::new();
    for index in WAITING {
        for (member, _) in moment.entries(index) {
            let position = match member {
                Member::Position(position) => Some(*position),
                _ => None,
            };
            places.push(Place { index, position });
        }
    }
    let mut numbered = |index: Index, is_there: bool| {
        if is_there {
            places.push(Place { index, position: None });
        }
    };
    let has = |index| moment.score(index).is_some();
    let lease = moment.record(Table::Lease).is_some();
    numbered(Index::Leased, lease || has(Index::Leased));
    let dead = moment.record(Table::Dead).is_some() && !has(Index::Overflow);
    numbered(Index::Dead, dead || has(Index::Dead));
    numbered(Index::Overflow, has(Index::Overflow));
    numbered(Index::Completed, has(Index::Completed));
    places
}

/// How a place is not the one that the records of the job say. `expected`: where it waits or has waited.
fn misplaced(facts: &Facts, place: &Place, expected: Option<Position>) -> Vec<&'static str> {
    let mut off = Vec::new();
    let Some(history) = &facts.history else { return off };
    let whereabouts = history.as_ref().map(|history| history.whereabouts);
    if !agrees(whereabouts, place.index) {
        off.push("its history says that it is elsewhere");
        return off;
    }
    // A job whose record is damaged says nothing, unless it has a history.
    let expected = expected.filter(|_| history.is_some() || facts.spec.is_some());
    let leased = facts.lease.as_ref().map(|lease| lease.position);
    let leased = leased.filter(|_| place.index == Index::Leased);
    let position = place.position.or(leased);
    if let (Some(position), Some(expected)) = (position, expected) {
        if position.rank != expected.rank {
            off.push("its position is not that of its priority");
        }
        if position.ready_at != expected.ready_at {
            off.push("its time is not the one that its records say");
        }
        if position.tag != expected.tag {
            off.push("whether it has a history is said twice, differently");
        }
        if (position.group, position.number) != (expected.group, expected.number) {
            off.push("its position is that of another job");
        }
    }
    off
}
