//! HTTP/2 by hand: a client that does what no library would.

use prost::Message;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Mutex as AsyncMutex, watch};

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const REFUSED_STREAM: u32 = 7;
pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;
const ACK: u8 = 1;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const INITIAL_WINDOW_SIZE: u16 = 4;

/// What has come of one stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard {
    pub(crate) data: Vec<u8>,
    pub(crate) ended: bool,
    /// Frames of headers; a refusal is one of them and nothing else.
    pub(crate) headers: usize,
    pub(crate) reset: Option<u32>,
}

/// What has come of the connection.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) streams: HashMap<u32, Heard>,
    /// Code and text of the last one.
    pub(crate) goaway: Option<(u32, String)>,
    /// Calls after this one were not looked at, says the last one.
    pub(crate) last_stream: Option<u32>,
    pub(crate) pings: u64,
    pub(crate) settings: u64,
    pub(crate) closed: bool,
}

/// A connection that answers pings and settings, and reads what comes.
#[derive(Clone)]
pub(crate) struct Raw {
    out: Arc<AsyncMutex<OwnedWriteHalf>>,
    seen: Arc<Mutex<Seen>>,
    changed: watch::Receiver<()>,
    next: Arc<Mutex<u32>>,
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(9 + payload.len());
    bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Without tables and without Huffman.
pub(crate) fn header_block(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in headers {
        block.push(0);
        for text in [name, value] {
            assert!(text.len() < 127, "longer ones need more than a byte");
            block.push(text.len() as u8);
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

pub(crate) fn call_headers(method: &str) -> Vec<u8> {
    let path = format!("/redrive.v1.{method}");
    header_block(&[
        (":method", "POST"),
        (":scheme", "http"),
        (":path", &path),
        (":authority", "x"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ])
}

/// A message as gRPC frames it.
pub(crate) fn message(request: &impl Message) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&(request.encoded_len() as u32).to_be_bytes());
    request.encode(&mut bytes).unwrap();
    bytes
}

impl Raw {
    /// `window`: how much of each reply may come; 0: none is read.
    pub(crate) async fn connect(address: SocketAddr, window: u32) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (from, mut out) = stream.into_split();
        let setting = [&INITIAL_WINDOW_SIZE.to_be_bytes()[..], &window.to_be_bytes()].concat();
        out.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &setting)].concat()).await?;
        let (told, changed) = watch::channel(());
        let out = Arc::new(AsyncMutex::new(out));
        let raw = Self { out, seen: Arc::default(), changed, next: Arc::new(Mutex::new(1)) };
        tokio::spawn(raw.clone().read(from, told));
        Ok(raw)
    }

    async fn read(self, mut from: OwnedReadHalf, told: watch::Sender<()>) {
        while let Ok((kind, flags, stream, payload)) = next_frame(&mut from).await {
            let answer = match kind {
                PING if flags & ACK == 0 => Some(frame(PING, ACK, 0, &payload)),
                SETTINGS if flags & ACK == 0 => Some(frame(SETTINGS, ACK, 0, &[])),
                // Of a client that reads; one with a window of 0 gets no data.
                DATA if !payload.is_empty() => {
                    let read = (payload.len() as u32).to_be_bytes();
                    Some([frame(WINDOW_UPDATE, 0, 0, &read), frame(WINDOW_UPDATE, 0, stream, &read)].concat())
                }
                _ => None,
            };
            self.note(kind, flags, stream, &payload);
            told.send_replace(());
            if let Some(answer) = answer {
                let _ = self.out.lock().await.write_all(&answer).await;
            }
        }
        self.seen().closed = true;
        told.send_replace(());
    }

    fn note(&self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let mut seen = self.seen();
        match kind {
            DATA | HEADERS => {
                let heard = seen.streams.entry(stream).or_default();
                heard.headers += usize::from(kind == HEADERS);
                heard.ended |= flags & END_STREAM != 0;
                if kind == DATA {
                    heard.data.extend_from_slice(payload);
                }
            }
            RST_STREAM => {
                let code = u32::from_be_bytes(payload.try_into().unwrap());
                seen.streams.entry(stream).or_default().reset = Some(code);
            }
            GOAWAY => {
                let code = u32::from_be_bytes(payload[4..8].try_into().unwrap());
                seen.last_stream = Some(u32::from_be_bytes(payload[..4].try_into().unwrap()));
                seen.goaway = Some((code, String::from_utf8_lossy(&payload[8..]).into_owned()));
            }
            PING => seen.pings += 1,
            SETTINGS => seen.settings += 1,
            _ => {}
        }
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    pub(crate) async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        self.out.lock().await.write_all(bytes).await
    }

    /// Hangs up.
    pub(crate) async fn close(&self) {
        let _ = self.out.lock().await.shutdown().await;
    }

    fn next_stream(&self) -> u32 {
        let mut next = self.next.lock().unwrap();
        *next += 2;
        *next - 2
    }

    /// A call whose request is complete.
    pub(crate) async fn call(&self, method: &str, request: &impl Message) -> io::Result<u32> {
        let stream = self.open(method).await?;
        self.send(&frame(DATA, END_STREAM, stream, &message(request))).await?;
        Ok(stream)
    }

    /// A call that has sent its headers.
    pub(crate) async fn open(&self, method: &str) -> io::Result<u32> {
        // Streams begin in the order of their numbers.
        let mut out = self.out.lock().await;
        let stream = self.next_stream();
        out.write_all(&frame(HEADERS, END_HEADERS, stream, &call_headers(method))).await?;
        Ok(stream)
    }

    /// Waits for something to have come; false: it did not.
    pub(crate) async fn wait_for(&self, within: Duration, wanted: impl Fn(&Seen) -> bool) -> bool {
        let mut changed = self.changed.clone();
        let waiting = async {
            while !wanted(&self.seen()) {
                if changed.changed().await.is_err() {
                    return wanted(&self.seen());
                }
            }
            true
        };
        tokio::time::timeout(within, waiting).await.unwrap_or(false)
    }
}

async fn next_frame(from: &mut OwnedReadHalf) -> io::Result<(u8, u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    from.read_exact(&mut head).await?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    let mut payload = vec![0; length];
    from.read_exact(&mut payload).await?;
    Ok((head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload))
}
