//! The command line.

use crate::{
    config::{
        Config, ConfigError, Durability, Environment, LogFormat, LogLevel, Overrides,
        listen_address,
    },
    serve,
};
use clap::{
    Args, CommandFactory, Parser, Subcommand,
    builder::{BoolishValueParser, PossibleValue, PossibleValuesParser, TypedValueParser},
};
use std::{
    io::{self, Write},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
};

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
    /// Work with the configuration file
    #[command(subcommand)]
    Config(ConfigCommand),
}

const SERVE_HELP: &str = "\
Flags go over the environment, the environment over the file.
SIGTERM and SIGINT stop the server in peace, a second one at once. SIGHUP reads the settings of
queues from the file again; a file with a problem changes nothing.
RUST_LOG, if set, goes over --log-level, for example RUST_LOG=redrive=debug.";

#[derive(Debug, Args)]
struct ServeArgs {
    /// The configuration file [default: ./redrive.toml, if there is one]
    #[arg(long, value_name = "FILE", env = "REDRIVE_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
    /// Where jobs are kept [default: ./redrive-data]
    #[arg(long, value_name = "DIR", env = "REDRIVE_DATA", hide_env_values = true)]
    data: Option<PathBuf>,
    /// Where to listen for gRPC; port 0 is any free port [default: 127.0.0.1:7433]
    #[arg(long, value_name = "ADDR", env = "REDRIVE_LISTEN", hide_env_values = true)]
    #[arg(value_parser = listen_address)]
    listen: Option<SocketAddr>,
    /// Allow an address that other machines can reach, although whoever reaches it may do everything
    #[arg(long, value_name = "BOOL", env = "REDRIVE_INSECURE", hide_env_values = true)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    insecure: Option<bool>,
    /// What is certain when a call is answered [default: fsync]
    #[arg(long, value_name = "LEVEL", value_parser = durability())]
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

fn durability() -> impl TypedValueParser<Value = Durability> {
    let fsync = PossibleValue::new("fsync").help("the change is on the disk");
    let none =
        PossibleValue::new("none").help("for experiments: a power cut loses what was acknowledged");
    PossibleValuesParser::new([fsync, none]).try_map(|word| {
        Durability::parse(&word).ok_or_else(|| format!("{word:?} is not allowed here"))
    })
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Serve(#[from] serve::Error),
}

impl Error {
    /// 2 where the command or the configuration must change, 1 otherwise.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Config(_) => ExitCode::from(2),
            Self::Serve(error) if error.is_of_config() => ExitCode::from(2),
            Self::Serve(_) => ExitCode::FAILURE,
        }
    }
}

pub fn run(cli: Cli) -> Result<(), Error> {
    match cli.command {
        Command::Serve(args) => {
            let environment = Environment::read();
            let known = variables();
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let overrides = args.overrides(&environment);
            let config = Config::load(&overrides)?;
            Ok(serve::run(config, overrides, &environment.warnings(&known))?)
        }
        Command::Config(ConfigCommand::Check { file }) => {
            let config = Config::load(&Overrides { config: file, ..Overrides::default() })?;
            // `| head` may have gone; the answer is in the exit code.
            let _ = io::stdout().lock().write_all(report(&config).as_bytes());
            Ok(())
        }
    }
}

impl ServeArgs {
    fn overrides(&self, environment: &Environment) -> Overrides {
        Overrides {
            config: self.config.clone(),
            listen: self.listen,
            data: self.data.clone(),
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
        assert_eq!((given.insecure, given.durability), (Some(true), Some(Durability::None)));
        assert_eq!(given.log_level, Some(LogLevel::Debug));
        assert_eq!(given.log_format, Some(LogFormat::Json));
        assert_eq!(overrides(&["redrive", "serve", "--insecure=no"]).insecure, Some(false));
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
                "REDRIVE_INSECURE",
                "REDRIVE_LISTEN",
                "REDRIVE_LOG_FORMAT",
                "REDRIVE_LOG_LEVEL",
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
