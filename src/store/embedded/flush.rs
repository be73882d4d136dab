//! When what was written reaches the disk: before its answer, every so often, or when the system likes.

use super::schema;
use crate::{domain::duration, store::Health};
use std::{
    convert::Infallible,
    fmt,
    fs::File,
    io,
    path::Path,
    sync::{
        Arc, PoisonError, RwLock,
        mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender},
    },
    thread,
    time::Duration,
};

const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(60);

/// What is certain when a call is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The change is on the disk.
    #[default]
    Fsync,
    /// The change is with the operating system, and this much later on the disk.
    Interval(Duration),
    /// The change is with the operating system.
    None,
}

impl Durability {
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "fsync" => Some(Self::Fsync),
            "none" => Some(Self::None),
            _ => {
                let interval = word.strip_prefix("interval(")?.strip_suffix(')')?;
                let interval = duration::parse(interval).ok()?;
                (SHORTEST..=LONGEST).contains(&interval).then_some(Self::Interval(interval))
            }
        }
    }

    /// As SQLite has it. NORMAL puts things on the disk only around checkpoints, in the order that keeps a database whole.
    pub(super) fn synchronous(self) -> &'static str {
        match self {
            Self::Fsync => "FULL",
            Self::Interval(_) => "NORMAL",
            Self::None => "OFF",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fsync => f.write_str("fsync"),
            Self::Interval(interval) => write!(f, "interval({})", duration::human(*interval)),
            Self::None => f.write_str("none"),
        }
    }
}

/// The writer's end of a thread that fsyncs the log every so often, as long as something is written.
pub(super) struct Flusher {
    written: SyncSender<()>,
    thread: Option<thread::JoinHandle<()>>,
    /// Dropped last of all, and then the thread ends.
    going: Option<Sender<Infallible>>,
}

impl Flusher {
    /// For a database that has been opened: its log stays the same file until it is closed.
    pub(super) fn start(
        directory: &Path,
        interval: Duration,
        health: Arc<RwLock<Health>>,
    ) -> io::Result<Self> {
        let log = File::open(directory.join(format!("{}-wal", schema::DATABASE)))?;
        let (written, writes) = mpsc::sync_channel(1);
        let (going, stop) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("redrive-flush".into())
            .spawn(move || flush(&log, interval, &writes, &stop, &health))?;
        Ok(Self { written, thread: Some(thread), going: Some(going) })
    }

    /// Something has been written.
    pub(super) fn written(&self) {
        // One note is enough.
        let _ = self.written.try_send(());
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        drop(self.going.take());
        self.written();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn flush(
    log: &File,
    interval: Duration,
    writes: &Receiver<()>,
    stop: &Receiver<Infallible>,
    health: &RwLock<Health>,
) {
    while writes.recv().is_ok() {
        let stopping = stop.recv_timeout(interval) == Err(RecvTimeoutError::Disconnected);
        if let Err(error) = log.sync_data() {
            // What the system failed to write once, it may forget: only a restart tells what is there.
            let why = format!("what was written did not reach the disk: {error}");
            *health.write().unwrap_or_else(PoisonError::into_inner) = Health::Stopped(why);
            return;
        }
        if stopping {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_read_back() {
        for word in ["fsync", "interval(100ms)", "interval(1m)", "none"] {
            assert_eq!(Durability::parse(word).unwrap().to_string(), word);
        }
        for word in ["", "interval", "interval()", "interval(0s)", "interval(61s)", "interval(1s"] {
            assert_eq!(Durability::parse(word), None, "{word}");
        }
    }
}
