//! A fresh connection: socket, TLS, login.

use super::{
    address::{Endpoint, Tls},
    options::ConnectionOptions,
    secret::Credentials,
};
use redis::{
    AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, aio::MultiplexedConnection,
};
use rustix::net::sockopt;
use std::{fs, future::Future, io, pin::Pin, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};

/// What waits for a slot in the connection's own queue; beyond it, callers wait.
const PIPELINE_BUFFER: usize = 1024;
/// A peer that has vanished without a word is noticed after about this time.
const PEER_SILENT: Duration = Duration::from_secs(5);

/// Reads and writes; ends when the connection does. Dropping it closes the connection.
pub(super) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// How all connections of one Redis are made.
#[derive(Clone)]
pub(super) struct Way {
    pub(super) credentials: Credentials,
    pub(super) db: u32,
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) options: ConnectionOptions,
}

impl Way {
    /// Connects and logs in.
    pub(super) async fn connect(
        &self,
        endpoint: &Endpoint,
        response_timeout: Duration,
    ) -> Result<(MultiplexedConnection, Driver), String> {
        let within = self.options.connect_timeout;
        let connected = timeout(within, self.connect_unbounded(endpoint, response_timeout)).await;
        connected.unwrap_or_else(|_| Err(format!("no answer within {within:?}")))
    }

    async fn connect_unbounded(
        &self,
        endpoint: &Endpoint,
        response_timeout: Duration,
    ) -> Result<(MultiplexedConnection, Driver), String> {
        let stream = self.dial(endpoint).await?;
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(response_timeout))
            .set_pipeline_buffer_size(PIPELINE_BUFFER);
        let info = self.login()?;
        let made = MultiplexedConnection::new_with_config(&info, stream, config).await;
        let (connection, driver) = made.map_err(|error| error.to_string())?;
        Ok((connection, Box::pin(driver)))
    }

    pub(super) fn login(&self) -> Result<RedisConnectionInfo, String> {
        // RESP2: replies of commands look the same as inside scripts.
        let mut info = RedisConnectionInfo::default()
            .set_db(i64::from(self.db))
            .set_protocol(ProtocolVersion::RESP2)
            .set_lib_name("redrive", env!("CARGO_PKG_VERSION"));
        if let Some(user) = &self.credentials.user {
            info = info.set_username(user);
        }
        if let Some(password) = &self.credentials.password {
            info = info.set_password(password.read()?);
        }
        Ok(info)
    }

    pub(super) async fn dial(&self, endpoint: &Endpoint) -> Result<Box<dyn Stream>, String> {
        let told = |error: io::Error| error.to_string();
        let (host, port) = match endpoint {
            Endpoint::Unix(path) => {
                return Ok(Box::new(UnixStream::connect(path).await.map_err(told)?));
            }
            Endpoint::Tcp { host, port } => (host.as_str(), *port),
        };
        let socket = TcpStream::connect((host, port)).await.map_err(told)?;
        watchful(&socket).map_err(told)?;
        let Some(tls) = &self.tls else {
            return Ok(Box::new(socket));
        };
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| format!("{host:?} cannot be in a certificate"))?;
        let connected = TlsConnector::from(tls.clone()).connect(name, socket).await;
        Ok(Box::new(connected.map_err(|error| format!("TLS: {error}"))?))
    }
}

/// Small requests go at once, and a dead peer is noticed by the system, too.
fn watchful(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, PEER_SILENT)?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(socket, 3)?;
    sockopt::set_tcp_user_timeout(socket, PEER_SILENT.as_millis() as u32)?;
    Ok(())
}

/// Reads the files once, so that a mistake in them is found at the start.
pub(super) fn tls(files: &Tls) -> Result<Arc<ClientConfig>, String> {
    // Named, so that another provider elsewhere in the program makes no difference.
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots(files)?);
    let config = match (&files.cert, &files.key) {
        (Some(cert), Some(key)) => {
            let chain = certificates(cert)?;
            let read = fs::read(key).map_err(|error| unreadable(key, &error))?;
            let key =
                PrivateKeyDer::from_pem_slice(&read).map_err(|error| unreadable(key, &error))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| error.to_string())?
        }
        _ => builder.with_no_client_auth(),
    };
    Ok(Arc::new(config))
}

fn roots(files: &Tls) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let trusted = match &files.ca {
        Some(ca) => certificates(ca)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let (added, _) = roots.add_parsable_certificates(trusted);
    match (added, &files.ca) {
        (1.., _) => Ok(roots),
        (_, Some(ca)) => Err(unreadable(ca, &"no certificate that can be used")),
        (_, None) => Err("this system trusts no certificates: name yours with ca=FILE".into()),
    }
}

fn certificates(path: &std::path::Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = fs::read(path).map_err(|error| unreadable(path, &error))?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read).collect();
    all.map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &std::path::Path, why: &impl ToString) -> String {
    format!("cannot use {}: {}", path.display(), why.to_string())
}
