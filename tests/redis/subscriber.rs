//! Hints that servers give each other.

use crate::scene::{open, options};
use crate::servers::{Cluster, Kind, LONG, Server};
use redrive::store::redis::connection::{PubSubEvent, Subscription};

async fn next(subscription: &mut Subscription) -> PubSubEvent {
    tokio::time::timeout(LONG, subscription.next()).await.expect("an event comes").unwrap()
}

fn hint(channel: &str) -> PubSubEvent {
    PubSubEvent::Message { channel: channel.into(), payload: "1".into() }
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_arrive_and_every_interruption_is_reported() {
    let mut server = Server::start(Kind::Redis);
    let redis = open(&server.address(), &options()).await;
    let mut subscription = redis.subscribe("rd:*:wake");
    for round in 0..3 {
        assert_eq!(next(&mut subscription).await, PubSubEvent::Gap, "round {round}");
        let _: i64 = server.ask("PUBLISH rd:{q}:wake 1");
        let _: i64 = server.ask("PUBLISH something:else 1");
        let _: i64 = server.ask("PUBLISH rd:{r}:wake 1");
        assert_eq!(next(&mut subscription).await, hint("rd:{q}:wake"));
        assert_eq!(next(&mut subscription).await, hint("rd:{r}:wake"));
        server.kill();
        server.restart();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_subscription_covers_the_whole_cluster() {
    let mut cluster = Cluster::start(Kind::Redis).await;
    let redis = open(&cluster.address(), &options()).await;
    let mut subscription = redis.subscribe("rd:*:wake");
    assert_eq!(next(&mut subscription).await, PubSubEvent::Gap);
    for server in &cluster.servers {
        let _: i64 = server.ask(&format!("PUBLISH rd:{{{}}}:wake 1", server.port));
        assert_eq!(next(&mut subscription).await, hint(&format!("rd:{{{}}}:wake", server.port)));
    }
    // The subscription moves to another server when its own dies.
    let subscribed_to = cluster.servers.iter().position(|server| server.ask::<i64>("PUBSUB NUMPAT") > 0);
    cluster.servers[subscribed_to.unwrap()].kill();
    assert_eq!(next(&mut subscription).await, PubSubEvent::Gap);
}
