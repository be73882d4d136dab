use proptest::prelude::*;
use redrive::domain::{Failure, MESSAGE_CHARS, RESPONSE_BODY_CHARS, STACK_TRACE_CHARS, SUMMARY_CHARS, cut_bytes};

#[test]
fn texts_are_cut_on_a_character_boundary_and_flagged() {
    let long = "ü".repeat(5_000);
    let failure = Failure { stack_trace: long.clone(), ..Failure::new("E", "short") }.cut();
    assert_eq!(failure.stack_trace.chars().count(), STACK_TRACE_CHARS);
    assert_eq!(failure.message, "short");
    assert!(failure.truncated);
    let failure = Failure { response_body: long, ..Failure::default() }.cut();
    assert_eq!(failure.response_body.chars().count(), RESPONSE_BODY_CHARS);
    assert!(!Failure::new("E", "x".repeat(MESSAGE_CHARS)).cut().truncated);
}

#[test]
fn a_summary_is_512_characters_and_says_that_it_was_cut() {
    let summary = Failure::new("E", "m".repeat(513)).summary();
    assert_eq!(summary.message.len(), SUMMARY_CHARS);
    assert!(summary.truncated);
    assert!(!Failure::new("E", "m".repeat(512)).summary().truncated);
}

#[test]
fn fingerprints_ignore_numbers_ids_and_quotes() {
    let print = |message: &str| Failure::new("Timeout", message).fingerprint("mail");
    assert_eq!(
        print("user 17 on host-a3: \"ada\" timed out after 30s"),
        print("user 4711 on host-b9: \"bob\" timed out after 5s")
    );
    assert_ne!(print("connection refused"), print("connection reset"));
    assert_ne!(print("x"), Failure::new("Timeout", "x").fingerprint("report"));
}

proptest! {
    #[test]
    fn no_text_makes_cutting_or_masking_stumble(text in ".{0,600}") {
        let failure = Failure::new("E", text).cut();
        failure.summary();
        failure.fingerprint("t");
    }
}

#[test]
fn a_limit_in_bytes_cuts_between_two_characters() {
    for (text, bytes, kept) in [("abc", 3, "abc"), ("abc", 2, "ab"), ("é→😀", 8, "é→"), ("é", 1, ""), ("", 0, "")]
    {
        let mut cut = text.to_owned();
        assert_eq!((cut_bytes(&mut cut, bytes), cut.as_str()), (kept != text, kept));
    }
}
