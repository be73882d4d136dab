//! Lease tokens: the fence. Every delivery has its own; a token of an earlier delivery changes nothing.

use super::{ids::QueueName, time::Timestamp};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use std::{fmt, sync::Arc};

/// All that Ack, Nack and Extend need: which job of which queue, and the first bytes of the lease as the store keeps it, a
/// random number among them. A store compares these bytes, so that a forged token matches nothing.
///
/// A store's job numbers are never used twice and deliveries only grow, so tokens never repeat; the nonce keeps that true for a
/// store that was restored from a backup.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    pub queue: QueueName,
    pub number: u64,
    pub delivery: u32,
    pub nonce: u64,
    /// What the claim knew of the job, so that an Ack need not look.
    pub flags: u8,
    /// The transition count of the breaker when the job was handed out.
    pub epoch: u32,
    pub started_at: Timestamp,
    pub duration_ms: u32,
    /// The caller's own id of the job, where it is at most [`Lease::OWN_ID_MAX`] bytes. Not part of the fence.
    pub own_id: Option<Arc<str>>,
}

const SUM: usize = 4;

impl Lease {
    /// The bytes that a store compares: delivery 4, nonce 8, flags 1, epoch 4, started_at 6, duration 4.
    pub const FENCE: usize = 27;
    /// Longer ids do not travel in tokens.
    pub const OWN_ID_MAX: usize = 64;

    pub fn fence(&self) -> [u8; Self::FENCE] {
        let mut out = [0; Self::FENCE];
        out[..4].copy_from_slice(&self.delivery.to_be_bytes());
        out[4..12].copy_from_slice(&self.nonce.to_be_bytes());
        out[12] = self.flags;
        out[13..17].copy_from_slice(&self.epoch.to_be_bytes());
        out[17..23].copy_from_slice(&self.started_at.millis().to_be_bytes()[2..]);
        out[23..].copy_from_slice(&self.duration_ms.to_be_bytes());
        out
    }

    pub fn of(queue: QueueName, number: u64, fence: &[u8; Self::FENCE], own_id: Option<Arc<str>>) -> Self {
        let u32_at = |at: usize| u32::from_be_bytes([fence[at], fence[at + 1], fence[at + 2], fence[at + 3]]);
        let wide = |at: usize, length: usize| {
            fence[at..at + length].iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte))
        };
        Self {
            queue,
            number,
            delivery: u32_at(0),
            nonce: wide(4, 8),
            flags: fence[12],
            epoch: u32_at(13),
            started_at: Timestamp::from_millis(wide(17, 6)),
            duration_ms: u32_at(23),
            own_id,
        }
    }

    /// Reads a token; `None` if no server can have made it.
    pub fn parse(token: &str) -> Option<Self> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(token).ok()?;
        let (body, sum) = bytes.split_at_checked(bytes.len().checked_sub(SUM)?)?;
        if crc32c::crc32c(body).to_be_bytes() != sum {
            return None;
        }
        let (length, rest) = body.split_first()?;
        let (queue, rest) = rest.split_at_checked(usize::from(*length))?;
        let (number, rest) = rest.split_first_chunk::<6>()?;
        let (fence, own_id) = rest.split_first_chunk::<{ Self::FENCE }>()?;
        if own_id.len() > Self::OWN_ID_MAX {
            return None;
        }
        let queue = QueueName::parse(std::str::from_utf8(queue).ok()?)?;
        let number = number.iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        let own_id = std::str::from_utf8(own_id).ok()?;
        let own_id = (!own_id.is_empty()).then(|| own_id.into());
        Some(Self::of(queue, number, fence, own_id))
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.queue.as_str();
        let own_id = self.own_id.as_deref().unwrap_or_default();
        let mut bytes = Vec::with_capacity(1 + queue.len() + 6 + Self::FENCE + own_id.len() + SUM);
        bytes.push(queue.len() as u8);
        bytes.extend_from_slice(queue.as_bytes());
        bytes.extend_from_slice(&self.number.to_be_bytes()[2..]);
        bytes.extend_from_slice(&self.fence());
        bytes.extend_from_slice(own_id.as_bytes());
        let sum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&sum.to_be_bytes());
        f.write_str(&BASE64_URL_SAFE_NO_PAD.encode(bytes))
    }
}
