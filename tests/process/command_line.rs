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
        [queues.hooks]
        policy = { base_delay = "2s" }
        [queues.own]
        default_rules = false
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
             \x20                 what is down: 21 attempts over 4h34m7.5s to 9h8m15s\n\
             hooks           4 attempts over 14s to 17.5s\n\
             \x20                 what is down: 21 attempts over 5h4m7s to 10h8m14s\n\
             mail            1 attempt, no retries\n\
             own             4 attempts over 7s to 8.75s\n\
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

#[test]
fn config_check_takes_the_file_as_serve_does() {
    let place = scratch();
    let path = config_file(place.path(), "[queues.mail]\npolicy = \"one-shot\"\n");
    let check = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
        let output = command.args(["config", "check"]).args(words).env_clear().output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let path = path.to_str().unwrap();
    assert!(check(&["--config", path]).contains("mail            1 attempt, no retries"));
    assert_eq!(check(&["--config", path]), check(&[path]));
    // The file that is named without a flag is the one that is meant.
    assert_eq!(check(&["--config", "/no/such/file", path]), check(&[path]));
}

#[test]
fn a_bad_variable_is_reported_by_its_own_name() {
    for (name, flag) in [
        ("REDRIVE_LISTEN", "--listen"),
        ("REDRIVE_DURABILITY", "--durability"),
        ("REDRIVE_LOG_LEVEL", "--log-level"),
        ("REDRIVE_LOG_FORMAT", "--log-format"),
        ("REDRIVE_INSECURE", "--insecure"),
    ] {
        let run = |words: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
            let output = command.arg("serve").args(words).env_clear().env(name, "nonsense").output().unwrap();
            assert_eq!(output.status.code(), Some(2));
            String::from_utf8(output.stderr).unwrap()
        };
        let said = run(&[]);
        let first = said.lines().next().unwrap();
        assert!(first.starts_with(&format!("error: invalid value 'nonsense' for '{name}'")), "{said}");
        // A flag goes over the variable, and then it is the flag that is wrong.
        let said = run(&[&format!("{flag}=bad")]);
        let first = said.lines().next().unwrap();
        assert!(first.starts_with(&format!("error: invalid value 'bad' for '{flag}")), "{said}");
    }
}

#[test]
fn migrate_names_no_flag_that_it_lacks() {
    let place = scratch();
    let (from, to) = (place.path().join("from"), place.path().join("to"));
    let server = Launch::on(&from).start();
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
    command.arg("migrate").arg("--from").arg(&from).arg("--to").arg(&to).env_clear();
    let output = command.current_dir(place.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(&format!("another redrive uses it (process {})", server.id())), "{said}");
    assert!(!said.contains("--data"), "{said}");
}

#[test]
fn help_is_wrapped_once() {
    for name in ["serve", "verify", "migrate"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redrive"));
        let output = command.args([name, "--help"]).env_clear().env("COLUMNS", "80").output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = help.lines().collect();
        for (line, next) in lines.iter().zip(&lines[1..]) {
            assert!(line.chars().count() <= 80, "{name}: {line}");
            // A line that ends early ends a sentence: the next word would have had room on it.
            let word = next.split(' ').next().unwrap();
            let room = line.chars().count() + 1 + word.chars().count() <= 80;
            let of_text = !line.starts_with([' ', '-']) && !line.is_empty() && !word.is_empty();
            assert!(!of_text || !room || line.ends_with(['.', ':']), "{name}: {line:?} before {next:?}");
        }
    }
}
