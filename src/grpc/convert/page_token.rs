//! Page tokens and cut-offs: opaque, checked, and good only for the query that they came from.

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

/// `kind, checksum of the query, position, checksum of all that`.
pub(super) fn encode(kind: Kind, query: &str, position: &[u8]) -> String {
    let mut token = vec![kind as u8];
    token.extend(crc32c::crc32c(query.as_bytes()).to_be_bytes());
    token.extend(position);
    let sum = crc32c::crc32c(&token);
    token.extend(sum.to_be_bytes());
    BASE64_URL_SAFE_NO_PAD.encode(token)
}

/// The position, or what is wrong with the token.
pub(super) fn decode(kind: Kind, query: &str, token: &str) -> Result<Vec<u8>, &'static str> {
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

pub(super) fn encode_numbers(kind: Kind, query: &str, numbers: &[u64]) -> String {
    let position: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
    encode(kind, query, &position)
}

pub(super) fn decode_numbers<const N: usize>(
    kind: Kind,
    query: &str,
    token: &str,
) -> Result<[u64; N], &'static str> {
    let position = decode(kind, query, token)?;
    let (numbers, rest) = position.as_chunks::<8>();
    let numbers: Vec<_> = numbers.iter().map(|bytes| u64::from_be_bytes(*bytes)).collect();
    match (numbers.try_into(), rest) {
        (Ok(numbers), []) => Ok(numbers),
        _ => Err("not a token of this server"),
    }
}

/// As many items as fit into a reply, at least one; and, where some had to stay out, the position of the last one in.
pub(super) fn fit<K, T: Message>(
    items: impl Iterator<Item = (K, T)>,
    most_bytes: usize,
) -> (Vec<T>, Option<K>) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_token_of_another_query_is_told_from_a_broken_one() {
        let token = encode_numbers(Kind::DeadLetters, "emails", &[7]);
        let why = |kind, query, token: &str| decode_numbers::<1>(kind, query, token).unwrap_err();
        assert!(why(Kind::DeadLetters, "payments", &token).contains("another query"));
        assert!(why(Kind::Cutoff, "emails", &token).contains("another query"));
        assert!(why(Kind::DeadLetters, "emails", &token[1..]).contains("not a token"));
        assert!(why(Kind::DeadLetters, "emails", "x y").contains("not a token"));
        assert!(why(Kind::DeadLetters, "emails", "").contains("not a token"));
    }

    #[test]
    fn a_page_ends_before_it_gets_too_long_but_is_never_empty() {
        let items = || (1..=3).map(|n| (n, "x".repeat(100)));
        assert_eq!(fit(items(), 10_000).1, None);
        let (kept, last) = fit(items(), 250);
        assert_eq!((kept.len(), last), (2, Some(2)));
        let (kept, last) = fit(items(), 1);
        assert_eq!((kept.len(), last), (1, Some(1)));
    }

    proptest! {
        #[test]
        fn tokens_read_back(query in ".{0,40}", position: Vec<u8>, number: u64) {
            let token = encode(Kind::Queues, &query, &position);
            prop_assert_eq!(decode(Kind::Queues, &query, &token), Ok(position));
            let token = encode_numbers(Kind::Cutoff, &query, &[number, 1]);
            prop_assert_eq!(decode_numbers(Kind::Cutoff, &query, &token), Ok([number, 1]));
        }

        #[test]
        fn a_changed_character_is_noticed(number: u64, at in 0usize..23) {
            let mut token = encode_numbers(Kind::Cutoff, "q", &[number]).into_bytes();
            prop_assume!(at < token.len() - 1);
            token[at] = if token[at] == b'A' { b'B' } else { b'A' };
            let token = String::from_utf8(token).unwrap();
            prop_assert!(decode_numbers::<1>(Kind::Cutoff, "q", &token).is_err());
        }

        #[test]
        fn no_text_makes_reading_stumble(text in ".{0,64}") {
            prop_assert!(decode_numbers::<1>(Kind::Cutoff, "q", &text).is_err());
        }
    }
}
