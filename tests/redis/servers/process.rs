//! One server process.

use super::Certificates;
use redis::{FromRedisValue, Value};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

const READY: &str = "Ready to accept connections";
const LONG: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Redis,
    Valkey,
    Sentinel,
}

impl Kind {
    fn program(self) -> &'static str {
        match self {
            Self::Redis | Self::Sentinel => "redis-server",
            Self::Valkey => "valkey-server",
        }
    }
}

/// How a server is to be started.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    kind: Kind,
    /// Its configuration, line by line.
    lines: Vec<String>,
    environment: Vec<(&'static str, OsString)>,
    tls: bool,
}

impl Launch {
    /// Bare: neither snapshots nor an append-only file.
    pub(crate) fn new(kind: Kind) -> Self {
        let lines = match kind {
            Kind::Sentinel => vec![],
            // A replica is there at once rather than after five seconds.
            _ => vec!["save \"\"".into(), "repl-diskless-sync-delay 0".into()],
        };
        Self { kind, lines, environment: Vec::new(), tls: false }
    }

    /// As durable as Redis gets: what is answered is on the disk.
    pub(crate) fn durable(kind: Kind) -> Self {
        Self::new(kind).line("appendonly yes").line("appendfsync always")
    }

    pub(crate) fn line(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    pub(crate) fn environment(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// Speaks TLS and nothing else.
    pub(crate) fn tls(mut self, certificates: &Certificates) -> Self {
        self.tls = true;
        self.line(format!("tls-cert-file {}", certificates.server_cert.display()))
            .line(format!("tls-key-file {}", certificates.server_key.display()))
            .line(format!("tls-ca-cert-file {}", certificates.ca.display()))
    }

    /// Runs until it takes connections, on a port of its own.
    pub(crate) fn start(self) -> Server {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        // Another test may have been faster with the port.
        for _ in 0..10 {
            let port = free_port();
            if let Some(running) = self.run(directory.path(), port) {
                return Server { launch: self, directory, port, running: Some(running) };
            }
        }
        panic!("{} does not start", self.kind.program());
    }

    fn run(&self, directory: &Path, port: u16) -> Option<Running> {
        let file = directory.join("redis.conf");
        // A sentinel writes what it has learnt into its file, and goes on from there.
        if self.kind != Kind::Sentinel || !file.exists() {
            std::fs::write(&file, self.configuration(directory, port)).unwrap();
        }
        let mut child = Command::new(self.kind.program())
            .arg(&file)
            .args((self.kind == Kind::Sentinel).then_some("--sentinel"))
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}; script/test installs it", self.kind.program()));
        let (lines, log) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = lines.send(line);
            }
        });
        let mut running = Running { child, log };
        let ready = if self.kind == Kind::Sentinel { "Sentinel ID is" } else { READY };
        running.log_has(ready).then_some(running)
    }

    fn configuration(&self, directory: &Path, port: u16) -> String {
        let ports = if self.tls { format!("port 0\ntls-port {port}") } else { format!("port {port}") };
        let mut text = format!("{ports}\nbind 127.0.0.1\ndir {}\n", directory.display());
        for line in &self.lines {
            text += &line.replace("{port+}", &(port + BUS_DISTANCE).to_string());
            text += "\n";
        }
        text
    }
}

/// Where a server of a Cluster talks with the others.
pub(super) const BUS_DISTANCE: u16 = 10_000;

struct Running {
    child: Child,
    /// Its end is the program's end.
    log: Receiver<String>,
}

impl Running {
    /// Waits for a line; false if the program ends before.
    fn log_has(&mut self, part: &str) -> bool {
        loop {
            match self.log.recv_timeout(LONG) {
                Ok(line) if line.contains(part) => return true,
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) => panic!("no line with {part:?}"),
            }
        }
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

pub(crate) struct Server {
    launch: Launch,
    directory: TempDir,
    pub(crate) port: u16,
    running: Option<Running>,
}

impl Server {
    pub(crate) fn start(kind: Kind) -> Self {
        Launch::new(kind).start()
    }

    pub(crate) fn address(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    /// As `kill -9`: it is gone when this returns.
    pub(crate) fn kill(&mut self) {
        self.running = None;
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Starts again on the same port, with what is on its disk.
    pub(crate) fn restart(&mut self) {
        assert!(self.running.is_none(), "it still runs");
        let running = self.launch.run(self.directory.path(), self.port);
        self.running = Some(running.expect("it started before"));
    }

    fn signal(&self, signal: Signal) {
        let running = self.running.as_ref().expect("it runs");
        kill_process(Pid::from_child(&running.child), signal).unwrap();
    }

    /// It stays there and does nothing.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// One command, over a connection of its own.
    pub(crate) fn ask<T: FromRedisValue>(&self, command: &str) -> T {
        ask(self.port, command)
    }

    /// The same, where the server may say no.
    pub(crate) fn try_ask<T: FromRedisValue>(&self, command: &str) -> Result<T, String> {
        try_ask(self.port, command)
    }

    /// One that is being made the primary cuts its connections off, and does not answer.
    pub(crate) fn is_primary(&self) -> bool {
        let role: Result<Vec<Value>, _> = self.try_ask("ROLE");
        role.is_ok_and(|role| role.first() == Some(&Value::BulkString("master".into())))
    }

    /// A field of INFO.
    pub(crate) fn info(&self, field: &str) -> String {
        let info: String = self.ask("INFO everything");
        let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_default().to_owned()
    }
}

/// One command, as one would type it, to the server on this port.
#[track_caller]
pub(crate) fn ask<T: FromRedisValue>(port: u16, command: &str) -> T {
    try_ask(port, command).unwrap_or_else(|why| panic!("{command}: {why}"))
}

fn try_ask<T: FromRedisValue>(port: u16, command: &str) -> Result<T, String> {
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).map_err(|error| error.to_string())?;
    let connection = client.get_connection_with_timeout(LONG);
    let mut connection = connection.map_err(|error| error.to_string())?;
    let mut words = command.split_whitespace();
    let mut cmd = redis::cmd(words.next().unwrap());
    for word in words {
        cmd.arg(word);
    }
    let reply: Value = cmd.query(&mut connection).map_err(|error| error.to_string())?;
    redis::from_redis_value(reply).map_err(|error| error.to_string())
}

/// Below those that the system gives to outgoing connections: it stays free while its server is down.
fn free_port() -> u16 {
    let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
    loop {
        let port = 10_000 + redrive::env::random::<u16>() % 12_000;
        if is_free(port) && is_free(port + BUS_DISTANCE) {
            return port;
        }
    }
}
