//! Where Redis is and how certain writes must be, as operators write it.

use redrive::store::redis::connection::address::{Endpoint, Place, Tls};
use redrive::store::redis::connection::secret::{Credentials, Secret};
use redrive::store::redis::{Access, Address, Durability};

fn tcp(host: &str, port: u16) -> Endpoint {
    Endpoint::Tcp { host: host.into(), port }
}

#[track_caller]
fn good(text: &str) -> Address {
    Address::parse_all([text]).unwrap_or_else(|why| panic!("{text}: {why}"))
}

#[track_caller]
fn bad(text: &str) -> String {
    Address::parse_all([text]).expect_err(text)
}

#[test]
fn one_server() {
    assert_eq!(good("redis://localhost").place, Place::One(tcp("localhost", 6379)));
    let whole = good("redis://ada:s%40crét@cache.example.com:7000/3");
    assert_eq!(whole.place, Place::One(tcp("cache.example.com", 7000)));
    assert_eq!(whole.credentials.user.as_deref(), Some("ada"));
    assert_eq!(whole.credentials.password, Some(Secret::Text("s@crét".into())));
    assert_eq!((whole.db, whole.tls), (3, None));
    assert_eq!(good("redis://[::1]:7000").place, Place::One(tcp("::1", 7000)));
    assert_eq!(good("redis://[::1]").place, Place::One(tcp("::1", 6379)));
    let only_password = good("redis://:pw@h").credentials;
    assert_eq!((only_password.user, only_password.password), (None, Some(Secret::Text("pw".into()))));
}

#[test]
fn tls_and_its_files() {
    assert_eq!(good("rediss://h").tls, Some(Tls::default()));
    let files = |ca: &str| Access { tls: Tls { ca: Some(ca.into()), ..Tls::default() }, ..Access::default() };
    assert_eq!(good("rediss://h").with(&files("/ca.pem")).tls, Some(files("/ca.pem").tls));
    assert_eq!(good("redis://h").with(&files("/ca.pem")).tls, None);
    assert!(good("redis://h").check(&files("/ca.pem")).unwrap_err().contains("write rediss"));
    let half = Access { tls: Tls { cert: Some("/c.pem".into()), ..Tls::default() }, ..Access::default() };
    assert!(good("rediss://h").check(&half).unwrap_err().contains("give both or neither"));
    assert!(bad("rediss://h?ca=/ca.pem").contains("files are named in [redis]"));
}

#[test]
fn a_socket_of_this_machine() {
    let socket = good("redis+unix:///run/redis.sock?db=2&user=u&password=p");
    assert_eq!(socket.place, Place::One(Endpoint::Unix("/run/redis.sock".into())));
    assert_eq!((socket.db, socket.to_string()), (2, "redis+unix://u@/run/redis.sock?db=2".into()));
    assert_eq!(good("unix:///s").place, Place::One(Endpoint::Unix("/s".into())));
    assert!(bad("redis+unix://run/redis.sock").contains("begins at the root"));
}

#[test]
fn sentinels_and_what_they_watch() {
    let address = good("redis+sentinel://:pw@a,b:1,[::1]:2/mymaster/4");
    let sentinels = vec![tcp("a", 26379), tcp("b", 1), tcp("::1", 2)];
    assert_eq!(address.place, Place::Sentinel { sentinels, name: "mymaster".into() });
    assert_eq!(address.db, 4);
    let login = Credentials { user: None, password: Some(Secret::Text("sp".into())) };
    let access = Access { sentinel: login.clone(), ..Access::default() };
    assert_eq!(address.with(&access).sentinel_credentials, login);
    assert!(good("rediss+sentinel://a/m").tls.is_some());
    assert!(bad("redis+sentinel://a:1,b:2").contains("/mymaster"));
    assert!(good("redis://a").check(&access).unwrap_err().contains("redis+sentinel://"));
}

#[test]
fn several_servers_are_a_cluster() {
    let three = Place::Cluster(vec![tcp("a", 1), tcp("b", 2), tcp("c", 6379)]);
    assert_eq!(good("redis://a:1,b:2,c").place, three);
    assert_eq!(good("redis://a:1, redis://b:2,redis://c").place, three);
    let repeated = Address::parse_all(["redis://:pw@a:1", "redis://b:2,c"]).unwrap();
    assert_eq!(repeated.place, three);
    assert!(repeated.credentials.password.is_some());
    assert!(bad("redis://a,b/1").contains("only database 0"));
    assert!(bad("redis://a,rediss://b").contains("in the same way"));
    assert!(bad("redis://:x@a,redis://:y@b").contains("the same user and password"));
    assert!(bad("redis://a,redis+unix:///s").contains("by host and port"));
    assert!(bad("redis://a,redis+sentinel://b/m").contains("none can be of Sentinel"));
}

#[test]
fn what_is_wrong_is_said() {
    assert!(bad("localhost:6379").contains("for example \"redis://127.0.0.1:6379\""));
    assert!(bad("http://localhost").contains("\"http\" is no way to reach Redis"));
    assert!(bad("redis://").contains("\"\" is not the name or address of a host"));
    assert!(bad("redis://h:0").contains("\"0\" is not a port"));
    assert!(bad("redis://h:port").contains("\"port\" is not a port"));
    assert!(bad("redis://h/x").contains("\"x\" is not the number of a database"));
    assert!(bad("redis://h/1/2").contains("more than a database"));
    assert!(bad("redis://h?timeout=3").contains("unknown option \"timeout\"; there are user,"));
    assert!(bad("redis://h?db=").contains("has no value"));
    let unnamed = good("redis://ada@h").check(&Access::default());
    assert!(unnamed.unwrap_err().contains("a user without a password"));
    assert_eq!(Address::parse_all([]).unwrap_err(), "name at least one server");
}

#[test]
fn a_password_is_never_shown() {
    let all =
        ["redis://ada:hunter2@h:1/2", "redis+sentinel://ada:hunter2@h/m", "redis+unix:///s?user=ada&password=hunter2"];
    for text in all {
        let address = good(text);
        let shown = format!("{address} {address:?} {:?}", address.credentials);
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("ada@"), "{shown}");
    }
    let refused = [
        "redis://ada:hunter2%zz@h",
        "redis://:hunter2@h:0",
        "redis://ada:hunter2@h?x=hunter2",
        "redis://ada:hunter2?@h",
        "redis://ada:hunter2@@h",
        "redis://:hunter2@a,:hunter2@b",
        "redis://ada:hunter2@h?password=hunter2%",
    ];
    for text in refused {
        assert!(!bad(text).contains("hunter2"), "{}", bad(text));
    }
}

#[test]
fn levels_of_durability_are_read_as_they_are_written() {
    for level in [Durability::Primary, Durability::Replicated(2), Durability::Fsync(0)] {
        assert_eq!(Durability::parse(&level.to_string()), Some(level));
    }
    for word in ["", "replicated", "replicated(0)", "replicated(-1)", "fsync(101)", "fsync(1"] {
        assert_eq!(Durability::parse(word), None, "{word}");
    }
}
