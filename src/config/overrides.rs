//! The flags of `redrive serve` and their environment variables: they go over the file.

use super::{Durability, LogFormat, LogLevel, Unread};
use clap::{Args, builder::BoolishValueParser};
use std::{net::SocketAddr, path::PathBuf};

#[derive(Clone, Debug, Default, Args)]
pub struct Overrides {
    /// The configuration file [default: ./redrive.toml, if there is one]
    #[arg(long, value_name = "FILE", env = "REDRIVE_CONFIG", hide_env_values = true)]
    pub config: Option<PathBuf>,
    /// Where jobs are kept [default: ./redrive-data]
    #[arg(long, value_name = "DIR", env = "REDRIVE_DATA", hide_env_values = true)]
    pub data: Option<PathBuf>,
    /// Where Redis is, if jobs are kept there: redis://host:6379, or several for a Cluster; see docs/redis.md
    #[arg(long, value_name = "URL", env = "REDRIVE_REDIS", hide_env_values = true)]
    pub redis: Vec<Unread>,
    /// Where to listen for gRPC; port 0 is any free port [default: 127.0.0.1:7433]
    #[arg(long, value_name = "ADDR", env = "REDRIVE_LISTEN", hide_env_values = true)]
    #[arg(value_parser = listen_address)]
    pub listen: Option<SocketAddr>,
    /// Allow an address that other machines can reach, although all who reach it may do everything
    #[arg(long, value_name = "BOOL", env = "REDRIVE_INSECURE", hide_env_values = true)]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    pub insecure: Option<bool>,
    /// What is certain when a call is answered: fsync, or none, where a power cut loses what was
    /// acknowledged. On Redis primary, replicated(n) or fsync(n) [default: fsync, on Redis primary]
    #[arg(long, value_name = "LEVEL", env = "REDRIVE_DURABILITY", hide_env_values = true)]
    pub durability: Option<Durability>,
    /// How log lines look: text, json, or auto for text on a terminal and JSON elsewhere [default: auto]
    #[arg(long, value_name = "FORMAT", env = "REDRIVE_LOG_FORMAT", hide_env_values = true)]
    #[arg(hide_possible_values = true)]
    pub log_format: Option<LogFormat>,
    /// The least important lines to write [default: info]
    #[arg(long, value_name = "LEVEL", env = "REDRIVE_LOG_LEVEL", hide_env_values = true)]
    pub log_level: Option<LogLevel>,
    /// `RUST_LOG`, which no flag declares.
    #[arg(skip)]
    pub log_directives: Option<String>,
}

/// Reads `127.0.0.1:7433` or `[::1]:7433`.
pub(super) fn listen_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!(
            "{text:?} is not an address to listen on: write an IP address and a port, for example \
             \"127.0.0.1:7433\" or \"[::1]:7433\""
        )
    })
}
