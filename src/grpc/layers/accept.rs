//! Connections: accepted or refused, served, and ended when their time is over. First, so that a connection over the limit costs
//! nothing.

use super::calls::Calls;
use super::connection::Connection;
use super::frames;
use super::peer::Peer;
use super::peers::{Admitted, Ending, Peers};
use crate::domain::Bounds;
use crate::log_limit::LogLimit;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::future::pending;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tonic::service::Routes;

/// After a connection that could not be accepted, mostly for want of file descriptors.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);
const TCP_KEEPALIVE: Duration = Duration::from_secs(60);
const RESETS_PER_CONNECTION: usize = 1024;
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_ANSWERED_WITHIN: Duration = Duration::from_secs(10);
/// For a connection that is told why it ends.
const GOODBYE_WITHIN: Duration = Duration::from_secs(1);
/// Connections that are told why they are refused; others are just closed.
const REFUSED_MAX: usize = 64;

/// What every connection is served with.
#[derive(Clone)]
pub(in crate::grpc) struct Serving {
    pub(in crate::grpc) peers: Arc<Peers>,
    pub(in crate::grpc) routes: Routes,
    /// A call that takes longer is ended.
    pub(in crate::grpc) longest: Duration,
}

/// Accepts and serves until `stop` says so and what is under way has ended.
pub(in crate::grpc) async fn serve(listener: TcpListener, serving: Serving, stop: watch::Sender<bool>) {
    let http = http(&serving.peers.bounds);
    let refused = Arc::new(AtomicUsize::new(0));
    let (mut stopped, mut failures) = (stop.subscribe(), LogLimit::default());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|stopped| *stopped) => break,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(left_out) = failures.admit(crate::env::instant()) {
                    let left_out = (left_out > 0).then_some(left_out);
                    tracing::warn!(%error, left_out, "cannot accept a connection");
                }
                tokio::time::sleep(PAUSE_AFTER_FAILURE).await;
                continue;
            }
        };
        // A connection that cannot be set up has gone already.
        let _ = set_up(&stream);
        match serving.peers.admit(address.ip()) {
            Ok(admitted) => {
                let driven = drive(admitted, stream, http.clone(), serving.clone(), stop.subscribe());
                tokio::spawn(driven);
            }
            Err(ending) => refuse(stream, ending, &refused),
        }
    }
    drop((listener, stopped));
    // Each connection has a receiver.
    stop.closed().await;
}

fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    rustix::net::sockopt::set_socket_keepalive(stream, true)?;
    Ok(rustix::net::sockopt::set_tcp_keepidle(stream, TCP_KEEPALIVE)?)
}

fn http(bounds: &Bounds) -> http2::Builder<TokioExecutor> {
    let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .max_concurrent_streams(number(bounds.calls_per_connection))
        .max_local_error_reset_streams(RESETS_PER_CONNECTION)
        .max_header_list_size(number(bounds.header_bytes))
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_ANSWERED_WITHIN);
    http
}

/// Says why, if that is soon done.
fn refuse(mut stream: TcpStream, Ending { code, why }: Ending, refused: &Arc<AtomicUsize>) {
    if refused.fetch_add(1, Ordering::Relaxed) >= REFUSED_MAX {
        refused.fetch_sub(1, Ordering::Relaxed);
        return;
    }
    let refused = refused.clone();
    tokio::spawn(async move {
        let goodbye = async {
            stream.write_all(&[frames::settings(), frames::goaway(0, code, &why)].concat()).await?;
            stream.shutdown().await?;
            // Closed with something unread, the connection would be reset, and what was said be lost.
            while stream.read(&mut [0; 1024]).await? > 0 {}
            io::Result::Ok(())
        };
        // Best effort, to a client that is not wanted.
        let _ = tokio::time::timeout(GOODBYE_WITHIN, goodbye).await;
        refused.fetch_sub(1, Ordering::Relaxed);
    });
}

/// Serves one connection, and gives its place free.
async fn drive(
    admitted: Admitted, stream: TcpStream, http: http2::Builder<TokioExecutor>, serving: Serving,
    stopped: watch::Receiver<bool>,
) {
    let peer = admitted.0.clone();
    let broke = serve_one(&peer, stream, http, serving, stopped).await;
    if broke && peer.ending().is_none_or(|ending| ending.is_abuse()) {
        // The place is taken a little longer: a client that breaks every connection at once has fewer of them.
        tokio::time::sleep(GOODBYE_WITHIN).await;
    }
}

/// Until the connection ends, its time is over, or the server stops. True: it broke.
async fn serve_one(
    peer: &Arc<Peer>, stream: TcpStream, http: http2::Builder<TokioExecutor>, serving: Serving,
    mut stopped: watch::Receiver<bool>,
) -> bool {
    let bounds = &serving.peers.bounds;
    let calls = Calls { routes: serving.routes, peer: peer.clone(), longest: serving.longest };
    let io = TokioIo::new(Connection::new(stream, peer.clone()));
    let mut connection = pin!(http.serve_connection(io, calls));
    let mut over = pin!(tokio::time::sleep(spread(bounds.connection_age)));
    let (mut leaving, mut cut) = (false, pin!(None::<tokio::time::Sleep>));
    loop {
        let cut_off = async {
            match cut.as_mut().as_pin_mut() {
                Some(sleep) => sleep.await,
                None => pending().await,
            }
        };
        tokio::select! {
            ended = &mut connection => {
                if let Err(error) = &ended {
                    tracing::debug!(address = %peer.address.ip, %error, "a connection broke");
                }
                return ended.is_err();
            }
            () = &mut over, if !leaving => {
                leaving = true;
                peer.retire();
                connection.as_mut().graceful_shutdown();
                // A little later than its streams, which end by themselves.
                cut.set(Some(tokio::time::sleep(bounds.connection_age_grace + GOODBYE_WITHIN)));
            }
            // The block drops what it is handed, a guard that must not be held while waiting.
            () = async { drop(stopped.wait_for(|stopped| *stopped).await) }, if !leaving => {
                leaving = true;
                connection.as_mut().graceful_shutdown();
            }
            // It says why when it is next polled, if it can.
            () = peer.ended() => cut.set(Some(tokio::time::sleep(GOODBYE_WITHIN))),
            () = cut_off => return false,
        }
    }
}

/// ± 10 %, so that connections that began together do not end together.
fn spread(age: Duration) -> Duration {
    age.mul_f64(0.9 + 0.2 * crate::env::random::<f64>())
}
