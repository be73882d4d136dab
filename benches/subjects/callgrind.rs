//! Counts of what a program executes: the same on a busy machine as on an idle one.

use std::{env, process::Command};

/// All that this program executes when it is called with these arguments.
pub(crate) fn instructions(args: &[&str]) -> u64 {
    let program = env::current_exe().expect("this program");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(args)
        .output()
        .expect("valgrind is installed: script/bench-check does that");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?} failed under valgrind:\n{said}");
    let collected = said.lines().find_map(|line| line.split_once("Collected :"));
    let count = collected.and_then(|(_, count)| count.trim().parse().ok());
    count.unwrap_or_else(|| panic!("callgrind said no count for {args:?}:\n{said}"))
}
