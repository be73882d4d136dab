//! Page tokens and cut-offs: opaque, checked, and good only for the query that they came from.

use super::check::Check;
use crate::domain::Limits;
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use prost::Message;

/// What a token stands for. Numbers are on the wire: never change one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    DeadLetters = 1,
    Cutoff = 2,
    Queues = 3,
    Jobs = 5,
    DeadLetterStats = 6,
    Breakers = 7,
}

impl Check<'_> {
    /// The position that a token stands for. None: it was not given, or it was refused.
    pub(super) fn token<T>(
        &mut self, field: &str, (kind, query): (Kind, &str), token: &str, read: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Option<T> {
        if token.is_empty() {
            return None;
        }
        let position = decode(kind, query, token);
        let position = position.and_then(|position| read(&position).ok_or("not a token of this server"));
        position.map_err(|problem| self.refuse(field, problem)).ok()
    }
}

/// `kind, checksum of the query, position, checksum of all that`.
pub(super) fn encode((kind, query): (Kind, &str), position: &[u8]) -> String {
    let mut token = vec![kind as u8];
    token.extend(crc32c::crc32c(query.as_bytes()).to_be_bytes());
    token.extend(position);
    let sum = crc32c::crc32c(&token);
    token.extend(sum.to_be_bytes());
    BASE64_URL_SAFE_NO_PAD.encode(token)
}

/// The position, or what is wrong with the token.
fn decode(kind: Kind, query: &str, token: &str) -> Result<Vec<u8>, &'static str> {
    const MALFORMED: &str = "not a token of this server; send it back exactly as it came";
    const OTHER: &str = "belongs to another query; repeat the call with the same fields, or start \
                         again without it";
    let mut token = BASE64_URL_SAFE_NO_PAD.decode(token).map_err(|_| MALFORMED)?;
    let at = token.len().checked_sub(4).ok_or(MALFORMED)?;
    let sum = token.split_off(at);
    if crc32c::crc32c(&token).to_be_bytes() != *sum {
        return Err(MALFORMED);
    }
    let (head, position) = token.split_at_checked(5).ok_or(MALFORMED)?;
    let expected = crc32c::crc32c(query.as_bytes()).to_be_bytes();
    if head[0] != kind as u8 || head[1..] != expected {
        return Err(OTHER);
    }
    Ok(position.to_vec())
}

/// A position of so many numbers.
pub(super) fn numbers<const N: usize>(position: &[u8]) -> Option<[u64; N]> {
    let (numbers, rest) = position.as_chunks::<8>();
    let numbers: [[u8; 8]; N] = numbers.try_into().ok()?;
    rest.is_empty().then(|| numbers.map(u64::from_be_bytes))
}

/// A page, cut where the whole reply would get too long, and the token of the next. `next`: where it goes on if all fit.
pub(super) fn page<K, T: Message, P: AsRef<[u8]>>(
    query: (Kind, &str), limits: &Limits, items: impl Iterator<Item = (K, T)>, next: Option<K>,
    position: impl FnOnce(K) -> P,
) -> (Vec<T>, String) {
    let (items, cut_after) = fit(items, limits.reply_bytes);
    let token = |next| encode(query, position(next).as_ref());
    (items, cut_after.or(next).map(token).unwrap_or_default())
}

/// As many items as fit, at least one; and, where some had to stay out, the position of the last one in.
fn fit<K, T: Message>(items: impl Iterator<Item = (K, T)>, most_bytes: usize) -> (Vec<T>, Option<K>) {
    /// Tag and length of an item in its list.
    const FRAME: usize = 8;
    let mut kept = Vec::with_capacity(items.size_hint().0);
    let (mut bytes, mut last) = (0, None);
    for (position, item) in items {
        bytes += item.encoded_len() + FRAME;
        if bytes > most_bytes && last.is_some() {
            return (kept, last);
        }
        last = Some(position);
        kept.push(item);
    }
    (kept, None)
}
