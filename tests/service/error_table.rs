//! The table of errors in README.md, held to the code.

use redrive::grpc::Reason;
use std::{fs, path::Path};

const BEGIN: &str = "<!-- errors -->";
const END: &str = "<!-- /errors -->";

/// `INVALID_ARGUMENT`, as gRPC's own documents write it.
fn code_name(reason: Reason) -> String {
    let mut name = String::new();
    for letter in format!("{:?}", reason.code()).chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

fn table() -> String {
    let mut table = "| reason | gRPC code | when, and what to do |\n|---|---|---|\n".to_owned();
    for reason in Reason::ALL {
        let (name, meaning) = (reason.as_str(), reason.meaning());
        table += &format!("| `{name}` | `{}` | {meaning} |\n", code_name(reason));
    }
    table
}

#[test]
fn the_readme_lists_every_reason_with_its_code() {
    let expected = format!("{BEGIN}\n{}{END}", table());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = fs::read_to_string(path).unwrap();
    let found = readme
        .split_once(BEGIN)
        .and_then(|(_, rest)| rest.split_once(END))
        .map(|(table, _)| format!("{BEGIN}{table}{END}"));
    assert!(found.as_deref() == Some(expected.as_str()), "README.md must have:\n\n{expected}\n");
}

#[test]
fn no_reason_is_listed_twice() {
    let mut names = Reason::ALL.map(Reason::as_str);
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
}
