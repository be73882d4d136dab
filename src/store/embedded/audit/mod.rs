//! Looks at everything in a data directory and changes nothing. It reads one moment, so a server may go on beside it; the
//! server's log file grows until the audit has ended, because that moment has to stay readable.

mod counts;
mod indexes;
mod jobs;

use super::{
    OpenError, codec,
    memory::{QueueNumber, read_queue, read_totals},
    schema,
};
use crate::{
    domain::ids::QueueName,
    store::{AuditProgress, AuditReport, AuditedQueue, Check, Depths},
};
use rusqlite::{Connection, Result};
use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

/// Progress is told once for so many rows.
const TELL_EVERY: u64 = 10_000;
/// Problems of its own that SQLite lists, at most.
const FILE_PROBLEMS_MAX: u32 = 100;

/// Audits the store in a directory. `tell` hears now and then how far it is.
pub fn audit(
    directory: &Path,
    tell: &mut dyn FnMut(AuditProgress),
) -> std::result::Result<AuditReport, OpenError> {
    let path = directory.join(schema::DATABASE);
    let in_database = |error: schema::SchemaError| OpenError::Schema { path: path.clone(), error };
    let connection = schema::open_to_look(&path).map_err(in_database)?;
    look(&connection, tell).map_err(|error| in_database(error.into()))
}

fn look(connection: &Connection, tell: &mut dyn FnMut(AuditProgress)) -> Result<AuditReport> {
    let moment = connection.unchecked_transaction()?;
    let mut audit = Audit {
        connection: &moment,
        report: AuditReport::default(),
        queues: HashMap::new(),
        damaged: HashSet::new(),
        tell,
    };
    audit.files()?;
    audit.read_queues()?;
    audit.jobs()?;
    audit.history()?;
    audit.indexes()?;
    audit.counts()?;
    audit.report.check_law();
    Ok(audit.report)
}

struct Audit<'a> {
    connection: &'a Connection,
    report: AuditReport,
    queues: HashMap<QueueNumber, Queue>,
    /// Jobs whose record lies: nothing else is held to what it says.
    damaged: HashSet<u64>,
    tell: &'a mut dyn FnMut(AuditProgress),
}

/// A queue as its row says, and as it was counted.
struct Queue {
    name: QueueName,
    depths: Depths,
    counted: Depths,
    finished_keys: u64,
    next_death: u64,
}

impl Audit<'_> {
    fn progress(&mut self, step: &'static str, done: u64, of: Option<u64>) {
        if done.is_multiple_of(TELL_EVERY) {
            (self.tell)(AuditProgress { step, done, of });
        }
    }

    fn name(&self, queue: QueueNumber) -> String {
        self.queues.get(&queue).map_or_else(|| format!("number {queue}"), |it| it.name.to_string())
    }

    fn found(&mut self, check: Check, queue: QueueNumber, what: impl Into<String>) {
        let name = self.name(queue);
        self.report.add(check, name, what);
    }

    fn rows(&self, table: &str) -> Result<Option<u64>> {
        let sql = format!("SELECT count(*) FROM {table}");
        self.connection.query_row(&sql, [], |row| super::memory::unsigned(row, 0)).map(Some)
    }

    /// SQLite's own view of its pages and trees.
    fn files(&mut self) -> Result<()> {
        self.progress("files", 0, None);
        let sql = format!("PRAGMA integrity_check({FILE_PROBLEMS_MAX})");
        let mut statement = self.connection.prepare(&sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let line: String = row.get(0)?;
            if line != "ok" {
                self.report.add(Check::Files, "", line);
            }
        }
        Ok(())
    }

    fn read_queues(&mut self) -> Result<()> {
        let mut statement = self.connection.prepare("SELECT * FROM queues ORDER BY name")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let Some(state) = read_queue(row)? else {
                let name: String = row.get(1)?;
                self.report.add(Check::Files, "", format!("{name:?} is no name of a queue"));
                continue;
            };
            self.report.queues.push(AuditedQueue {
                name: state.name.clone(),
                totals: state.totals,
                depths: state.depths,
            });
            let queue = Queue {
                name: state.name,
                depths: state.depths,
                counted: Depths::default(),
                finished_keys: state.finished_keys,
                next_death: state.next_death,
            };
            self.queues.insert(state.number, queue);
        }
        self.report.forgotten =
            self.connection.query_row("SELECT * FROM forgotten", [], |row| read_totals(row, 0))?;
        Ok(())
    }
}

/// How a job is named to people: by its number, and its id where its head can be read.
fn named(number: u64, head: &[u8]) -> String {
    match codec::read_head_unchecked(head) {
        Ok(spec) => format!("job {number} ({})", spec.id),
        Err(_) => format!("job {number}"),
    }
}
