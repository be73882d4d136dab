//! Real servers, Redis and Valkey, for the tests of this process. A test that finds none fails.

use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

pub(crate) struct Server {
    address: String,
    /// Ends when its standard input closes, which it does with this process at the latest.
    watch: Child,
    _directory: tempfile::TempDir,
}

/// The one that most tests share, each under a name of its own; the first caller starts it.
pub(crate) fn shared() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(Server::start)
}

/// As durable as can be, so that a write can be waited for until it is on its disk.
pub(crate) fn valkey() -> &'static Server {
    static VALKEY: OnceLock<Server> = OnceLock::new();
    VALKEY.get_or_init(|| Server::start_one("valkey-server", "--appendonly yes --appendfsync always"))
}

/// Three primaries that share the slots, each with a replica.
pub(crate) fn cluster() -> &'static Server {
    static CLUSTER: OnceLock<Server> = OnceLock::new();
    CLUSTER.get_or_init(Server::start_cluster)
}

/// Starts servers, waits for the end of its input, and ends them.
const CLUSTER: &str = r#"
    for port in "$@"; do
        redis-server --port $port --bind 127.0.0.1 --cluster-enabled yes --cluster-config-file nodes-$port.conf \
            --dir "$0" --logfile $port.log --save "" --repl-diskless-sync-delay 0 & servers="$servers $!"
    done
    cat >/dev/null; kill $servers; wait"#;

impl Server {
    fn start_cluster() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let ports: Vec<String> = (0..6).map(|_| free_port().to_string()).collect();
        let watch = Command::new("sh")
            .args(["-c", CLUSTER])
            .arg(directory.path())
            .args(&ports)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("a shell");
        let servers: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let address = format!("redis://{}", servers.join(","));
        let cluster = Self { address, watch, _directory: directory };
        for server in &servers {
            wait_for("redis-server", || std::net::TcpStream::connect(server).is_ok());
        }
        let made = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(&servers)
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .stdout(Stdio::null())
            .status();
        assert!(made.expect("redis-cli is installed").success());
        wait_for("the Cluster", || servers.iter().all(|server| is_whole(server)));
        cluster
    }

    pub(crate) fn start() -> Self {
        Self::start_one("redis-server", "--appendonly no")
    }

    fn start_one(program: &str, options: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("redis.sock");
        let script = r#"$1 --port 0 --unixsocket "$0" --save "" $2 --dir "$(dirname "$0")" \
            --logfile redis.log & server=$!; cat >/dev/null; kill $server; wait"#;
        let watch = Command::new("sh")
            .args(["-c", script])
            .arg(&socket)
            .args([program, options])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("a shell");
        let address = format!("redis+unix://{}", socket.display());
        let server = Self { address, watch, _directory: directory };
        wait_for(program, || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        server
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }
}

/// Whether it answers is the only sign that it has started.
fn wait_for(what: &str, is_there: impl Fn() -> bool) {
    for _ in 0..10_000_000 {
        if is_there() {
            return;
        }
        std::thread::yield_now();
    }
    panic!("{what} does not start: is it installed?");
}

/// It knows all slots, and is a replica that follows or a primary that is followed.
fn is_whole(server: &str) -> bool {
    let client = redis::Client::open(format!("redis://{server}")).expect("an address");
    let asked = client.get_connection().and_then(|mut connection| {
        let cluster: String = redis::cmd("CLUSTER").arg("INFO").query(&mut connection)?;
        let replication: String = redis::cmd("INFO").arg("replication").query(&mut connection)?;
        Ok((cluster, replication))
    });
    asked.is_ok_and(|(cluster, replication)| {
        let linked = ["master_link_status:up", "connected_slaves:1"];
        cluster.contains("cluster_state:ok") && linked.iter().any(|so| replication.contains(so))
    })
}

/// Below those that the system gives to outgoing connections; the servers talk among each other 10,000 above.
fn free_port() -> u16 {
    let is_free = |port| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
    loop {
        let port = 10_000 + redrive::env::random::<u16>() % 12_000;
        if is_free(port) && is_free(port + 10_000) {
            return port;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.watch.stdin.take());
        drop(self.watch.wait());
    }
}
