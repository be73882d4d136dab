//! The real server, as a process of its own.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

pub(crate) struct Server {
    pub(crate) process: Child,
    /// With its scheme.
    pub(crate) address: String,
}

impl Server {
    /// Runs until it listens. `--data DIR` or `--redis URL` say where its jobs are.
    pub(crate) fn start(flag: &str, place: &str) -> Self {
        Self::with(&[flag, place])
    }

    /// The same with a file.
    #[allow(dead_code, reason = "not every bench has one")]
    pub(crate) fn configured(flag: &str, place: &str, config: &str) -> Self {
        Self::with(&[flag, place, "--config", config])
    }

    fn with(flags: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_redrive"))
            .args(["serve", "--listen", "127.0.0.1:0", "--log-level", "error", "--log-format", "text"])
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut lines = BufReader::new(process.stdout.take().expect("it has an output")).lines();
        let address = lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| line.trim().strip_prefix("gRPC").map(|address| format!("http://{}", address.trim())));
        // Reads on, because a server that cannot write to its pipe may stop.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, address: address.expect("it says where it listens") }
    }
}

impl Drop for Server {
    /// Without a word, as a crash would.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
