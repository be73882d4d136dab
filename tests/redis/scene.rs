//! What most of these tests need: a way in, and a script whose every run can be counted.

use crate::servers::until;
use redis::Value;
use redrive::store::redis::connection::{ConnectionOptions, Redis, Script};
use redrive::store::redis::{Access, Address, Durability};
use redrive::store::{Health, StoreError};
use std::{sync::LazyLock, time::Duration};

/// Adds one, and says what came out: a second run would show.
pub(crate) static COUNT: LazyLock<Script> =
    LazyLock::new(|| Script::new(&["return redis.call('INCRBY', KEYS[1], ARGV[1])"]));
/// Looks, and changes nothing.
pub(crate) static LOOK: LazyLock<Script> =
    LazyLock::new(|| Script::reading(&["return tonumber(redis.call('GET', KEYS[1]) or 0)"]));

pub(crate) const NO_ARGS: [u64; 0] = [];

/// Impatient, so that tests are quick.
pub(crate) fn options() -> ConnectionOptions {
    ConnectionOptions {
        response_timeout: Duration::from_millis(500),
        confirm_within: Duration::from_secs(1),
        heartbeat: Duration::from_millis(100),
        ..ConnectionOptions::default()
    }
}

/// Nothing but the test's own calls is on the connection.
pub(crate) fn without_heartbeat() -> ConnectionOptions {
    ConnectionOptions { heartbeat: Duration::from_secs(3_600), ..options() }
}

/// For writes that are to be confirmed: a busy disk may take its time.
pub(crate) fn confirmed(durability: Durability) -> ConnectionOptions {
    let patience = Duration::from_secs(10);
    ConnectionOptions { durability, confirm_within: patience, response_timeout: patience, ..options() }
}

/// For writes that are not: the sooner that is said, the better.
pub(crate) fn short_of(durability: Durability) -> ConnectionOptions {
    ConnectionOptions { durability, ..options() }
}

pub(crate) async fn open(address: &str, options: &ConnectionOptions) -> Redis {
    try_open(address, options).await.unwrap()
}

pub(crate) async fn try_open(address: &str, options: &ConnectionOptions) -> Result<Redis, StoreError> {
    try_open_with(address, &Access::default(), options).await
}

/// With what the operator's table `[redis]` says.
pub(crate) async fn try_open_with(
    address: &str, access: &Access, options: &ConnectionOptions,
) -> Result<Redis, StoreError> {
    Redis::open(&Address::parse_all([address]).unwrap().with(access), options).await
}

/// Counts one up in `key`.
pub(crate) async fn count(redis: &Redis, key: &str) -> Result<i64, StoreError> {
    number(redis.run(&COUNT, &[key.into()], 1).await)
}

pub(crate) async fn look(redis: &Redis, key: &str) -> Result<i64, StoreError> {
    number(redis.run(&LOOK, &[key.into()], &NO_ARGS[..]).await)
}

fn number(reply: Result<Value, StoreError>) -> Result<i64, StoreError> {
    reply.map(|reply| redis::from_redis_value(reply).unwrap())
}

/// Waits until it has noticed that there is no connection.
pub(crate) async fn is_down(redis: &Redis) {
    until("the connection is down", || async { redis.health() != Health::Well }).await;
}

/// Waits until calls get through by themselves.
pub(crate) async fn works_again(redis: &Redis, key: &str) {
    until("calls get through", || async { look(redis, key).await.is_ok() }).await;
}
