//! A proxy on loopback that does to its connections what networks do.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// What becomes of the bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// So many more bytes reach the server, then the connection is cut.
    CutAfter(usize),
    /// The server hears everything; its next answer cuts the connection instead of arriving.
    CutBeforeReply,
    /// Bytes of either side vanish without an error.
    BlackHole,
    /// Every piece arrives so much later.
    Delay(Duration),
}

pub(crate) struct Proxy {
    pub(crate) port: u16,
    faults: Arc<Mutex<Faults>>,
    task: AbortHandle,
}

struct Faults {
    /// Of those that are open.
    open: watch::Sender<Fault>,
    /// Of those that come.
    next: Fault,
    accepted: usize,
}

impl Proxy {
    /// In front of a server on this machine.
    pub(crate) async fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let open = watch::Sender::new(Fault::None);
        let faults = Arc::new(Mutex::new(Faults { open, next: Fault::None, accepted: 0 }));
        let server = SocketAddr::from(([127, 0, 0, 1], server));
        let task = tokio::spawn(accept(listener, server, faults.clone())).abort_handle();
        Self { port, faults, task }
    }

    pub(crate) fn address(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// From now on, for connections that are open. Those that come later are well.
    pub(crate) fn befall_open(&self, fault: Fault) {
        let mut faults = self.faults.lock().unwrap();
        faults.open.send_replace(fault);
        faults.open = watch::Sender::new(faults.next);
    }

    /// From now on, for all.
    pub(crate) fn befall_all(&self, fault: Fault) {
        let mut faults = self.faults.lock().unwrap();
        faults.next = fault;
        faults.open.send_replace(fault);
    }

    /// How many connections there have been.
    pub(crate) fn accepted(&self) -> usize {
        self.faults.lock().unwrap().accepted
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, faults: Arc<Mutex<Faults>>) {
    while let Ok((client, _)) = listener.accept().await {
        let fault = {
            let mut faults = faults.lock().unwrap();
            faults.accepted += 1;
            faults.open.subscribe()
        };
        tokio::spawn(pass(client, server, fault));
    }
}

/// Until one side ends, or the fault ends both.
async fn pass(client: TcpStream, server: SocketAddr, fault: watch::Receiver<Fault>) {
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = requests(from_client, to_server, fault.clone()) => {}
        () = replies(from_server, to_client, fault) => {}
    }
}

async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, fault: watch::Receiver<Fault>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let now = *fault.borrow();
        let (bytes, cut) = match now {
            Fault::None | Fault::CutBeforeReply => (&buffer[..count], false),
            Fault::CutAfter(most) => (&buffer[..count.min(most)], true),
            Fault::BlackHole => continue,
            Fault::Delay(by) => {
                tokio::time::sleep(by).await;
                (&buffer[..count], false)
            }
        };
        if to.write_all(bytes).await.is_err() || cut {
            // Dropped halves would discard what was just written.
            let _ = to.shutdown().await;
            return;
        }
    }
}

async fn replies(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, fault: watch::Receiver<Fault>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let now = *fault.borrow();
        match now {
            Fault::None | Fault::CutAfter(_) => {}
            Fault::CutBeforeReply => return,
            Fault::BlackHole => continue,
            Fault::Delay(by) => tokio::time::sleep(by).await,
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
