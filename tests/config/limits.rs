use super::{parse, seconds};
use redrive::domain::Bounds;

fn bounds(keys: &str) -> Bounds {
    parse(&format!("[limits]\n{keys}\n")).unwrap_or_else(|error| panic!("{error}")).bounds
}

#[track_caller]
fn refused(keys: &str) -> Vec<String> {
    let lines = parse(&format!("[limits]\n{keys}\n")).expect_err("a file with problems").lines();
    lines.iter().map(|line| line.splitn(4, ':').nth(3).unwrap().trim_start().to_owned()).collect()
}

#[test]
fn each_limit_has_a_range() {
    const HALF_MIB: u64 = 1 << 19;
    for (key, least, most) in [
        ("connections", 1, 1_000_000),
        ("connections_per_peer", 1, 1_000_000),
        ("calls_per_connection", 2, 100_000),
        ("waits_per_connection", 1, 100_000),
        ("waits", 1, 10_000_000),
        ("waits_per_peer", 1, 10_000_000),
        ("calls", 2, 10_000_000),
        ("calls_per_peer", 1, 10_000_000),
        ("header_bytes", 1_024, 1 << 20),
        ("request_bytes", 64 << 10, 64 << 20),
        ("message_bytes", 64 * HALF_MIB, 1 << 40),
        ("message_bytes_per_peer", 32 * HALF_MIB, 1 << 40),
        ("message_bytes_per_connection", 8 * HALF_MIB, 1 << 40),
        ("control_frames_per_second", 10, 10_000_000),
        ("new_queues_per_minute", 1, 1_000_000),
    ] {
        // The calls leave room for as many waits as there may be.
        let others = if key == "waits_per_connection" { "calls_per_connection = 100000\n" } else { "" };
        bounds(&format!("{others}{key} = {least}"));
        if key != "waits_per_connection" {
            bounds(&format!("{key} = {most}"));
        }
        for beyond in [least - 1, most + 1] {
            let expected = format!("{key}: must be between {least} and {most}, not {beyond}");
            assert_eq!(refused(&format!("{others}{key} = {beyond}")), [expected]);
        }
    }
    for key in ["preface_timeout", "request_timeout", "read_timeout", "connection_age", "connection_age_grace"] {
        bounds(&format!("{key} = \"1s\""));
        bounds(&format!("{key} = \"366d\""));
        for beyond in ["999ms", "367d"] {
            assert_eq!(refused(&format!("{key} = \"{beyond}\"")).len(), 1, "{key} = {beyond}");
        }
    }
}

#[test]
fn what_is_set_counts_and_the_rest_is_built_in() {
    let set = bounds("calls = 7\nread_timeout = \"5s\"\nwaits_per_peer = 3");
    let expected = Bounds { calls: 7, read_timeout: seconds(5), waits_per_peer: Some(3), ..Bounds::default() };
    assert_eq!(set, expected);
}

#[test]
fn what_one_peer_may_have_is_half_where_it_is_not_set() {
    let half = bounds("connections = 7\ncalls = 10\nwaits = 5\nmessage_bytes = 100000000");
    assert_eq!([half.connections_per_peer(), half.calls_per_peer(), half.waits_per_peer()], [4, 5, 3]);
    assert_eq!(half.message_bytes_per_peer(), 50_000_000);
    let set = bounds(
        "connections_per_peer = 7\ncalls_per_peer = 10\nwaits_per_peer = 5\nmessage_bytes_per_peer = 1000000000",
    );
    assert_eq!([set.connections_per_peer(), set.calls_per_peer(), set.waits_per_peer()], [7, 10, 5]);
    assert_eq!(set.message_bytes_per_peer(), set.message_bytes, "not more than all have");
}

#[test]
fn calls_that_settle_find_room_beside_those_that_wait() {
    let bounds_of = |keys| {
        let bounds = bounds(keys);
        (bounds.calls_per_connection, bounds.waits_per_connection)
    };
    assert_eq!(bounds_of(""), (256, 200));
    assert_eq!(bounds_of("calls_per_connection = 100"), (100, 80));
    assert_eq!(bounds_of("calls_per_connection = 2"), (2, 1));
    assert_eq!(bounds_of("calls_per_connection = 1000"), (1_000, 200));
    assert_eq!(bounds_of("waits_per_connection = 255"), (256, 255));
    let why = "waits_per_connection: must be less than calls_per_connection, so that calls that settle find room";
    assert_eq!(refused("waits_per_connection = 256"), [why]);
    assert_eq!(refused("calls_per_connection = 10\nwaits_per_connection = 10"), [why]);
}
