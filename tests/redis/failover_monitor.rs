//! What a primary's figures tell.

use redrive::store::redis::connection::address::Endpoint;
use redrive::store::redis::connection::{FailoverMonitor, Info, Loss, Sample, Warning};

fn at(port: u16) -> Endpoint {
    Endpoint::Tcp { host: "h".into(), port }
}

/// A primary's figures, some seconds after boot.
fn sample(replid: &str, offset: i64, former: (&str, i64), seconds: i64) -> Sample {
    let info = format!(
        "# Replication\r\nrole:master\r\nmaster_replid:{replid}\r\nmaster_replid2:{}\r\n\
         master_repl_offset:{offset}\r\nsecond_repl_offset:{}\r\n",
        former.0, former.1
    );
    Sample::of(&Info(info), seconds * 1_000_000, seconds * 1_000_000)
}

const NO_FORMER: (&str, i64) = ("0000", -1);

#[test]
fn failovers_and_jumps_are_noticed_and_nothing_else_is() {
    let failover = |port, loss| Warning::Failover { to: at(port), loss };
    let jump = |port, by_ms| Warning::ClockJump { at: at(port), by_ms };
    let later = |mut sample: Sample, seconds: i64| {
        sample.redis_us += seconds * 1_000_000;
        sample
    };
    let goes_on = || sample("a", 1_500, NO_FORMER, 3);
    let cases = [
        (1, goes_on(), vec![]),
        // The next byte would have been 1,001.
        (2, sample("b", 1_300, ("a", 1_001), 3), vec![failover(2, Loss::NoneSeen)]),
        (2, sample("b", 1_300, ("a", 1_201), 3), vec![failover(2, Loss::NoneSeen)]),
        (2, sample("b", 1_000, ("a", 1_000), 3), vec![failover(2, Loss::Seen)]),
        (2, sample("b", 700, ("a", 701), 3), vec![failover(2, Loss::Seen)]),
        // A restart.
        (1, sample("b", 0, NO_FORMER, 3), vec![failover(1, Loss::Unknown)]),
        // A new shard of a Cluster.
        (2, sample("b", 0, NO_FORMER, 3), vec![]),
        (1, later(goes_on(), 3_600), vec![jump(1, 3_600_000)]),
        (1, later(goes_on(), -3_600), vec![jump(1, -3_600_000)]),
        (1, later(goes_on(), 1), vec![]),
        // A new primary with another clock.
        (2, later(sample("b", 1_000, ("a", 1_001), 3), 10), vec![failover(2, Loss::NoneSeen), jump(2, 10_000)]),
    ];
    for (port, second, expected) in cases {
        let monitor = FailoverMonitor::default();
        monitor.note(&at(1), &sample("a", 1_000, NO_FORMER, 1));
        monitor.note(&at(port), &second);
        assert_eq!(monitor.warnings(), expected, "{port} {second:?}");
    }
    assert!(failover(2, Loss::Seen).to_string().contains("WITHOUT THE LAST WRITES"));
}
