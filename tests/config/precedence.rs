use super::{parse, parse_under, seconds};
use redrive::config::{Config, ConfigError, Durability, Exposed, Log, LogFormat, LogLevel, Overrides, Unread};
use redrive::store::sqlite;
use std::{fs, path::Path};

const TEXT: &str = r#"
    [server]
    listen = "127.0.0.1:1000"
    data = "/file"
    insecure = true
    shutdown_timeout = "5s"
    log_format = "json"
    log_level = "debug"
"#;

#[test]
fn the_file_goes_over_what_is_built_in() {
    let built_in = Config::resolve(&Overrides::default(), None).unwrap();
    assert_eq!(built_in.listen, "127.0.0.1:7433".parse().unwrap());
    assert_eq!(built_in.data, Path::new("./redrive-data"));
    assert_eq!((built_in.insecure, built_in.source), (false, None));
    assert_eq!((built_in.log.format, built_in.log.level), (LogFormat::Auto, LogLevel::Info));

    let from_file = parse(TEXT).unwrap();
    assert_eq!(from_file.listen, "127.0.0.1:1000".parse().unwrap());
    assert_eq!(from_file.data, Path::new("/file"));
    assert_eq!((from_file.insecure, from_file.shutdown_timeout), (true, seconds(5)));
    assert_eq!((from_file.log.format, from_file.log.level), (LogFormat::Json, LogLevel::Debug));
}

#[test]
fn environment_and_flags_go_over_the_file() {
    let overrides = Overrides {
        listen: Some("[::1]:2000".parse().unwrap()),
        data: Some("/flag".into()),
        insecure: Some(false),
        durability: Some(Durability::Embedded(sqlite::Durability::None)),
        log_format: Some(LogFormat::Text),
        log_level: Some(LogLevel::Warn),
        log_directives: Some("redrive=trace".into()),
        ..Overrides::default()
    };
    let config = parse_under(&overrides, TEXT).unwrap();
    assert_eq!(config.listen, "[::1]:2000".parse().unwrap());
    assert_eq!(config.data, Path::new("/flag"));
    assert_eq!((config.insecure, config.durability), (false, Durability::Embedded(sqlite::Durability::None)));
    let log = Log { format: LogFormat::Text, level: LogLevel::Warn, directives: Some("redrive=trace".into()) };
    assert_eq!(config.log, log);
}

#[test]
fn the_file_that_is_named_must_be_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("none.toml");
    let overrides = Overrides { config: Some(path.clone()), ..Overrides::default() };
    let message = Config::load(&overrides).unwrap_err().to_string();
    let expected = format!("cannot read the configuration file {}: No such", path.display());
    assert!(message.starts_with(&expected), "{message}");
}

#[test]
fn a_file_is_read_from_where_it_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("some.toml");
    fs::write(&path, TEXT).unwrap();
    let overrides = Overrides { config: Some(path.clone()), ..Overrides::default() };
    let config = Config::load(&overrides).unwrap();
    assert_eq!(config.data, Path::new("/file"));
    assert_eq!(config.source, Some(path));
}

#[test]
fn only_a_loopback_address_is_open_without_asking() {
    let exposed = |listen: &str, insecure| {
        let overrides =
            Overrides { listen: Some(listen.parse().unwrap()), insecure: Some(insecure), ..Overrides::default() };
        Config::resolve(&overrides, None).unwrap().check_exposure().is_err()
    };
    for listen in ["127.0.0.1:1", "127.8.9.10:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        assert!(!exposed(listen, false), "{listen}");
    }
    for listen in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "192.168.1.1:1", "[2001:db8::1]:1"] {
        assert!(exposed(listen, false), "{listen}");
        assert!(!exposed(listen, true), "{listen}");
    }
}

#[test]
fn a_refused_address_comes_with_what_to_do() {
    assert_eq!(
        Exposed("0.0.0.0:7433".parse().unwrap()).to_string(),
        "refusing to listen on 0.0.0.0:7433: other machines can reach this address, and there are \
         no keys yet, so all who reach it could read, add and delete jobs\n\
         listen on 127.0.0.1:7433, or pass --insecure (or insecure = true in [server]) if only \
         machines you trust reach it"
    );
}

#[test]
fn keys_of_the_server_that_changed_are_named() {
    let running = parse("").unwrap();
    assert_eq!(running.restart_keys(&running), [""; 0]);
    assert_eq!(
        parse(TEXT).unwrap().restart_keys(&running),
        ["listen", "data", "insecure", "shutdown_timeout", "log_format", "log_level"]
    );
    let queues_only = parse("[defaults]\npolicy = \"patient\"").unwrap();
    assert_eq!(queues_only.restart_keys(&running), [""; 0]);
}

fn redis(text: &str) -> Vec<Unread> {
    vec![text.into()]
}

#[test]
fn jobs_are_kept_in_one_place_and_the_nearest_word_says_where() {
    let file = |text: &str| parse(&format!("[server]\n{text}")).unwrap();
    let from_file = file("redis = \"redis://a:1\"");
    assert_eq!(from_file.redis.unwrap().to_string(), "redis://a:1");
    assert_eq!(from_file.durability.to_string(), "primary");
    let listed = file("redis = [\"redis://a:1\", \"redis://b:2\"]\ndurability = \"fsync(1)\"");
    assert_eq!(listed.redis.unwrap().to_string(), "redis://a:1,b:2");
    assert_eq!(listed.durability.to_string(), "fsync(1)");

    let text = "[server]\nredis = \"redis://a:1\"";
    let over = |overrides: Overrides| parse_under(&overrides, text);
    let data = over(Overrides { data: Some("/d".into()), ..Overrides::default() }).unwrap();
    assert_eq!((data.data.as_path(), data.redis), (Path::new("/d"), None));
    assert_eq!(data.durability, Durability::Embedded(sqlite::Durability::Fsync));
    let other = over(Overrides { redis: redis("redis://b"), ..Overrides::default() }).unwrap();
    assert_eq!(other.redis.unwrap().to_string(), "redis://b:6379");
}

#[test]
fn two_places_for_jobs_are_refused() {
    let both = Overrides { data: Some("/d".into()), redis: redis("redis://a"), ..Overrides::default() };
    assert!(matches!(Config::resolve(&both, None), Err(ConfigError::TwoPlaces)));
    let error = parse("[server]\ndata = \"d\"\nredis = \"redis://a\"").unwrap_err();
    assert_eq!(error.lines(), ["redrive.toml:3:1: redis: jobs are kept in one place: give either data or redis"]);
}

#[test]
fn an_address_of_redis_that_is_none_is_refused_without_its_password() {
    let flag = Overrides { redis: redis("redis://:hunter2@h:0"), ..Overrides::default() };
    let error = Config::resolve(&flag, None).unwrap_err();
    assert!(error.to_string().starts_with("--redis (or REDRIVE_REDIS): \"0\" is not a port"));
    let error = parse("[server]\nredis = \"redis://:hunter2@h:0\"").unwrap_err().to_string();
    assert!(error.contains("redrive.toml:2:9: redis: \"0\" is not a port"), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn a_durability_of_the_other_engine_is_refused() {
    let error = parse("[server]\ndurability = \"primary\"").unwrap_err().to_string();
    assert!(error.starts_with("the embedded store has no durability \"primary\""), "{error}");
    let error = parse("[server]\nredis = \"redis://a\"\ndurability = \"none\"").unwrap_err();
    assert!(error.to_string().starts_with("the Redis engine has no durability \"none\""));
    let error = parse("[server]\ndurability = \"much\"").unwrap_err().to_string();
    assert!(error.contains("durability: \"much\" is none of \"fsync\""), "{error}");
}

#[test]
fn the_level_is_that_of_redrive_and_rust_log_goes_over_it() {
    for (level, given, expected) in [
        (LogLevel::Debug, None, "warn,redrive=debug"),
        (LogLevel::Error, None, "error"),
        (LogLevel::Info, Some("h2=trace"), "h2=trace"),
    ] {
        let log = Log { format: LogFormat::Auto, level, directives: given.map(str::to_owned) };
        assert_eq!(log.filter(), expected);
        assert!(tracing_subscriber::EnvFilter::try_new(log.filter()).is_ok());
    }
}
