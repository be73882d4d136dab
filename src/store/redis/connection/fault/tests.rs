use super::*;
use redis::Value;

fn here() -> Endpoint {
    Endpoint::Tcp { host: "h".into(), port: 1 }
}

fn server_error(line: &str) -> ServerError {
    let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
    let Value::ServerError(error) = reply else { panic!("{reply:?}") };
    error
}

fn fault(line: &str) -> Fault {
    Fault::of(&server_error(line), &here())
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
    for (line, blamed) in lines {
        let fault = fault(line);
        assert!(matches!(&fault, Fault::Refused { broken, .. } if *broken == blamed), "{line}");
        let StoreError::Unavailable(why) = fault.told(true) else { panic!("{line}") };
        assert_eq!(why, format!("Redis at h:1 says: {line}"));
    }
    let full = fault("OOM command not allowed when used memory > 'maxmemory'.").told(true);
    assert!(matches!(full, StoreError::MemoryLow(_)));
}

#[test]
fn what_may_have_been_applied_is_not_called_undone() {
    for fault in [Fault::Lost("cut".into()), fault("ERR attempt to index a nil value")] {
        assert!(matches!(fault.clone().told(true), StoreError::OutcomeUnknown(_)));
        assert!(matches!(fault.told(false), StoreError::Unavailable(_)));
    }
    assert!(matches!(Fault::Unsent("down".into()).told(true), StoreError::Unavailable(_)));
}
