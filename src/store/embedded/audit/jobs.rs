//! Every job with its places, side by side in the order of their numbers: so nothing has to be remembered, however many.

use super::{Audit, named};
use crate::{
    domain::{
        job::{Progress, Spec, State},
        time::Timestamp,
    },
    store::{
        Check, Depths,
        embedded::{
            codec,
            memory::{QueueNumber, timestamp, unsigned},
            places::{Tie, read_body, state_of},
        },
    },
};
use rusqlite::{Result, Row, Rows, types::Value};

/// Every row that says where a job is; `state` as `progress` writes it. One line for each home.
const HOMES: &str = "
    SELECT number, queue, 2 AS state, at, rank, tie, seen, 0 AS death FROM ready
    UNION ALL SELECT number, queue, 1, at, rank, tie, seen, 0 FROM scheduled
    UNION ALL SELECT number, queue, 3, ready_at, 0, NULL, traits & 1, 0 FROM leases
    UNION ALL SELECT number, queue, 4, at, 0, NULL, 1, 0 FROM completed
    UNION ALL SELECT number, queue, 5, died_at, 0, NULL, 1, death FROM dead
    ORDER BY 1";

const JOBS: &str = "
    SELECT j.number, j.queue, j.head, j.body, p.state, p.at, p.death, p.record
    FROM jobs j LEFT JOIN progress p ON p.number = j.number ORDER BY j.number";

/// A row that says where a job is.
struct Home {
    number: u64,
    queue: QueueNumber,
    state: State,
    at: Timestamp,
    rank: i64,
    tie: Value,
    seen: bool,
    death: u64,
}

impl Home {
    fn read(row: &Row<'_>) -> Result<Self> {
        Ok(Self {
            number: unsigned(row, 0)?,
            queue: row.get(1)?,
            state: state_of(row.get(2)?).unwrap_or(State::Ready),
            at: timestamp(row, 3)?,
            rank: row.get(4)?,
            tie: row.get(5)?,
            seen: row.get(6)?,
            death: unsigned(row, 7)?,
        })
    }

    fn waits(&self) -> bool {
        matches!(self.state, State::Ready | State::Scheduled)
    }

    fn name(&self) -> &'static str {
        match self.state {
            State::Ready => "READY",
            State::Scheduled => "SCHEDULED",
            State::Leased => "LEASED",
            State::Completed => "COMPLETED",
            State::Dead => "DEAD",
        }
    }
}

/// What `progress` says.
struct Known {
    state: Option<State>,
    at: Timestamp,
    death: u64,
    /// None: damaged.
    record: Option<Progress>,
}

struct Job {
    number: u64,
    queue: QueueNumber,
    /// For people.
    name: String,
    /// None: damaged.
    spec: Option<Spec>,
    known: Option<Known>,
}

impl Job {
    fn read(row: &Row<'_>) -> Result<Self> {
        let number = unsigned(row, 0)?;
        let head = row.get_ref(2)?.as_blob().unwrap_or_default();
        let spec = codec::read_job(head, read_body(row.get_ref(3)?)).ok();
        let known = match row.get::<_, Option<i64>>(4)? {
            None => None,
            Some(state) => Some(Known {
                state: state_of(state),
                at: timestamp(row, 5)?,
                death: unsigned(row, 6)?,
                record: codec::read_progress(row.get_ref(7)?.as_blob().unwrap_or_default()).ok(),
            }),
        };
        Ok(Self { number, queue: row.get(1)?, name: named(number, head), spec, known })
    }
}

fn next_home(homes: &mut Rows<'_>) -> Result<Option<Home>> {
    homes.next()?.map(Home::read).transpose()
}

impl Audit<'_> {
    pub(super) fn jobs(&mut self) -> Result<()> {
        let of = self.rows("jobs")?;
        let connection = self.connection;
        let (mut homes, mut jobs) = (connection.prepare(HOMES)?, connection.prepare(JOBS)?);
        let (mut homes, mut jobs) = (homes.query([])?, jobs.query([])?);
        let mut home = next_home(&mut homes)?;
        while let Some(row) = jobs.next()? {
            let job = Job::read(row)?;
            let mut mine = Vec::new();
            while let Some(this) = home.take_if(|home| home.number <= job.number) {
                match this.number == job.number {
                    true => mine.push(this),
                    false => self.orphan(&this),
                }
                home = next_home(&mut homes)?;
            }
            self.job(&job, &mine)?;
            self.report.jobs += 1;
            self.progress("jobs", self.report.jobs, of);
        }
        while let Some(this) = home {
            self.orphan(&this);
            home = next_home(&mut homes)?;
        }
        let next: u64 =
            connection.query_row("SELECT next_number FROM store", [], |row| unsigned(row, 0))?;
        let highest: Option<i64> =
            connection.query_row("SELECT max(number) FROM jobs", [], |row| row.get(0))?;
        if highest.is_some_and(|highest| highest.cast_unsigned() >= next) {
            self.report.add(Check::Counts, "", format!("the next job gets number {next}, again"));
        }
        Ok(())
    }

    fn orphan(&mut self, home: &Home) {
        self.count(home);
        let what = format!("{} holds job {}, which is not there", home.name(), home.number);
        self.found(Check::Places, home.queue, what);
    }

    /// Depths count rows, whatever is wrong with them.
    fn count(&mut self, home: &Home) {
        if let Some(queue) = self.queues.get_mut(&home.queue) {
            *depth(&mut queue.counted, home.state) += 1;
        }
    }

    fn job(&mut self, job: &Job, homes: &[Home]) -> Result<()> {
        let name = &job.name;
        if !self.queues.contains_key(&job.queue) {
            self.found(Check::Places, job.queue, format!("{name} is of a queue that is not there"));
        }
        match homes {
            [_] => {}
            [] => self.found(
                Check::Places,
                job.queue,
                format!("{name} is nowhere: nobody will ever be given it"),
            ),
            several => {
                let names: Vec<_> = several.iter().map(Home::name).collect();
                let what = format!("{name} is in {} places: {}", several.len(), names.join(", "));
                self.found(Check::Places, job.queue, what);
            }
        }
        if job.spec.is_none() {
            let what = format!("the record of {name} is not what was written");
            self.found(Check::Checksums, job.queue, what);
            self.damaged.insert(job.number);
        }
        if job.known.as_ref().is_some_and(|known| known.record.is_none()) {
            let what = format!("the progress of {name} is not what was written");
            self.found(Check::Checksums, job.queue, what);
        }
        self.report.records += 1 + u64::from(job.known.is_some());
        for home in homes {
            self.count(home);
            self.place(job, home);
            self.leads(job, home)?;
        }
        Ok(())
    }

    /// Whether the place is the one that the store looks for it in.
    fn place(&mut self, job: &Job, home: &Home) {
        let (name, state) = (&job.name, home.name());
        let mut off = Vec::new();
        if home.queue != job.queue {
            off.push(format!("it is in another queue, {}", self.name(home.queue)));
        }
        if home.seen != job.known.is_some() {
            off.push("whether it has been out before is said twice, differently".to_owned());
        }
        if let Some(spec) = job.spec.as_ref().filter(|_| home.waits()) {
            let tie = match Tie::of(job.number, &spec.id) {
                Tie::Number(number) => Value::Integer(number.cast_signed()),
                Tie::Id(id) => Value::Text(id),
            };
            if home.rank != -i64::from(spec.priority) || home.tie != tie {
                off.push("its place in line is not that of its priority and id".to_owned());
            }
            let at = job.known.as_ref().map_or(spec.run_at, |known| known.at);
            if home.at != at {
                off.push("its time is not the one that the store looks for".to_owned());
            }
        }
        if let Some(known) = &job.known {
            // Where it waits, and whether it is out, is not written there.
            let ended = |state| matches!(state, State::Dead | State::Completed);
            let says = known.state.filter(|state| ended(*state));
            let is = Some(home.state).filter(|state| ended(*state));
            if says != is || (is.is_some() && (known.death, known.at) != (home.death, home.at)) {
                off.push("its progress says that it is elsewhere".to_owned());
            }
        }
        for what in off {
            self.found(Check::Places, job.queue, format!("{name}, {state}: {what}"));
        }
    }

    /// Whether what should lead to the job is there.
    fn leads(&mut self, job: &Job, home: &Home) -> Result<()> {
        let Some(spec) = &job.spec else {
            return Ok(());
        };
        let row = job.number.cast_signed();
        let there = |sql: &str, params: &[&dyn rusqlite::ToSql]| {
            self.connection.prepare_cached(sql)?.exists(params)
        };
        let mut missing = Vec::new();
        if let Tie::Id(id) = Tie::of(job.number, &spec.id)
            && !there(
                "SELECT 1 FROM ids WHERE id = ?1 AND queue = ?2 AND number = ?3",
                &[&id, &job.queue, &row],
            )?
        {
            missing.push("its id");
        }
        let live = home.waits() || home.state == State::Leased;
        if let Some(key) = spec.key.as_ref().filter(|_| live)
            && !there(
                "SELECT 1 FROM keys WHERE queue = ?1 AND key = ?2 AND number = ?3 AND free_at IS NULL",
                &[&job.queue, key, &row],
            )?
        {
            missing.push("its idempotency key");
        }
        let cleared = job.known.as_ref().and_then(|known| known.record.as_ref());
        let deadline = cleared.map_or(spec.expires_at, |record| record.deadline(spec.expires_at));
        if let Some(at) = deadline.filter(|_| home.waits())
            && !there(
                "SELECT 1 FROM deadlines WHERE at = ?1 AND number = ?2",
                &[&at.millis().cast_signed(), &row],
            )?
        {
            missing.push("its deadline");
        }
        for what in missing {
            let what = format!("{} cannot be found by {what}", job.name);
            self.found(Check::Indexes, job.queue, what);
        }
        Ok(())
    }
}

pub(super) fn depth(depths: &mut Depths, state: State) -> &mut u64 {
    match state {
        State::Ready => &mut depths.ready,
        State::Scheduled => &mut depths.scheduled,
        State::Leased => &mut depths.leased,
        State::Completed => &mut depths.completed,
        State::Dead => &mut depths.dead,
    }
}
