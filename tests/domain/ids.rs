use proptest::prelude::*;
use redrive::domain::{BreakerName, DeadPart, JobId, QueueName, Timestamp};

#[test]
fn queue_names_keep_to_the_rule() {
    for good in ["a", "emails", "A.b_c-9", &"x".repeat(100)] {
        assert!(QueueName::parse(good).is_some(), "{good}");
    }
    for bad in ["", ".a", "-a", "_a", "a b", "a/b", "dlq:a", "ü", "a\n", &"x".repeat(101)] {
        assert!(QueueName::parse(bad).is_none(), "{bad:?}");
    }
}

#[test]
fn dead_letter_names_have_three_forms() {
    let part = |name| DeadPart::parse(name).map(|p| (p.queue.to_string(), p.overflow_only));
    assert_eq!(part("emails"), Some(("emails".into(), false)));
    assert_eq!(part("dlq:emails"), Some(("emails".into(), false)));
    assert_eq!(part("dlq:overflow:emails"), Some(("emails".into(), true)));
    assert_eq!(part("dlq:"), None);
    assert_eq!(part("dlq:dlq:emails"), None);
}

#[test]
fn breaker_names_are_read_as_they_are_written() {
    for name in ["queue:emails", "dlq:emails.v2"] {
        assert_eq!(BreakerName::parse(name).expect("a name").to_string(), name);
    }
    for name in ["", "emails", "queue:", "dlq:overflow:emails", "Queue:emails", "other:emails"] {
        assert_eq!(BreakerName::parse(name), None, "{name}");
    }
}

#[test]
fn a_uuid_that_is_not_of_version_7_has_no_number() {
    assert_eq!(JobId::parse("00000000-0000-4000-8000-000000000001").number(), None);
    assert_eq!(JobId::parse("order-17").number(), None);
}

proptest! {
    #[test]
    fn made_ids_carry_their_number_and_read_back(
        millis in 0u64..1 << 48, number in 0..=JobId::NUMBER_MAX, random: u64
    ) {
        let id = JobId::make(Timestamp::from_millis(millis), number, random);
        prop_assert_eq!(id.number(), Some(number));
        prop_assert_eq!(JobId::parse(&id.to_string()), id);
    }

    #[test]
    fn made_ids_sort_in_the_order_they_were_made(
        millis in 0u64..1 << 47, later in 0u64..1000, number in 0u64..1 << 47,
        more in 1u64..1000, a: u64, b: u64
    ) {
        let first = JobId::make(Timestamp::from_millis(millis), number, a);
        let second = JobId::make(Timestamp::from_millis(millis + later), number + more, b);
        prop_assert!(first < second);
        prop_assert!(first.to_string() < second.to_string());
    }

    #[test]
    fn any_text_reads_back_as_itself(text in ".{0,60}") {
        prop_assert_eq!(JobId::parse(&text).to_string(), text);
    }
}
