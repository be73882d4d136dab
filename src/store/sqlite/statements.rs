//! Every statement of the writer's hot path, prepared once.

use super::schema::{KEYED_TABLES, ROW_TABLES};
use rusqlite::{Connection, Result, Statement, ToSql};

/// Rows per statement.
const ROWS: [usize; 3] = [50, 8, 1];

/// An insert for many rows at a time.
pub(super) struct Insert<'c> {
    statements: [Statement<'c>; ROWS.len()],
    columns: usize,
}

impl<'c> Insert<'c> {
    /// `head VALUES (?, …), … tail`
    fn prepare(connection: &'c Connection, head: &str, columns: usize, tail: &str) -> Result<Self> {
        let row = format!("({})", vec!["?"; columns].join(", "));
        let statement = |rows| {
            connection
                .prepare(&format!("{head} VALUES {} {tail}", vec![row.as_str(); rows].join(", ")))
        };
        let statements = [statement(ROWS[0])?, statement(ROWS[1])?, statement(ROWS[2])?];
        Ok(Self { statements, columns })
    }

    /// How many rows were changed.
    pub(super) fn execute<T>(
        &mut self,
        mut rows: &[T],
        bind: impl Fn(&mut Binder<'_, 'c>, &T) -> Result<()>,
    ) -> Result<usize> {
        let mut changed = 0;
        for (statement, size) in self.statements.iter_mut().zip(ROWS) {
            while rows.len() >= size {
                let (now, later) = rows.split_at(size);
                for (at, row) in now.iter().enumerate() {
                    bind(&mut Binder { statement, last: at * self.columns }, row)?;
                }
                changed += statement.raw_execute()?;
                rows = later;
            }
        }
        Ok(changed)
    }
}

/// Binds the columns of a row in their order.
pub(super) struct Binder<'s, 'c> {
    statement: &'s mut Statement<'c>,
    last: usize,
}

impl Binder<'_, '_> {
    pub(super) fn bind(&mut self, column: impl ToSql) -> Result<()> {
        self.last += 1;
        self.statement.raw_bind_parameter(self.last, column)
    }
}

/// Of a table by number.
pub(super) struct RowStatements<'c> {
    pub(super) get: Statement<'c>,
    pub(super) range: Statement<'c>,
    /// Leaves alone what is there.
    pub(super) insert: Insert<'c>,
    /// Also in place of another record of the same queue.
    pub(super) put: Insert<'c>,
    pub(super) delete: Statement<'c>,
}

impl<'c> RowStatements<'c> {
    fn prepare(connection: &'c Connection, table: &str) -> Result<Self> {
        let sql = |sql: &str| connection.prepare(&sql.replace("{}", table));
        Ok(Self {
            get: sql("SELECT record FROM {} WHERE number = ?1 AND queue = ?2")?,
            range: sql(
                "SELECT number, record FROM {} WHERE number BETWEEN ?1 AND ?2 AND queue = ?3",
            )?,
            insert: Insert::prepare(connection, &format!("INSERT OR IGNORE INTO {table}"), 3, "")?,
            put: Insert::prepare(
                connection,
                &format!("INSERT INTO {table}"),
                3,
                "ON CONFLICT (number) DO UPDATE SET record = excluded.record WHERE queue = excluded.queue",
            )?,
            delete: sql("DELETE FROM {} WHERE number BETWEEN ?1 AND ?2 AND queue = ?3")?,
        })
    }
}

/// Of a table by queue and key.
pub(super) struct KeyedStatements<'c> {
    pub(super) get: Statement<'c>,
    pub(super) insert: Statement<'c>,
    pub(super) update: Statement<'c>,
    pub(super) delete: Statement<'c>,
}

impl<'c> KeyedStatements<'c> {
    fn prepare(connection: &'c Connection, table: &str) -> Result<Self> {
        let sql = |sql: &str| connection.prepare(&sql.replace("{}", table));
        Ok(Self {
            get: sql("SELECT record FROM {} WHERE queue = ?1 AND key = ?2")?,
            insert: sql("INSERT OR IGNORE INTO {} VALUES (?1, ?2, ?3)")?,
            update: sql("UPDATE {} SET record = ?3 WHERE queue = ?1 AND key = ?2")?,
            delete: sql("DELETE FROM {} WHERE queue = ?1 AND key = ?2")?,
        })
    }
}

macro_rules! statements {
    ($($name:ident: $sql:literal;)*) => {
        pub(super) struct Statements<'c> {
            pub(super) rows: Vec<RowStatements<'c>>,
            pub(super) keyed: Vec<KeyedStatements<'c>>,
            pub(super) insert_ready: Insert<'c>,
            pub(super) insert_waiting: Insert<'c>,
            pub(super) insert_entry: Insert<'c>,
            pub(super) put_lease: Insert<'c>,
            $(pub(super) $name: Statement<'c>,)*
        }

        impl<'c> Statements<'c> {
            pub(super) fn prepare(c: &'c Connection) -> Result<Self> {
                let rows = ROW_TABLES.iter().map(|(_, name)| RowStatements::prepare(c, name));
                let keyed = KEYED_TABLES.iter().map(|(_, name)| KeyedStatements::prepare(c, name));
                Ok(Self {
                    rows: rows.collect::<Result<_>>()?,
                    keyed: keyed.collect::<Result<_>>()?,
                    insert_ready: Insert::prepare(c, "INSERT OR IGNORE INTO ready", 3, "")?,
                    insert_waiting: Insert::prepare(c, "INSERT OR IGNORE INTO waiting", 4, "")?,
                    insert_entry: Insert::prepare(c, "INSERT OR IGNORE INTO entry", 3, "")?,
                    put_lease: Insert::prepare(c, "INSERT OR REPLACE INTO lease", 4, "")?,
                    $($name: c.prepare($sql)?,)*
                })
            }
        }
    };
}

statements! {
    begin: "BEGIN IMMEDIATE";
    commit: "COMMIT";
    rollback: "ROLLBACK";
    save: "UPDATE queue SET sums = ?2 WHERE queue = ?1";
    insert_queue: "INSERT INTO queue VALUES (?1, ?2, ?3)";
    delete_queue: "DELETE FROM queue WHERE queue = ?1";

    put_lease_record: "UPDATE lease SET record = ?2 WHERE number = ?1";
    extend_lease: "UPDATE lease SET expiry = ?2 WHERE number = ?1";
    delete_leases: "DELETE FROM lease WHERE number BETWEEN ?1 AND ?2 AND queue = ?3";

    delete_ready: "DELETE FROM ready WHERE slot = ?1 AND place = ?2 AND member = ?3";
    delete_first_ready: "DELETE FROM ready WHERE slot = ?1 AND (place, member) <= (?2, ?3)";
    first_ready: "SELECT place, member, record FROM ready LEFT JOIN job ON number = member >> 8 AND queue = ?2 \
        WHERE slot = ?1 ORDER BY place, member LIMIT ?3";

    delete_waiting: "DELETE FROM waiting WHERE slot = ?1 AND at = ?2 AND line = ?3 AND member = ?4";
    delete_due: "DELETE FROM waiting WHERE slot = ?1 AND (at, line, member) <= (?2, ?3, ?4)";
    due: "SELECT at, line, member FROM waiting WHERE slot = ?1 AND at <= ?2 ORDER BY at, line, member LIMIT ?3";
    first_due: "SELECT at FROM waiting WHERE slot = ?1 ORDER BY at LIMIT 1";

    update_entry: "UPDATE entry SET score = ?3 WHERE slot = ?1 AND member = ?2";
    delete_entry: "DELETE FROM entry WHERE slot = ?1 AND member = ?2";

    add_error_type: "INSERT INTO error_type VALUES (?1, ?2, ?3) \
        ON CONFLICT DO UPDATE SET count = count + excluded.count RETURNING count";
    delete_error_type: "DELETE FROM error_type WHERE queue = ?1 AND name = ?2";
}
