//! The server dies, or the connection does. What was not answered is in doubt; what is answered happened once.

use crate::scene::{count, is_down, look, open, options, try_open, without_heartbeat, works_again};
use crate::servers::{Fault, Kind, Launch, Proxy, Server};
use redrive::store::{Health, StoreError};
use std::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_redis_is_waited_for_and_nothing_that_was_answered_is_lost() {
    let mut server = Launch::durable(Kind::Redis).start();
    let redis = open(&server.address(), &options()).await;
    let mut answered = 0;
    for round in 1..=3 {
        for _ in 0..50 {
            answered = count(&redis, "k").await.unwrap();
        }
        server.kill();
        is_down(&redis).await;
        let began = Instant::now();
        for _ in 0..10 {
            let refused = count(&redis, "k").await.unwrap_err();
            assert!(matches!(refused, StoreError::Unavailable(_)), "{refused:?}");
        }
        let refusing = began.elapsed();
        assert!(refusing < Duration::from_secs(1), "10 calls took {refusing:?} to be refused");
        server.restart();
        let began = Instant::now();
        works_again(&redis, "k").await;
        let there = look(&redis, "k").await.unwrap();
        println!(
            "round {round}: {answered} answered, {there} there, 10 refused in {refusing:?}, back \
             after {:?}",
            began.elapsed()
        );
        assert_eq!(there, answered);
        assert_eq!(redis.health(), Health::Well);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_under_way_when_redis_dies_are_in_doubt_and_not_run_again() {
    let mut server = Launch::durable(Kind::Redis).start();
    let redis = open(&server.address(), &options()).await;
    let callers: Vec<_> = (0..20)
        .map(|_| {
            let redis = redis.clone();
            tokio::spawn(async move {
                let (mut answered, mut in_doubt) = (0, 0);
                loop {
                    match count(&redis, "k").await {
                        Ok(_) => answered += 1,
                        Err(StoreError::OutcomeUnknown(_)) => in_doubt += 1,
                        Err(_) => return (answered, in_doubt),
                    }
                }
            })
        })
        .collect();
    // In the middle of it.
    crate::servers::until("some are answered", || async { look(&redis, "k").await.unwrap_or(0) > 500 }).await;
    server.kill();
    let (mut answered, mut in_doubt) = (0, 0);
    for caller in callers {
        let (more_answered, more_in_doubt) = caller.await.unwrap();
        answered += more_answered;
        in_doubt += more_in_doubt;
    }
    server.restart();
    works_again(&redis, "k").await;
    let there = look(&redis, "k").await.unwrap();
    println!("{answered} answered, {in_doubt} in doubt, {there} there");
    assert!((answered..=answered + in_doubt).contains(&there));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_answer_is_cut_off_has_run_once_and_is_in_doubt() {
    let server = Server::start(Kind::Redis);
    let proxy = Proxy::start(server.port).await;
    let redis = open(&proxy.address(), &without_heartbeat()).await;
    assert_eq!(count(&redis, "k").await, Ok(1));
    for round in 1..=5 {
        proxy.befall_open(Fault::CutBeforeReply);
        let cut = count(&redis, "k").await.unwrap_err();
        assert!(matches!(cut, StoreError::OutcomeUnknown(_)), "{cut:?}");
        // A read whose answer is missing leaves nothing in doubt.
        works_again(&redis, "k").await;
        assert_eq!(look(&redis, "k").await, Ok(1 + round), "it ran once, not twice");
    }
    proxy.befall_open(Fault::CutBeforeReply);
    let cut = look(&redis, "k").await.unwrap_err();
    assert!(matches!(cut, StoreError::Unavailable(_)), "{cut:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_cut_on_its_way_has_not_run_but_the_outcome_is_unknown() {
    let server = Server::start(Kind::Redis);
    let proxy = Proxy::start(server.port).await;
    let redis = open(&proxy.address(), &without_heartbeat()).await;
    assert_eq!(count(&redis, "k").await, Ok(1));
    proxy.befall_open(Fault::CutAfter(20));
    let cut = count(&redis, "k").await.unwrap_err();
    assert!(matches!(cut, StoreError::OutcomeUnknown(_)), "{cut:?}");
    works_again(&redis, "k").await;
    assert_eq!(look(&redis, "k").await, Ok(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_swallows_everything_is_replaced() {
    let server = Server::start(Kind::Redis);
    let proxy = Proxy::start(server.port).await;
    let redis = open(&proxy.address(), &without_heartbeat()).await;
    assert_eq!(count(&redis, "k").await, Ok(1));
    let before = proxy.accepted();
    proxy.befall_open(Fault::BlackHole);
    for _ in 0..3 {
        let swallowed = count(&redis, "k").await.unwrap_err();
        assert!(matches!(swallowed, StoreError::OutcomeUnknown(_)), "{swallowed:?}");
    }
    works_again(&redis, "k").await;
    assert_eq!(proxy.accepted(), before + 1);
    assert_eq!(look(&redis, "k").await, Ok(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_network_is_noticed_without_any_call() {
    let server = Server::start(Kind::Redis);
    let proxy = Proxy::start(server.port).await;
    let redis = open(&proxy.address(), &options()).await;
    proxy.befall_all(Fault::BlackHole);
    let began = Instant::now();
    is_down(&redis).await;
    println!("noticed after {:?}", began.elapsed());
    let refused = count(&redis, "k").await.unwrap_err();
    assert!(matches!(refused, StoreError::Unavailable(_)), "{refused:?}");
    proxy.befall_all(Fault::None);
    works_again(&redis, "k").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_that_leases_do_not_bear_is_counted() {
    let mut server = Server::start(Kind::Redis);
    let redis = open(&server.address(), &options()).await;
    server.kill();
    is_down(&redis).await;
    server.restart();
    works_again(&redis, "k").await;
    assert_eq!(redis.outages(), 0, "a short one is none");
    server.kill();
    is_down(&redis).await;
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    server.restart();
    works_again(&redis, "k").await;
    assert_eq!(redis.outages(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_network_is_slow_and_nothing_else() {
    let server = Server::start(Kind::Redis);
    let proxy = Proxy::start(server.port).await;
    let redis = open(&proxy.address(), &options()).await;
    proxy.befall_all(Fault::Delay(Duration::from_millis(50)));
    let before = proxy.accepted();
    for round in 1..=5 {
        assert_eq!(count(&redis, "k").await, Ok(round));
    }
    assert_eq!(proxy.accepted(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_not_there_is_said_at_once() {
    let mut server = Server::start(Kind::Redis);
    let address = server.address();
    server.kill();
    let began = Instant::now();
    let refused = try_open(&address, &options()).await.err().unwrap();
    assert!(began.elapsed() < Duration::from_secs(2));
    let StoreError::Unavailable(why) = refused else { panic!("{refused:?}") };
    assert!(why.contains(&format!("127.0.0.1:{}", server.port)), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_becomes_a_replica_is_left() {
    let server = Server::start(Kind::Redis);
    let other = Server::start(Kind::Redis);
    let redis = open(&server.address(), &without_heartbeat()).await;
    assert_eq!(count(&redis, "k").await, Ok(1));
    let _: String = server.ask(&format!("REPLICAOF 127.0.0.1 {}", other.port));
    let refused = count(&redis, "k").await.unwrap_err();
    assert!(matches!(&refused, StoreError::Unavailable(why) if why.contains("READONLY")));
    is_down(&redis).await;
    let refused = try_open(&server.address(), &options()).await.err().unwrap();
    assert!(refused.to_string().contains("it is a replica"), "{refused}");
    let _: String = server.ask("REPLICAOF NO ONE");
    works_again(&redis, "k").await;
}
