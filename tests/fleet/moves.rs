//! A requeue to another queue in another slot is several steps. Its server is killed between any two of them.
//!
//! Redis holds writes back while `CLIENT PAUSE … WRITE` is in force, and forgets those of a caller who goes meanwhile. So a
//! step is let through, the next one is held back, and the server is killed: what comes of it does not depend on chance.

use crate::fleet::{CONFIG, Fleet};
use crate::load::nack;
use crate::requests::{ack, claim, job, seconds};
use crate::servers::{Cluster, Kind, Server, until};
use crate::shapes::{by_all, by_ids};
use redrive::grpc::pb::{ClaimRequest, EnqueueRequest, Job, JobState, NackKind, RequeueRequest, RequeueResponse};
use std::time::Instant;
use tokio::task::JoinHandle;
use tonic::Status;

const HERE: &str = "here";
const THERE: &str = "there";

/// Which step was the last before the kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// It is bound for the other queue.
    Departing,
    /// It is READY there, and still written down here.
    Arriving,
}

struct Scene {
    cluster: Cluster,
    fleet: Fleet,
}

fn key(queue: &str, letter: char) -> String {
    format!("redrive:{{{queue}}}:{letter}")
}

impl Scene {
    async fn start() -> Self {
        let cluster = Cluster::start(Kind::Redis).await;
        let fleet = Fleet::with(&cluster.address(), 3, CONFIG, |_, launch| launch);
        let scene = Self { cluster, fleet };
        let [here, there] = [HERE, THERE].map(|queue| scene.cluster.owner(&key(queue, 's')));
        assert_ne!(here, there, "the queues are not on different servers");
        scene
    }

    fn owner(&self, queue: &str) -> &Server {
        &self.cluster.servers[self.cluster.owner(&key(queue, 's'))]
    }

    fn hold(&self, queue: &str) {
        let _: String = self.owner(queue).ask("CLIENT PAUSE 60000 WRITE");
    }

    fn let_go(&self, queue: &str) {
        let _: String = self.owner(queue).ask("CLIENT UNPAUSE");
    }

    /// Waits until so many entries are in one of the queue's hashes.
    async fn entries(&self, queue: &str, letter: char, count: i64) {
        let ask = format!("HLEN {}", key(queue, letter));
        until(&format!("{ask} is {count}"), || async { self.owner(queue).ask::<i64>(&ask) == count }).await;
    }

    /// A dead letter here; and the other queue is known to all.
    async fn dead_letter(&self, id: &str) {
        let mut way = self.fleet.ways().remove(0);
        way.enqueue(EnqueueRequest { job_id: id.into(), ..job(HERE) }).await.unwrap();
        let out = way.claim(claim(HERE)).await.unwrap().into_inner().jobs.remove(0);
        way.nack(nack(&out, NackKind::Permanent)).await.unwrap();
        way.enqueue(job(THERE)).await.unwrap();
        let other = way.claim(claim(THERE)).await.unwrap().into_inner().jobs.remove(0);
        way.ack(ack(&other.lease)).await.unwrap();
    }

    /// By the last server, which is to be killed.
    fn requeue(&self, id: &str) -> JoinHandle<Result<RequeueResponse, Status>> {
        let mut way = self.fleet.ways().pop().unwrap();
        let request = RequeueRequest {
            queue: HERE.into(),
            selector: by_ids(vec![id.into()]),
            target_queue: THERE.into(),
            ..RequeueRequest::default()
        };
        tokio::spawn(async move { Ok(way.requeue(request).await?.into_inner()) })
    }

    /// Moves the only dead letter, undisturbed, and claims it.
    async fn send(&self, from: &str, to: &str) -> Job {
        let mut way = self.fleet.ways().remove(1);
        let request = RequeueRequest {
            queue: from.into(),
            selector: by_all(),
            target_queue: to.into(),
            ..RequeueRequest::default()
        };
        assert_eq!(way.requeue(request).await.unwrap().into_inner().requeued, 1);
        let mut claimed = way.claim(claim(to)).await.unwrap().into_inner();
        claimed.jobs.pop().unwrap_or_else(|| panic!("it is not in {to}: {:?}", claimed.idle))
    }

    /// Lets the move go on up to that step, and not further.
    async fn go(&self, after: After) {
        self.entries(HERE, 'm', 1).await;
        if after == After::Departing {
            return;
        }
        self.hold(HERE);
        self.let_go(THERE);
        self.entries(THERE, 'j', 1).await;
    }

    /// Where it is, as both servers that are left see it: in exactly one queue.
    async fn place(&self, id: &str) -> &'static str {
        let mut places = Vec::new();
        for at in [0, 1] {
            let here = self.fleet.state(at, HERE, id).await;
            let there = self.fleet.state(at, THERE, id).await;
            places.push(match (here, there) {
                (Some(JobState::Dead), None) => HERE,
                (None, Some(JobState::Ready)) => THERE,
                other => panic!("server {at} sees {other:?}"),
            });
        }
        assert_eq!(places[0], places[1]);
        places[0]
    }
}

async fn killed(after: After, place: &str) {
    let id = "moved";
    let mut scene = Scene::start().await;
    scene.dead_letter(id).await;
    scene.hold(THERE);
    let requeue = scene.requeue(id);
    scene.go(after).await;
    assert_eq!(scene.place(id).await, place, "{after:?}");
    scene.fleet.servers[2].kill();
    requeue.await.unwrap().expect_err("its server is gone");
    assert_eq!(scene.place(id).await, place, "{after:?}");
    let began = Instant::now();
    scene.let_go(HERE);
    scene.let_go(THERE);
    let patient = ClaimRequest { wait: seconds(20), lease_duration: seconds(60), ..claim(THERE) };
    let mut way = scene.fleet.ways().remove(0);
    let jobs = way.claim(patient).await.unwrap().into_inner().jobs;
    let took = began.elapsed();
    assert_eq!(jobs.iter().map(|job| &job.job_id[..]).collect::<Vec<_>>(), [id]);
    // The record of the move stays, for late settlements.
    scene.entries(HERE, 'd', 0).await;
    assert_eq!(scene.fleet.state(1, HERE, id).await, None);
    assert_eq!(scene.fleet.state(1, THERE, id).await, Some(JobState::Leased));
    way.nack(nack(&jobs[0], NackKind::Permanent)).await.unwrap();
    // What is left of the move must not be taken for another one.
    let out = scene.send(THERE, HERE).await;
    way.nack(nack(&out, NackKind::Permanent)).await.unwrap();
    let out = scene.send(HERE, THERE).await;
    way.ack(ack(&out.lease)).await.unwrap();
    let (here, there) = (scene.fleet.stats(0, HERE).await, scene.fleet.stats(1, THERE).await);
    assert_eq!((here.moved_out, here.moved_in, here.held), (2, 1, 0));
    assert_eq!((there.moved_in, there.moved_out, there.completed, there.held), (2, 1, 2, 0));
    println!("killed after {after:?}: in {place:?} until then, handed out {took:.1?} later, once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_killed_after_its_first_step_is_completed_by_another_server() {
    killed(After::Departing, HERE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_move_killed_after_its_second_step_is_completed_by_another_server() {
    killed(After::Arriving, THERE).await;
}
