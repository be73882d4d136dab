//! The architecture, held to its word: who may know whom, and how long a file may get.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use std::fs;
use std::path::{Path, PathBuf};

/// Longer than this, a file has a second subject.
const LINES_MAX: usize = 500;

/// Longer than this, the README is not read to its end.
const README_LINES_MAX: usize = 200;

/// Pictures, and persons for processes: each has a term of the field (docs/glossary.md). Their inflections count too.
const PICTURES: &str = "court,grave,bury,burial,verdict,judge,heed,revive,basket,dice,agenda,newcomers,notation,teller,\
                        whoever,somebody,nobody,everybody,look around,come home,sent home,moving house";

fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let is_rust = |path: &Path| path.extension().is_some_and(|extension| extension == "rs");
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &is_rust, &mut found);
    assert!(!found.is_empty(), "{folder} has no sources");
    found
}

/// Texts only.
fn collect(folder: &Path, wanted: &dyn Fn(&Path) -> bool, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if [".git", "target", "node_modules"].iter().any(|name| path.ends_with(name)) {
            continue;
        } else if path.is_dir() {
            collect(&path, wanted, found);
        } else if wanted(&path)
            && let Ok(text) = fs::read_to_string(&path)
        {
            found.push((path, text));
        }
    }
}

/// Lines of code, comments aside, that hold one of the words.
fn offences(folder: &str, words: &[&str]) -> Vec<String> {
    let mut offences = Vec::new();
    for (path, text) in sources(folder) {
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if words.iter().any(|word| code.contains(word)) {
                offences.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    offences
}

#[track_caller]
fn assert_absent(folder: &str, words: &[&str]) {
    let offences = offences(folder, words);
    assert!(offences.is_empty(), "{}", offences.join("\n"));
}

#[test]
fn the_domain_decides_and_does_nothing_else() {
    let words = [
        "async ",
        ".await",
        "tokio",
        "rusqlite",
        "std::fs",
        "std::net",
        "std::io",
        "std::env",
        "crate::store",
        "crate::queue",
        "crate::service",
        "crate::grpc",
        "crate::env",
        "crate::config",
        "rand::",
        "SystemTime",
        "Instant",
        "serde",
    ];
    assert_absent("src/domain", &words);
}

#[test]
fn only_grpc_knows_the_wire() {
    for folder in ["src/domain", "src/store", "src/queue", "src/service", "src/config", "src/serve"] {
        assert_absent(folder, &["tonic::", "prost::", "pb::", "tonic_types"]);
    }
}

#[test]
fn the_store_knows_nothing_above_it() {
    assert_absent("src/store", &["crate::queue", "crate::service", "crate::grpc", "crate::config", "crate::serve"]);
}

#[test]
fn the_queue_knows_nothing_above_it() {
    assert_absent("src/queue", &["crate::service", "crate::grpc", "crate::config", "crate::serve", "rusqlite"]);
}

#[test]
fn the_service_knows_the_queue_and_no_engine() {
    let words =
        ["store::sqlite", "store::redis", "store::storage", "rusqlite", "crate::grpc", "crate::config", "crate::serve"];
    assert_absent("src/service", &words);
}

#[test]
fn the_load_generator_is_a_client_like_any_other() {
    let words = ["crate::service", "crate::queue", "crate::store", "crate::serve", "rusqlite"];
    assert_absent("src/bench", &words);
}

#[test]
fn clocks_and_chance_are_read_in_one_place() {
    let folders = ["domain", "store", "queue", "service", "grpc", "config", "serve", "bench"];
    for folder in folders.map(|name| format!("src/{name}")) {
        assert_absent(&folder, &["SystemTime::now", "Instant::now", "rand::rng", "rand::random"]);
    }
}

#[test]
fn no_file_has_grown_a_second_subject() {
    for folder in ["src", "tests"] {
        for (path, text) in sources(folder) {
            let lines = text.lines().count();
            assert!(lines <= LINES_MAX, "{} has {lines} lines: split it", path.display());
        }
    }
}

#[test]
fn everything_the_architecture_page_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let named = page.split('`').skip(1).step_by(2).filter(|name| name.ends_with(".rs"));
    for name in named.filter(|name| !name.contains(['{', ' '])) {
        let there = [root.join(name), root.join("src").join(name)].iter().any(|path| path.exists())
            || sources("src").iter().any(|(path, _)| path.ends_with(name));
        assert!(there, "ARCHITECTURE.md names {name}, which is not there");
    }
}

#[test]
fn the_readme_is_short() {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let lines = readme.lines().count();
    assert!(lines <= README_LINES_MAX, "README.md has {lines} lines: move something to docs/");
}

/// The targets of `[text](target)`.
fn links(page: &str) -> impl Iterator<Item = &str> {
    page.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// As GitHub names a heading: lower case, blanks as hyphens, other signs left out.
fn anchors(page: &str) -> Vec<String> {
    let kept = |c: char| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c.to_ascii_lowercase()),
        _ => None,
    };
    let headings = page.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| line.trim_start_matches('#').trim().chars().filter_map(kept).collect()).collect()
}

#[test]
fn every_link_of_the_pages_leads_somewhere() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_page = |path: &Path| path.extension().is_some_and(|extension| extension == "md");
    let mut pages = Vec::new();
    collect(&root.join("docs"), &is_page, &mut pages);
    for name in ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md"] {
        pages.push((root.join(name), fs::read_to_string(root.join(name)).unwrap()));
    }
    let mut broken = Vec::new();
    for (path, page) in &pages {
        for link in links(page).filter(|link| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
            let target = if file.is_empty() { path.clone() } else { path.with_file_name("").join(file) };
            let there = match anchor {
                None => target.exists(),
                Some(anchor) => {
                    fs::read_to_string(&target).is_ok_and(|page| anchors(&page).iter().any(|a| a == anchor))
                }
            };
            if !there {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}

#[test]
fn words_are_those_of_the_field() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let exempt = ["Cargo.lock", "LICENSE", "tests/tidy.rs"].map(|name| root.join(name));
    let mut files = Vec::new();
    collect(root, &|path| !exempt.iter().any(|name| name == path), &mut files);
    let mut offences = Vec::new();
    for (path, text) in files {
        for (number, line) in text.lines().enumerate() {
            let words = line.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
            let words = words.fold(String::new(), |text, word| text + " " + &word.to_lowercase());
            let hit = PICTURES.split(',').find(|picture| words.contains(&format!(" {picture}")));
            if let Some(picture) = hit {
                offences.push(format!("{}:{}: {picture}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    assert!(offences.is_empty(), "{}", offences.join("\n"));
}
