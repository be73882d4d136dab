//! Lease tokens: the fence. Every delivery has its own; a token of an earlier delivery opens nothing.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use std::fmt;

/// All that Ack, Nack and Extend need: which job, which of its deliveries, and a number nobody can guess.
///
/// The store's job numbers are never used twice and deliveries only grow, so tokens never repeat; the nonce keeps that
/// true for a store brought back from a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    pub number: u64,
    pub delivery: u32,
    pub nonce: u64,
}

const LENGTH: usize = 8 + 4 + 8 + 4;

impl Lease {
    /// Reads a token; `None` if no server can have made it.
    pub fn parse(token: &str) -> Option<Self> {
        let mut bytes = [0u8; LENGTH];
        let length = BASE64_URL_SAFE_NO_PAD.decode_slice(token, &mut bytes).ok()?;
        let (body, sum) = bytes.split_at(LENGTH - 4);
        if length != LENGTH || crc32c::crc32c(body).to_be_bytes() != sum {
            return None;
        }
        Some(Self {
            number: u64::from_be_bytes(body[..8].try_into().ok()?),
            delivery: u32::from_be_bytes(body[8..12].try_into().ok()?),
            nonce: u64::from_be_bytes(body[12..].try_into().ok()?),
        })
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = [0u8; LENGTH];
        bytes[..8].copy_from_slice(&self.number.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.delivery.to_be_bytes());
        bytes[12..20].copy_from_slice(&self.nonce.to_be_bytes());
        let sum = crc32c::crc32c(&bytes[..20]);
        bytes[20..].copy_from_slice(&sum.to_be_bytes());
        f.write_str(&BASE64_URL_SAFE_NO_PAD.encode(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn tokens_read_back(number: u64, delivery: u32, nonce: u64) {
            let lease = Lease { number, delivery, nonce };
            prop_assert_eq!(Lease::parse(&lease.to_string()), Some(lease));
        }

        #[test]
        fn no_other_text_is_a_token(text in ".{0,64}") {
            prop_assert_eq!(Lease::parse(&text), None);
        }

        #[test]
        fn a_changed_character_is_noticed(nonce: u64, at in 0usize..32) {
            let token = Lease { number: 7, delivery: 1, nonce }.to_string();
            let mut bytes = token.into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            prop_assert_eq!(Lease::parse(std::str::from_utf8(&bytes).unwrap()), None);
        }
    }
}
