//! How the server comes to an end: on a signal, in peace, but not for ever.

use super::Error;
use std::{future::Future, io, time::Duration};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{JoinError, JoinHandle};

/// As shells tell of a program that a signal ended: 128 and the number of the signal.
fn exit_code(signal: &str) -> i32 {
    if signal == "SIGINT" { 130 } else { 143 }
}

pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }

    /// Who asks twice does not want to wait. What was acknowledged is durable already.
    pub(super) fn exit_at_the_next(mut self) {
        tokio::spawn(async move {
            let signal = self.next().await;
            tracing::warn!(signal, "stopping at once");
            std::process::exit(exit_code(signal));
        });
    }
}

/// Runs until the signal, then begins the stop and gives the server `timeout` to answer what is under way.
pub(super) async fn when_told(
    mut server: JoinHandle<Result<(), String>>, mut sweeper: JoinHandle<()>,
    signal: impl Future<Output = &'static str>, begin: impl FnOnce(), timeout: Duration,
) -> Result<(), Error> {
    tokio::select! {
        ended = &mut server => return Err(Error::Server(why_server(ended))),
        ended = &mut sweeper => {
            let why = ended.map_or_else(|error| error.to_string(), |()| "it returned".into());
            begin();
            return Err(Error::Server(format!("the sweeper has ended: {why}")));
        }
        signal = signal => {
            tracing::info!(signal, ?timeout, "stopping; a second signal stops at once");
        }
    }
    begin();
    match tokio::time::timeout(timeout, &mut server).await {
        Ok(Ok(Ok(()))) => Ok(()),
        Ok(ended) => Err(Error::Server(why_server(ended))),
        Err(_) => {
            tracing::warn!(?timeout, "calls were still under way and are cut off");
            server.abort();
            Ok(())
        }
    }
}

fn why_server(ended: Result<Result<(), String>, JoinError>) -> String {
    match ended {
        Ok(Ok(())) => "it returned".into(),
        Ok(Err(why)) => why,
        Err(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::Cell, future::pending};

    #[tokio::test]
    async fn what_ends_unasked_ends_the_server() {
        let begun = Cell::new(false);
        let failed = tokio::spawn(async { Err("socket gone".to_owned()) });
        let timeout = Duration::from_secs(60);
        let ended = when_told(failed, tokio::spawn(pending()), pending(), || begun.set(true), timeout).await;
        assert_eq!(ended.unwrap_err().to_string(), "the server has stopped by itself: socket gone");
        assert!(!begun.get());
        // Without a sweeper it would forget what is due.
        let (server, gone) = (tokio::spawn(pending()), tokio::spawn(async {}));
        let ended = when_told(server, gone, pending(), || begun.set(true), timeout).await;
        assert!(ended.unwrap_err().to_string().contains("the sweeper has ended"));
        assert!(begun.get());
    }
}
