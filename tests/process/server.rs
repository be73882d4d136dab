//! A running `redrive serve`: started, signalled, killed, and always cleaned up.

use redrive::grpc::pb::admin_service_client::AdminServiceClient;
use redrive::grpc::pb::queue_service_client::QueueServiceClient;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

/// Nothing takes this long unless it is broken.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// How a server is to be started.
pub(crate) struct Launch {
    command: Command,
}

impl Launch {
    /// On any free port, with its data in `data`.
    pub(crate) fn on(data: &Path) -> Self {
        Self::bare().arg("--data").arg(data).arg("--listen").arg("127.0.0.1:0")
    }

    /// Without flags.
    pub(crate) fn bare() -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
        // Nothing of the caller's own settings, nor of a file that lies about.
        command
            .arg("serve")
            .current_dir(env!("CARGO_TARGET_TMPDIR"))
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        Self { command }
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Its working directory.
    pub(crate) fn within(mut self, directory: &Path) -> Self {
        self.command.current_dir(directory);
        self
    }

    /// Runs until it serves.
    pub(crate) fn start(self) -> Server {
        self.try_start().unwrap_or_else(|refused| panic!("the server did not start: {refused:?}"))
    }

    /// Runs until it serves or ends.
    pub(crate) fn try_start(mut self) -> Result<Server, Refused> {
        let mut child = self.command.spawn().expect("cannot run redrive");
        let stderr = Arc::new(Log::default());
        let readers = vec![collect(child.stderr.take().expect("piped"), stderr.clone())];
        let (lines, stdout) = channel();
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let reader = thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = lines.send(line);
            }
        });
        let mut server =
            Server { child, address: SocketAddr::from(([0, 0, 0, 0], 0)), stdout, stderr, readers, ended: None };
        server.readers.push(reader);
        loop {
            match server.stdout.recv_timeout(LONG) {
                Ok(line) => {
                    if let Some(address) = address_of(&line) {
                        server.address = address;
                        return Ok(server);
                    }
                }
                Err(error) => {
                    assert!(error == std::sync::mpsc::RecvTimeoutError::Disconnected, "no banner");
                    let status = server.wait_within(LONG);
                    return Err(Refused { code: status.code(), stderr: server.stderr() });
                }
            }
        }
    }
}

/// The address, if this is the line of the banner that says it.
fn address_of(line: &str) -> Option<SocketAddr> {
    let of_json = serde_json::from_str::<serde_json::Value>(line).ok();
    let address = match &of_json {
        Some(line) if line["label"] == "gRPC" => line["value"].as_str(),
        Some(_) => None,
        None => line.trim().strip_prefix("gRPC "),
    };
    address.map(|address| address.trim().parse().expect("an address"))
}

/// A server that ended before it served.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) code: Option<i32>,
    pub(crate) stderr: String,
}

pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    /// Its end is the program's end.
    stdout: Receiver<String>,
    stderr: Arc<Log>,
    readers: Vec<JoinHandle<()>>,
    ended: Option<ExitStatus>,
}

impl Server {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn stderr(&self) -> String {
        self.stderr.text.lock().expect("no reader panics").clone()
    }

    /// What it prints behind its address, once.
    pub(crate) fn banner(&self) -> Vec<String> {
        let mut lines = Vec::new();
        while !lines.last().is_some_and(|line: &String| line.contains("grpcurl")) {
            lines.push(self.stdout.recv_timeout(LONG).expect("the rest of the banner"));
        }
        lines
    }

    /// Waits for a line of the log that holds `part`.
    pub(crate) fn log_line(&self, part: &str) -> String {
        let find = |text: &str| {
            let line = text.lines().find(|line| line.contains(part));
            line.map(str::to_owned)
        };
        let text = self.stderr.text.lock().expect("no reader panics");
        let grown = &self.stderr.grown;
        let (text, _) = grown.wait_timeout_while(text, LONG, |text| find(text).is_none()).expect("no reader panics");
        let line = find(&text);
        // The log is shown by what fails next: it must be free.
        drop(text);
        line.unwrap_or_else(|| panic!("the log has no line with {part:?}"))
    }

    /// How many lines of the log hold `part` by now.
    pub(crate) fn log_lines(&self, part: &str) -> usize {
        let text = self.stderr.text.lock().expect("no reader panics");
        text.lines().filter(|line| line.contains(part)).count()
    }

    /// A connection of its own.
    pub(crate) async fn connect(&self) -> Channel {
        Endpoint::from_shared(format!("http://{}", self.address))
            .expect("an address")
            .connect()
            .await
            .expect("a server that says where it listens")
    }

    pub(crate) async fn queue(&self) -> QueueServiceClient<Channel> {
        QueueServiceClient::new(self.connect().await)
    }

    pub(crate) async fn admin(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.connect().await)
    }

    fn signal(&self, signal: Signal) {
        assert!(self.ended.is_none(), "it has ended");
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// As `kill -9`: it is gone when this returns.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.wait_within(LONG);
    }

    /// Sends SIGTERM, and does not wait.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGINT, and does not wait.
    pub(crate) fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    /// SIGHUP: it reads its file again.
    pub(crate) fn reload(&self) {
        self.signal(Signal::HUP);
    }

    /// SIGTERM, and a good end.
    pub(crate) fn stop(&mut self) {
        self.terminate();
        let status = self.wait_within(LONG);
        assert_eq!(status.code(), Some(0), "{}", self.stderr());
    }

    /// Waits for its end; panics if it does not come.
    pub(crate) fn wait_within(&mut self, within: Duration) -> ExitStatus {
        if let Some(status) = self.ended {
            return status;
        }
        let mut within = Some(within);
        while let Some(bound) = within.take() {
            match self.stdout.recv_timeout(bound) {
                Ok(_) => within = Some(bound),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {}
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    panic!("the server did not end within {bound:?}")
                }
            }
        }
        let status = self.child.wait().expect("a child");
        self.ended = Some(status);
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        status
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
            for reader in self.readers.drain(..) {
                let _ = reader.join();
            }
        }
        if thread::panicking() {
            eprintln!("---- standard error of process {}", self.child.id());
            eprintln!("{}----", self.stderr());
        }
    }
}

/// Standard error, as far as it has been read.
#[derive(Default)]
struct Log {
    text: Mutex<String>,
    grown: Condvar,
}

fn collect(pipe: impl Read + Send + 'static, into: Arc<Log>) -> JoinHandle<()> {
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            let mut text = into.text.lock().expect("no reader panics");
            text.push_str(&line);
            text.push('\n');
            into.grown.notify_all();
        }
    })
}

/// A directory for one test, removed at its end.
/// How often something is killed: the usual number, or what `script/kills` asks for.
pub(crate) fn rounds(usual: u64) -> u64 {
    let asked = std::env::var("REDRIVE_TEST_ROUNDS").ok();
    asked.map_or(usual, |asked| asked.parse().expect("REDRIVE_TEST_ROUNDS is a number"))
}

pub(crate) fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory")
}

/// Writes a configuration file and names it.
pub(crate) fn config_file(directory: &Path, text: &str) -> PathBuf {
    let path = directory.join("redrive.toml");
    std::fs::write(&path, text).expect("a file");
    path
}
