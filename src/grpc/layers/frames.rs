//! The heads of HTTP/2's frames as they pass by, without copying what is in them.

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const HEAD_BYTES: usize = 9;
/// What a client sends before its first frame.
pub(super) const PREFACE_BYTES: usize = 24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub length: usize,
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
}

impl Head {
    fn read(bytes: [u8; HEAD_BYTES]) -> Self {
        let [l2, l1, l0, kind, flags, s3, s2, s1, s0] = bytes;
        let length = u32::from_be_bytes([0, l2, l1, l0]) as usize;
        Self { length, kind, flags, stream: u32::from_be_bytes([s3, s2, s1, s0]) & (u32::MAX >> 1) }
    }

    /// It moves no request on: a client that sends many of them only keeps the server busy.
    pub fn is_control(self) -> bool {
        match self.kind {
            DATA => self.length == 0 && self.flags & END_STREAM == 0,
            HEADERS | CONTINUATION => self.length == 0,
            // For data that left there must be some: those are counted where both are known.
            WINDOW_UPDATE => false,
            _ => true,
        }
    }

    /// Headers that go on in the next frame.
    pub(super) fn leaves_headers_open(self) -> Option<bool> {
        matches!(self.kind, HEADERS | CONTINUATION).then_some(self.flags & END_HEADERS == 0)
    }
}

/// Follows one direction of a connection.
#[derive(Debug, Default)]
pub struct Frames {
    /// Bytes that belong to no head.
    skip: usize,
    head: [u8; HEAD_BYTES],
    /// Of `head`.
    known: usize,
}

impl Frames {
    /// `skip`: bytes before the first frame.
    pub fn after(skip: usize) -> Self {
        Self { skip, ..Self::default() }
    }

    /// Tells of each head that these bytes complete.
    pub fn pass(&mut self, mut bytes: &[u8], mut each: impl FnMut(Head)) {
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return;
            }
            let taken = (HEAD_BYTES - self.known).min(bytes.len());
            self.head[self.known..self.known + taken].copy_from_slice(&bytes[..taken]);
            self.known += taken;
            bytes = &bytes[taken..];
            if self.known == HEAD_BYTES {
                let head = Head::read(self.head);
                (self.known, self.skip) = (0, head.length);
                each(head);
            }
        }
    }

    /// The next byte begins a frame.
    pub(super) fn between_frames(&self) -> bool {
        self.skip == 0 && self.known == 0
    }
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or_default().to_be_bytes();
    [&length[1..], &[kind, 0, 0, 0, 0, 0], payload].concat()
}

/// The end of a connection, said to a client. Streams after `last` were not looked at.
pub(super) fn goaway(last: u32, code: u32, why: &str) -> Vec<u8> {
    frame(GOAWAY, &[&last.to_be_bytes(), &code.to_be_bytes(), why.as_bytes()].concat())
}

/// The frame that must come first.
pub(super) fn settings() -> Vec<u8> {
    frame(SETTINGS, &[])
}
