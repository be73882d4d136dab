//! How the server comes to an end: on a signal, in peace, but not for ever.

use super::Error;
use std::{future::Future, io, time::Duration};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::{JoinError, JoinHandle},
};

/// As shells tell of a program that was interrupted.
const INTERRUPTED: i32 = 130;

pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
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
            std::process::exit(INTERRUPTED);
        });
    }
}

/// Runs until the signal, then begins the stop and gives the server `timeout` to answer what is under way.
pub(super) async fn when_told(
    mut server: JoinHandle<Result<(), String>>,
    mut sweeper: JoinHandle<()>,
    signal: impl Future<Output = &'static str>,
    begin: impl FnOnce(),
    timeout: Duration,
) -> Result<(), Error> {
    tokio::select! {
        ended = &mut server => return Err(Error::Server(why_server(ended))),
        ended = &mut sweeper => {
            let why = ended.map_or_else(|error| error.to_string(), |()| "it returned".into());
            begin();
            return Err(Error::Server(format!("nobody looks after what is due: {why}")));
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
    use std::{
        future::{pending, ready},
        sync::atomic::{AtomicBool, Ordering},
    };
    use tokio::sync::oneshot;

    const LONG: Duration = Duration::from_secs(60);

    fn idle_sweeper() -> JoinHandle<()> {
        tokio::spawn(pending())
    }

    #[tokio::test]
    async fn a_signal_lets_the_server_finish() {
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(async move { stopped.await.map_err(|error| error.to_string()) });
        let begin = || stop.send(()).unwrap();
        let ended = when_told(server, idle_sweeper(), ready("SIGTERM"), begin, LONG).await;
        assert!(ended.is_ok());
    }

    #[tokio::test]
    async fn a_server_that_does_not_finish_is_cut_off() {
        let server = tokio::spawn(pending());
        let soon = Duration::from_millis(1);
        let ended = when_told(server, idle_sweeper(), ready("SIGINT"), || {}, soon).await;
        assert!(ended.is_ok());
    }

    #[tokio::test]
    async fn a_server_that_ends_unasked_is_an_error() {
        let server = tokio::spawn(async { Err("socket gone".to_owned()) });
        let ended = when_told(server, idle_sweeper(), pending(), || {}, LONG).await;
        let message = ended.unwrap_err().to_string();
        assert_eq!(message, "the server has stopped by itself: socket gone");
    }

    #[tokio::test]
    async fn without_a_sweeper_the_server_stops_rather_than_forget_jobs() {
        let begun = AtomicBool::new(false);
        let begin = || begun.store(true, Ordering::Relaxed);
        let server = tokio::spawn(pending());
        let ended = when_told(server, tokio::spawn(async {}), pending(), begin, LONG).await;
        assert!(ended.unwrap_err().to_string().contains("nobody looks after what is due"));
        assert!(begun.into_inner());
    }
}
