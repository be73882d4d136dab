//! A connection's bytes: those that come are followed frame by frame and bounded, those that leave leave together.

use super::frames::{self, Frames, HEADERS, PREFACE_BYTES};
use super::peer::Peer;
use super::write_coalescing::CoalescingWriter;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

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
            tick: 0,
            said_why: false,
        }
    }

    /// Follows what has come.
    fn came(&mut self, bytes: &[u8]) {
        let Self { peer, coming, preface, last_stream, control_frames, .. } = self;
        let mut control = 0;
        coming.pass(bytes, |head| {
            *preface = None;
            control += usize::from(head.is_control());
            if let Some(open) = head.leaves_headers_open() {
                peer.headers_open(open);
                if head.kind == HEADERS {
                    *last_stream = head.stream.max(*last_stream);
                }
            }
        });
        if control > 0 {
            let tick = peer.peers.tick();
            if std::mem::replace(&mut self.tick, tick) != tick {
                *control_frames = 0;
            }
            *control_frames += control;
            if *control_frames > peer.peers.bounds.control_frames_per_second {
                peer.too_many_control_frames();
            }
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
            self.leaving.pass(&buf[..*length], |_| {});
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
