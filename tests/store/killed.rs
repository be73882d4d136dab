//! Bulk calls on Redis whose server is killed half way: the repeated call completes it, and does no more.

use crate::builders::*;
use crate::redis_server::{self, Server};
use crate::servers::One;
use redrive::domain::JobId;
use redrive::queue::{Nack, Purge, RequestId, Requeue, Settlements};
use std::collections::HashSet;

/// The calls take this many of them; the rest is what they must not touch.
const DEAD: usize = 1_100;
const TAKEN: usize = 1_000;
/// Jobs of one call that dead-letters or claims.
const AT_ONCE: usize = 100;

fn request() -> Option<RequestId> {
    Some(RequestId { id: "r".into(), asked: [1; 32] })
}

/// A queue with dead letters, on the Redis that all tests share.
struct Scene {
    server: &'static Server,
    namespace: &'static str,
    redis: redis::Connection,
}

impl Scene {
    fn new(namespace: &'static str) -> Self {
        let server = redis_server::shared();
        let redis = redis::Client::open(server.address()).unwrap().get_connection().unwrap();
        Self { server, namespace, redis }
    }

    async fn open(&self) -> One {
        One::open(self.server, self.namespace).await
    }

    fn dead(&mut self) -> usize {
        let key = format!("{}:{{q}}:dead", self.namespace);
        redis::cmd("ZCARD").arg(key).query(&mut self.redis).unwrap()
    }

    /// Begins the call on a server that ends, with all that it has under way, once some dead letters have gone.
    fn killed_in(&mut self, call: impl AsyncFn(&One)) {
        let runtime = crate::harness::runtime();
        runtime.block_on(async {
            let server = self.open().await;
            dead_letter(&server).await;
            assert_eq!(self.dead(), DEAD);
            // One thread does both, so the call gets on by a step between two looks.
            let some_have_gone = async {
                while self.dead() == DEAD {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                biased;
                () = some_have_gone => {}
                () = call(&server) => panic!("the call was over before anybody looked"),
            }
        });
        drop(runtime);
        let left = self.dead();
        assert!((DEAD - TAKEN + 1..DEAD).contains(&left), "{left} are left");
    }

    /// What another server makes of it.
    fn repeated<T>(&self, call: impl AsyncFnOnce(&One) -> T) -> T {
        crate::harness::runtime().block_on(async { call(&self.open().await).await })
    }
}

async fn dead_letter(server: &One) {
    for _ in 0..DEAD / AT_ONCE {
        let added = server.store.enqueue(vec![job("q"); AT_ONCE]).await.unwrap();
        assert!(added.iter().all(Result::is_ok));
        let jobs = server.claim("q", AT_ONCE).await;
        let nacks = jobs.iter().map(|job| Nack {
            lease: job.delivery.lease.clone(),
            outcome: permanent(),
            checkpoint: String::new(),
        });
        server.settle(Settlements { nacks: nacks.collect(), ..Settlements::default() }).await;
    }
}

fn check_requeue(namespace: &'static str, target: Option<&str>) {
    let mut scene = Scene::new(namespace);
    let requeue = Requeue { request: request(), target: target.map(queue), ..requeue_of("q", oldest(TAKEN)) };
    scene.killed_in(async |server| {
        drop(server.store.requeue(requeue.clone()).await);
    });
    let ids = scene.repeated(async |server| {
        let done = server.store.requeue(requeue.clone()).await.unwrap();
        assert_eq!((done.skipped.len(), done.has_more), (0, true));
        let again = server.store.requeue(requeue.clone()).await.unwrap();
        assert_eq!(done, again);
        let mut claimed: HashSet<JobId> = HashSet::new();
        loop {
            let jobs = server.claim(target.unwrap_or("q"), AT_ONCE).await;
            if jobs.is_empty() {
                break;
            }
            claimed.extend(jobs.iter().map(|job| job.spec.id.clone()));
        }
        assert_eq!(claimed, done.ids.iter().cloned().collect());
        done.ids
    });
    assert_eq!(ids.len(), TAKEN);
    assert_eq!(scene.dead(), DEAD - TAKEN);
}

#[test]
fn a_requeue_whose_server_died_is_completed_and_takes_no_more() {
    check_requeue("killed-requeue", None);
}

#[test]
fn a_requeue_to_another_queue_whose_server_died_is_completed_and_takes_no_more() {
    check_requeue("killed-move", Some("other"));
}

#[test]
fn a_purge_whose_server_died_is_completed_and_takes_no_more() {
    let mut scene = Scene::new("killed-purge");
    let purge = Purge { request: request(), ..purge_of("q", oldest(TAKEN)) };
    scene.killed_in(async |server| drop(server.store.purge(purge.clone()).await));
    scene.repeated(async |server| {
        for _ in 0..2 {
            let done = server.store.purge(purge.clone()).await.unwrap();
            assert_eq!((done.count, done.has_more), (TAKEN as u64, true));
        }
    });
    assert_eq!(scene.dead(), DEAD - TAKEN);
}
