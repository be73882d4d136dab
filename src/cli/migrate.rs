//! `redrive migrate`: opens both places, copies, and says what became of it.

use super::{progress::Progress, verify::table};
use crate::config::{Config, ConfigError, Overrides, Unread};
use crate::domain::{Limits, QueueName, Settings};
use crate::env::SystemClock;
use crate::migrate::{self, MovedQueue, Report};
use crate::queue::Setup;
use crate::queue::hosts::redis::RedisStore;
use crate::queue::hosts::sqlite::SqliteStore;
use crate::store::redis::{self, Access, Address};
use crate::store::{StoreError, sqlite};
use clap::Args;
use std::{fmt, io, path::PathBuf, sync::Arc};

pub(super) const HELP: &str = "\
A place is a data directory, or an address of Redis as serve takes it: redis://host:6379/0, rediss://…, \
redis+sentinel://…, several of a Cluster separated by commas.
Copied are the queues with their pauses and breakers, and their jobs with bodies, ids, keys, schedules, \
deadlines, checkpoints, results and whole histories: ready ones in their order, dead ones in their order of death, \
with what was noted at it. Jobs that are out arrive as ready at their old place, with nothing counted; their leases \
stay behind. Keys and ids of jobs that are done and no longer kept stay behind as well, and so do the totals.
The source is only read. Neither place may be served meanwhile: a data directory is locked; servers that listen to a \
Redis are found and refused, but one that has just lost its connection is not, so stop them all.
It can be run again after whatever ended it: jobs that are in the target are passed over by their ids. At the end the \
jobs of each queue are counted on both sides by where they are: waiting, dead, overflow, completed, cancelled.
Exits with 0 if everything is there, with 1 if not or if a place cannot be used, with 2 if the command is wrong.";

#[derive(Debug, Args)]
pub(super) struct MigrateArgs {
    /// Where the jobs are: a data directory, or an address of Redis
    #[arg(long, value_name = "PLACE")]
    from: Unread,
    /// Where they go: a data directory, made if need be, or an address of Redis
    #[arg(long, value_name = "PLACE")]
    to: Unread,
    /// The configuration file, for how long keys are held and jobs kept, and for the files of [redis] [default: ./redrive.toml, if there is one]
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
    fn parse(flag: &'static str, text: &Unread, access: &Access) -> Result<Self, Error> {
        if !text.0.contains("://") {
            return Ok(Self::Directory(PathBuf::from(&text.0)));
        }
        let address = Address::parse_all([text.0.as_str()]);
        address.map(|address| Self::Redis(Box::new(address.with(access)))).map_err(|why| Error::Address(flag, why))
    }

    fn is(&self, other: &Self) -> bool {
        let resolved = |place: &Self| match place {
            Self::Directory(path) => path.canonicalize().ok(),
            Self::Redis(_) => None,
        };
        self == other || resolved(self).is_some_and(|path| resolved(other) == Some(path))
    }

    fn unwell(&self, error: StoreError) -> Error {
        Error::Store(self.to_string(), error)
    }
}

enum Opened {
    Embedded(Box<SqliteStore>),
    Redis(Box<RedisStore>),
}

impl Opened {
    async fn open(place: &Place, force: bool, settings: &Arc<Settings>) -> Result<Self, Error> {
        let clock = Arc::new(SystemClock::new());
        let setup = Setup { settings: settings.clone(), ..Setup::default() };
        match place {
            Place::Directory(path) => {
                let (options, limits) = (sqlite::Options::new(path), SqliteStore::default_limits());
                let store = SqliteStore::open_sqlite(options, limits, clock, setup).await?;
                Ok(Self::Embedded(Box::new(store)))
            }
            Place::Redis(address) => {
                let options = redis::Options { heartbeat: false, ..redis::Options::new((**address).clone()) };
                let queues = Limits::default().queues;
                let opened = RedisStore::open_redis(options, queues, false, clock, setup).await;
                let store = opened.map_err(|error| Error::Redis(place.to_string(), error))?;
                let servers = store.storage().subscribers().await.map_err(|error| place.unwell(error))?;
                if servers > 0 && !force {
                    return Err(Error::Served { place: place.to_string(), servers });
                }
                Ok(Self::Redis(Box::new(store)))
            }
        }
    }

    async fn close(self) {
        match self {
            Self::Embedded(store) => store.close().await,
            Self::Redis(store) => store.close().await,
        }
    }
}

/// What is to be printed, and whether everything is there.
pub(super) fn run(args: &MigrateArgs) -> Result<(String, bool), Error> {
    let config = Config::load(&Overrides { config: args.config.clone(), ..Overrides::default() })?;
    let place = |flag, text| Place::parse(flag, text, &config.redis_access);
    let (from, to) = (place("--from", &args.from)?, place("--to", &args.to)?);
    if from.is(&to) {
        return Err(Error::SamePlace);
    }
    if let Place::Directory(path) = &from {
        // A source is never made.
        sqlite::look_for(path)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = runtime.block_on(copy(&from, &to, args.force, &config.settings))?;
    Ok((text(&format!("{from} → {to}"), &report), report.is_whole()))
}

async fn copy(from: &Place, to: &Place, force: bool, settings: &Arc<Settings>) -> Result<Report, Error> {
    let source = Opened::open(from, force, &Arc::default()).await?;
    if let Opened::Redis(store) = &source {
        let jobs = store.moving().await.map_err(|error| from.unwell(error))?;
        if jobs > 0 {
            return Err(Error::Moving { place: from.to_string(), jobs });
        }
    }
    let target = Opened::open(to, force, settings).await?;
    let mut progress = Progress::new("migrate");
    let mut on_progress = |queue: &QueueName, done, of| progress.report(queue.as_str(), done, Some(of));
    let copied = match (&source, &target) {
        (Opened::Embedded(from), Opened::Embedded(to)) => migrate::copy(&**from, &**to, &mut on_progress).await,
        (Opened::Embedded(from), Opened::Redis(to)) => migrate::copy(&**from, &**to, &mut on_progress).await,
        (Opened::Redis(from), Opened::Embedded(to)) => migrate::copy(&**from, &**to, &mut on_progress).await,
        (Opened::Redis(from), Opened::Redis(to)) => migrate::copy(&**from, &**to, &mut on_progress).await,
    };
    progress.done();
    source.close().await;
    target.close().await;
    Ok(copied?)
}

/// For people.
fn text(what: &str, report: &Report) -> String {
    let [waiting, dead, overflow, completed, cancelled] = migrate::STATES;
    let names = [waiting, dead, overflow, completed, cancelled, "added", "there before"];
    let queues = report.queues.iter().map(|MovedQueue { name, source, added, there }| {
        let [waiting, dead, overflow, completed, cancelled] = source.0;
        (name, [waiting, dead, overflow, completed, cancelled, added.jobs(), there.jobs()])
    });
    let text = format!("{what}\n\n{}\n", table(names, queues));
    if report.is_whole() {
        return text + "everything is there\n";
    }
    text + &super::things_off(&report.problems, report.left_out)
}
