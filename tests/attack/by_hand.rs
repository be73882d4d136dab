//! Messages made by hand, of any size, on a connection that is as it should be.

use crate::server::{LONG, Server};
use bytes::Bytes;
use h2::SendStream;
use h2::client::{Builder, ResponseFuture, SendRequest};
use std::net::SocketAddr;
use tonic::codegen::http::{HeaderMap, Request};

#[derive(Clone)]
pub(crate) struct ByHand {
    client: SendRequest<Bytes>,
    address: SocketAddr,
}

/// As gRPC frames it.
pub(crate) fn framed(message: &[u8]) -> Bytes {
    [&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), message].concat().into()
}

impl ByHand {
    pub(crate) async fn connect(server: &Server) -> Self {
        Self::with_window(server, 65_535).await
    }

    /// `window`: how much of each reply may come.
    pub(crate) async fn with_window(server: &Server, window: u32) -> Self {
        Self::try_connect(server.address, window).await.expect("a server that takes connections")
    }

    pub(crate) async fn try_connect(address: SocketAddr, window: u32) -> Option<Self> {
        let stream = tokio::net::TcpStream::connect(address).await.ok()?;
        let (client, connection) = Builder::new().initial_window_size(window).handshake(stream).await.ok()?;
        tokio::spawn(connection);
        Some(Self { client, address })
    }

    /// Begins a call; its request goes on until the stream is dropped.
    pub(crate) async fn begin(&self, method: &str, bytes: Bytes) -> (ResponseFuture, SendStream<Bytes>) {
        self.try_begin(method, bytes).await.expect("a connection")
    }

    pub(crate) async fn try_begin(&self, method: &str, bytes: Bytes) -> Option<(ResponseFuture, SendStream<Bytes>)> {
        let path = if method.starts_with("grpc.") { method.to_owned() } else { format!("redrive.v1.{method}") };
        let request = Request::post(format!("http://{}/{path}", self.address));
        let request = request.header("content-type", "application/grpc").header("te", "trailers").body(()).unwrap();
        let (response, mut out) = self.client.clone().ready().await.ok()?.send_request(request, false).ok()?;
        // It may be refused before it is sent.
        let _ = out.send_data(bytes, false);
        Some((response, out))
    }

    /// How a call ends of which this was sent, and no more.
    pub(crate) async fn trailers(&self, method: &str, bytes: Bytes) -> HeaderMap {
        let (response, _out) = self.begin(method, bytes).await;
        trailers(response).await.unwrap()
    }

    /// How a call ends whose request is this.
    pub(crate) async fn call(&self, method: &str, bytes: Bytes) -> HeaderMap {
        self.try_call(method, bytes).await.unwrap()
    }

    pub(crate) async fn try_call(&self, method: &str, bytes: Bytes) -> Option<HeaderMap> {
        let (response, mut out) = self.try_begin(method, bytes).await?;
        let _ = out.send_data(Bytes::new(), true);
        trailers(response).await.ok()
    }
}

pub(crate) async fn trailers(response: ResponseFuture) -> Result<HeaderMap, h2::Error> {
    let response = tokio::time::timeout(LONG, response).await.expect("an answer")?;
    if response.headers().contains_key("grpc-status") {
        return Ok(response.headers().clone());
    }
    let mut body = response.into_body();
    while let Some(data) = tokio::time::timeout(LONG, body.data()).await.expect("its end") {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
    }
    Ok(body.trailers().await?.unwrap_or_default())
}
