//! What the program is made of, held to `deny.toml`: licences, sources, banned and doubled crates. No tool is needed; advisories
//! need `cargo deny`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

struct Package {
    name: String,
    version: String,
    licence: String,
    source: Option<String>,
}

/// Of the platform that tests run on.
fn packages() -> Vec<Package> {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--format-version", "1", "--offline", "--locked", "--filter-platform", &platform]);
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let package = |found: &Value| Package {
        name: text(&found["name"]).unwrap(),
        version: text(&found["version"]).unwrap(),
        licence: text(&found["license"]).unwrap_or_default(),
        source: text(&found["source"]),
    };
    metadata["packages"].as_array().unwrap().iter().map(package).collect()
}

fn rules() -> toml::Table {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deny.toml");
    std::fs::read_to_string(path).unwrap().parse().unwrap()
}

fn texts<'a>(rules: &'a toml::Table, table: &str, key: &str) -> Vec<&'a str> {
    let text = |value: &'a toml::Value| value.as_str().or_else(|| value.get("crate")?.as_str()).unwrap();
    rules[table][key].as_array().unwrap().iter().map(text).collect()
}

/// Every part of the expression has an alternative that is allowed.
fn is_allowed(licence: &str, allowed: &[&str]) -> bool {
    let licence = licence.replace('/', " OR ");
    licence.split(" AND ").all(|part| {
        let part = part.trim().trim_matches(['(', ')']);
        part.split(" OR ").any(|name| allowed.contains(&name.trim()))
    })
}

fn number(version: &str) -> Vec<u64> {
    let release = version.split(['-', '+']).next().unwrap();
    release.split('.').map(|part| part.parse().unwrap()).collect()
}

/// `name`, or `name:<version` for those before it.
fn is_banned(package: &Package, banned: &str) -> bool {
    match banned.split_once(":<") {
        None => package.name == banned,
        Some((name, version)) => package.name == name && number(&package.version) < number(version),
    }
}

#[test]
fn everything_it_is_made_of_is_allowed() {
    let (rules, packages) = (rules(), packages());
    let mut offences = Vec::new();
    let licences = texts(&rules, "licenses", "allow");
    let registries = texts(&rules, "sources", "allow-registry");
    let banned = texts(&rules, "bans", "deny");
    for package in &packages {
        let named = format!("{} {}", package.name, package.version);
        if !is_allowed(&package.licence, &licences) {
            offences.push(format!("{named}: licence {:?}", package.licence));
        }
        let known = |source: &String| registries.iter().any(|known| *source == format!("registry+{known}"));
        if !package.source.as_ref().map_or(package.name == "redrive", known) {
            offences.push(format!("{named}: source {:?}", package.source));
        }
        offences.extend(
            banned.iter().filter(|banned| is_banned(package, banned)).map(|by| format!("{named}: banned {by}")),
        );
    }
    let mut versions = BTreeMap::<&str, BTreeSet<&str>>::new();
    for package in &packages {
        versions.entry(&package.name).or_default().insert(&package.version);
    }
    let doubled: BTreeSet<_> = versions.into_iter().filter(|(_, all)| all.len() > 1).map(|(name, _)| name).collect();
    let skipped: BTreeSet<_> = texts(&rules, "bans", "skip").into_iter().collect();
    offences.extend(doubled.difference(&skipped).map(|name| format!("{name}: two versions")));
    offences.extend(skipped.difference(&doubled).map(|name| format!("{name}: one version, and among `skip`")));
    assert!(offences.is_empty(), "{}", offences.join("\n"));
}

#[test]
fn the_rules_are_read_as_they_are_meant() {
    let allowed = ["MIT", "Apache-2.0", "Unicode-3.0"];
    for (licence, expected) in [
        ("MIT", true),
        ("GPL-3.0 OR MIT", true),
        ("MIT/Apache-2.0", true),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
        ("MIT AND GPL-3.0", false),
        ("", false),
    ] {
        assert_eq!(is_allowed(licence, &allowed), expected, "{licence}");
    }
    let h2 =
        |version: &str| Package { name: "h2".into(), version: version.into(), licence: "MIT".into(), source: None };
    assert!(is_banned(&h2("0.4.9"), "h2:<0.4.19") && !is_banned(&h2("0.4.19"), "h2:<0.4.19"));
    assert!(is_banned(&h2("9.0.0"), "h2") && !is_banned(&h2("1.0.0"), "h3"));
}
