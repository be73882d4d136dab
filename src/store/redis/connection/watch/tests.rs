use super::*;

fn at(port: u16) -> Endpoint {
    Endpoint::Tcp { host: "h".into(), port }
}

fn sample(replid: &str, offset: i64, former: (&str, i64), seconds: i64) -> Sample {
    let info = format!(
        "# Replication\r\nrole:master\r\nmaster_replid:{replid}\r\nmaster_replid2:{}\r\n\
         master_repl_offset:{offset}\r\nsecond_repl_offset:{}\r\n",
        former.0, former.1
    );
    Sample::of(&Info::from(info.as_str()), seconds * 1_000_000, seconds * 1_000_000)
}

const NOBODY: (&str, i64) = ("0000", -1);

fn noticed(samples: &[(u16, Sample)]) -> Vec<Notice> {
    let watch = Watch::default();
    for (port, sample) in samples {
        watch.note(&at(*port), sample);
    }
    watch.notices()
}

#[test]
fn a_primary_that_goes_on_is_no_news() {
    let steady = [(1, sample("a", 10, NOBODY, 1)), (1, sample("a", 500, NOBODY, 2))];
    assert_eq!(noticed(&steady), []);
}

#[test]
fn a_takeover_tells_what_the_old_primary_had_beyond_it() {
    let before = (1, sample("a", 1_000, NOBODY, 1));
    let failover = |loss| vec![Notice::Failover { to: at(2), loss }];
    let lossy = (2, sample("b", 700, ("a", 701), 3));
    assert_eq!(noticed(&[before.clone(), lossy]), failover(Loss::AtLeast(300)));
    let whole = (2, sample("b", 1_300, ("a", 1_201), 3));
    assert_eq!(noticed(&[before.clone(), whole]), failover(Loss::NoneSeen));
    let text = failover(Loss::AtLeast(300))[0].to_string();
    assert!(text.contains("WITHOUT THE LAST WRITES") && text.contains("300 bytes"), "{text}");
}

#[test]
fn a_restart_is_told_even_though_its_loss_is_not_known() {
    let samples = [(1, sample("a", 1_000, NOBODY, 1)), (1, sample("b", 0, NOBODY, 3))];
    assert_eq!(noticed(&samples), [Notice::Failover { to: at(1), loss: Loss::Unknown }]);
    // A new shard of a Cluster.
    let samples = [(1, sample("a", 1_000, NOBODY, 1)), (2, sample("b", 0, NOBODY, 3))];
    assert_eq!(noticed(&samples), []);
}

#[test]
fn a_clock_that_jumps_is_told_with_how_far() {
    let mut later = sample("a", 20, NOBODY, 2);
    later.redis_us += 3_600_000_000;
    let samples = [(1, sample("a", 10, NOBODY, 1)), (1, later.clone())];
    assert_eq!(noticed(&samples), [Notice::ClockJump { at: at(1), by_ms: 3_600_000 }]);
    later.redis_us -= 2 * 3_600_000_000;
    let samples = [(1, sample("a", 10, NOBODY, 1)), (1, later)];
    assert_eq!(noticed(&samples), [Notice::ClockJump { at: at(1), by_ms: -3_600_000 }]);
}

#[test]
fn a_new_primary_with_another_clock_is_a_jump_as_well() {
    let mut other = sample("b", 1_000, ("a", 1_001), 2);
    other.redis_us += 10_000_000;
    let notices = noticed(&[(1, sample("a", 1_000, NOBODY, 1)), (2, other)]);
    assert_eq!(notices[1], Notice::ClockJump { at: at(2), by_ms: 10_000 });
}
