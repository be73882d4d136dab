//! The command line.

mod migrate;
mod progress;
mod verify;

use crate::config::{Config, ConfigError, Environment, Overrides, Unread};
use crate::env::SystemClock;
use crate::queue;
use crate::queue::hosts::sqlite::verify_directory;
use crate::queue::{VerifyProgress, VerifyReport};
use crate::store::sqlite::OpenError;
use crate::store::{StoreError, redis};
use crate::{bench, serve};
use clap::builder::PossibleValuesParser;
use clap::error::{ContextKind, ContextValue};
use clap::{Args, CommandFactory, Parser, Subcommand};
use progress::Progress;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// A durable job queue behind gRPC that decides what happens when a job fails.
#[derive(Debug, Parser)]
#[command(name = "redrive", version, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server; needs no configuration
    #[command(after_help = SERVE_HELP)]
    Serve(Box<Overrides>),
    /// Measure how many jobs a second a server takes through their life
    #[command(after_help = bench::HELP)]
    Bench(Box<bench::BenchArgs>),
    /// The server that does nothing, which `bench --ceiling` compares with
    #[command(hide = true)]
    BenchNoop(bench::NoopArgs),
    /// Check that every job is accounted for and undamaged; changes nothing
    #[command(after_help = VERIFY_HELP)]
    Verify(VerifyArgs),
    /// Copy every job with its whole history from one place to another: data directories and Redis
    #[command(after_help = migrate::HELP)]
    Migrate(migrate::MigrateArgs),
    /// Work with the configuration file
    #[command(subcommand)]
    Config(ConfigCommand),
}

const SERVE_HELP: &str = "\
Flags go over the environment, the environment over the file.
SIGTERM and SIGINT stop the server in peace, a second one at once. SIGHUP reads the settings of \
queues from the file again; a file with a problem changes nothing.
RUST_LOG, if set, goes over --log-level, for example RUST_LOG=redrive=debug.";

const VERIFY_HELP: &str = "\
For each queue: enqueued + moved in = completed + purged + cancelled + retention-expired + moved out \
+ held. Every job is in exactly one place, counters and indexes agree with what they count and lead \
to, checksums hold, and SQLite's own check finds nothing.
Servers may run meanwhile. Of a data directory verify sees one moment; until it ends, the server's \
log file redrive.db-wal grows. In Redis it reads a page at a time, each job in one moment and each \
queue's sum in one.
Exits with 0 if everything adds up, with 1 if something is off or cannot be read.";

#[derive(Debug, Args)]
struct VerifyArgs {
    /// The configuration file, for where jobs are kept [default: ./redrive.toml, if there is one]
    #[arg(long, value_name = "FILE", env = "REDRIVE_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
    /// Where jobs are kept [default: ./redrive-data]
    #[arg(long, value_name = "DIR", env = "REDRIVE_DATA", hide_env_values = true)]
    data: Option<PathBuf>,
    /// Where Redis is, if jobs are kept there: as serve takes it
    #[arg(long, value_name = "URL", env = "REDRIVE_REDIS", hide_env_values = true)]
    redis: Vec<Unread>,
    /// text for people, json for programs
    #[arg(short, long, value_name = "FORMAT", default_value = "text", hide_possible_values = true)]
    #[arg(value_parser = PossibleValuesParser::new(["text", "json"]))]
    output: String,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Find every problem in a file, and say how long each queue keeps trying
    #[command(after_help = "Exits with 0 if the file can be used, with 2 if not.")]
    Check {
        /// The configuration file; goes over --config
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        /// The configuration file, as serve takes it [default: ./redrive.toml, if there is one]
        #[arg(long, value_name = "FILE", env = "REDRIVE_CONFIG", hide_env_values = true)]
        config: Option<PathBuf>,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Serve(#[from] serve::Error),
    #[error(transparent)]
    Bench(#[from] bench::Error),
    #[error(transparent)]
    Store(#[from] OpenError),
    #[error(transparent)]
    Migrate(#[from] migrate::Error),
    #[error("jobs are not kept in {0}: {1}")]
    Redis(String, redis::OpenError),
    #[error(transparent)]
    Engine(#[from] StoreError),
    #[error("the system refuses what verify needs: {0}")]
    System(#[from] io::Error),
}

impl Error {
    /// 2 where the command or the configuration must change, 1 otherwise.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Config(_) => ExitCode::from(2),
            Self::Serve(error) if error.is_of_config() => ExitCode::from(2),
            Self::Bench(error) if error.is_of_flags() => ExitCode::from(2),
            Self::Migrate(error) if error.is_of_usage() => ExitCode::from(2),
            _ => ExitCode::FAILURE,
        }
    }
}

/// What a command has found wrong. `left_out`: how many more there are.
fn things_off(found: &[impl Display], left_out: u64) -> String {
    let mut text = format!("{} things are off:\n", found.len() as u64 + left_out);
    for thing in found {
        text += &format!("  {thing}\n");
    }
    if left_out > 0 {
        text += &format!("  and {left_out} more\n");
    }
    text
}

/// Reads the command line; prints what is wrong with it and ends the program.
pub fn parse() -> Cli {
    let words: Vec<OsString> = std::env::args_os().collect();
    Cli::try_parse_from(&words).unwrap_or_else(|error| name_variable(error, &words).exit())
}

/// A value that no flag among `words` has given came from the environment: its variable is what is wrong.
fn name_variable(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    let Some(ContextValue::String(arg)) = error.get(ContextKind::InvalidArg) else { return error };
    let Some(flag) = arg.split(['=', ' ', '[']).next().filter(|flag| flag.starts_with("--")) else { return error };
    let is_flag = |word: &OsString| {
        let word = word.to_string_lossy();
        word.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    };
    if words.iter().any(is_flag) {
        return error;
    }
    let variable = format!("REDRIVE_{}", flag[2..].replace('-', "_").to_uppercase());
    if variables().contains(&variable) {
        error.insert(ContextKind::InvalidArg, ContextValue::String(variable));
    }
    error
}

pub fn run(cli: Cli) -> Result<ExitCode, Error> {
    match cli.command {
        Command::Serve(mut overrides) => {
            let environment = Environment::read();
            let known = variables();
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let warnings = environment.warnings(&known);
            overrides.log_directives = environment.rust_log;
            serve::run(Config::load(&overrides)?, *overrides, &warnings)?;
        }
        Command::Bench(args) => bench::run(&args)?,
        Command::BenchNoop(args) => bench::run_noop(&args)?,
        Command::Verify(args) => return run_verify(args),
        Command::Migrate(args) => {
            let (text, whole) = migrate::run(&args)?;
            return Ok(print(&text, whole));
        }
        Command::Config(ConfigCommand::Check { file, config }) => {
            let config = Config::load(&Overrides { config: file.or(config), ..Overrides::default() })?;
            return Ok(print(&report(&config), true));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `| head` may have gone; the answer is in the exit code.
fn print(text: &str, good: bool) -> ExitCode {
    let _ = io::stdout().lock().write_all(text.as_bytes());
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_verify(args: VerifyArgs) -> Result<ExitCode, Error> {
    let VerifyArgs { config, data, redis, output } = args;
    let overrides = Overrides { config, data, redis, ..Overrides::default() };
    let config = Config::load(&overrides)?;
    let mut progress = Progress::new("verify");
    let mut on_progress = |VerifyProgress { step, done, of }: VerifyProgress| progress.report(step, done, of);
    let (what, report) = match &config.redis {
        Some(address) => (address.to_string(), verify_redis(address, &mut on_progress)),
        None => {
            let report = verify_directory(&config.data, &SystemClock::new(), &mut on_progress);
            let report = report.map_err(Error::from).and_then(|report| Ok(report?));
            (config.data.display().to_string(), report)
        }
    };
    progress.done();
    let report = report?;
    let text = match output.as_str() {
        "json" => verify::json(&report),
        _ => verify::text(&what, &report),
    };
    Ok(print(&text, report.is_clean()))
}

fn verify_redis(
    address: &redis::Address, on_progress: &mut (dyn FnMut(VerifyProgress) + Send),
) -> Result<VerifyReport, Error> {
    let options = redis::Options { heartbeat: false, ..redis::Options::new(address.clone()) };
    let clock = Arc::new(SystemClock::new());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let opened = redis::RedisStorage::open(options, clock).await;
        let mut store = opened.map_err(|error| Error::Redis(address.to_string(), error))?;
        Ok(queue::verify(&mut store, on_progress).await?)
    })
}

/// Every environment variable that some flag reads.
fn variables() -> Vec<String> {
    fn collect(command: &clap::Command, names: &mut Vec<String>) {
        let of_args = command.get_arguments().filter_map(|arg| arg.get_env());
        names.extend(of_args.map(|name| name.to_string_lossy().into_owned()));
        command.get_subcommands().for_each(|inner| collect(inner, names));
    }
    let mut names = Vec::new();
    collect(&Cli::command(), &mut names);
    names.sort();
    names.dedup();
    names
}

/// What `config check` prints about a file without problems.
fn report(config: &Config) -> String {
    let mut text = match &config.source {
        Some(path) => format!("{}: ok\n\n", path.display()),
        None => "no file: built-in values\n\n".to_owned(),
    };
    let policies = config.policies();
    let label = |queue: &Option<String>| queue.clone().unwrap_or_else(|| "(other queues)".into());
    let width = policies.iter().map(|named| label(&named.queue).len()).max().unwrap_or(0);
    for named in &policies {
        let horizon = named.policy.horizon();
        match &named.rule {
            None => text += &format!("{:<width$}  {horizon}\n", label(&named.queue)),
            Some(rule) => text += &format!("{:<width$}    {rule}: {horizon}\n", ""),
        }
        if let Some(horizon) = named.horizon_of_outages() {
            text += &format!("{:<width$}    {horizon}\n", "");
        }
    }
    let exposed = config.check_exposure().err().map(|exposed| format!("serve: {exposed}"));
    for warning in config.warnings.iter().chain(&exposed) {
        text += &format!("\nwarning: {warning}\n");
    }
    text
}
