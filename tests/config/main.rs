//! What configuration files mean, what goes over what, and what is said about files that mean nothing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops")]

mod environment;
mod flags;
mod limits;
mod meaning;
mod precedence;
mod problems;

use redrive::config::{Config, ConfigError, Overrides};
use redrive::domain::{QueueName, QueueSettings};
use std::{path::Path, sync::Arc, time::Duration};

const FILE: &str = "redrive.toml";

fn parse(text: &str) -> Result<Config, ConfigError> {
    parse_under(&Overrides::default(), text)
}

fn parse_under(overrides: &Overrides, text: &str) -> Result<Config, ConfigError> {
    Config::resolve(overrides, Some((Path::new(FILE), text)))
}

#[track_caller]
fn queue(text: &str, name: &str) -> Arc<QueueSettings> {
    let config = parse(text).unwrap_or_else(|error| panic!("{error}"));
    config.settings.queue(&QueueName::parse(name).unwrap()).clone()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
