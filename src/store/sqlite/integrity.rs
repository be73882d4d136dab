//! What an engine alone can check of its files: SQLite's own view of its pages, and what is said of all queues together.

use super::cache::{StoreRow, Sums};
use super::failure::Failure;
use super::read::{collect, for_each};
use super::schema::{INDEX_TABLES, kind};
use super::{SqliteReader, rows};
use crate::store::storage::{Index, Table};
use crate::store::{Check, Finding, StoreError};
use rusqlite::Result;

impl SqliteReader<'_> {
    /// What is wrong with the files.
    pub fn check_files(&self) -> std::result::Result<Vec<Finding>, StoreError> {
        let mut findings = Vec::new();
        let mut add = |check, queue: &str, what| findings.push(Finding { check, queue: queue.into(), what });
        self.check(&mut add).map_err(|error| Failure::from(error).error())?;
        Ok(findings)
    }

    fn check(&self, add: &mut dyn FnMut(Check, &str, String)) -> Result<()> {
        // SQLite stops after a hundred; the first says enough.
        let sql = "PRAGMA integrity_check";
        let lines = collect(self.connection, sql, [], usize::MAX, |row| row.get::<_, String>(0).map(Some))?;
        lines.into_iter().filter(|line| line != "ok").for_each(|line| add(Check::Files, "", line));
        self.check_next_numbers(add)?;
        let records = Table::ALL.into_iter().filter_map(|table| kind(table).name_and_key());
        let by_slot = INDEX_TABLES.map(|name| (name, "slot >> 4"));
        for (table, queue) in records.map(|(name, _)| (name, "queue")).chain(by_slot) {
            let sql = format!("SELECT count(*) FROM {table} WHERE {queue} NOT IN (SELECT queue FROM queue)");
            let count: i64 = self.connection.query_row(&sql, [], |row| row.get(0))?;
            if count > 0 {
                add(Check::Places, "", format!("{count} rows of {table} are of a queue that is not there"));
            }
        }
        Ok(())
    }

    /// Numbers of jobs and of deaths are given once. Each statement sees one moment.
    fn check_next_numbers(&self, add: &mut dyn FnMut(Check, &str, String)) -> Result<()> {
        let moment = self.connection.unchecked_transaction()?;
        let mut check = |queue: &str, what, next: u64, highest: Option<i64>| {
            if highest.is_some_and(|highest| highest.cast_unsigned() >= next) {
                add(Check::Counts, queue, format!("the next {what} gets number {next}, again"));
            }
        };
        let next = StoreRow::load(&moment)?.map_or(0, |store| store.next_number);
        check("", "job", next, moment.query_row("SELECT max(number) FROM job", [], |row| row.get(0))?);
        let mut last = moment.prepare("SELECT max(score) FROM entry WHERE slot = ?1")?;
        for_each(&moment, "SELECT queue, name, sums FROM queue WHERE queue > 0", |row| {
            let next = Sums::read(row.get_ref(2)?.as_blob()?).deaths + 1;
            for index in [Index::Dead, Index::Overflow] {
                let highest = last.query_row([rows::slot(row.get(0)?, index)], |row| row.get(0))?;
                check(row.get_ref(1)?.as_str()?, "dead letter", next, highest);
            }
            Ok(())
        })
    }
}
