//! What Redis answers, and what is read from it. No server is needed.

use redis::Value;
use redrive::store::StoreError;
use redrive::store::redis::Durability;
use redrive::store::redis::connection::{Confirm, Fault, address::Endpoint, slot_of, slot_owners};
use std::time::Duration;

fn fault(line: &str) -> Fault {
    let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
    let Value::ServerError(error) = reply else { panic!("{reply:?}") };
    Fault::of(&error, &Endpoint::Tcp { host: "h".into(), port: 1 })
}

#[test]
fn a_slot_that_has_moved_is_followed() {
    let to = |host: &str, port| Endpoint::Tcp { host: host.into(), port };
    assert_eq!(fault("MOVED 3999 127.0.0.1:6381"), Fault::Moved(to("127.0.0.1", 6381)));
    assert_eq!(fault("ASK 3999 ::1:6381"), Fault::Ask(to("::1", 6381)));
    assert_eq!(fault("MOVED 3999 :6381"), Fault::Moved(to("h", 6381)));
    assert!(matches!(fault("MOVED nonsense"), Fault::Refused { broken: false, .. }));
}

#[test]
fn a_refusal_changes_nothing_and_says_whether_the_connection_is_to_blame() {
    let lines = [
        ("READONLY You can't write against a read only replica.", true),
        ("LOADING Redis is loading the dataset in memory", true),
        ("MASTERDOWN Link with MASTER is down", true),
        ("NOREPLICAS Not enough good replicas to write.", false),
        ("MISCONF Errors writing to the AOF file: No space left on device", false),
        ("CLUSTERDOWN The cluster is down", false),
        ("BUSY Redis is busy running a script.", false),
    ];
    for (line, broken) in lines {
        let error = StoreError::Unavailable(format!("Redis at h:1 says: {line}"));
        assert_eq!(fault(line), Fault::Refused { error: error.clone(), broken });
        assert_eq!(fault(line).store_error(true), error);
    }
    let full = fault("OOM command not allowed when used memory > 'maxmemory'.").store_error(true);
    assert!(matches!(full, StoreError::MemoryLow(_)));
}

#[test]
fn what_may_have_been_applied_is_not_called_undone() {
    for fault in [Fault::Lost("cut".into()), fault("ERR attempt to index a nil value")] {
        assert!(matches!(fault.clone().store_error(true), StoreError::OutcomeUnknown(_)));
        assert!(matches!(fault.store_error(false), StoreError::Unavailable(_)));
    }
    assert!(matches!(Fault::Unsent("down".into()).store_error(true), StoreError::Unavailable(_)));
}

#[test]
fn what_is_not_confirmed_is_told_with_its_number() {
    let disks = |primary, replicas| Value::Array(vec![Value::Int(primary), Value::Int(replicas)]);
    let (replicated, fsync) = (Durability::Replicated, Durability::Fsync);
    let cases = [
        (replicated(1), Value::Int(1), None),
        (replicated(1), Value::Int(2), None),
        (replicated(2), Value::Int(1), Some("1 of 2 replicas have it after 1s")),
        (replicated(1), Value::Nil, Some("WAIT was answered with nil")),
        (fsync(0), disks(1, 0), None),
        (fsync(1), disks(1, 1), None),
        (fsync(1), disks(1, 0), Some("0 of 1 replicas have it on their disks after 1s")),
        (fsync(1), disks(0, 1), Some("the primary does not have it on its disk after 1s")),
    ];
    for (level, reply, short) in cases {
        let confirm = Confirm { level, within: Duration::from_secs(1) };
        assert_eq!(confirm.shortfall(&reply).as_deref(), short, "{level} {reply:?}");
    }
}

fn range(from: i64, to: i64, host: &str, port: i64) -> Value {
    let host = Value::BulkString(host.into());
    let server = Value::Array(vec![host, Value::Int(port), Value::BulkString("id".into())]);
    Value::Array(vec![Value::Int(from), Value::Int(to), server])
}

#[test]
fn the_map_is_read_slot_by_slot() {
    let asked = Endpoint::Tcp { host: "here".into(), port: 1 };
    let reply = Value::Array(vec![range(0, 99, "a", 1), range(101, 16_383, "", 2)]);
    let read = slot_owners(&reply, &asked).unwrap();
    assert_eq!(read.len(), 16_384);
    assert_eq!(read[99], Some(Endpoint::Tcp { host: "a".into(), port: 1 }));
    assert_eq!(read[100], None);
    assert_eq!(read[16_383], Some(Endpoint::Tcp { host: "here".into(), port: 2 }));
    // A server that knows nothing is not believed.
    assert!(slot_owners(&Value::Array(vec![]), &asked).is_err());
    assert!(slot_owners(&Value::Nil, &asked).is_err());
}

#[test]
fn slots_are_those_of_the_cluster_specification() {
    // As CLUSTER KEYSLOT says.
    assert_eq!(slot_of(b"123456789"), 12_739);
    assert_eq!(slot_of(b"foo"), 12_182);
    assert_eq!(slot_of(b"rd:{foo}:ready"), 12_182);
    assert_eq!(slot_of(b"{}foo"), 9_500);
    assert_eq!(slot_of(b"{foo"), 13_308);
    assert_eq!(slot_of(b"foo{{bar}}zap"), 4_015);
}
