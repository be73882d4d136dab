//! The socket, and what to say when there is none.

use std::{io, net::SocketAddr};
use tokio::net::TcpListener;

pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    let error = match TcpListener::bind(address).await {
        Ok(listener) => return Ok(listener),
        Err(error) => error,
    };
    let why = match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "another program, perhaps another redrive, listens there\n\
             choose another with --listen, for example --listen {} for any free port",
            SocketAddr::new(address.ip(), 0)
        ),
        io::ErrorKind::AddrNotAvailable => {
            "this machine does not have that address\nchoose one that it has with --listen".into()
        }
        io::ErrorKind::PermissionDenied => {
            "the system does not allow it\nchoose a port above 1023 with --listen".into()
        }
        _ => error.to_string(),
    };
    Err(format!("cannot listen on {address}: {why}"))
}
