//! The file as a whole.

use super::error::{ConfigError, Invalid, RawProblem};
use super::toml_reader::{Problems, TomlReader};
use super::{Durability, LogFormat, LogLevel, overrides::listen_address, queue};
use crate::domain::{Bounds, Limits, QueueName, QueueSettings, Settings};
use crate::store::redis::connection::secret::{Credentials, Secret};
use crate::store::redis::{Access, Address, Tls};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use toml::de::DeTable;

const LONGEST_SHUTDOWN: Duration = Duration::from_secs(3_600);
const SECOND: Duration = Duration::from_secs(1);
const LONGEST_AGE: Duration = Duration::from_secs(366 * 24 * 3_600);
/// An eighth of it holds the largest reply.
const MESSAGE_BYTES_LEAST: usize = 32 << 20;

/// What a file says.
#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) server: Server,
    /// How to get into Redis, wherever it is.
    pub(super) redis_access: Access,
    pub(super) bounds: Bounds,
    pub(super) settings: Settings,
}

#[derive(Debug, Default)]
pub(super) struct Server {
    pub(super) listen: Option<SocketAddr>,
    pub(super) data: Option<PathBuf>,
    pub(super) redis: Option<Address>,
    pub(super) durability: Option<Durability>,
    pub(super) insecure: Option<bool>,
    pub(super) shutdown_timeout: Option<Duration>,
    pub(super) log_format: Option<LogFormat>,
    pub(super) log_level: Option<LogLevel>,
}

pub(super) fn parse(path: &Path, text: &str) -> Result<File, ConfigError> {
    let invalid = |found| Err(ConfigError::Invalid(Invalid::new(path, text, found)));
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        return invalid(syntax_errors(text, &errors));
    }
    let problems = Problems::default();
    let file = read(&TomlReader::new(String::new(), table.get_ref(), &problems));
    match problems.into_problems() {
        found if found.is_empty() => Ok(file),
        found => invalid(found),
    }
}

/// One for each line: where a line cannot be read, what follows on it is noise.
fn syntax_errors(text: &str, errors: &[toml::de::Error]) -> Vec<RawProblem> {
    let mut found: Vec<RawProblem> = errors
        .iter()
        .map(|error| RawProblem {
            span: error.span().unwrap_or(0..0),
            message: error.message().trim_end_matches(", expected nothing").into(),
            allowed: None,
        })
        .collect();
    let line = |found: &RawProblem| text.bytes().take(found.span.start).filter(|b| *b == b'\n').count();
    found.sort_by_key(|found| found.span.start);
    found.dedup_by_key(|found| line(found));
    found
}

fn read(root: &TomlReader<'_>) -> File {
    let server = root.table("server").as_ref().map(server).unwrap_or_default();
    let redis_access = root.table("redis").as_ref().map(redis_access).unwrap_or_default();
    let bounds = root.table("limits").as_ref().map(bounds).unwrap_or_default();
    let built_in = QueueSettings::default();
    let defaults = match root.table("defaults") {
        Some(reader) => queue::read(&reader, &built_in),
        None => built_in,
    };
    let queues = queues(root, &defaults);
    File { server, redis_access, bounds, settings: Settings { defaults: Arc::new(defaults), queues } }
}

fn server(reader: &TomlReader<'_>) -> Server {
    if let (Some(_), Some(at)) = (reader.key_span("data"), reader.key_span("redis")) {
        let message = "redis: jobs are kept in one place: give either data or redis";
        reader.problems().report(at, message);
    }
    Server {
        listen: reader.parsed("listen", "an address in quotes", listen_address),
        data: reader.parsed("data", "a directory in quotes", |path| match path {
            "" => Err("must not be empty; write for example \"./redrive-data\"".into()),
            path => Ok(path.into()),
        }),
        redis: reader
            .texts("redis", "an address in quotes such as \"redis://127.0.0.1:6379\"")
            .and_then(|(texts, at)| reader.noted("redis", at, Address::parse_all(texts))),
        durability: reader.parsed("durability", "a word in quotes", |word| {
            word.parse().map_err(|_| format!("{word:?} is none of {}", Durability::RULE))
        }),
        insecure: reader.bool("insecure"),
        shutdown_timeout: reader.duration("shutdown_timeout", Duration::ZERO..=LONGEST_SHUTDOWN),
        log_format: reader.value_of("log_format"),
        log_level: reader.value_of("log_level"),
    }
}

/// `[limits]`: what clients may take.
fn bounds(reader: &TomlReader<'_>) -> Bounds {
    let built_in = Bounds::default();
    let count = |key, built_in, range| reader.integer::<usize>(key, range).unwrap_or(built_in);
    let calls_per_connection = count("calls_per_connection", built_in.calls_per_connection, 2..=100_000);
    // Where it is not given: most of the calls that there may be.
    let waits_per_connection = built_in.waits_per_connection.min(calls_per_connection * 4 / 5);
    let time = |key, built_in| reader.duration(key, SECOND..=LONGEST_AGE).unwrap_or(built_in);
    let bounds = Bounds {
        connections: count("connections", built_in.connections, 1..=1_000_000),
        connections_per_peer: reader.integer("connections_per_peer", 1..=1_000_000),
        calls_per_connection,
        waits_per_connection: count("waits_per_connection", waits_per_connection, 1..=100_000),
        waits: count("waits", built_in.waits, 1..=10_000_000),
        waits_per_peer: reader.integer("waits_per_peer", 1..=10_000_000),
        calls: count("calls", built_in.calls, 2..=10_000_000),
        calls_per_peer: reader.integer("calls_per_peer", 1..=10_000_000),
        header_bytes: count("header_bytes", built_in.header_bytes, 1_024..=1 << 20),
        request_bytes: count("request_bytes", built_in.request_bytes, 64 << 10..=64 << 20),
        message_bytes: count("message_bytes", built_in.message_bytes, MESSAGE_BYTES_LEAST..=1 << 40),
        message_bytes_per_peer: reader.integer("message_bytes_per_peer", MESSAGE_BYTES_LEAST / 2..=1 << 40),
        message_bytes_per_connection: count(
            "message_bytes_per_connection",
            built_in.message_bytes_per_connection,
            MESSAGE_BYTES_LEAST / 8..=1 << 40,
        ),
        control_frames_per_second: count(
            "control_frames_per_second",
            built_in.control_frames_per_second,
            10..=10_000_000,
        ),
        preface_timeout: time("preface_timeout", built_in.preface_timeout),
        request_timeout: time("request_timeout", built_in.request_timeout),
        read_timeout: time("read_timeout", built_in.read_timeout),
        connection_age: time("connection_age", built_in.connection_age),
        connection_age_grace: time("connection_age_grace", built_in.connection_age_grace),
        new_queues_per_minute: count("new_queues_per_minute", built_in.new_queues_per_minute, 1..=1_000_000),
    };
    if let Some(at) = reader.key_span("waits_per_connection")
        && bounds.waits_per_connection >= bounds.calls_per_connection
    {
        let message =
            "waits_per_connection: must be less than calls_per_connection, so that calls that settle find room";
        reader.problems().report(at, message);
    }
    bounds
}

fn redis_access(reader: &TomlReader<'_>) -> Access {
    let file = |key| {
        reader.parsed(key, "a file in quotes", |path| match path {
            "" => Err("must not be empty".into()),
            path => Ok(PathBuf::from(path)),
        })
    };
    if let (Some(_), Some(at)) = (reader.key_span("sentinel_password"), reader.key_span("sentinel_password_file")) {
        reader.problems().report(at, "give either sentinel_password or sentinel_password_file");
    }
    let in_file = file("sentinel_password_file").map(Secret::File);
    Access {
        tls: Tls { ca: file("ca"), cert: file("cert"), key: file("key") },
        password: file("password_file").map(Secret::File),
        sentinel: Credentials {
            user: reader.text("sentinel_user").map(Into::into),
            password: reader.text("sentinel_password").map(|text| Secret::Text(text.into())).or(in_file),
        },
    }
}

fn queues(root: &TomlReader<'_>, defaults: &QueueSettings) -> HashMap<QueueName, Arc<QueueSettings>> {
    let mut queues = HashMap::new();
    let problems = root.problems();
    let Some(value) = root.get("queues") else {
        return queues;
    };
    let Some(table) = value.get_ref().as_table() else {
        root.wrong_type("queues", "tables such as [queues.payments]", value);
        return queues;
    };
    let most = Limits::default().queues;
    if table.len() > most {
        let message = format!("queues: must be at most {most}, not {}", table.len());
        problems.report(value.span(), message);
    }
    for (key, value) in table {
        let word = key.get_ref().as_ref();
        let name = QueueName::parse(word);
        if name.is_none() {
            let rule = QueueName::RULE;
            let message = format!("{word:?} cannot be the name of a queue: it has {rule}");
            problems.report(key.span(), message);
        }
        let Some(keys) = value.get_ref().as_table() else {
            root.wrong_type(&format!("queues.{word}"), "a table", value);
            continue;
        };
        let reader = TomlReader::new(format!("[queues.{word}]"), keys, problems);
        let settings = Arc::new(queue::read(&reader, defaults));
        if let Some(name) = name {
            queues.insert(name, settings);
        }
    }
    queues
}
