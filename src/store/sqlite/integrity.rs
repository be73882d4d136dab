//! What an engine alone can check of its files: SQLite's own view of its pages, and what is said of all queues together.

use super::{
    SqliteReader,
    cache::{StoreRow, Sums},
    failure::Failure,
    rows,
    schema::{KEYED_TABLES, ROW_TABLES},
};
use crate::store::{AuditProgress, AuditReport, Check, StoreError, storage::Index};
use rusqlite::Result;

/// SQLite stops after so many; the first says enough.
const PROBLEMS_MAX: usize = 100;

impl SqliteReader<'_> {
    /// Adds what is wrong to the report.
    pub fn check_files(
        &self,
        report: &mut AuditReport,
        progress: &mut (dyn FnMut(AuditProgress) + Send),
    ) -> std::result::Result<(), StoreError> {
        progress(AuditProgress { step: "files", done: 0, of: None });
        let checked = self.check_pages(report).and_then(|()| {
            self.check_next_numbers(report)?;
            self.check_queues_exist(report)
        });
        checked.map_err(|error| Failure::from(error).error())
    }

    fn check_pages(&self, report: &mut AuditReport) -> Result<()> {
        let sql = format!("PRAGMA integrity_check({PROBLEMS_MAX})");
        let mut statement = self.connection.prepare(&sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let line: String = row.get(0)?;
            if line != "ok" {
                report.add(Check::Files, "", line);
            }
        }
        Ok(())
    }

    /// Numbers of jobs and of deaths are given once. Each statement sees one moment.
    fn check_next_numbers(&self, report: &mut AuditReport) -> Result<()> {
        let moment = self.connection.unchecked_transaction()?;
        let highest: Option<i64> =
            moment.query_row("SELECT max(number) FROM job", [], |row| row.get(0))?;
        let next = StoreRow::load(&moment)?.map_or(0, |store| store.next_number);
        if highest.is_some_and(|highest| highest.cast_unsigned() >= next) {
            report.add(Check::Counts, "", format!("the next job gets number {next}, again"));
        }
        let mut queues = moment.prepare("SELECT queue, name, sums FROM queue WHERE queue > 0")?;
        let mut last = moment.prepare("SELECT max(score) FROM entry WHERE slot = ?1")?;
        let mut rows = queues.query([])?;
        while let Some(row) = rows.next()? {
            let (queue, name): (i64, String) = (row.get(0)?, row.get(1)?);
            let next = Sums::read(row.get_ref(2)?.as_blob()?).deaths + 1;
            for index in [Index::Dead, Index::Overflow] {
                let slot = rows::slot(queue, index);
                let highest: Option<i64> = last.query_row([slot], |row| row.get(0))?;
                if highest.is_some_and(|highest| highest.cast_unsigned() >= next) {
                    let what = format!("the next dead letter gets number {next}, again");
                    report.add(Check::Counts, name.as_str(), what);
                }
            }
        }
        Ok(())
    }

    fn check_queues_exist(&self, report: &mut AuditReport) -> Result<()> {
        let of_queue = ROW_TABLES.iter().chain(&KEYED_TABLES).map(|(_, name)| (*name, "queue"));
        let by_slot = [("ready", "slot >> 16"), ("waiting", "slot >> 1"), ("entry", "slot >> 4")];
        for (table, queue) in of_queue.chain([("lease", "queue")]).chain(by_slot) {
            let sql = format!(
                "SELECT count(*) FROM {table} WHERE {queue} NOT IN (SELECT queue FROM queue)"
            );
            let count: i64 = self.connection.query_row(&sql, [], |row| row.get(0))?;
            if count > 0 {
                let what = format!("{count} rows of {table} are of a queue that is not there");
                report.add(Check::Places, "", what);
            }
        }
        Ok(())
    }
}
