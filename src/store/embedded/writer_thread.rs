//! The writer's thread: a loop around `Writer::step`. While one lot is on its way to the disk, the next gathers.

use super::{
    alarm::Alarm,
    disk::Disk,
    flush::Flusher,
    schema,
    wal::Wal,
    writer::{Call, Failure, Writer},
};
use crate::{
    env::Clock,
    store::{Health, StoreError},
};
use rusqlite::Connection;
use std::sync::{PoisonError, RwLock};
use tokio::sync::mpsc;

/// What one transaction takes of the calls that wait.
const STEP_MAX: usize = 2_048;
const STEP_BYTES_MAX: usize = 16 << 20;

/// The threads that spare the writer something.
pub(super) struct Beside {
    pub(super) alarm: Alarm,
    pub(super) wal: Wal,
    pub(super) flusher: Option<Flusher>,
}

/// Takes calls until somebody closes the store.
pub(super) fn run(
    mut writer: Writer<'_>,
    mut inbox: mpsc::Receiver<Call>,
    clock: &dyn Clock,
    disk: &Disk,
    beside: &mut Beside,
    health: &RwLock<Health>,
) {
    beside.alarm.set(writer.next_ring());
    while let Some(first) = inbox.blocking_recv() {
        let mut bytes = first.command.bytes();
        let mut calls = vec![first];
        while calls.len() < STEP_MAX
            && bytes < STEP_BYTES_MAX
            && let Ok(call) = inbox.try_recv()
        {
            bytes += call.command.bytes();
            calls.push(call);
        }
        if calls.iter().any(Call::is_the_last) {
            inbox.close();
        }
        let calls = disk.take_no_jobs_when_low(calls);
        if let Some(why) = is_stopped(health) {
            refuse(calls, &why);
            return stop(&mut inbox, health, why);
        }
        let stepped = writer.step(clock.read(), calls).and_then(|()| {
            beside.alarm.set(writer.next_ring());
            beside.flusher.iter().for_each(Flusher::written);
            beside.wal.go_on(writer.connection)
        });
        match stepped {
            Ok(()) => {}
            Err(Failure::Refused(error)) => tracing::warn!(%error, "nothing was written"),
            Err(Failure::Stopped(why) | Failure::Unknown(why)) => {
                return stop(&mut inbox, health, why);
            }
        }
    }
}

/// Why nothing more may be written, if the flusher has found that out.
fn is_stopped(health: &RwLock<Health>) -> Option<String> {
    match &*health.read().unwrap_or_else(PoisonError::into_inner) {
        Health::Stopped(why) => Some(why.clone()),
        _ => None,
    }
}

/// Refuses everything from now on, until everybody has gone.
fn stop(inbox: &mut mpsc::Receiver<Call>, health: &RwLock<Health>, why: String) {
    tracing::error!(
        why,
        "the store stops taking writes: what is on disk must be read afresh, so restart redrive"
    );
    *health.write().unwrap_or_else(PoisonError::into_inner) = Health::Stopped(why.clone());
    while let Some(call) = inbox.blocking_recv() {
        if call.is_the_last() {
            inbox.close();
        }
        refuse([call], &why);
    }
}

fn refuse(calls: impl IntoIterator<Item = Call>, why: &str) {
    for call in calls {
        let error = StoreError::Unavailable(format!("writes have stopped: {why}"));
        drop(call.reply.send(Err(error)));
    }
}

/// Puts all of the write-ahead log into the database, so that a copy of the one file is whole. After a failure it is
/// left as it is: what of it has reached the disk is found out by reading all of it again.
pub(super) fn close(connection: Connection, health: &RwLock<Health>) {
    if is_stopped(health).is_none() {
        drop(connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)"));
    } else {
        drop(schema::leave_log_alone(&connection));
    }
    drop(connection.close());
}
