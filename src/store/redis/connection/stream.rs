//! A fresh connection: socket, TLS, login.

use super::address::{Address, Endpoint, Tls};
use super::options::ConnectionOptions;
use super::secret::Credentials;
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, aio::MultiplexedConnection};
use rustix::net::sockopt;
use std::{fs, future::Future, io, path::Path, pin::Pin, sync::Arc, time::Duration};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

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
pub(super) struct Connector {
    pub(super) credentials: Credentials,
    pub(super) db: u32,
    pub(super) tls: Option<Arc<ClientConfig>>,
    pub(super) options: ConnectionOptions,
}

impl Connector {
    pub(super) fn new(address: &Address, options: &ConnectionOptions) -> Result<Self, String> {
        let tls = address.tls.as_ref().map(tls).transpose()?;
        Ok(Self { credentials: address.credentials.clone(), db: address.db, tls, options: options.clone() })
    }

    /// Connects and logs in.
    pub(super) async fn connect(
        &self, endpoint: &Endpoint, response_timeout: Duration,
    ) -> Result<(MultiplexedConnection, Driver), String> {
        let connecting = async {
            let stream = self.dial(endpoint).await?;
            let config = AsyncConnectionConfig::new()
                .set_response_timeout(Some(response_timeout))
                .set_pipeline_buffer_size(PIPELINE_BUFFER);
            let made = MultiplexedConnection::new_with_config(&self.login()?, stream, config).await;
            let (connection, driver) = made.map_err(|error| error.to_string())?;
            Ok((connection, Box::pin(driver) as Driver))
        };
        self.within(connecting).await
    }

    /// In the time that a connection may take.
    pub(super) async fn within<T>(&self, connecting: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let within = self.options.connect_timeout;
        timeout(within, connecting).await.unwrap_or_else(|_| Err(format!("no answer within {within:?}")))
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
        let as_text = |error: io::Error| error.to_string();
        let (host, port) = match endpoint {
            Endpoint::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await.map_err(as_text)?)),
            Endpoint::Tcp { host, port } => (host.as_str(), *port),
        };
        let socket = TcpStream::connect((host, port)).await.map_err(as_text)?;
        watchful(&socket).map_err(as_text)?;
        let Some(tls) = &self.tls else { return Ok(Box::new(socket)) };
        let name = ServerName::try_from(host.to_owned()).map_err(|_| format!("{host:?} cannot be in a certificate"))?;
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
fn tls(files: &Tls) -> Result<Arc<ClientConfig>, String> {
    // Named, so that another provider elsewhere in the program makes no difference.
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots(files)?);
    let config = match (&files.cert, &files.key) {
        (Some(cert), Some(key)) => {
            let chain = certificates(cert)?;
            let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| unreadable(key, &error))?;
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
        (_, None) => Err("this system trusts no certificates: name yours with ca in [redis]".into()),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = read(path)?;
    CertificateDer::pem_slice_iter(&read).collect::<Result<_, _>>().map_err(|error| unreadable(path, &error))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, why: &impl ToString) -> String {
    format!("cannot use {}: {}", path.display(), why.to_string())
}
