//! What somebody who starts the server wants to know, and what to try next.

use crate::{
    config::{Config, Durability},
    domain::policy::RetryPolicy,
    store::sqlite,
};
use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
};

#[derive(Debug)]
pub(super) struct Banner<'a> {
    pub(super) version: &'a str,
    /// Where it listens in fact, also when port 0 was asked for.
    pub(super) address: SocketAddr,
    /// Where jobs are kept.
    pub(super) place: String,
    /// What was found there, by labels.
    pub(super) found: &'a [(&'static str, String)],
    pub(super) durability: Durability,
    pub(super) source: Option<PathBuf>,
    /// The file was named, not just found.
    pub(super) named: bool,
    pub(super) policy: &'a RetryPolicy,
    /// How long each configured queue keeps trying.
    pub(super) queues: Vec<(String, String)>,
}

/// More queues than this are left to `config check`.
const QUEUES_MAX: usize = 20;

impl<'a> Banner<'a> {
    pub(super) fn new(
        config: &'a Config,
        named: bool,
        address: SocketAddr,
        found: &'a [(&'static str, String)],
    ) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            address,
            place: match &config.redis {
                None => absolute(&config.data).display().to_string(),
                Some(address) => address.to_string(),
            },
            found,
            durability: config.durability,
            source: config.source.as_deref().map(absolute),
            named,
            policy: &config.settings.defaults.policy,
            queues: config
                .policies()
                .into_iter()
                .filter(|named| named.rule.is_none())
                .filter_map(|named| Some((named.queue?, named.policy.horizon())))
                .collect(),
        }
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!("redrive {}\n", self.version);
        let mut line = |label, value: &str| text.push_str(&format!("  {label:<12}{value}\n"));
        line("gRPC", &self.address.to_string());
        if !self.address.ip().to_canonical().is_loopback() {
            line("access", "open: everybody who reaches this address may do everything");
        }
        line("data", &self.place);
        for (label, value) in self.found {
            line(label, value);
        }
        line("durability", &meaning(self.durability));
        line("config", &self.config());
        line("retries", &format!("{}, unless a queue says otherwise", self.policy.horizon()));
        for (queue, horizon) in self.queues.iter().take(QUEUES_MAX) {
            line("", &format!("{queue}: {horizon}"));
        }
        if let Some(more @ 1..) = self.queues.len().checked_sub(QUEUES_MAX) {
            line("", &format!("and {more} more queues: see redrive config check"));
        }
        text.push_str("\nTry it, in another terminal:\n");
        text.push_str(&self.first_command());
        text
    }

    fn config(&self) -> String {
        match &self.source {
            Some(path) if self.named => path.display().to_string(),
            Some(path) => format!("{} (found in the working directory)", path.display()),
            None => "built-in values; a redrive.toml in the working directory is read".into(),
        }
    }

    fn first_command(&self) -> String {
        let mut address = self.address;
        // Nobody can call "all addresses".
        match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        let job = r#"{"queue":"emails","type":"welcome","json":{"to":"ada@example.com"}}"#;
        format!("  grpcurl -plaintext -d '{job}' {address} redrive.v1.QueueService/Enqueue\n")
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

/// What an answer means.
fn meaning(durability: Durability) -> String {
    let means = match durability {
        Durability::Embedded(sqlite::Durability::Fsync) => "what is answered is on the disk",
        Durability::Embedded(sqlite::Durability::None) => {
            "for experiments, a power cut loses what was acknowledged"
        }
        Durability::Redis(level) => return level.to_string(),
    };
    format!("{durability}: {means}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::presets::Preset;

    fn text(address: &str, durability: Durability, source: Option<&str>, named: bool) -> String {
        Banner {
            version: "1.2.3",
            address: address.parse().unwrap(),
            place: "/srv/redrive-data".into(),
            found: &[],
            durability,
            source: source.map(PathBuf::from),
            named,
            policy: &Preset::Standard.policy(),
            queues: Vec::new(),
        }
        .text()
    }

    #[test]
    fn the_banner_says_what_runs_where_and_what_to_try_next() {
        let text =
            text("127.0.0.1:7433", Durability::Embedded(sqlite::Durability::Fsync), None, false);
        let expected = r#"redrive 1.2.3
  gRPC        127.0.0.1:7433
  data        /srv/redrive-data
  durability  fsync: what is answered is on the disk
  config      built-in values; a redrive.toml in the working directory is read
  retries     4 attempts over 7s to 8.75s, unless a queue says otherwise

Try it, in another terminal:
  grpcurl -plaintext -d '{"queue":"emails","type":"welcome","json":{"to":"ada@example.com"}}' 127.0.0.1:7433 redrive.v1.QueueService/Enqueue
"#;
        assert_eq!(text, expected);
    }

    #[test]
    fn an_open_server_says_so_and_the_command_still_reaches_it() {
        let open =
            text("0.0.0.0:7000", Durability::Embedded(sqlite::Durability::Fsync), None, false);
        assert!(open.contains("  gRPC        0.0.0.0:7000\n  access      open: "), "{open}");
        assert!(open.contains(" 127.0.0.1:7000 redrive.v1."), "{open}");
        let open = text("[::]:7000", Durability::Embedded(sqlite::Durability::Fsync), None, false);
        assert!(open.contains(" [::1]:7000 redrive.v1."), "{open}");
    }

    #[test]
    fn a_file_that_was_only_found_is_pointed_out() {
        let found = text(
            "127.0.0.1:1",
            Durability::Embedded(sqlite::Durability::Fsync),
            Some("/a/redrive.toml"),
            false,
        );
        let line = "  config      /a/redrive.toml (found in the working directory)\n";
        assert!(found.contains(line), "{found}");
        let named = text(
            "127.0.0.1:1",
            Durability::Embedded(sqlite::Durability::Fsync),
            Some("/a/redrive.toml"),
            true,
        );
        assert!(named.contains("  config      /a/redrive.toml\n"), "{named}");
    }

    #[test]
    fn every_configured_queue_says_how_long_it_keeps_trying() {
        let queues = |count| (0..count).map(|n| (format!("q{n}"), "5 attempts".to_owned()));
        let policy = Preset::Standard.policy();
        let banner = |count| Banner {
            version: "1",
            address: "127.0.0.1:1".parse().unwrap(),
            place: "/d".into(),
            found: &[],
            durability: Durability::Embedded(sqlite::Durability::Fsync),
            source: None,
            named: false,
            policy: &policy,
            queues: queues(count).collect(),
        };
        let text = banner(2).text();
        let lines = "otherwise\n              q0: 5 attempts\n              q1: 5 attempts\n\n";
        assert!(text.contains(lines), "{text}");
        assert!(!banner(20).text().contains("more queues"));
        assert!(banner(23).text().contains("q19: 5 attempts\n              and 3 more queues"));
    }

    #[test]
    fn less_durability_is_not_kept_quiet() {
        let text = text("127.0.0.1:1", Durability::Embedded(sqlite::Durability::None), None, false);
        let line = "  durability  none: for experiments, a power cut loses what was acknowledged\n";
        assert!(text.contains(line), "{text}");
    }
}
