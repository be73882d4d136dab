//! A primary and its replica, watched by three sentinels.

use super::process::{Kind, Launch, Server};
use super::until;
use std::collections::HashMap;

const NAME: &str = "mymaster";

pub(crate) struct Watched {
    pub(crate) primary: Server,
    pub(crate) replica: Server,
    sentinels: Vec<Server>,
}

impl Watched {
    /// Runs until the sentinels know each other and the replica.
    pub(crate) async fn start() -> Self {
        let primary = Launch::durable(Kind::Redis).start();
        let follow = format!("replicaof 127.0.0.1 {}", primary.port);
        let replica = Launch::durable(Kind::Redis).line(follow).start();
        until("the replica follows", || async { replica.info("master_link_status") == "up" }).await;
        let sentinel = Launch::new(Kind::Sentinel)
            .line(format!("sentinel monitor {NAME} 127.0.0.1 {} 2", primary.port))
            .line(format!("sentinel down-after-milliseconds {NAME} 500"))
            .line(format!("sentinel failover-timeout {NAME} 3000"));
        let sentinels = (0..3).map(|_| sentinel.clone().start()).collect();
        let watched = Self { primary, replica, sentinels };
        until("the sentinels know all", || async { watched.is_known() }).await;
        watched
    }

    fn is_known(&self) -> bool {
        self.sentinels.iter().all(|sentinel| {
            let facts: HashMap<String, String> = sentinel.ask(&format!("SENTINEL MASTER {NAME}"));
            let has = |field: &str, count: &str| facts.get(field).is_some_and(|it| it == count);
            has("num-other-sentinels", "2") && has("num-slaves", "1")
        })
    }

    /// Asks for a failover while all are well. A sentinel that has not looked at the replica for a while says no at first.
    pub(crate) async fn fail_over(&self) {
        let command = format!("SENTINEL FAILOVER {NAME}");
        let sentinel = &self.sentinels[0];
        until("the failover begins", || async { sentinel.try_ask::<String>(&command).is_ok() }).await;
    }

    pub(crate) fn address(&self) -> String {
        let hosts: Vec<_> = self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        format!("redis+sentinel://{}/{NAME}", hosts.join(","))
    }
}
