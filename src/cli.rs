//! The command line.

mod audit;
mod migrate;
mod teller;

use crate::{
    bench,
    config::{
        Config, ConfigError, Durability, Environment, LogFormat, LogLevel, Overrides, Unread,
        listen_address,
    },
    env::SystemClock,
    queue::{self, hosts::sqlite::verify_directory},
    serve,
    store::{AuditProgress, AuditReport, StoreError, redis, sqlite::OpenError},
};
use clap::{
    Args, CommandFactory, Parser, Subcommand,
    builder::{BoolishValueParser, PossibleValuesParser, TypedValueParser},
};
use std::{
    fmt::Display,
    io::{self, Write},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
};
use teller::Teller;

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
    Serve(Box<ServeArgs>),
    /// Measure how many jobs a second a server takes through their life
    #[command(after_help = bench::HELP)]
    Bench(Box<bench::BenchArgs>),
    /// The server that does nothing, which `bench --ceiling` compares with
    #[command(hide = true)]
    BenchNoop(bench::NoopArgs),
    /// Check that every job is accounted for and undamaged; changes nothing
    #[command(after_help = AUDIT_HELP)]
    Audit(AuditArgs),
    /// Copy every job with its whole history from one place to another: data directories and Redis
    #[command(after_help = migrate::HELP)]
    Migrate(migrate::MigrateArgs),
    /// Work with the configuration file
    #[command(subcommand)]
    Config(ConfigCommand),
}

const SERVE_HELP: &str = "\
Flags go over the environment, the environment over the file.
SIGTERM and SIGINT stop the server in peace, a second one at once. SIGHUP reads the settings of
queues from the file again; a file with a problem changes nothing.
RUST_LOG, if set, goes over --log-level, for example RUST_LOG=redrive=debug.";

const AUDIT_HELP: &str = "\
For each queue: enqueued + moved in = completed + purged + cancelled + retention-expired + moved out
+ held. Every job is in exactly one place, counters and indexes agree with what they count and lead
to, checksums hold, and SQLite's own check finds nothing.
Servers may run meanwhile. Of a data directory the audit sees one moment; until it ends, the server's
log file redrive.db-wal grows. In Redis it reads a page at a time, each job in one moment and each
queue's sum in one; that all queues together add up is only certain while nothing moves between them.
Exits with 0 if everything adds up, with 1 if something is off or cannot be read.";

#[derive(Debug, Args)]
struct AuditArgs {
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

#[derive(Debug, Args)]
struct ServeArgs {
    /// The configuration file [default: ./redrive.toml, if there is one]
    #[arg(long, value_name = "FILE", env = "REDRIVE_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
    /// Where jobs are kept [default: ./redrive-data]
    #[arg(long, value_name = "DIR", env = "REDRIVE_DATA", hide_env_values = true)]
    data: Option<PathBuf>,
    /// Where Redis is, if jobs are kept there: redis://host:6379, or several for a Cluster; see the README
    #[arg(long, value_name = "URL", env = "REDRIVE_REDIS", hide_env_values = true)]
    redis: Vec<Unread>,
    /// Where to listen for gRPC; port 0 is any free port [default: 127.0.0.1:7433]
    #[arg(long, value_name = "ADDR", env = "REDRIVE_LISTEN", hide_env_values = true)]
    #[arg(value_parser = listen_address)]
    listen: Option<SocketAddr>,
    /// Allow an address that other machines can reach, although whoever reaches it may do everything
    #[arg(long, value_name = "BOOL", env = "REDRIVE_INSECURE", hide_env_values = true)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    insecure: Option<bool>,
    /// What is certain when a call is answered: fsync, or none, where a power cut loses what was
    /// acknowledged. On Redis primary, replicated(n) or fsync(n) [default: fsync, on Redis primary]
    #[arg(long, value_name = "LEVEL", env = "REDRIVE_DURABILITY", hide_env_values = true)]
    #[arg(value_parser = durability)]
    durability: Option<Durability>,
    /// How log lines look: text, json, or auto for text on a terminal and JSON elsewhere [default: auto]
    #[arg(long, value_name = "FORMAT", env = "REDRIVE_LOG_FORMAT", hide_env_values = true)]
    #[arg(value_parser = words(LogFormat::WORDS, LogFormat::parse), hide_possible_values = true)]
    log_format: Option<LogFormat>,
    /// The least important lines to write [default: info]
    #[arg(long, value_name = "LEVEL", env = "REDRIVE_LOG_LEVEL", hide_env_values = true)]
    #[arg(value_parser = words(LogLevel::WORDS, LogLevel::parse))]
    log_level: Option<LogLevel>,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Find every problem in a file, and say how long each queue keeps trying
    #[command(after_help = "Exits with 0 if the file can be used, with 2 if not.")]
    Check {
        /// The configuration file [default: ./redrive.toml, if there is one]
        #[arg(value_name = "FILE", env = "REDRIVE_CONFIG", hide_env_values = true)]
        file: Option<PathBuf>,
    },
}

fn words<T: Clone + Send + Sync + 'static>(
    allowed: impl IntoIterator<Item = &'static str>,
    parse: fn(&str) -> Option<T>,
) -> impl TypedValueParser<Value = T> {
    // clap has refused every other word by then.
    PossibleValuesParser::new(allowed)
        .try_map(move |word| parse(&word).ok_or_else(|| format!("{word:?} is not allowed here")))
}

pub(crate) fn durability(word: &str) -> Result<Durability, String> {
    Durability::parse(word).ok_or_else(|| format!("there is {}", Durability::RULE))
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
    #[error("the system refuses what the audit needs: {0}")]
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
            Self::Serve(_)
            | Self::Store(_)
            | Self::Bench(_)
            | Self::Migrate(_)
            | Self::Redis(..)
            | Self::Engine(_)
            | Self::System(_) => ExitCode::FAILURE,
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

pub fn run(cli: Cli) -> Result<ExitCode, Error> {
    match cli.command {
        Command::Serve(args) => {
            let environment = Environment::read();
            let known = variables();
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let overrides = args.overrides(&environment);
            let config = Config::load(&overrides)?;
            serve::run(config, overrides, &environment.warnings(&known))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Bench(args) => {
            bench::run(&args)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::BenchNoop(args) => {
            bench::run_noop(&args)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Audit(args) => run_audit(args),
        Command::Migrate(args) => {
            let (text, whole) = migrate::run(&args)?;
            let _ = io::stdout().lock().write_all(text.as_bytes());
            Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Command::Config(ConfigCommand::Check { file }) => {
            let config = Config::load(&Overrides { config: file, ..Overrides::default() })?;
            // `| head` may have gone; the answer is in the exit code.
            let _ = io::stdout().lock().write_all(report(&config).as_bytes());
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn run_audit(args: AuditArgs) -> Result<ExitCode, Error> {
    let AuditArgs { config, data, redis, output } = args;
    let overrides = Overrides { config, data, redis, ..Overrides::default() };
    let config = Config::load(&overrides)?;
    let mut teller = Teller::new("audit");
    let mut tell = |AuditProgress { step, done, of }: AuditProgress| teller.tell(step, done, of);
    let (what, report) = match &config.redis {
        Some(address) => (address.to_string(), audit_redis(address, &mut tell)),
        None => {
            let report = verify_directory(&config.data, &SystemClock::new(), &mut tell);
            let report = report.map_err(Error::from).and_then(|report| Ok(report?));
            (config.data.display().to_string(), report)
        }
    };
    teller.done();
    let report = report?;
    let text = match output.as_str() {
        "json" => audit::json(&report),
        _ => audit::text(&what, &report),
    };
    // `| head` may have gone; the answer is in the exit code.
    let _ = io::stdout().lock().write_all(text.as_bytes());
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn audit_redis(
    address: &redis::Address,
    tell: &mut (dyn FnMut(AuditProgress) + Send),
) -> Result<AuditReport, Error> {
    let options = redis::Options { heartbeat: false, ..redis::Options::new(address.clone()) };
    let clock = Arc::new(SystemClock::new());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let opened = redis::RedisStorage::open(options, clock).await;
        let mut store = opened.map_err(|error| Error::Redis(address.to_string(), error))?;
        Ok(queue::verify(&mut store, tell).await?)
    })
}

impl ServeArgs {
    fn overrides(&self, environment: &Environment) -> Overrides {
        Overrides {
            config: self.config.clone(),
            listen: self.listen,
            data: self.data.clone(),
            redis: self.redis.clone(),
            insecure: self.insecure,
            durability: self.durability,
            log_format: self.log_format,
            log_level: self.log_level,
            log_directives: environment.rust_log.clone(),
        }
    }
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
    }
    let exposed = config.check_exposure().err().map(|exposed| format!("serve: {exposed}"));
    for warning in config.warnings.iter().chain(&exposed) {
        text += &format!("\nwarning: {warning}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn overrides(args: &[&str]) -> Overrides {
        let Command::Serve(args) = Cli::try_parse_from(args).unwrap().command else {
            panic!("not serve")
        };
        args.overrides(&Environment::default())
    }

    #[test]
    fn the_tree_of_commands_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_become_overrides() {
        let given = overrides(&[
            "redrive",
            "serve",
            "--config",
            "c.toml",
            "--data",
            "d",
            "--listen",
            "[::1]:1",
            "--insecure",
            "--durability",
            "none",
            "--log-level",
            "debug",
            "--log-format",
            "json",
        ]);
        assert_eq!(given.config.as_deref(), Some(Path::new("c.toml")));
        assert_eq!(given.data.as_deref(), Some(Path::new("d")));
        assert_eq!(given.listen, "[::1]:1".parse().ok());
        assert_eq!((given.insecure, given.durability), (Some(true), Durability::parse("none")));
        assert_eq!(given.log_level, Some(LogLevel::Debug));
        assert_eq!(given.log_format, Some(LogFormat::Json));
        assert_eq!(overrides(&["redrive", "serve", "--insecure=no"]).insecure, Some(false));
    }

    #[test]
    fn several_addresses_of_redis_are_gathered() {
        let given =
            overrides(&["redrive", "serve", "--redis", "redis://a", "--redis", "redis://b"]);
        assert_eq!(given.redis, ["redis://a".into(), "redis://b".into()]);
        assert!(!format!("{given:?}").contains("redis://"));
        let given = overrides(&["redrive", "serve", "--durability", "replicated(2)"]);
        assert_eq!(given.durability, Durability::parse("replicated(2)"));
        let wrong = ["redrive", "serve", "--durability", "quorum"];
        let error = Cli::try_parse_from(wrong).unwrap_err().to_string();
        assert!(error.contains("\"replicated(n)\""), "{error}");
    }

    #[test]
    fn an_address_that_is_none_is_a_usage_error_with_an_example() {
        let error = Cli::try_parse_from(["redrive", "serve", "--listen", "here"]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("for example \"127.0.0.1:7433\""), "{error}");
    }

    #[test]
    fn the_variables_that_count_are_those_of_the_flags() {
        assert_eq!(
            variables(),
            [
                "REDRIVE_CONFIG",
                "REDRIVE_DATA",
                "REDRIVE_DURABILITY",
                "REDRIVE_INSECURE",
                "REDRIVE_LISTEN",
                "REDRIVE_LOG_FORMAT",
                "REDRIVE_LOG_LEVEL",
                "REDRIVE_REDIS",
            ]
        );
    }

    #[test]
    fn a_good_file_is_reported_with_how_long_each_queue_keeps_trying() {
        let text = r#"
            [queues.payments]
            policy = { preset = "chronos-fixed", base_delay = "2h" }
            rules = [{ http_status = "408", policy = "transient" }]
            [queues.mail]
            policy = "one-shot"
        "#;
        let path = Path::new("redrive.toml");
        let config = Config::resolve(&Overrides::default(), Some((path, text))).unwrap();
        assert_eq!(
            report(&config),
            "redrive.toml: ok\n\n\
             (other queues)  4 attempts over 7s to 8.75s\n\
             mail            1 attempt, no retries\n\
             payments        4 attempts over 2h24m to 3h36m\n\
             \x20                 rules[0]: http_status=408: 6 attempts over 0s to 2m35s\n\
             \nwarning: [queues.payments]: base_delay asks for 2h but max_delay cuts it to 1h\n"
        );
    }
}
