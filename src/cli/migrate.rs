//! `redrive migrate`: opens both places, copies, and says what became of it.

use super::teller::Teller;
use crate::{
    config::{Config, ConfigError, Overrides, Unread},
    domain::{ids::QueueName, lease::Lease, limits::Limits, time::Timestamp},
    env::{self, SystemClock},
    migrate::{self, Counts, Report},
    queue::hosts::{redis::RedisStore, sqlite::SqliteStore},
    store::{
        Ask, BreakerNotice, DeadNotice, Listener, Store, StoreError,
        redis::{self, Address},
        sqlite,
    },
};
use clap::Args;
use std::{fmt, fmt::Write as _, io, path::PathBuf, sync::Arc};

pub(super) const HELP: &str = "\
A place is a data directory, or an address of Redis as serve takes it: redis://host:6379/0, rediss://…,
redis+sentinel://…, several of a Cluster separated by commas.
Copied are the queues with their pauses and breakers, and their jobs with bodies, ids, keys, schedules,
deadlines, checkpoints, results and whole histories: ready ones in their order, dead ones in their order of death,
with what was noted at it. Jobs that are out arrive as ready at their old place, with nothing counted; their leases
stay behind. Keys of jobs that are done and no longer kept stay behind as well, and so do the totals.
The source is only read. Neither place may be served meanwhile: a data directory is locked; servers that listen to a
Redis are found and refused, but one that has just lost its connection is not, so stop them all.
It can be run again after whatever ended it: jobs that are in the target are passed over by their ids. At the end the
jobs of each queue are counted on both sides by where they are: waiting, dead, overflow, completed.
Exits with 0 if everything is there, with 1 if not or if a place cannot be used, with 2 if the command is wrong.";

#[derive(Debug, Args)]
pub(super) struct MigrateArgs {
    /// Where the jobs are: a data directory, or an address of Redis
    #[arg(long, value_name = "PLACE")]
    from: Unread,
    /// Where they go: a data directory, made if need be, or an address of Redis
    #[arg(long, value_name = "PLACE")]
    to: Unread,
    /// The configuration file, for how long keys are held and jobs kept [default: ./redrive.toml, if there is one]
    #[arg(long, value_name = "FILE", env = "REDRIVE_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
    /// Go on although servers listen to that Redis: those of another database of it cannot be told apart
    #[arg(long)]
    force: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("--from and --to are the same place")]
    SamePlace,
    #[error("{0}: {1}")]
    Address(&'static str, String),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Embedded(#[from] sqlite::OpenError),
    #[error("{0}: {1}")]
    Redis(String, redis::OpenError),
    #[error("{0}: {1}")]
    Store(String, StoreError),
    #[error(
        "{place} is served: {servers} servers listen to it. Stop them, or pass --force if they serve \
         another database of this Redis"
    )]
    Served { place: String, servers: u64 },
    #[error(
        "{jobs} jobs are on their way from one queue of {place} to another: let a server run there until \
         they have arrived"
    )]
    Moving { place: String, jobs: u64 },
    #[error(transparent)]
    Copy(#[from] migrate::Error),
    #[error("the system refuses what the move needs: {0}")]
    System(#[from] io::Error),
}

impl Error {
    /// The command has to change.
    pub(super) fn is_of_usage(&self) -> bool {
        matches!(self, Self::SamePlace | Self::Address(..) | Self::Config(_))
    }
}

/// Where jobs are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    Directory(PathBuf),
    Redis(Box<Address>),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => write!(f, "{}", path.display()),
            Self::Redis(address) => write!(f, "{address}"),
        }
    }
}

impl Place {
    fn parse(flag: &'static str, text: &Unread) -> Result<Self, Error> {
        if !text.0.contains("://") {
            return Ok(Self::Directory(PathBuf::from(&text.0)));
        }
        let address = Address::parse_all([text.0.as_str()]);
        address
            .map(|address| Self::Redis(Box::new(address)))
            .map_err(|why| Error::Address(flag, why))
    }

    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Directory(one), Self::Directory(two)) => {
                one == two
                    || one
                        .canonicalize()
                        .is_ok_and(|one| two.canonicalize().is_ok_and(|two| one == two))
            }
            _ => self == other,
        }
    }
}

enum Opened {
    Embedded(Box<SqliteStore>),
    Redis(Box<RedisStore>),
}

impl Opened {
    async fn open(place: &Place, force: bool) -> Result<Self, Error> {
        let (clock, listener) = (Arc::new(SystemClock::new()), Arc::new(Deaf));
        let address = match place {
            Place::Directory(path) => {
                let options = sqlite::Options::new(path);
                let limits = SqliteStore::default_limits();
                let store = SqliteStore::open_sqlite(options, limits, clock, listener).await?;
                return Ok(Self::Embedded(Box::new(store)));
            }
            Place::Redis(address) => (**address).clone(),
        };
        let options = redis::Options { heartbeat: false, ..redis::Options::new(address) };
        let queues = Limits::default().queues;
        let opened = RedisStore::open_redis(options, queues, false, clock, listener).await;
        let store = opened.map_err(|error| Error::Redis(place.to_string(), error))?;
        let listening = store.storage().subscribers().await;
        let servers = listening.map_err(|error| Error::Store(place.to_string(), error))?;
        if servers > 0 && !force {
            return Err(Error::Served { place: place.to_string(), servers });
        }
        Ok(Self::Redis(Box::new(store)))
    }

    async fn close(self) {
        match self {
            Self::Embedded(store) => store.close().await,
            Self::Redis(store) => store.close().await,
        }
    }
}

/// Nobody waits for jobs here.
pub(super) struct Deaf;

impl Listener for Deaf {
    fn available(&self, _: &QueueName, _: usize) {}
    fn come_due(&self, _: &QueueName) {}
    fn due(&self, _: Timestamp) {}
    fn died(&self, _: &DeadNotice) {}
    fn cancel_requested(&self, _: Lease) {}
    fn breaker(&self, _: &BreakerNotice) {}
}

/// What is to be printed, and whether everything is there.
pub(super) fn run(args: &MigrateArgs) -> Result<(String, bool), Error> {
    let (from, to) = (Place::parse("--from", &args.from)?, Place::parse("--to", &args.to)?);
    if from.is(&to) {
        return Err(Error::SamePlace);
    }
    if let Place::Directory(path) = &from {
        // A source is never made.
        sqlite::look_for(path)?;
    }
    let config = Config::load(&Overrides { config: args.config.clone(), ..Overrides::default() })?;
    let ask = Ask { settings: config.settings, seed: env::random() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = runtime.block_on(copy(&from, &to, args.force, &ask))?;
    Ok((text(&format!("{from} → {to}"), &report), report.is_whole()))
}

async fn copy(from: &Place, to: &Place, force: bool, ask: &Ask) -> Result<Report, Error> {
    let source = Opened::open(from, force).await?;
    if let Opened::Redis(store) = &source {
        let moving = store.moving().await;
        let jobs = moving.map_err(|error| Error::Store(from.to_string(), error))?;
        if jobs > 0 {
            return Err(Error::Moving { place: from.to_string(), jobs });
        }
    }
    let target = Opened::open(to, force).await?;
    let mut teller = Teller::new("migrate");
    let mut tell = |progress: migrate::Progress<'_>| {
        let migrate::Progress { queue, done, of } = progress;
        teller.tell(queue.as_str(), done, Some(of));
    };
    let copied = match (&source, &target) {
        (Opened::Embedded(from), Opened::Embedded(to)) => {
            migrate::copy(&**from, &**to, ask, &mut tell).await
        }
        (Opened::Embedded(from), Opened::Redis(to)) => {
            migrate::copy(&**from, &**to, ask, &mut tell).await
        }
        (Opened::Redis(from), Opened::Embedded(to)) => {
            migrate::copy(&**from, &**to, ask, &mut tell).await
        }
        (Opened::Redis(from), Opened::Redis(to)) => {
            migrate::copy(&**from, &**to, ask, &mut tell).await
        }
    };
    teller.done();
    source.close().await;
    target.close().await;
    Ok(copied?)
}

/// For people.
fn text(what: &str, report: &Report) -> String {
    let width = report.queues.iter().map(|queue| queue.name.as_str().len()).max().unwrap_or(0);
    let width = width.max("queue".len());
    let mut text = format!("{what}\n\n{:<width$}", "queue");
    for name in ["waiting", "dead", "overflow", "completed", "added", "there before"] {
        let _ = write!(text, "  {name:>9}");
    }
    text.push('\n');
    for queue in &report.queues {
        let Counts { waiting, dead, overflow, completed } = queue.source;
        let (added, there) = (queue.added.jobs(), queue.there.jobs());
        let _ = writeln!(
            text,
            "{:<width$}  {waiting:>9}  {dead:>9}  {overflow:>9}  {completed:>9}  {added:>9}  {there:>12}",
            queue.name.as_str()
        );
    }
    text.push('\n');
    if report.is_whole() {
        text.push_str("everything is there\n");
        return text;
    }
    text + &super::things_off(&report.problems, report.left_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::MovedQueue;

    #[test]
    fn a_place_is_a_directory_or_an_address() {
        let place = |text: &str| Place::parse("--from", &text.into());
        assert_eq!(place("./data").unwrap(), Place::Directory("./data".into()));
        assert!(matches!(place("redis://127.0.0.1:6379/1").unwrap(), Place::Redis(_)));
        let wrong = place("http://here").unwrap_err();
        assert!(wrong.is_of_usage() && wrong.to_string().starts_with("--from: "), "{wrong}");
        assert!(place("redis://a/1").unwrap().is(&place("redis://a/1").unwrap()));
        assert!(!place("redis://a/1").unwrap().is(&place("redis://a/2").unwrap()));
        assert!(place(".").unwrap().is(&place("./.").unwrap()));
    }

    #[test]
    fn what_became_of_each_queue_is_shown() {
        let source = Counts { waiting: 12, dead: 3, overflow: 1, completed: 0 };
        let there = Counts { waiting: 2, ..Counts::default() };
        let added = Counts { waiting: 10, ..source };
        let name = QueueName::parse("emails").unwrap();
        let queues = vec![MovedQueue { name, source, added, there }];
        let mut report = Report { queues, ..Report::default() };
        assert_eq!(
            text("a → b", &report),
            "a → b\n\n\
             queue     waiting       dead   overflow  completed      added  there before\n\
             emails         12          3          1          0         13             2\n\n\
             everything is there\n"
        );
        report.problems.push("queue emails: lost".into());
        report.left_out = 2;
        let text = text("a → b", &report);
        assert!(
            text.ends_with("3 things are off:\n  queue emails: lost\n  and 2 more\n"),
            "{text}"
        );
    }
}
