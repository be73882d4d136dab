//! A Cluster: three primaries, each with a replica.

use super::process::{Kind, Launch, Server};
use super::until;
use redis::Value;
use std::process::{Command, Stdio};

pub(crate) struct Cluster {
    pub(crate) servers: Vec<Server>,
}

impl Cluster {
    /// Runs until every server knows all slots and every replica follows.
    pub(crate) async fn start(kind: Kind) -> Self {
        Self::start_with(Launch::durable(kind)).await
    }

    pub(crate) async fn start_with(launch: Launch) -> Self {
        let launch = launch
            .line("cluster-enabled yes")
            .line("cluster-port {port+}")
            .line("cluster-node-timeout 1000")
            .line("cluster-replica-validity-factor 0");
        let servers: Vec<_> = (0..6).map(|_| launch.clone().start()).collect();
        let made = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(servers.iter().map(|server| format!("127.0.0.1:{}", server.port)))
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .stdout(Stdio::null())
            .status();
        assert!(made.expect("redis-cli: script/test installs it").success());
        let cluster = Self { servers };
        until("the Cluster is whole", || async { cluster.is_whole() }).await;
        cluster
    }

    fn is_whole(&self) -> bool {
        self.servers.iter().all(|server| {
            let info: String = server.ask("CLUSTER INFO");
            let role = server.info("role");
            let linked = role == "master" || server.info("master_link_status") == "up";
            let followed = role != "master" || server.info("connected_slaves") == "1";
            info.contains("cluster_state:ok") && linked && followed
        })
    }

    /// The first three: any of them leads to the others.
    pub(crate) fn address(&self) -> String {
        let hosts: Vec<_> = self.servers[..3].iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        format!("redis://{}", hosts.join(","))
    }

    /// The place of the server that owns the key's slot.
    pub(crate) fn owner(&self, key: &str) -> usize {
        let asked = self.servers.iter().find(|server| server.is_running()).expect("one runs");
        let slot: i64 = asked.ask(&format!("CLUSTER KEYSLOT {key}"));
        let ranges: Vec<Vec<Value>> = asked.ask("CLUSTER SLOTS");
        let owner = ranges.iter().find_map(|range| match &range[..] {
            [Value::Int(from), Value::Int(to), Value::Array(primary), ..] if (*from..=*to).contains(&slot) => {
                redis::from_redis_value::<u16>(primary[1].clone()).ok()
            }
            _ => None,
        });
        let owner = owner.expect("every slot has an owner");
        self.servers.iter().position(|server| server.port == owner).expect("one of ours")
    }
}
