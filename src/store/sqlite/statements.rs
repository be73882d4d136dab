//! Every statement of the writer's hot path, prepared once.

use super::schema::{INDEX_TABLES, kind};
use crate::store::storage::Table;
use rusqlite::{Connection, Result, Statement, ToSql};

/// Rows per statement.
const ROWS: [usize; 3] = [50, 8, 1];

/// An insert for many rows at a time.
pub(super) struct Insert<'c> {
    statements: [Statement<'c>; ROWS.len()],
    columns: usize,
}

impl<'c> Insert<'c> {
    fn prepare(connection: &'c Connection, head: &str, columns: usize) -> Result<Self> {
        let row = format!("({})", vec!["?"; columns].join(", "));
        let rows = |count| vec![row.as_str(); count].join(", ");
        let statement = |count| connection.prepare(&format!("{head} VALUES {}", rows(count)));
        let [most, some, one] = ROWS.map(statement);
        Ok(Self { statements: [most?, some?, one?], columns })
    }

    /// How many rows were changed.
    pub(super) fn execute<T>(
        &mut self, mut rows: &[T], bind: impl for<'s> Fn(Binder<'s, 'c>, &T) -> Result<Binder<'s, 'c>>,
    ) -> Result<usize> {
        let mut changed = 0;
        for (statement, size) in self.statements.iter_mut().zip(ROWS) {
            while let Some((now, later)) = rows.split_at_checked(size) {
                for (at, row) in now.iter().enumerate() {
                    bind(Binder { statement, last: at * self.columns }, row)?;
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
    pub(super) fn bind(mut self, column: impl ToSql) -> Result<Self> {
        self.last += 1;
        self.statement.raw_bind_parameter(self.last, column)?;
        Ok(self)
    }
}

/// Of a table of records: queue and key come first.
pub(super) struct TableStatements<'c> {
    pub(super) get: Statement<'c>,
    /// Key and record, from a key to another.
    pub(super) range: Statement<'c>,
    /// Leaves alone what is there.
    pub(super) insert: Insert<'c>,
    pub(super) update: Statement<'c>,
    /// Whether the last one that was put replaced another.
    pub(super) was_there: bool,
    /// From a key to another.
    pub(super) delete: Statement<'c>,
}

impl<'c> TableStatements<'c> {
    fn prepare(connection: &'c Connection, (table, key): (&str, &str)) -> Result<Self> {
        let of_queue =
            |what: &str, rest: &str| connection.prepare(&format!("{what} WHERE queue = ?1 AND {key} {rest}"));
        Ok(Self {
            get: of_queue(&format!("SELECT record FROM {table}"), "= ?2")?,
            range: of_queue(&format!("SELECT {key}, record FROM {table}"), "BETWEEN ?2 AND ?3")?,
            insert: Insert::prepare(connection, &format!("INSERT OR IGNORE INTO {table} (queue, {key}, record)"), 3)?,
            update: of_queue(&format!("UPDATE {table} SET record = ?3"), "= ?2")?,
            was_there: false,
            delete: of_queue(&format!("DELETE FROM {table}"), "BETWEEN ?2 AND ?3")?,
        })
    }
}

pub(super) struct IndexStatements<'c> {
    /// Leaves alone what is there.
    pub(super) insert: Insert<'c>,
    pub(super) delete: Statement<'c>,
    /// All up to this entry.
    pub(super) delete_first: Statement<'c>,
}

impl<'c> IndexStatements<'c> {
    fn prepare(connection: &'c Connection, table: &str) -> Result<Self> {
        let score = if table == "entry" { "" } else { "AND score = ?2" };
        let delete = |which: &str| connection.prepare(&format!("DELETE FROM {table} WHERE slot = ?1 {which}"));
        Ok(Self {
            insert: Insert::prepare(connection, &format!("INSERT OR IGNORE INTO {table}"), 3)?,
            delete: delete(&format!("{score} AND member = ?3"))?,
            delete_first: delete("AND (score, member) <= (?2, ?3)")?,
        })
    }
}

macro_rules! statements {
    ($($name:ident: $sql:literal;)*) => {
        pub(super) struct Statements<'c> {
            /// By [`Table`]; none: it is in memory alone.
            pub(super) tables: Vec<Option<TableStatements<'c>>>,
            pub(super) indexes: Vec<IndexStatements<'c>>,
            pub(super) put_lease: Insert<'c>,
            $(pub(super) $name: Statement<'c>,)*
        }

        impl<'c> Statements<'c> {
            pub(super) fn prepare(c: &'c Connection) -> Result<Self> {
                let tables = Table::ALL.into_iter().map(|table| kind(table).name_and_key());
                let tables = tables.map(|table| table.map(|table| TableStatements::prepare(c, table)).transpose());
                let indexes = INDEX_TABLES.iter().map(|name| IndexStatements::prepare(c, name));
                Ok(Self {
                    tables: tables.collect::<Result<_>>()?,
                    indexes: indexes.collect::<Result<_>>()?,
                    put_lease: Insert::prepare(c, "INSERT OR REPLACE INTO lease", 4)?,
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
    insert_queue: "INSERT INTO queue VALUES (?1, ?2, x'')";
    delete_queue: "DELETE FROM queue WHERE queue = ?1";

    put_lease_record: "UPDATE lease SET record = ?2 WHERE number = ?1";
    extend_lease: "UPDATE lease SET expiry = ?2 WHERE number = ?1";

    first_ready: "SELECT score, member, record FROM ready LEFT JOIN job ON number = member >> 8 AND queue = ?2 \
        WHERE slot = ?1 ORDER BY score, member LIMIT ?3";
    ready_after: "SELECT score, member FROM ready WHERE slot = ?1 AND (score, member) > (?2, ?3) \
        ORDER BY score, member LIMIT ?4";
    keyed_after: "SELECT score, member FROM ready WHERE slot = ?1 AND score = ?2 AND member > ?3 ORDER BY member LIMIT ?4";
    next_group: "SELECT score FROM ready WHERE slot = ?1 AND score > ?2 ORDER BY score LIMIT 1";
    due: "SELECT score, member FROM waiting WHERE slot = ?1 AND score <= ?2 ORDER BY score, member LIMIT ?3";
    first_due: "SELECT score FROM waiting WHERE slot = ?1 ORDER BY score LIMIT 1";
    update_entry: "UPDATE entry SET score = ?2 WHERE slot = ?1 AND member = ?3";

    last_failure: "SELECT record FROM failure WHERE number BETWEEN ?1 AND ?2 AND queue = ?3 \
        ORDER BY number DESC LIMIT 1";
    add_error_type: "INSERT INTO error_type VALUES (?1, ?2, ?3) \
        ON CONFLICT DO UPDATE SET count = count + excluded.count RETURNING count";
    delete_error_type: "DELETE FROM error_type WHERE queue = ?1 AND name = ?2";
}
