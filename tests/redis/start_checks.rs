//! What is found out before the first job.

use crate::scene::{open, options, try_open, try_open_with};
use crate::servers::{Kind, Launch, Server, WallClock, until};
use redrive::store::redis::Access;
use redrive::store::redis::connection::secret::Secret;
use redrive::store::redis::connection::{PreflightError, Warning};

#[tokio::test(flavor = "multi_thread")]
async fn a_durable_server_is_described_without_warnings() {
    for (kind, name) in [(Kind::Redis, "Redis 7."), (Kind::Valkey, "Valkey 8.")] {
        let server = Launch::durable(kind).start();
        let found = open(&server.address(), &options()).await.preflight().await.unwrap();
        assert!(found.warnings.is_empty(), "{:?}", found.warnings);
        assert!(found.lines[0].1.starts_with(name), "{:?}", found.lines);
        assert_eq!(found.lines[1].1, "append-only file, fsync always; no snapshots");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_keeps_nothing_is_warned_of_and_one_that_evicts_is_refused() {
    let server = Server::start(Kind::Redis);
    let redis = open(&server.address(), &options()).await;
    let found = redis.preflight().await.unwrap();
    assert!(found.warnings[0].contains("a restart loses every job"), "{:?}", found.warnings);
    let _: String = server.ask("CONFIG SET maxmemory-policy allkeys-lru");
    let refused = redis.preflight().await.unwrap_err();
    assert!(matches!(refused, PreflightError::Evicts { .. }), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_refused_without_being_shown() {
    let server = Launch::new(Kind::Redis).line("requirepass right").start();
    let address = format!("redis://:hunter2@127.0.0.1:{}", server.port);
    let refused = try_open(&address, &options()).await.err().unwrap().to_string();
    assert!(refused.contains("assword"), "{refused}");
    assert!(!refused.contains("hunter2"), "{refused}");
    let right = address.replace("hunter2", "right");
    open(&right, &options()).await;
    // It may be kept in a file, where an editor ends the line.
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "right\n").unwrap();
    let access = Access { password: Some(Secret::File(file)), ..Access::default() };
    let address = format!("redis://127.0.0.1:{}", server.port);
    try_open_with(&address, &access, &options()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_wrong_or_jumps_is_told() {
    let clock = WallClock::at(-90);
    let server = clock.of(Launch::durable(Kind::Redis)).start();
    let redis = open(&server.address(), &options()).await;
    let found = redis.preflight().await.unwrap();
    assert!(found.warnings[0].contains("ms behind this machine's"), "{:?}", found.warnings);
    assert!(redis.warnings().is_empty());
    clock.set(3_600);
    until("the jump is noticed", || async { !redis.warnings().is_empty() }).await;
    let warning = redis.warnings().remove(0);
    println!("{warning}");
    let Warning::ClockJump { by_ms, .. } = warning else { panic!("{warning:?}") };
    assert!((by_ms - 3_690_000).abs() < 1_000, "{by_ms}");
}
