//! The file as a whole.

use super::{
    Durability, LogFormat, LogLevel,
    error::{ConfigError, Found, Invalid},
    listen_address, queue,
    section::{Problems, Section},
};
use crate::{
    domain::{
        ids::QueueName,
        limits::Limits,
        settings::{QueueSettings, Settings},
    },
    store::redis::Address,
};
use std::{
    collections::HashMap, net::SocketAddr, path::Path, path::PathBuf, sync::Arc, time::Duration,
};
use toml::de::DeTable;

const KEYS: &[&str] = &["server", "defaults", "queues"];
const SERVER_KEYS: &[&str] = &[
    "listen",
    "data",
    "redis",
    "durability",
    "insecure",
    "shutdown_timeout",
    "log_format",
    "log_level",
];
const LONGEST_SHUTDOWN: Duration = Duration::from_secs(3_600);

/// What a file says.
#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) server: Server,
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
    let file = read(&Section::new(String::new(), KEYS, table.get_ref(), &problems));
    match problems.into_found() {
        found if found.is_empty() => Ok(file),
        found => invalid(found),
    }
}

/// One for each line: where a line cannot be read, what follows on it is noise.
fn syntax_errors(text: &str, errors: &[toml::de::Error]) -> Vec<Found> {
    let mut found: Vec<Found> = errors
        .iter()
        .map(|error| Found {
            span: error.span().unwrap_or(0..0),
            message: error.message().trim_end_matches(", expected nothing").into(),
            allowed: None,
        })
        .collect();
    let line = |found: &Found| text.bytes().take(found.span.start).filter(|b| *b == b'\n').count();
    found.sort_by_key(|found| found.span.start);
    found.dedup_by_key(|found| line(found));
    found
}

fn read(root: &Section<'_>) -> File {
    let server = root.section("server", SERVER_KEYS).as_ref().map(server).unwrap_or_default();
    let built_in = QueueSettings::default();
    let defaults = match root.section("defaults", queue::KEYS) {
        Some(section) => queue::read(&section, &built_in),
        None => built_in,
    };
    let queues = queues(root, &defaults);
    File { server, settings: Settings { defaults: Arc::new(defaults), queues } }
}

fn server(section: &Section<'_>) -> Server {
    if let (Some(_), Some(at)) = (section.get("data"), section.key_span("redis")) {
        let message = "redis: jobs are kept in one place: give either data or redis";
        section.problems().report(at, message);
    }
    Server {
        listen: section.parsed("listen", "an address in quotes", listen_address),
        data: section.parsed("data", "a directory in quotes", |path| match path {
            "" => Err("must not be empty; write for example \"./redrive-data\"".into()),
            path => Ok(path.into()),
        }),
        redis: section
            .texts("redis", "an address in quotes such as \"redis://127.0.0.1:6379\"")
            .and_then(|(texts, at)| section.noted("redis", at, Address::parse_all(texts))),
        durability: section.parsed("durability", "a word in quotes", |word| {
            Durability::parse(word)
                .ok_or_else(|| format!("{word:?} is none of {}", Durability::RULE))
        }),
        insecure: section.bool("insecure"),
        shutdown_timeout: section.duration("shutdown_timeout", Duration::ZERO..=LONGEST_SHUTDOWN),
        log_format: section.word("log_format", &LogFormat::WORDS, LogFormat::parse),
        log_level: section.word("log_level", &LogLevel::WORDS, LogLevel::parse),
    }
}

fn queues(root: &Section<'_>, defaults: &QueueSettings) -> HashMap<QueueName, Arc<QueueSettings>> {
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
        let section = Section::new(format!("[queues.{word}]"), queue::KEYS, keys, problems);
        let settings = Arc::new(queue::read(&section, defaults));
        if let Some(name) = name {
            queues.insert(name, settings);
        }
    }
    queues
}
