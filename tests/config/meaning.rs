use super::{FILE, parse, queue, seconds};
use redrive::config::changes;
use redrive::domain::{
    BreakerSettings, DeadLetterSettings, ErrorRule, FailureCategory, Glob, Jitter, Matcher, MaxRate, PolicyOverride,
    Preset, RetryPolicy, StatusPattern, Strategy, Then, default_rules,
};
use redrive::store::redis::connection::secret::{Credentials, Secret};
use std::{path::Path, time::Duration};

const EXAMPLE: &str = r#"
[server]
listen = "127.0.0.1:7433"
data = "./redrive-data"

[defaults]                              # every queue inherits these
policy = "standard"
lease_duration = "30s"

[queues.payments]
policy = { strategy = "exponential", base_delay = "500ms", max_delay = "1m", jitter = "full", max_retries = 8 }
rules = [ { http_status = "429", action = "hold" }, { http_status = "408", policy = "transient" },
          { http_status = "4xx", action = "dead-letter" }, { error_type = "PlexNotFound*", policy = "library-scan" } ]
breaker = { failure_threshold = 5, recovery_timeout = "60s", half_open_max_calls = 1, success_threshold = 1 }
dead_letters = { max_entries = 100000, retention = "30d", breaker = { failure_threshold = 5, recovery_timeout = "60s" } }
completed_retention = "1h"
"#;

fn on_status(pattern: StatusPattern) -> Matcher {
    Matcher { http_status: Some(pattern), ..Matcher::default() }
}

fn preset(preset: Preset) -> Then {
    Then::Policy(PolicyOverride { preset: Some(preset), ..PolicyOverride::default() })
}

#[test]
fn the_example_means_what_it_says() {
    let config = parse(EXAMPLE).unwrap();
    assert_eq!(config.listen, "127.0.0.1:7433".parse().unwrap());
    assert_eq!(config.data, Path::new("./redrive-data"));
    assert_eq!(config.source.as_deref(), Some(Path::new(FILE)));
    assert_eq!(config.warnings, [""; 0]);

    let defaults = &config.settings.defaults;
    assert_eq!(defaults.policy, Preset::Standard.policy());
    assert_eq!(defaults.rules, []);
    assert_eq!(config.settings.queues.len(), 1);

    let payments = queue(EXAMPLE, "payments");
    let policy = RetryPolicy {
        max_retries: 8,
        strategy: Strategy::Exponential,
        base_delay: Duration::from_millis(500),
        max_delay: seconds(60),
        jitter: Jitter::Full,
        ..Preset::Standard.policy()
    };
    assert_eq!(payments.policy, policy);
    let plex = Matcher { error_type: Some(Glob::new("PlexNotFound*")), ..Matcher::default() };
    let rules = [
        ErrorRule::at(0, on_status(StatusPattern::Exact(429)), Then::Hold),
        ErrorRule::at(1, on_status(StatusPattern::Exact(408)), preset(Preset::Transient)),
        ErrorRule::at(2, on_status(StatusPattern::Class(4)), Then::DeadLetter),
        ErrorRule::at(3, plex, preset(Preset::LibraryScan)),
    ];
    assert_eq!(payments.rules, rules);
    assert_eq!(payments.default_rules, default_rules());
    assert_eq!(payments.lease_duration, seconds(30));
    assert_eq!(payments.completed_retention, Some(seconds(3_600)));
    assert_eq!(payments.breaker, BreakerSettings { recovery_timeout: seconds(60), ..BreakerSettings::default() });
    let dead = DeadLetterSettings { retention: Some(seconds(30 * 86_400)), ..DeadLetterSettings::default() };
    assert_eq!(payments.dead_letters, dead);
}

#[test]
fn an_empty_file_leaves_the_built_in_values() {
    let config = parse("").unwrap();
    assert!(config.settings.queues.is_empty());
    assert_eq!(config.settings.defaults.policy, RetryPolicy::default());
    assert_eq!(config.shutdown_timeout, seconds(20));
}

#[test]
fn every_key_of_a_queue_is_read() {
    let text = r#"
        [queues.q]
        rules = [{ category = "rate-limited", code = "E*", error_type = "A*", http_status = 503, message_contains = "busy", action = "release" }]
        default_rules = false
        lease_duration = "2m"
        max_run_time = "10m"
        max_retry_after = "5m"
        max_depth = 1_000
        max_in_flight = 50
        max_rate = "30/m"
        key_retention = "2h"
        dead_jobs_hold_keys = true
        completed_retention = "7d"
        [queues.q.policy]
        preset = "patient"
        strategy = "list"
        delays = ["1s", "1m"]
        factor = 3
        jitter = "additive"
        jitter_fraction = 0.5
        jitter_max = "3s"
        [queues.q.breaker]
        failure_threshold = 7
        recovery_timeout = "9s"
        first_probe = "2s"
        outage_grace = "1h"
        ramp = false
        half_open_max_calls = 2
        success_threshold = 3
        disabled = true
        [queues.q.dead_letters]
        max_entries = 10
        retention = "1d"
        breaker.failure_threshold = 2
    "#;
    let q = queue(text, "q");
    let matcher = Matcher {
        category: Some(FailureCategory::RateLimited),
        code: Some(Glob::new("E*")),
        error_type: Some(Glob::new("A*")),
        http_status: Some(StatusPattern::Exact(503)),
        message_contains: Some("busy".into()),
        ..Matcher::default()
    };
    assert_eq!(q.rules, [ErrorRule::at(0, matcher, Then::Release)]);
    assert_eq!(q.default_rules, []);
    assert_eq!((q.lease_duration, q.max_run_time), (seconds(120), seconds(600)));
    assert_eq!((q.max_retry_after, q.max_depth), (seconds(300), Some(1_000)));
    assert_eq!((q.max_in_flight, q.max_rate), (Some(50), Some(MaxRate::parse("30/m").unwrap())));
    assert_eq!((q.key_retention, q.dead_jobs_hold_keys), (seconds(7_200), true));
    assert_eq!(q.completed_retention, Some(seconds(7 * 86_400)));
    let policy = RetryPolicy {
        strategy: Strategy::List,
        delays: vec![seconds(1), seconds(60)],
        factor: 3.0,
        jitter: Jitter::Additive,
        jitter_fraction: 0.5,
        jitter_max: seconds(3),
        ..Preset::Patient.policy()
    };
    assert_eq!(q.policy, policy);
    let breaker = BreakerSettings {
        failure_threshold: 7,
        first_probe: seconds(2),
        recovery_timeout: seconds(9),
        half_open_max_calls: 2,
        success_threshold: 3,
        outage_grace: seconds(3_600),
        ramp: false,
        disabled: true,
    };
    assert_eq!(q.breaker, breaker);
    let dead = DeadLetterSettings {
        max_entries: 10,
        retention: Some(seconds(86_400)),
        breaker: BreakerSettings { failure_threshold: 2, ..DeadLetterSettings::default().breaker },
    };
    assert_eq!(q.dead_letters, dead);
}

const INHERITED: &str = r#"
    [defaults]
    policy = { preset = "transient", max_retries = 7 }
    rules = [{ http_status = "5xx", action = "hold" }]
    default_rules = false
    lease_duration = "2m"
    max_depth = 100
    completed_retention = "1h"
    breaker = { failure_threshold = 9, disabled = true }
    dead_letters = { max_entries = 50, retention = "1d", breaker = { failure_threshold = 3 } }

    [queues.own]
    policy = { base_delay = "2s" }
    rules = [{ error_type = "X", action = "release" }]
    default_rules = true
    max_depth = "unlimited"
    completed_retention = "0s"
    breaker = { failure_threshold = 4 }
    dead_letters = { retention = "forever", breaker = { recovery_timeout = "5s" } }

    [queues.heir]

    [queues.named]
    policy = "patient"
"#;

#[test]
fn a_queue_without_a_key_has_that_of_the_defaults() {
    for name in ["heir", "unheard-of"] {
        let heir = queue(INHERITED, name);
        assert_eq!(heir.policy, RetryPolicy { max_retries: 7, ..Preset::Transient.policy() });
        assert_eq!(heir.rules.len(), 1);
        assert_eq!(heir.default_rules, []);
        assert_eq!(heir.lease_duration, seconds(120));
        assert_eq!(heir.max_depth, Some(100));
        assert!(heir.breaker.disabled);
        assert_eq!(heir.dead_letters.max_entries, 50);
    }
}

#[test]
fn what_a_queue_gives_goes_over_the_defaults_field_by_field() {
    let own = queue(INHERITED, "own");
    let policy = RetryPolicy { max_retries: 7, base_delay: seconds(2), ..Preset::Transient.policy() };
    assert_eq!(own.policy, policy);
    assert_eq!(own.default_rules, default_rules());
    assert_eq!((own.breaker.failure_threshold, own.breaker.disabled), (4, true));
    assert_eq!(own.dead_letters.max_entries, 50);
    let breaker = &own.dead_letters.breaker;
    assert_eq!((breaker.failure_threshold, breaker.recovery_timeout), (3, seconds(5)));
}

#[test]
fn a_queues_own_rules_replace_those_of_the_defaults() {
    let names: Vec<_> = queue(INHERITED, "own").rules.iter().map(|r| r.name.clone()).collect();
    assert_eq!(names, ["rules[0]: error_type=X"]);
}

#[test]
fn a_queue_can_take_back_a_limit_that_it_would_inherit() {
    let own = queue(INHERITED, "own");
    assert_eq!(own.max_depth, None);
    assert_eq!(own.completed_retention, None);
    assert_eq!(own.dead_letters.retention, None);
}

#[test]
fn a_preset_named_by_a_queue_sets_every_field() {
    assert_eq!(queue(INHERITED, "named").policy, Preset::Patient.policy());
}

#[test]
fn a_rule_with_an_empty_policy_exempts_an_error_from_the_rules_below() {
    let text = "[queues.q]\nrules = [{ error_type = \"NotFoundError\", policy = {} }]";
    let then = queue(text, "q").rules[0].then.clone();
    assert_eq!(then, Then::Policy(PolicyOverride::default()));
}

#[test]
fn what_is_probably_not_meant_is_a_warning() {
    let text = r#"
        [queues.slow]
        policy = { base_delay = "1h" }
        rules = [{ http_status = "5xx", policy = { base_delay = "2h" } }]
    "#;
    assert_eq!(
        parse(text).unwrap().warnings,
        [
            "[queues.slow]: base_delay asks for 1h but max_delay cuts it to 30s",
            "[queues.slow] rules[0]: http_status=5xx: base_delay asks for 2h but max_delay cuts \
             it to 30s",
        ]
    );
}

#[test]
fn policies_are_listed_by_name_with_those_of_their_rules() {
    let text = r#"
        [queues.b]
        [queues.a]
        policy = "one-shot"
        rules = [{ http_status = "5xx", policy = "patient" }, { http_status = "4xx", action = "hold" }]
    "#;
    let listed: Vec<_> = parse(text)
        .unwrap()
        .policies()
        .into_iter()
        .map(|named| (named.queue, named.rule, named.policy.max_retries))
        .collect();
    let rule = Some("rules[0]: http_status=5xx".to_owned());
    let (a, b) = (Some("a".to_owned()), Some("b".to_owned()));
    assert_eq!(listed, [(None, None, 3), (a.clone(), None, 0), (a, rule, 20), (b, None, 3)]);
}

#[test]
fn the_table_redis_has_the_files_and_logins_that_no_address_has() {
    let file = "[server]\nredis = \"rediss+sentinel://a/mymaster\"\n\
                [redis]\nca = \"/ca.pem\"\npassword_file = \"/pw\"\nsentinel_user = \"s\"\nsentinel_password = \"sp\"";
    let config = parse(file).unwrap();
    let address = config.redis.unwrap();
    assert_eq!(address.tls.unwrap().ca.as_deref(), Some("/ca.pem".as_ref()));
    assert_eq!(address.credentials.password, Some(Secret::File("/pw".into())));
    let sentinel = Credentials { user: Some("s".into()), password: Some(Secret::Text("sp".into())) };
    assert_eq!(address.sentinel_credentials, sentinel);
    let refused =
        |keys: &str| parse(&format!("[server]\nredis = \"redis://a\"\n[redis]\n{keys}")).unwrap_err().to_string();
    assert_eq!(
        refused("ca = \"/ca.pem\""),
        "[redis]: ca, cert and key are for TLS: write rediss in place of redis in the address"
    );
    assert!(refused("sentinel_password = \"x\"\nsentinel_password_file = \"y\"").contains("give either"));
    assert!(refused("cer = \"x\"").contains("did you mean \"cert\"?"));
}

#[test]
fn what_is_down_is_waited_for_until_a_file_sets_max_retries() {
    let patient = |text: &str| queue(text, "q").patient.clone();
    let default = Preset::Patient.policy();
    assert_eq!(patient("[queues.q]"), Some(default.clone()));
    let slower = PolicyOverride { base_delay: Some(seconds(9)), ..PolicyOverride::default() };
    assert_eq!(patient("[queues.q]\npolicy = { base_delay = \"9s\" }"), Some(default.apply(&slower)));
    assert_eq!(patient("[defaults]\npolicy = { base_delay = \"9s\" }\n[queues.q]"), Some(default.apply(&slower)));
    for text in [
        "[queues.q]\npolicy = { max_retries = 3 }",
        "[queues.q]\npolicy = \"standard\"",
        "[defaults]\npolicy = { max_retries = 3 }\n[queues.q]\npolicy = { base_delay = \"9s\" }",
    ] {
        assert_eq!(patient(text), None, "{text}");
    }
}

#[test]
fn a_reload_says_that_rules_of_equal_number_differ_and_whether_what_is_down_is_waited_for() {
    let lines = |old: &str, new: &str| changes(&parse(old).unwrap().settings, &parse(new).unwrap().settings);
    let rules = |types: &[&str]| {
        let rules: Vec<_> =
            types.iter().map(|name| format!("{{ error_type = \"{name}\", action = \"release\" }}")).collect();
        format!("[queues.q]\nrules = [{}]", rules.join(", "))
    };
    assert_eq!(lines(&rules(&["A"]), &rules(&["B"])), ["queue q: rules 1 rule -> 1 other rule"]);
    assert_eq!(lines(&rules(&["A", "B"]), &rules(&["A", "C"])), ["queue q: rules 2 rules -> 2 other rules"]);
    assert_eq!(lines(&rules(&["A"]), &rules(&["A", "B"])), ["queue q: rules 1 rule -> 2 rules"]);
    assert_eq!(lines(&rules(&["A"]), &rules(&["A"])), [""; 0]);
    // The number stays, but is set now: what is down is waited for no longer.
    assert_eq!(
        lines("[queues.q]", "[queues.q]\npolicy = { max_retries = 3 }"),
        ["queue q: what is down 21 attempts over 4h34m7.5s to 9h8m15s -> as other failures"]
    );
}

#[test]
fn limits_of_breaker_keys_are_read_in_the_order_of_the_file() {
    let file = r#"
[defaults.breaker_keys."*"]
max_in_flight = 100

[queues.mails.breaker_keys."smtp.example.com"]
max_rate = "10/s"

[queues.mails.breaker_keys."*.example.com"]
max_in_flight = 5
max_rate = "unlimited"
"#;
    let config = parse(file).unwrap();
    let mails = config.settings.queue(&redrive::domain::QueueName::parse("mails").unwrap());
    let patterns: Vec<_> = mails.breaker_keys.iter().map(|limits| limits.keys.as_str()).collect();
    assert_eq!(patterns, ["smtp.example.com", "*.example.com"]);
    assert_eq!(mails.limits_of_key("smtp.example.com").unwrap().max_rate, Some(MaxRate::parse("10/s").unwrap()));
    assert_eq!(mails.limits_of_key("imap.example.com").unwrap().max_in_flight, Some(5));
    assert!(mails.limits_of_key("other").is_none(), "a table of a queue's own goes before that of the defaults");
    assert_eq!(config.settings.defaults.limits_of_key("other").unwrap().max_in_flight, Some(100));
}

#[test]
fn a_limit_of_a_breaker_key_that_is_wrong_is_shown_with_its_place() {
    let file = "[queues.mails.breaker_keys]\nother = 5\nsmtp = { max_rat = \"10/s\" }\n";
    let problems = parse(file).unwrap_err().to_string();
    assert!(problems.contains("unknown key \"max_rat\" in breaker_keys.\"smtp\""), "{problems}");
    assert!(problems.contains("breaker_keys.\"other\": must be a table, not an integer"), "{problems}");
}
