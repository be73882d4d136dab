//! What is measured against: a server that runs already, or a child process of this very program.

use super::{Error, args::BenchArgs, plan::Plan};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::{env, fs, thread};

/// Where the calls go.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) address: String,
    /// None: it is not known which process it is.
    pub(super) pid: Option<u32>,
    /// Our own, and gone with the target.
    pub(super) started: Option<Started>,
}

impl Target {
    pub(super) fn running(address: &str, pid: Option<u32>) -> Self {
        Self { address: address.to_owned(), pid, started: None }
    }

    /// A server on a fresh directory.
    pub(super) fn server(args: &BenchArgs) -> Result<Self, Error> {
        let near = args.data.as_deref().unwrap_or_else(|| Path::new("."));
        let directory = Directory::new(near)?;
        let mut command = program()?;
        command.args(["serve", "--listen", "127.0.0.1:0", "--log-level", "warn", "--data"]);
        command.arg(directory.0.join("data")).current_dir(&directory.0);
        if let Some(durability) = args.durability {
            command.args(["--durability", &durability.to_string()]);
        }
        if args.engine != "embedded" {
            // Not as a flag: all on the machine can read those, and there may be a password in it.
            command.env("REDRIVE_REDIS", &args.engine);
        }
        command.args(&args.serve);
        Self::child(command, Some(directory))
    }

    /// The same contract with nothing behind it.
    pub(super) fn ceiling(plan: &Plan) -> Result<Self, Error> {
        let mut command = program()?;
        command.args(["bench-noop", "--payload", &plan.payload.to_string()]);
        Self::child(command, None)
    }

    fn child(mut command: Command, directory: Option<Directory>) -> Result<Self, Error> {
        // The no-op server ends when its input does, however this program ends.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().map_err(|error| Error::Start(error.to_string()))?;
        let mut started = Started { child, _directory: directory };
        let address = started.address()?;
        Ok(Self { address, pid: Some(started.child.id()), started: Some(started) })
    }
}

/// With nothing of the caller's own settings: the measured server has what the flags say.
fn program() -> Result<Command, Error> {
    let program = env::current_exe().map_err(|error| Error::Start(error.to_string()))?;
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("REDRIVE_") || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    Ok(command)
}

/// A child that is gone when this is.
#[derive(Debug)]
pub(super) struct Started {
    child: Child,
    /// Removed after the child.
    _directory: Option<Directory>,
}

impl Started {
    /// Waits until it says where it listens, or ends.
    fn address(&mut self) -> Result<String, Error> {
        let said = self.child.stderr.take().map(collect);
        let mut lines = self.child.stdout.take().map(|out| BufReader::new(out).lines());
        let address = lines.as_mut().and_then(|lines| {
            lines
                .map_while(Result::ok)
                .find_map(|line| line.trim().strip_prefix("gRPC ").map(|address| address.trim().to_owned()))
        });
        if let Some(address) = address {
            // Read to the end, or the pipes fill up and the server waits.
            thread::spawn(move || lines.into_iter().flatten().map_while(Result::ok).for_each(drop));
            return Ok(address);
        }
        let said = said.and_then(|said| said.join().ok()).unwrap_or_default();
        Err(Error::Start(said.trim().trim_start_matches("redrive: ").to_owned()))
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // What it keeps is removed anyway; there is nothing to end in peace.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut text = Vec::new();
        let _ = pipe.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    })
}

/// Removed with all that is in it.
#[derive(Debug)]
struct Directory(PathBuf);

impl Directory {
    /// On the disk of `near`: the system's own place for such things is memory on many machines, where fsync costs nothing.
    fn new(near: &Path) -> Result<Self, Error> {
        let path = near.join(format!("redrive-bench-{:016x}", crate::env::random::<u64>()));
        let path = std::path::absolute(&path).unwrap_or(path);
        let made = fs::create_dir(&path);
        made.map_err(|error| {
            let path = path.display();
            Error::Start(format!("the directory {path} cannot be made: {error}\nchoose another place with --data"))
        })?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
