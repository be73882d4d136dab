use super::*;

const GOOD: &str = "redis_version:7.0.15\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n\
                    aof_last_write_status:ok\r\nrdb_last_bgsave_status:ok\r\nconnected_slaves:1\r\n";

fn facts(info: &str) -> Facts {
    Facts {
        at: Endpoint::Tcp { host: "h".into(), port: 1 },
        info: info.into(),
        appendfsync: Some("always".into()),
        save: Some(String::new()),
        clock_ahead_ms: 3,
    }
}

fn with(field: &str, value: &str) -> Facts {
    let lines = GOOD.lines().filter(|line| !line.starts_with(&format!("{field}:")));
    let lines: Vec<_> = lines.map(str::to_owned).chain([format!("{field}:{value}")]).collect();
    facts(&lines.join("\r\n"))
}

fn look(facts: Facts, level: Durability) -> Result<Found, Unfit> {
    judge(&[facts], level, None)
}

#[track_caller]
fn warning(facts: Facts, part: &str) {
    let warnings = look(facts, Durability::Primary).unwrap().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert!(warnings[0].contains(part), "{warnings:?}");
}

#[test]
fn a_good_one_is_described_without_warnings() {
    let found = look(facts(GOOD), Durability::Replicated(1)).unwrap();
    assert!(found.warnings.is_empty(), "{:?}", found.warnings);
    let expected = [
        ("redis", "Redis 7.0.15 at h:1"),
        ("persistence", "append-only file, fsync always; no snapshots"),
        ("replicas", "1"),
    ];
    assert_eq!(found.lines, expected.map(|(label, line)| (label, line.to_owned())));
}

#[test]
fn an_old_one_is_refused_by_its_version() {
    let refused = look(with("redis_version", "6.2.14"), Durability::Primary).unwrap_err();
    let text = "h:1 is Redis 6.2.14, and redrive needs Redis 7.0 or Valkey 7.2, or newer";
    assert_eq!(refused.to_string(), text);
    // Valkey calls itself Redis 7.2.4 for the sake of old clients.
    let valkey = with("valkey_version", "8.0.1");
    assert_eq!(valkey.product(), ("Valkey", Version(8, 0, 1)));
    assert!(look(valkey, Durability::Fsync(0)).is_ok());
}

#[test]
fn one_that_throws_keys_away_is_refused() {
    let refused = look(with("maxmemory_policy", "allkeys-lru"), Durability::Primary).unwrap_err();
    assert!(matches!(&refused, Unfit::Evicts { policy, .. } if policy == "allkeys-lru"));
    assert!(refused.to_string().contains("set maxmemory-policy to noeviction"));
}

#[test]
fn fsync_needs_waitaof_and_a_file() {
    let level = Durability::Fsync(1);
    let text = look(facts(GOOD), level).unwrap_err().to_string();
    assert_eq!(text, "h:1: durability fsync(1) needs Redis 7.2 or Valkey, for WAITAOF");
    let mut valkey = with("valkey_version", "8.0.1");
    valkey.info = "valkey_version:8.0.1\r\naof_enabled:0".into();
    let text = look(valkey, level).unwrap_err().to_string();
    assert!(text.contains("set appendonly yes"), "{text}");
}

#[test]
fn what_can_lose_jobs_is_a_warning() {
    warning(with("aof_enabled", "0"), "a restart loses every job");
    warning(Facts { save: None, ..with("aof_enabled", "0") }, "since the last snapshot");
    let everysec = Some("everysec".to_owned());
    warning(Facts { appendfsync: everysec, ..facts(GOOD) }, "up to a second");
    warning(with("aof_last_write_status", "err"), "aof_last_write_status is not ok");
    warning(Facts { clock_ahead_ms: -90_000, ..facts(GOOD) }, "90000 ms behind this machine's");
    let found = look(with("connected_slaves", "0"), Durability::Replicated(1)).unwrap();
    assert!(found.warnings[0].contains("0 replicas are connected"), "{:?}", found.warnings);
}

#[test]
fn a_cluster_says_what_it_does_not_cover() {
    let found = judge(&[facts(GOOD), facts(GOOD)], Durability::Primary, Some(7)).unwrap();
    assert_eq!(found.lines[0].1, "Redis 7.0.15 at h:1, a Cluster of 2 primaries");
    assert_eq!(found.lines[2].1, "1, 1");
    assert!(found.warnings[0].starts_with("7 slots of the Cluster"));
}
