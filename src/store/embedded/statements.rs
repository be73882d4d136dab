//! Every statement of the writer, prepared once.

use rusqlite::{Connection, Statement};

macro_rules! statements {
    ($($name:ident: $sql:literal;)*) => {
        pub(super) struct Statements<'c> { $(pub(super) $name: Statement<'c>,)* }

        impl<'c> Statements<'c> {
            pub(super) fn prepare(connection: &'c Connection) -> rusqlite::Result<Self> {
                Ok(Self { $($name: connection.prepare($sql)?,)* })
            }
        }
    };
}

statements! {
    begin: "BEGIN IMMEDIATE";
    commit: "COMMIT";
    rollback: "ROLLBACK";

    save_store: "UPDATE store SET time_us = ?1, boot_us = ?2, boot_id = ?3, next_number = ?4";
    insert_queue: "INSERT INTO queues (name, used_at) VALUES (?1, ?2)";
    forget_queue: "DELETE FROM queues WHERE queue = ?1";
    save_queue: "UPDATE queues SET used_at = ?2, next_death = ?3, finished_keys = ?4, ready = ?5, \
        scheduled = ?6, leased = ?7, completed_now = ?8, dead = ?9, overflow = ?10, enqueued = ?11, \
        completed = ?12, failed_attempts = ?13, retries = ?14, successful_retries = ?15, \
        retried_finished = ?16, dead_lettered = ?17, requeued = ?18, lease_expired = ?19, purged = ?20, \
        cancelled = ?21, retention_expired = ?22, moved_in = ?23, moved_out = ?24 WHERE queue = ?1";

    save_pause: "INSERT OR REPLACE INTO pauses VALUES (?1, ?2, ?3)";
    delete_pause: "DELETE FROM pauses WHERE queue = ?1";

    save_breaker: "INSERT OR REPLACE INTO breakers VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";
    delete_breakers: "DELETE FROM breakers WHERE queue = ?1";

    remember_totals: "UPDATE forgotten SET enqueued = enqueued + ?1, completed = completed + ?2, \
        failed_attempts = failed_attempts + ?3, retries = retries + ?4, \
        successful_retries = successful_retries + ?5, retried_finished = retried_finished + ?6, \
        dead_lettered = dead_lettered + ?7, requeued = requeued + ?8, lease_expired = lease_expired + ?9, \
        purged = purged + ?10, cancelled = cancelled + ?11, retention_expired = retention_expired + ?12, \
        moved_in = moved_in + ?13, moved_out = moved_out + ?14";

    insert_job: "INSERT INTO jobs VALUES (?1, ?2, ?3, ?4)";
    move_job: "UPDATE jobs SET queue = ?2 WHERE number = ?1";
    delete_job: "DELETE FROM jobs WHERE number = ?1";
    delete_jobs: "DELETE FROM jobs WHERE number BETWEEN ?1 AND ?2";
    job: "SELECT head, body FROM jobs WHERE number = ?1";
    job_head: "SELECT head, queue FROM jobs WHERE number = ?1";

    insert_ready: "INSERT INTO ready VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    delete_ready: "DELETE FROM ready WHERE queue = ?1 AND rank = ?2 AND at = ?3 AND tie = ?4";
    delete_first_ready: "DELETE FROM ready WHERE queue = ?1 AND (rank, at, tie) <= (?2, ?3, ?4)";
    first_ready: "SELECT queue, rank, at, tie, number, seen FROM ready WHERE queue = ?1 \
        ORDER BY rank, at, tie LIMIT ?2";

    insert_scheduled: "INSERT INTO scheduled VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    delete_scheduled: "DELETE FROM scheduled WHERE queue = ?1 AND at = ?2 AND tie = ?3";
    due: "SELECT queue, rank, at, tie, number, seen FROM scheduled WHERE queue = ?1 AND at <= ?2 \
        ORDER BY at, tie LIMIT ?3";
    next_due: "SELECT at FROM scheduled WHERE queue = ?1 ORDER BY at LIMIT 1";

    insert_lease: "INSERT INTO leases VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, NULL, ?13)";
    delete_lease: "DELETE FROM leases WHERE number = ?1";
    delete_leases: "DELETE FROM leases WHERE number BETWEEN ?1 AND ?2";
    extend_lease: "UPDATE leases SET expires_at = ?2, checkpoint = coalesce(?3, checkpoint) \
        WHERE number = ?1";
    mark_lease: "UPDATE leases SET traits = traits | ?2 WHERE number = ?1";
    lease_texts: "SELECT worker, checkpoint FROM leases WHERE number = ?1";

    save_progress: "INSERT INTO progress VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (number) \
        DO UPDATE SET state = ?2, at = ?3, death = ?4, record = ?5";
    delete_progress: "DELETE FROM progress WHERE number = ?1";
    progress: "SELECT record FROM progress WHERE number = ?1";

    insert_attempt: "INSERT OR REPLACE INTO attempts VALUES (?1, ?2, ?3)";
    delete_attempt: "DELETE FROM attempts WHERE number = ?1 AND seq = ?2";
    delete_attempts: "DELETE FROM attempts WHERE number = ?1";
    attempt: "SELECT record FROM attempts WHERE number = ?1 AND seq = ?2";
    save_failure: "INSERT OR REPLACE INTO failures VALUES (?1, ?2, ?3)";
    delete_failures: "DELETE FROM failures WHERE number = ?1";
    last_failure: "SELECT record FROM failures WHERE number = ?1 ORDER BY last DESC LIMIT 1";

    insert_dead: "INSERT INTO dead VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
    delete_dead: "DELETE FROM dead WHERE queue = ?1 AND death = ?2 RETURNING overflow, counted_as";
    oldest_dead: "SELECT death, number, reason, died_at FROM dead WHERE queue = ?1 AND death > ?2 AND death <= ?3 \
        AND overflow >= ?4 ORDER BY death LIMIT ?5";

    insert_completed: "INSERT INTO completed VALUES (?1, ?2, ?3, ?4)";
    delete_completed: "DELETE FROM completed WHERE queue = ?1 AND at = ?2 AND number = ?3";
    oldest_completed: "SELECT at, number, id FROM completed WHERE queue = ?1 ORDER BY at, number LIMIT ?2";
    insert_result: "INSERT INTO results VALUES (?1, ?2)";
    delete_result: "DELETE FROM results WHERE number = ?1";

    count_type: "UPDATE dead_types SET count = count + ?3 WHERE queue = ?1 AND error_type = ?2";
    insert_type: "INSERT INTO dead_types SELECT ?1, ?2, 1 \
        WHERE ?3 > (SELECT count(*) FROM dead_types WHERE queue = ?1)";
    insert_other_type: "INSERT INTO dead_types VALUES (?1, ?2, 1)";
    delete_type: "DELETE FROM dead_types WHERE queue = ?1 AND error_type = ?2 AND count <= 0";

    insert_id: "INSERT INTO ids VALUES (?1, ?2, ?3, ?4)";
    delete_ids_of: "DELETE FROM ids WHERE number = ?1";
    delete_keys_of: "DELETE FROM keys WHERE number = ?1 AND free_at IS NULL";
    delete_deadlines_of: "DELETE FROM deadlines WHERE number = ?1";
    delete_id: "DELETE FROM ids WHERE id = ?1 AND queue = ?2";
    id: "SELECT number, sameness FROM ids WHERE id = ?1 AND queue = ?2";
    save_key: "INSERT OR REPLACE INTO keys VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    finish_key: "UPDATE keys SET free_at = ?4 WHERE queue = ?1 AND key = ?2 AND number = ?3";
    delete_key: "DELETE FROM keys WHERE queue = ?1 AND key = ?2 AND number = ?3";
    key: "SELECT number, id, sameness, free_at FROM keys WHERE queue = ?1 AND key = ?2";
    oldest_keys: "SELECT key, number FROM keys WHERE queue = ?1 AND free_at <= ?2 \
        ORDER BY free_at LIMIT ?3";

    reply: "SELECT asked, record FROM replies WHERE call = ?1 AND request = ?2 AND until > ?3";
    save_reply: "INSERT OR REPLACE INTO replies VALUES (?1, ?2, ?3, ?4, ?5)";
    delete_replies: "DELETE FROM replies WHERE rowid IN \
        (SELECT rowid FROM replies WHERE until <= ?1 ORDER BY until LIMIT ?2)";

    save_deadline: "INSERT OR IGNORE INTO deadlines VALUES (?1, ?2)";
    delete_deadline: "DELETE FROM deadlines WHERE at = ?1 AND number = ?2";
    passed_deadlines: "SELECT at, number FROM deadlines WHERE at <= ?1 ORDER BY at, number LIMIT ?2";
    next_deadline: "SELECT at FROM deadlines ORDER BY at LIMIT 1";
}
