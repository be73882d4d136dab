//! Hints that servers give each other.

use crate::{
    scene::{open, options},
    servers::{Cluster, Kind, LONG, Server},
};
use redrive::store::redis::connection::{Ear, Heard};

async fn next(ear: &mut Ear) -> Heard {
    tokio::time::timeout(LONG, ear.next()).await.expect("something is heard").unwrap()
}

fn hint(channel: &str) -> Heard {
    Heard::Message { channel: channel.into(), payload: "1".into() }
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_are_heard_and_every_interruption_is_told() {
    let mut server = Server::start(Kind::Redis);
    let redis = open(&server.address(), &options()).await;
    let mut ear = redis.hear("rd:*:wake");
    for round in 0..3 {
        assert_eq!(next(&mut ear).await, Heard::Gap, "round {round}");
        let _: i64 = server.ask("PUBLISH rd:{q}:wake 1");
        let _: i64 = server.ask("PUBLISH something:else 1");
        let _: i64 = server.ask("PUBLISH rd:{r}:wake 1");
        assert_eq!(next(&mut ear).await, hint("rd:{q}:wake"));
        assert_eq!(next(&mut ear).await, hint("rd:{r}:wake"));
        server.kill();
        server.restart();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_ear_hears_the_whole_cluster() {
    let mut cluster = Cluster::start(Kind::Redis).await;
    let redis = open(&cluster.address(), &options()).await;
    let mut ear = redis.hear("rd:*:wake");
    assert_eq!(next(&mut ear).await, Heard::Gap);
    for server in &cluster.servers {
        let _: i64 = server.ask(&format!("PUBLISH rd:{{{}}}:wake 1", server.port));
        assert_eq!(next(&mut ear).await, hint(&format!("rd:{{{}}}:wake", server.port)));
    }
    // Wherever it listens: after that one's death it listens elsewhere.
    let heard_on = cluster.servers.iter().position(|server| server.ask::<i64>("PUBSUB NUMPAT") > 0);
    cluster.servers[heard_on.unwrap()].kill();
    assert_eq!(next(&mut ear).await, Heard::Gap);
}
