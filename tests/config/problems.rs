use super::parse;

/// Every problem of a file, each on its line.
#[track_caller]
fn problems(text: &str) -> Vec<String> {
    parse(text).expect_err("a file with problems").lines()
}

/// The one problem of a queue `q` with these keys, without its place.
#[track_caller]
fn refused(keys: &str) -> String {
    let problems = problems(&format!("[queues.q]\n{keys}\n"));
    assert_eq!(problems.len(), 1, "{problems:#?}");
    problems[0].splitn(4, ':').nth(3).unwrap().trim_start().to_owned()
}

#[test]
fn an_unknown_key_is_shown_with_its_near_miss_and_what_is_allowed() {
    let text = "[server]\nlisten = \"127.0.0.1:1\"\n\n[queues.payments]\n    polcy = \"standard\"\n";
    let error = parse(text).unwrap_err().to_string();
    assert_eq!(
        error,
        r#"redrive.toml has 1 problem

redrive.toml:5:5: unknown key "polcy" in [queues.payments]; did you mean "policy"?
  |
5 |     polcy = "standard"
  |     ^^^^^
  = allowed: policy, lease_duration, max_run_time, rules, default_rules, breaker, max_retry_after, max_in_flight, max_rate, breaker_keys, max_depth, key_retention, dead_jobs_hold_keys, completed_retention, dead_letters"#
    );
}

#[test]
fn every_problem_is_reported_in_the_order_of_the_file() {
    let text = r#"
[server]
listn = "127.0.0.1:7433"
log_level = "loud"
[queues."no good"]
[queues.b]
lease_duration = 30
policy = { strategy = "exponental", max_retries = 2000, jitter = "Full" }
[queues.a]
rules = [{ http_status = "6xx", action = "drop" }]
[queue.c]
"#;
    assert_eq!(
        problems(text),
        [
            r#"redrive.toml:3:1: unknown key "listn" in [server]; did you mean "listen"?"#,
            r#"redrive.toml:4:13: unknown log_level "loud""#,
            r#"redrive.toml:5:9: "no good" cannot be the name of a queue: it has 1 to 100 characters of A-Z a-z 0-9 . _ - and the first one a letter or digit"#,
            r#"redrive.toml:7:18: lease_duration: must be a duration in quotes such as "30s", not an integer"#,
            r#"redrive.toml:8:23: unknown strategy "exponental"; did you mean "exponential"?"#,
            r#"redrive.toml:8:51: max_retries: must be between 0 and 1000, not 2000"#,
            r#"redrive.toml:8:66: unknown jitter "Full"; did you mean "full"?"#,
            r#"redrive.toml:10:26: http_status: "6xx" is not an HTTP status: write 100 to 599, or a class such as "4xx""#,
            r#"redrive.toml:10:42: unknown action "drop""#,
            r#"redrive.toml:11:2: unknown key "queue"; did you mean "queues"?"#,
        ]
    );
}

#[test]
fn text_that_is_no_toml_is_shown_at_its_place() {
    let text = "[server]\nlisten = 127.0.0.1\n";
    let shown = parse(text).unwrap_err().to_string();
    assert!(shown.starts_with("redrive.toml has 1 problem\n\nredrive.toml:2:"), "{shown}");
    assert!(shown.contains("\n2 | listen = 127.0.0.1\n"), "{shown}");
    let twice = problems("[server]\ndata = \"a\"\ndata = \"b\"\n");
    assert_eq!(twice, ["redrive.toml:3:1: duplicate key"]);
}

#[test]
fn unknown_keys_inside_name_the_table_they_are_in() {
    for (keys, message) in [
        ("policy = { base = \"1s\" }", r#"unknown key "base" in policy of [queues.q]"#),
        (
            "breaker = { failure_treshold = 3 }",
            r#"unknown key "failure_treshold" in breaker of [queues.q]; did you mean "failure_threshold"?"#,
        ),
        (
            "dead_letters = { breaker = { disable = true } }",
            r#"unknown key "disable" in breaker of dead_letters of [queues.q]; did you mean "disabled"?"#,
        ),
        (
            "rules = [{ http_staus = 503, error_type = \"x\", action = \"hold\" }]",
            r#"unknown key "http_staus" in rules[0] of [queues.q]; did you mean "http_status"?"#,
        ),
    ] {
        assert_eq!(refused(keys), message);
    }
}

#[test]
fn durations_that_are_none_say_why() {
    assert_eq!(
        refused("lease_duration = \"30\""),
        r#"lease_duration: "30" is not a duration: 30 has no unit (ms, s, m, h or d); write for example "500ms", "30s" or "1h30m""#
    );
    assert_eq!(
        refused("policy = { delays = [\"1s\", \"soon\"], strategy = \"list\" }"),
        r#"delays: "soon" is not a duration: "soon" is not a unit (ms, s, m, h or d); write for example "500ms", "30s" or "1h30m""#
    );
}

#[test]
fn unknown_words_name_their_near_miss() {
    for (keys, message) in [
        ("policy = \"standrd\"", r#"unknown preset "standrd"; did you mean "standard"?"#),
        ("policy = { preset = \"full_jitter\" }", r#"unknown preset "full_jitter"; did you mean "full-jitter"?"#),
        ("policy = { strategy = \"fibonaci\" }", r#"unknown strategy "fibonaci"; did you mean "fibonacci"?"#),
        ("policy = { jitter = \"decorelated\" }", r#"unknown jitter "decorelated"; did you mean "decorrelated"?"#),
        (
            "rules = [{ error_type = \"x\", action = \"dead_letter\" }]",
            r#"unknown action "dead_letter"; did you mean "dead-letter"?"#,
        ),
    ] {
        assert_eq!(refused(keys), message);
    }
}

#[test]
fn an_unknown_word_is_followed_by_those_allowed() {
    let error = parse("[queues.q]\nrules = [{ error_type = \"x\", action = \"ignore\" }]");
    let shown = error.unwrap_err().to_string();
    assert!(shown.ends_with("\n  = allowed: dead-letter, release, hold"), "{shown}");
}

#[test]
fn values_out_of_range_name_the_range() {
    for (keys, message) in [
        ("policy = { max_retries = -1 }", "max_retries: must be between 0 and 1000, not -1"),
        ("policy = { factor = 0.5 }", "factor: must be between 1 and 1000, not 0.5"),
        ("policy = { factor = nan }", "factor: must be between 1 and 1000, not NaN"),
        ("policy = { jitter_fraction = 2 }", "jitter_fraction: must be between 0 and 1, not 2"),
        ("policy = { base_delay = \"400d\" }", "base_delay: must be at most 366d, not 400d"),
        ("policy = { strategy = \"list\", delays = [\"400d\"] }", "delays: each must be at most 366d, not 400d"),
        ("policy = { delays = [] }", "delays: give at least one, or leave the key out"),
        ("lease_duration = \"0s\"", "lease_duration: must be between 1s and 1d, not 0s"),
        ("max_retry_after = \"367d\"", "max_retry_after: must be at most 366d, not 367d"),
        ("max_depth = 0", "max_depth: must be between 1 and 1000000000000, not 0"),
        ("breaker = { failure_threshold = 0 }", "failure_threshold: must be between 1 and 1000000, not 0"),
        ("breaker = { recovery_timeout = \"0s\" }", "recovery_timeout: must be between 1ms and 366d, not 0s"),
        ("dead_letters = { retention = \"0s\" }", "retention: must be between 1s and 36500d, not 0s"),
    ] {
        assert_eq!(refused(keys), message);
    }
}

#[test]
fn a_value_that_is_refused_is_not_compared_with_others() {
    assert_eq!(
        refused("lease_duration = \"0s\"\nmax_run_time = \"10s\""),
        "lease_duration: must be between 1s and 1d, not 0s"
    );
    assert_eq!(refused("lease_duration = \"1h\"\nmax_run_time = \"0s\"").split(':').next(), Some("max_run_time"));
    assert_eq!(refused("max_run_time = \"10s\""), "lease_duration: 30s is longer than max_run_time, 10s");
}

#[test]
fn values_of_the_wrong_type_name_the_right_one() {
    for (keys, message) in [
        ("policy = 3", "policy: must be the name of a preset or a table, not an integer"),
        ("default_rules = \"no\"", "default_rules: must be true or false, not a string"),
        ("max_depth = 1.5", "max_depth: must be a whole number or \"unlimited\", not a float"),
        ("breaker = \"off\"", "breaker: must be a table, not a string"),
        ("policy = { factor = \"2\" }", "factor: must be a number, not a string"),
        (
            "rules = { error_type = \"x\", action = \"hold\" }",
            "rules: must be a list of tables such as \
             [{ http_status = \"429\", action = \"hold\" }], not a table",
        ),
        (
            "rules = [{ http_status = true, action = \"hold\" }]",
            "http_status: must be a status such as \"503\" or \"5xx\", not a boolean",
        ),
        ("policy = { delays = [1] }", "delays: must be a list of durations such as [\"1s\", \"1m\"], not an integer"),
    ] {
        assert_eq!(refused(keys), message);
    }
    assert_eq!(
        problems("queues = 3"),
        ["redrive.toml:1:10: queues: must be tables such as [queues.payments], not an integer"]
    );
    assert_eq!(problems("[queues]\nq = 3"), ["redrive.toml:2:5: queues.q: must be a table, not an integer"]);
}

#[test]
fn a_rule_has_either_a_policy_or_an_action() {
    assert_eq!(
        problems("[queues.q]\nrules = [{ error_type = \"x\", policy = \"patient\", action = \"hold\" }]"),
        ["redrive.toml:2:50: rules[0]: has both policy and action; keep one"]
    );
    assert_eq!(
        problems("[queues.q]\nrules = [\n  { http_status = 503 },\n]"),
        ["redrive.toml:3:3: rules[0]: needs a policy or an action"]
    );
}

#[test]
fn a_rule_that_looks_for_nothing_is_refused() {
    assert_eq!(
        problems("[queues.q]\nrules = [{ action = \"hold\" }]"),
        ["redrive.toml:2:10: rules[0]: a rule needs category, code, error_type, http_status or message_contains"]
    );
    assert_eq!(
        refused("rules = [{ error_type = \"\", action = \"hold\" }]"),
        "rules[0]: error_type must not be empty; write for example \"Timeout*\""
    );
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let list = "policy: strategy \"list\" needs at least one delay";
    assert_eq!(refused("policy = { strategy = \"list\" }"), list);
    assert_eq!(refused("rules = [{ http_status = 503, policy = { strategy = \"list\" } }]"), list);
    assert_eq!(
        refused("lease_duration = \"2h\"\nmax_run_time = \"1h\""),
        "lease_duration: 2h is longer than max_run_time, 1h"
    );
}

#[test]
fn inherited_rules_must_go_with_the_queues_own_policy() {
    let text = r#"
[defaults]
policy = { delays = ["1s"], strategy = "list" }
rules = [{ http_status = 503, policy = { strategy = "list" } }]
[queues.q]
policy = "patient"
"#;
    assert_eq!(
        problems(text),
        ["redrive.toml:6:10: policy: does not go with the inherited rules[0]: \
             http_status=503: strategy \"list\" needs at least one delay"]
    );
}

#[test]
fn the_server_section_is_held_to_its_values() {
    let text = "[server]\nlisten = \"localhost\"\ndata = \"\"\nshutdown_timeout = \"2h\"\n\
                log_format = \"jsn\"\n";
    assert_eq!(
        problems(text),
        [
            r#"redrive.toml:2:10: listen: "localhost" is not an address to listen on: write an IP address and a port, for example "127.0.0.1:7433" or "[::1]:7433""#,
            r#"redrive.toml:3:8: data: must not be empty; write for example "./redrive-data""#,
            r#"redrive.toml:4:20: shutdown_timeout: must be at most 1h, not 2h"#,
            r#"redrive.toml:5:14: unknown log_format "jsn"; did you mean "json"?"#,
        ]
    );
}

/// What is shown of the problem that begins like this.
#[track_caller]
fn shown(text: &str, begins: &str) -> String {
    let error = parse(text).unwrap_err().to_string();
    let problem = error.split("\n\n").find(|problem| problem.starts_with(begins));
    problem.unwrap_or_else(|| panic!("{error}")).to_owned()
}

#[test]
fn a_place_is_told_as_editors_count() {
    let shown = shown("[queues]\n\"ü\" = \"ß\" # x\n", "redrive.toml:2:7: ");
    assert!(shown.ends_with("\n  |\n2 | \"ü\" = \"ß\" # x\n  |       ^^^"), "{shown}");
}

#[test]
fn the_end_of_the_file_is_a_place_too() {
    let shown = shown("a =", "redrive.toml:1:4: ");
    assert!(shown.ends_with("\n  |\n1 | a =\n  |    ^"), "{shown}");
}

#[test]
fn the_caret_keeps_to_the_line_and_to_its_tabs() {
    let shown = shown("[queues.q]\n\tmax_depth = [1,\n2]", "redrive.toml:2:14: ");
    assert!(shown.ends_with("\n  |\n2 | \tmax_depth = [1,\n  | \t            ^^^"), "{shown}");
}

#[test]
fn a_line_is_shown_without_its_passwords() {
    let text = "[server]\nredis = \"redis://ada:pw@h:0?password=pw&db=1\"\n[redis]\nsentinel_password = \"pw\" x";
    let lines = shown(text, "redrive.toml:4:26: ");
    assert!(lines.contains("\n4 | sentinel_password = \"**\" x\n"), "{lines}");
    let text = "[server]\nredis = \"redis://ada:pw@h:0?password=pw&db=1\"";
    let lines = shown(text, "redrive.toml:2:9: ");
    assert!(lines.contains("\n2 | redis = \"redis://******@h:0?password=**&db=1\"\n"), "{lines}");
}

#[test]
fn the_near_miss_is_near() {
    for (key, meant) in [("polcy", "policy"), ("Max-Depth", "max_depth"), ("rule", "rules")] {
        let message = format!("unknown key {key:?} in [queues.q]; did you mean {meant:?}?");
        assert_eq!(refused(&format!("{key} = 1")), message);
    }
    assert_eq!(refused("colour = 1"), "unknown key \"colour\" in [queues.q]");
}
