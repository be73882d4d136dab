use redrive::domain::{QueueName, Settings};
use std::sync::Arc;

#[test]
fn the_digest_is_that_of_the_decisions_in_whatever_order_they_were_read() {
    let with = |names: &[&str]| {
        let queues = names.iter().map(|name| (QueueName::parse(name).unwrap(), Arc::default()));
        Settings { queues: queues.collect(), ..Settings::default() }
    };
    assert_eq!(with(&["a", "b", "c", "d"]).digest(), with(&["d", "c", "b", "a"]).digest());
    assert_ne!(with(&["a"]).digest(), with(&["b"]).digest());
    let mut other = with(&["a"]);
    Arc::make_mut(&mut other.defaults).breaker.failure_threshold += 1;
    assert_ne!(with(&["a"]).digest(), other.digest());
}
