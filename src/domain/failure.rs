//! What a worker says went wrong, cut to what is kept.

use super::category::FailureCategory;
use std::borrow::Cow;

/// An error as a worker reports it, and as the history keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    pub error_type: String,
    pub message: String,
    pub stack_trace: String,
    /// What the library says beside the type: an errno name, a SQLSTATE, a gRPC status name. Empty: none.
    pub code: String,
    /// None: neither did the worker give one, nor do the other fields speak for one.
    pub category: Option<FailureCategory>,
    /// The worker gave no category; this one follows from the other fields.
    pub category_derived: bool,
    /// 0: none.
    pub http_status: u32,
    pub response_body: String,
    /// A JSON object, or empty.
    pub details: String,
    /// Something was cut.
    pub truncated: bool,
    /// It came with details that were not kept.
    pub details_dropped: bool,
    /// What failed: the breaker of this key hears of it. Empty: that of the job's own key.
    pub breaker_key: String,
}

/// The type of a failure that does not say one.
pub const UNKNOWN_TYPE: &str = "Unknown";

pub const MESSAGE_CHARS: usize = 4_096;
pub const STACK_TRACE_CHARS: usize = 4_096;
pub const RESPONSE_BODY_CHARS: usize = 2_048;
/// What attempts between the first and the last failure keep of their message.
pub const SUMMARY_CHARS: usize = 512;

impl Failure {
    pub fn new(error_type: &str, message: impl Into<String>) -> Self {
        Self { error_type: error_type.into(), message: message.into(), ..Self::default() }
    }

    /// What was called cannot be reached, does not answer in time, or says that it is overloaded: true of any job.
    pub fn is_unreachable(&self) -> bool {
        use FailureCategory::{Timeout, Unavailable, Unreachable};
        matches!(self.category, Some(Unreachable | Timeout | Unavailable))
    }

    /// About what it takes of memory and disk.
    pub fn bytes(&self) -> usize {
        self.error_type.len()
            + self.code.len()
            + self.breaker_key.len()
            + self.message.len()
            + self.stack_trace.len()
            + self.response_body.len()
            + self.details.len()
    }

    /// Cuts the texts to what is kept of a first or last failure.
    pub fn cut(mut self) -> Self {
        self.truncated |= cut(&mut self.message, MESSAGE_CHARS)
            | cut(&mut self.stack_trace, STACK_TRACE_CHARS)
            | cut(&mut self.response_body, RESPONSE_BODY_CHARS);
        self
    }

    /// What the attempt log keeps of it.
    pub fn summary(&self) -> Self {
        let message = head(&self.message, SUMMARY_CHARS);
        let left_out = message.len() < self.message.len()
            || !self.stack_trace.is_empty()
            || !self.response_body.is_empty()
            || !self.details.is_empty();
        Self {
            error_type: self.error_type.clone(),
            code: self.code.clone(),
            category: self.category,
            category_derived: self.category_derived,
            message: message.to_owned(),
            http_status: self.http_status,
            truncated: self.truncated || left_out,
            details_dropped: self.details_dropped,
            breaker_key: self.breaker_key.clone(),
            ..Self::default()
        }
    }

    /// For people who look for patterns: the same kind of failure of the same kind of job has the same fingerprint,
    /// whatever numbers, ids and quoted texts stand in its message.
    pub fn fingerprint(&self, job_type: &str) -> String {
        let masked = mask(&self.message);
        let bytes = [job_type, &self.error_type, &masked].into_iter().flat_map(|part| part.bytes().chain([0]));
        // FNV-1a: small, and the same on every machine and in every version.
        let add = |sum: u64, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        format!("{:016x}", bytes.fold(0xcbf2_9ce4_8422_2325, add))
    }
}

/// Cuts after `chars` characters; says whether there were more.
pub(super) fn cut(text: &mut String, chars: usize) -> bool {
    let length = head(text, chars).len();
    let cut = length < text.len();
    text.truncate(length);
    cut
}

/// Cuts to at most so many bytes, between two characters; says whether there were more.
pub fn cut_bytes(text: &mut String, bytes: usize) -> bool {
    let mut length = bytes.min(text.len());
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    let cut = length < text.len();
    text.truncate(length);
    cut
}

pub(super) fn head(text: &str, chars: usize) -> &str {
    match text.char_indices().nth(chars) {
        Some((at, _)) => &text[..at],
        None => text,
    }
}

/// Words with a digit in them and quoted texts become one character.
fn mask(message: &str) -> Cow<'_, str> {
    if !message.bytes().any(|b| b.is_ascii_digit() || matches!(b, b'"' | b'\'' | b'`')) {
        return message.into();
    }
    let mut masked = String::with_capacity(message.len());
    let mut rest = message;
    while let Some(first) = rest.chars().next() {
        if matches!(first, '"' | '\'' | '`')
            && let Some(end) = rest[1..].find(first)
        {
            masked.push('"');
            rest = &rest[end + 2..];
        } else if first.is_alphanumeric() {
            let inside = |c: char| c.is_alphanumeric() || c == '-';
            let (word, after) = rest.split_at(rest.find(|c| !inside(c)).unwrap_or(rest.len()));
            let numeric = word.bytes().any(|b| b.is_ascii_digit());
            masked.push_str(if numeric { "#" } else { word });
            rest = after;
        } else {
            masked.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    masked.into()
}
