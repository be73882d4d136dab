use clap::{CommandFactory, Parser};
use redrive::cli::Cli;
use redrive::config::{LogFormat, LogLevel, Overrides};
use std::path::Path;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    overrides: Overrides,
}

fn read(flags: &str) -> Result<Overrides, clap::Error> {
    let words = std::iter::once("serve").chain(flags.split_whitespace());
    Line::try_parse_from(words).map(|line| line.overrides)
}

#[test]
fn the_tree_of_commands_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn flags_become_overrides() {
    let given = read(
        "--config c.toml --data d --listen [::1]:1 --insecure --durability none --log-level debug --log-format json",
    )
    .unwrap();
    assert_eq!(given.config.as_deref(), Some(Path::new("c.toml")));
    assert_eq!(given.data.as_deref(), Some(Path::new("d")));
    assert_eq!(given.listen, "[::1]:1".parse().ok());
    assert_eq!((given.insecure, given.durability), (Some(true), "none".parse().ok()));
    assert_eq!((given.log_level, given.log_format), (Some(LogLevel::Debug), Some(LogFormat::Json)));
    assert_eq!(read("--insecure=no").unwrap().insecure, Some(false));
}

#[test]
fn several_addresses_of_redis_are_gathered() {
    let given = read("--redis redis://a --redis redis://b --durability replicated(2)").unwrap();
    assert_eq!(given.redis, ["redis://a".into(), "redis://b".into()]);
    assert!(!format!("{given:?}").contains("redis://"));
    assert_eq!(given.durability, "replicated(2)".parse().ok());
}

#[test]
fn values_that_are_none_are_usage_errors_with_an_example() {
    for (flags, example) in
        [("--listen here", "for example \"127.0.0.1:7433\""), ("--durability quorum", "\"replicated(n)\"")]
    {
        let error = read(flags).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(example), "{error}");
    }
}
