//! What the operator who starts the server wants to know, and what to try next.

use crate::config::{Config, Durability, LogFormat};
use crate::store::sqlite;
use serde_json::json;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// More queues than this are left to `config check`.
const QUEUES_MAX: usize = 20;

/// `address`: where it listens in fact, also when port 0 was asked for. `named`: the file was named, not just found.
/// `found`: what was found where jobs are kept, by labels.
pub(super) fn text(config: &Config, named: bool, address: SocketAddr, found: &[(&'static str, String)]) -> String {
    let lines = lines(config, named, address, found);
    let job = r#"{"queue":"emails","type":"welcome","json":{"to":"ada@example.com"}}"#;
    let address = reachable(address);
    let command = format!("grpcurl -plaintext -d '{job}' {address} redrive.v1.QueueService/Enqueue");
    let version = env!("CARGO_PKG_VERSION");
    if config.log.format == LogFormat::Json {
        let lines = lines.into_iter().map(|(label, value)| (if label.is_empty() { "queue" } else { label }, value));
        let all = [("redrive", version.to_owned())].into_iter().chain(lines).chain([("try", command)]);
        return all.map(|(label, value)| format!("{}\n", json!({ "label": label, "value": value }))).collect();
    }
    let lines: String = lines.iter().map(|(label, value)| format!("  {label:<12}{value}\n")).collect();
    format!("redrive {version}\n{lines}\nTry it, in another terminal:\n  {command}\n")
}

/// Labels and values.
fn lines(
    config: &Config, named: bool, address: SocketAddr, found: &[(&'static str, String)],
) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    let mut line = |label, value: &str| lines.push((label, value.to_owned()));
    line("gRPC", &address.to_string());
    if !address.ip().to_canonical().is_loopback() {
        line("access", "open: all who reach this address may do everything");
    }
    match &config.redis {
        None => line("data", &absolute(&config.data).display().to_string()),
        Some(redis) => line("data", &redis.to_string()),
    }
    for (label, value) in found {
        line(label, value);
    }
    line("durability", &meaning(config.durability));
    line("config", &source(config, named));
    let policies = config.policies();
    let mut queues = policies.iter().filter(|policy| policy.rule.is_none());
    if let Some(default) = queues.next() {
        line("retries", &format!("{}, unless a queue says otherwise", default.policy.horizon()));
        if let Some(horizon) = default.horizon_of_outages() {
            line("outages", &horizon);
        }
    }
    for named in queues.by_ref().take(QUEUES_MAX) {
        let horizons: Vec<_> =
            [Some(named.policy.horizon()), named.horizon_of_outages()].into_iter().flatten().collect();
        line("", &format!("{}: {}", named.queue.as_deref().unwrap_or_default(), horizons.join("; ")));
    }
    if let more @ 1.. = queues.count() {
        line("", &format!("and {more} more queues: see redrive config check"));
    }
    lines
}

fn source(config: &Config, named: bool) -> String {
    match config.source.as_deref().map(absolute) {
        Some(path) if named => path.display().to_string(),
        Some(path) => format!("{} (found in the working directory)", path.display()),
        None => "built-in values; a redrive.toml in the working directory is read".into(),
    }
}

/// No client can call "all addresses".
pub fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    address
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

/// What an answer means.
fn meaning(durability: Durability) -> String {
    let means = match durability {
        Durability::Embedded(sqlite::Durability::Fsync) => "what is answered is on the disk",
        Durability::Embedded(sqlite::Durability::None) => "for experiments, a power cut loses what was acknowledged",
        Durability::Redis(level) => return level.to_string(),
    };
    format!("{durability}: {means}")
}
