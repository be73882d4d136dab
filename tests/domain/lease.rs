use proptest::prelude::*;
use redrive::domain::Lease;

fn lease(number: u64, nonce: u64, own_id: Option<&str>) -> Lease {
    Lease { number: number & 0xffff_ffff_ffff, own_id: own_id.map(Into::into), ..super::lease(3, nonce) }
}

proptest! {
    #[test]
    fn tokens_read_back(number: u64, nonce: u64, own_id in proptest::option::of("[a-z]{1,64}")) {
        let lease = lease(number, nonce, own_id.as_deref());
        prop_assert_eq!(Lease::parse(&lease.to_string()), Some(lease));
    }

    #[test]
    fn no_other_text_is_a_token(text in ".{0,64}") {
        prop_assert_eq!(Lease::parse(&text), None);
    }

    #[test]
    fn a_changed_character_is_noticed(nonce: u64, at in 0usize..56) {
        let mut bytes = lease(7, nonce, None).to_string().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        prop_assert_eq!(Lease::parse(std::str::from_utf8(&bytes).unwrap()), None);
    }
}
