//! What the commands print, where no server runs.

use crate::server::{Launch, config_file, scratch};
use std::process::Command;

#[test]
fn a_good_file_is_reported_with_how_long_each_queue_keeps_trying() {
    let place = scratch();
    let text = r#"
        [queues.payments]
        policy = { preset = "chronos-fixed", base_delay = "2h" }
        rules = [{ http_status = "408", policy = "transient" }]
        [queues.mail]
        policy = "one-shot"
    "#;
    let path = config_file(place.path(), text);
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    let output = command.args(["config", "check"]).arg(&path).env_clear().output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!(
            "{}: ok\n\n\
             (other queues)  4 attempts over 7s to 8.75s\n\
             mail            1 attempt, no retries\n\
             payments        4 attempts over 2h24m to 3h36m\n\
             \x20                 rules[0]: http_status=408: 6 attempts over 0s to 2m35s\n\
             \nwarning: [queues.payments]: base_delay asks for 2h but max_delay cuts it to 1h\n",
            path.display()
        )
    );
}

#[test]
fn the_variables_that_count_are_those_of_the_flags() {
    let place = scratch();
    let server = Launch::on(place.path()).env("REDRIVE_COLOUR", "red").start();
    let line = server.log_line("unknown environment variable REDRIVE_COLOUR");
    let known = "known: REDRIVE_CONFIG, REDRIVE_DATA, REDRIVE_DURABILITY, REDRIVE_INSECURE, REDRIVE_LISTEN, \
                 REDRIVE_LOG_FORMAT, REDRIVE_LOG_LEVEL, REDRIVE_REDIS";
    assert!(line.contains(known), "{line}");
}
