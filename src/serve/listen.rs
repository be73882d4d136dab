//! The socket, and what to say when there is none.

use std::{io, net::SocketAddr};
use tokio::net::TcpListener;

pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).await.map_err(|error| explain(address, &error))
}

fn explain(address: SocketAddr, error: &io::Error) -> String {
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
    format!("cannot listen on {address}: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_that_is_taken_comes_with_how_to_choose_another() {
        let first = bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = first.local_addr().unwrap();
        assert_eq!(
            bind(address).await.unwrap_err(),
            format!(
                "cannot listen on {address}: another program, perhaps another redrive, listens \
                 there\nchoose another with --listen, for example --listen 127.0.0.1:0 for any \
                 free port"
            )
        );
    }

    #[tokio::test]
    async fn an_address_of_another_machine_is_said_to_be_one() {
        let address = "192.0.2.1:7433".parse().unwrap();
        assert_eq!(
            bind(address).await.unwrap_err(),
            "cannot listen on 192.0.2.1:7433: this machine does not have that address\nchoose one \
             that it has with --listen"
        );
    }
}
