//! History and indexes: every row must belong to a job that is there, and say what the job says.

use super::{Audit, named};
use crate::{
    domain::job::Spec,
    store::{
        Check,
        embedded::{codec, memory::unsigned},
    },
};
use rusqlite::{Result, Row};

impl Audit<'_> {
    /// Attempts, failures and progress: their bytes, and whose they are.
    pub(super) fn history(&mut self) -> Result<()> {
        self.history_of("attempts", "attempt", |record| codec::read_attempt(record).is_ok())?;
        self.history_of("failures", "failure", |record| codec::read_failure(record).is_ok())?;
        self.history_of("results", "result", |record| codec::read_result(record).is_ok())?;
        let mut orphans = self
            .connection
            .prepare("SELECT number FROM progress WHERE number NOT IN (SELECT number FROM jobs)")?;
        let mut rows = orphans.query([])?;
        while let Some(row) = rows.next()? {
            let what = format!("the progress of job {} is there without it", unsigned(row, 0)?);
            self.report.add(Check::Indexes, "", what);
        }
        Ok(())
    }

    fn history_of(
        &mut self,
        table: &'static str,
        one: &str,
        is_good: impl Fn(&[u8]) -> bool,
    ) -> Result<()> {
        let of = self.rows(table)?;
        let sql = format!(
            "SELECT h.number, h.record, j.queue, j.head FROM {table} h \
             LEFT JOIN jobs j ON j.number = h.number ORDER BY h.number"
        );
        let mut statement = self.connection.prepare(&sql)?;
        let mut rows = statement.query([])?;
        let mut done = 0;
        while let Some(row) = rows.next()? {
            let number = unsigned(row, 0)?;
            match row.get::<_, Option<i64>>(2)? {
                None => {
                    let what = format!("an {one} of job {number} is there without it");
                    self.report.add(
                        Check::Indexes,
                        "",
                        what.replace("an failure", "a failure").replace("an result", "a result"),
                    );
                }
                Some(queue) if !is_good(row.get_ref(1)?.as_blob().unwrap_or_default()) => {
                    let job = named(number, row.get_ref(3)?.as_blob().unwrap_or_default());
                    let what = format!("one {one} of {job} is not what was written");
                    self.found(Check::Checksums, queue, what);
                }
                Some(_) => {}
            }
            done += 1;
            self.report.records += 1;
            self.progress(table, done, of);
        }
        Ok(())
    }

    pub(super) fn indexes(&mut self) -> Result<()> {
        self.index(
            "id",
            "SELECT i.number, i.queue, j.queue, j.head, i.id FROM ids i \
             LEFT JOIN jobs j ON j.number = i.number",
            |row, spec| Ok(spec.id.to_string() == row.get::<_, String>(4)?),
        )?;
        self.index(
            "idempotency key",
            "SELECT k.number, k.queue, j.queue, j.head, k.key FROM keys k \
             LEFT JOIN jobs j ON j.number = k.number WHERE k.free_at IS NULL",
            |row, spec| Ok(spec.key == row.get::<_, Option<String>>(4)?),
        )?;
        self.index(
            "deadline",
            "SELECT d.number, j.queue, j.queue, j.head, d.at FROM deadlines d \
             LEFT JOIN jobs j ON j.number = d.number",
            |row, spec| {
                let at = spec.expires_at.map(|at| at.millis().cast_signed());
                Ok(at == row.get::<_, Option<i64>>(4)?)
            },
        )
    }

    /// Rows of `number, queue, queue of the job, head of the job, …`.
    fn index(
        &mut self,
        what: &'static str,
        sql: &str,
        fits: impl Fn(&Row<'_>, &Spec) -> Result<bool>,
    ) -> Result<()> {
        let mut statement = self.connection.prepare(sql)?;
        let mut rows = statement.query([])?;
        let mut done = 0;
        while let Some(row) = rows.next()? {
            done += 1;
            self.progress("indexes", done, None);
            let number = unsigned(row, 0)?;
            let (queue, of_job): (Option<i64>, Option<i64>) = (row.get(1)?, row.get(2)?);
            let Some(of_job) = of_job else {
                let text = format!("one {what} leads to job {number}, which is not there");
                self.report.add(Check::Indexes, "", text);
                continue;
            };
            let head = row.get_ref(3)?.as_blob().unwrap_or_default();
            let fits = match codec::read_head_unchecked(head) {
                Ok(spec) if !self.damaged.contains(&number) => fits(row, &spec)?,
                _ => true,
            };
            if !fits || queue != Some(of_job) {
                let job = named(number, head);
                self.found(Check::Indexes, of_job, format!("one {what} leads to {job}, wrongly"));
            }
        }
        Ok(())
    }
}
