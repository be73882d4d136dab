//! While all is well.

use crate::scene::{COUNT, NO_ARGS, count, look, open, options};
use crate::servers::{Kind, Launch, Server};
use redis::Value;
use redrive::store::StoreError;
use redrive::store::redis::connection::{ConnectionOptions, Script};

#[tokio::test(flavor = "multi_thread")]
async fn scripts_and_commands_run_on_redis_and_on_valkey() {
    for kind in [Kind::Redis, Kind::Valkey] {
        let server = Server::start(kind);
        let redis = open(&server.address(), &options()).await;
        assert_eq!(count(&redis, "k").await, Ok(1));
        assert_eq!(count(&redis, "k").await, Ok(2));
        assert_eq!(look(&redis, "k").await, Ok(2));
        assert_eq!(redis.query(b"k", redis::cmd("GET").arg("k")).await, Ok(Value::BulkString("2".into())));
        assert!(!redis.is_cluster());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_redis_has_forgotten_runs_once_all_the_same() {
    let server = Server::start(Kind::Redis);
    let redis = open(&server.address(), &options()).await;
    for round in 1..=5 {
        assert_eq!(count(&redis, "k").await, Ok(round));
        let _: String = server.ask("SCRIPT FLUSH");
    }
    let calls = (0..100).map(|_| {
        let redis = redis.clone();
        tokio::spawn(async move { count(&redis, "k").await })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap().unwrap();
    }
    assert_eq!(look(&redis, "k").await, Ok(105));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_fails_half_way_is_not_called_undone() {
    let server = Server::start(Kind::Redis);
    let redis = open(&server.address(), &options()).await;
    let half = Script::new(&["redis.call('SET', KEYS[1], 1) error('broken')"]);
    let failed = redis.run(&half, &["k".into()], &NO_ARGS[..]).await.unwrap_err();
    assert!(matches!(&failed, StoreError::OutcomeUnknown(why) if why.contains("broken")));
    assert_eq!(look(&redis, "k").await, Ok(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_redis_refuses_what_grows_and_nothing_is_half_done() {
    let server = Launch::new(Kind::Redis).line("maxmemory-policy noeviction").start();
    let redis = open(&server.address(), &options()).await;
    count(&redis, "before").await.unwrap();
    let _: String = server.ask("CONFIG SET maxmemory 1");
    let two = Script::new(&["redis.call('SET', KEYS[1], 1) redis.call('SET', KEYS[2], 1)"]);
    let refused = redis.run(&two, &["{a}1".into(), "{a}2".into()], &NO_ARGS[..]).await.unwrap_err();
    assert!(matches!(refused, StoreError::MemoryLow(_)), "{refused:?}");
    // What frees memory is still done: jobs can be finished.
    let remove = Script::new(&["return redis.call('DEL', KEYS[1])"]);
    assert_eq!(redis.run(&remove, &["before".into()], &NO_ARGS[..]).await, Ok(Value::Int(1)));
    let _: String = server.ask("CONFIG SET maxmemory 0");
    assert_eq!(look(&redis, "{a}1").await, Ok(0));
    redis.run(&two, &["{a}1".into(), "{a}2".into()], &NO_ARGS[..]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn more_calls_than_there_is_room_for_are_refused_and_change_nothing() {
    let server = Server::start(Kind::Redis);
    let few = ConnectionOptions { calls_max: 1, ..options() };
    let redis = open(&server.address(), &few).await;
    let script = &COUNT;
    let key = [b"k".to_vec()];
    let one = redis.run(script, &key, 1);
    let two = redis.run(script, &key, 1);
    let (one, two) = tokio::join!(one, two);
    assert_eq!(one, Ok(Value::Int(1)));
    assert!(matches!(two, Err(StoreError::Overloaded(_))), "{two:?}");
    assert_eq!(look(&redis, "k").await, Ok(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_a_user_and_a_database_of_ones_own() {
    let server = Launch::new(Kind::Redis).line("user ada on >s@cret ~* &* +@all").line("user default off");
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let socket = folder.path().join("s");
    let server = server.line(format!("unixsocket {}", socket.display())).start();
    let by_socket = format!("redis+unix://{}?user=ada&password=s%40cret&db=3", socket.display());
    let by_port = format!("redis://ada:s%40cret@127.0.0.1:{}/3", server.port);
    let redis = open(&by_socket, &options()).await;
    assert_eq!(count(&redis, "k").await, Ok(1));
    assert_eq!(look(&open(&by_port, &options()).await, "k").await, Ok(1));
    assert_eq!(look(&open(&by_port.replace("/3", "/4"), &options()).await, "k").await, Ok(0));
}
