//! What files mean, and what is said about those that mean nothing.

mod meaning;
mod precedence;
mod problems;

use super::*;
use crate::domain::ids::QueueName;

const FILE: &str = "redrive.toml";

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::resolve(&Overrides::default(), Some((Path::new(FILE), text)))
}

#[track_caller]
fn settings(text: &str) -> Arc<Settings> {
    parse(text).unwrap_or_else(|error| panic!("{error}")).settings
}

#[track_caller]
fn queue(text: &str, name: &str) -> Arc<QueueSettings> {
    settings(text).queue(&QueueName::parse(name).unwrap()).clone()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
