//! What is said about servers at the start, those included that are not here to be started.

use redrive::store::redis::Durability;
use redrive::store::redis::connection::address::Endpoint;
use redrive::store::redis::connection::{Info, PreflightReport, PrimaryFacts};

const GOOD: &str = "redis_version:7.0.15\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n\
                    aof_last_write_status:ok\r\nrdb_last_bgsave_status:ok\r\nconnected_slaves:1\r\n";

fn good() -> PrimaryFacts {
    let at = Endpoint::Tcp { host: "h".into(), port: 1 };
    let (appendfsync, save) = (Some("always".into()), Some(String::new()));
    PrimaryFacts { at, info: Info(GOOD.into()), appendfsync, save, clock_ahead_ms: 3 }
}

/// The first line of a field counts.
fn with(line: &str) -> PrimaryFacts {
    PrimaryFacts { info: Info(format!("{line}\r\n{GOOD}")), ..good() }
}

#[test]
fn what_cannot_work_is_refused_with_what_it_takes() {
    let (primary, fsync) = (Durability::Primary, Durability::Fsync(1));
    let refused = [
        (with("redis_version:6.2.14"), primary, "h:1 is Redis 6.2.14, and redrive needs Redis 7.0 or"),
        (with("valkey_version:7.1.0"), primary, "h:1 is Valkey 7.1.0, and redrive needs Redis 7.0 or"),
        (with("maxmemory_policy:allkeys-lru"), primary, "set maxmemory-policy to noeviction"),
        (good(), fsync, "h:1: durability fsync(1) needs Redis 7.2 or Valkey, for WAITAOF"),
        (with("valkey_version:8.0.1\r\naof_enabled:0"), fsync, "set appendonly yes"),
    ];
    for (facts, level, part) in refused {
        let text = PreflightReport::of(&[facts], level, None).unwrap_err().to_string();
        assert!(text.contains(part), "{text}");
    }
    assert!(PreflightReport::of(&[with("valkey_version:8.0.1")], fsync, None).is_ok());
}

#[test]
fn what_can_lose_jobs_is_a_warning() {
    let primary = Durability::Primary;
    let warned = [
        (with("aof_enabled:0"), primary, "a restart loses every job"),
        (PrimaryFacts { save: None, ..with("aof_enabled:0") }, primary, "since the last snapshot"),
        (PrimaryFacts { appendfsync: Some("everysec".into()), ..good() }, primary, "up to a second"),
        (with("aof_last_write_status:err"), primary, "aof_last_write_status is not ok"),
        (PrimaryFacts { clock_ahead_ms: -90_000, ..good() }, primary, "90000 ms behind this machine's"),
        (with("connected_slaves:0"), Durability::Replicated(1), "0 replicas are connected"),
    ];
    for (facts, level, part) in warned {
        let warnings = PreflightReport::of(&[facts], level, None).unwrap().warnings;
        assert!(warnings.len() == 1 && warnings[0].contains(part), "{warnings:#?}");
    }
}

#[test]
fn a_good_one_is_described_and_a_cluster_says_what_it_does_not_cover() {
    let alone = PreflightReport::of(&[good()], Durability::Replicated(1), None).unwrap();
    assert!(alone.warnings.is_empty(), "{:?}", alone.warnings);
    assert_eq!(alone.lines[0].1, "Redis 7.0.15 at h:1");
    assert_eq!(alone.lines[1].1, "append-only file, fsync always; no snapshots");
    let cluster = PreflightReport::of(&[good(), good()], Durability::Primary, Some(7)).unwrap();
    assert_eq!(cluster.lines[0].1, "Redis 7.0.15 at h:1, a Cluster of 2 primaries");
    assert_eq!(cluster.lines[2].1, "1, 1");
    assert!(cluster.warnings[0].starts_with("7 slots of the Cluster"));
}
