//! A connection's bytes: those that come are followed frame by frame and bounded, those that leave leave together.

use super::frames::{self, CONTINUATION, DATA, Frames, HEADERS, PREFACE_BYTES, WINDOW_UPDATE};
use super::peer::Peer;
use super::write_coalescing::CoalescingWriter;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// Window updates that come for no data, each second; and what is remembered of data.
const UPDATES_MORE: usize = 1_000;
const UPDATES_MAX: usize = 100_000;

#[derive(Debug)]
pub(super) struct Connection {
    out: CoalescingWriter,
    peer: Arc<Peer>,
    coming: Frames,
    leaving: Frames,
    /// Runs until the first frame has come. From there on pings find connections that are dead.
    preface: Option<Pin<Box<Sleep>>>,
    /// Of the calls that came.
    last_stream: u32,
    /// In this tick.
    control_frames: usize,
    /// Window updates that are not control frames: two for each frame of data that left, and a few more.
    updates: usize,
    /// Of the headers that are coming.
    header_bytes: usize,
    tick: u64,
    said_why: bool,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, peer: Arc<Peer>) -> Self {
        let preface = Some(Box::pin(tokio::time::sleep(peer.peers.bounds.preface_timeout)));
        Self {
            out: CoalescingWriter::new(stream),
            peer,
            coming: Frames::after(PREFACE_BYTES),
            leaving: Frames::default(),
            preface,
            last_stream: 0,
            control_frames: 0,
            updates: UPDATES_MORE,
            header_bytes: 0,
            tick: 0,
            said_why: false,
        }
    }

    /// Follows what has come.
    fn came(&mut self, bytes: &[u8]) {
        self.begin_tick();
        let Self { peer, coming, preface, last_stream, control_frames, updates, header_bytes, .. } = self;
        let (mut control, mut data) = (0, 0);
        coming.pass(bytes, |head| {
            *preface = None;
            control += usize::from(head.is_control());
            match head.kind {
                DATA => data += head.length,
                WINDOW_UPDATE if *updates == 0 => control += 1,
                WINDOW_UPDATE => *updates -= 1,
                HEADERS => {
                    *last_stream = head.stream.max(*last_stream);
                    *header_bytes = head.length;
                }
                CONTINUATION => *header_bytes += head.length,
                _ => {}
            }
            if let Some(open) = head.leaves_headers_open() {
                peer.headers_open(open, *header_bytes);
            }
        });
        if data > 0 {
            peer.data_came(data);
        }
        *control_frames += control;
        if *control_frames > peer.peers.bounds.control_frames_per_second {
            peer.too_many_control_frames();
        }
    }

    fn begin_tick(&mut self) {
        let tick = self.peer.peers.tick();
        if self.tick != tick {
            (self.tick, self.control_frames) = (tick, 0);
            self.updates = self.updates.max(UPDATES_MORE);
        }
    }

    /// Fails once the connection is to end, after saying why where a frame may stand.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(ending) = self.peer.ending() else { return Ok(()) };
        if !self.said_why && self.leaving.between_frames() {
            self.said_why = true;
            self.out.last(cx, &frames::goaway(self.last_stream, ending.code, &ending.why));
        }
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, ending.why.clone()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        self.out.turn();
        let before = buf.filled().len();
        let read = Pin::new(&mut self.out.stream).poll_read(cx, buf);
        self.came(&buf.filled()[before..]);
        if read.is_pending()
            && let Some(preface) = &mut self.preface
            && preface.as_mut().poll(cx).is_ready()
        {
            self.peer.says_nothing();
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let written = Pin::new(&mut self.out).poll_write(cx, buf);
        if let Poll::Ready(Ok(length)) = &written {
            let Self { leaving, updates, .. } = &mut *self;
            leaving.pass(&buf[..*length], |head| {
                if head.kind == DATA {
                    *updates = (*updates + 2).min(UPDATES_MAX);
                }
            });
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.out).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.out).poll_shutdown(cx)
    }
}
