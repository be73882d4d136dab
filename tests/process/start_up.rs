//! What keeps a server from starting, and what it says then.

use crate::server::{Launch, Refused, config_file, scratch};
use rusqlite::Connection;
use std::{fs, net::TcpListener};

const CANNOT: Option<i32> = Some(1);
const CHANGE_YOUR_SETTINGS: Option<i32> = Some(2);

#[track_caller]
fn refused(launch: Launch) -> Refused {
    match launch.try_start() {
        Ok(_) => panic!("it started"),
        Err(refused) => refused,
    }
}

impl Refused {
    #[track_caller]
    fn assert(&self, code: Option<i32>, parts: &[&str]) {
        assert_eq!(self.code, code, "{}", self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} not in {}", self.stderr);
        }
    }
}

#[test]
fn a_second_server_on_a_directory_is_told_who_has_it() {
    let place = scratch();
    let first = Launch::on(place.path()).start();
    let second = refused(Launch::on(place.path()));
    let holder = format!("another redrive uses it (process {})", first.id());
    second.assert(CANNOT, &[&holder, place.path().to_str().unwrap(), "--data"]);
}

#[test]
fn a_directory_whose_server_was_killed_is_free_at_once() {
    let place = scratch();
    let mut first = Launch::on(place.path()).start();
    first.kill();
    Launch::on(place.path()).start().stop();
}

#[test]
fn a_directory_of_another_version_is_left_as_it_is() {
    let place = scratch();
    Launch::on(place.path()).start().stop();
    let path = place.path().join("redrive.db");
    let database = Connection::open(&path).unwrap();
    database.pragma_update(None, "user_version", 99).unwrap();
    database.close().unwrap();
    let before = fs::read(&path).unwrap();
    refused(Launch::on(place.path()))
        .assert(CANNOT, &["its layout is 99", "this redrive knows", path.to_str().unwrap()]);
    assert!(fs::read(&path).unwrap() == before, "it was changed");
}

#[test]
fn a_file_that_is_no_database_is_left_as_it_is() {
    let place = scratch();
    let path = place.path().join("redrive.db");
    let notes = "my notes, which happen to have this name\n".repeat(50);
    fs::write(&path, &notes).unwrap();
    refused(Launch::on(place.path()))
        .assert(CANNOT, &["it is not a database", path.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(&path).unwrap(), notes);
}

#[test]
fn a_database_of_somebody_else_is_left_as_it_is() {
    let place = scratch();
    let path = place.path().join("redrive.db");
    let database = Connection::open(&path).unwrap();
    database.execute_batch("CREATE TABLE mine (x)").unwrap();
    database.close().unwrap();
    let before = fs::read(&path).unwrap();
    refused(Launch::on(place.path())).assert(CANNOT, &["not one of redrive's"]);
    assert!(fs::read(&path).unwrap() == before, "it was changed");
}

#[test]
fn a_port_that_is_taken_is_named_and_nothing_is_made() {
    let place = scratch();
    let data = place.path().join("data");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let launch = Launch::bare().arg("--data").arg(&data);
    refused(launch.arg("--listen").arg(&address)).assert(CANNOT, &[&address, "listens there"]);
    assert!(!data.exists());
}

#[test]
fn an_address_that_others_can_reach_needs_insecure() {
    let place = scratch();
    let launch = || {
        let launch = Launch::bare().arg("--data").arg(place.path().join("data"));
        launch.arg("--listen").arg("0.0.0.0:0")
    };
    refused(launch()).assert(CHANGE_YOUR_SETTINGS, &["0.0.0.0:0", "insecure"]);
    assert!(!place.path().join("data").exists());
    launch().arg("--insecure").start().stop();
}

#[test]
fn a_mistake_in_the_configuration_is_shown_where_it_is() {
    let place = scratch();
    let text = "[server]\nlisten = \"127.0.0.1:0\"\n\n[queues.mail]\n  polcy = \"standard\"\n";
    let path = config_file(place.path(), text);
    let launch = Launch::on(&place.path().join("data")).arg("--config").arg(&path);
    let place_of_it = format!("{}:5:3", path.display());
    refused(launch).assert(CHANGE_YOUR_SETTINGS, &[&place_of_it, "polcy", "policy"]);
}

#[test]
fn a_data_directory_that_cannot_be_made_is_named() {
    let place = scratch();
    let file = place.path().join("file");
    fs::write(&file, "").unwrap();
    let data = file.join("data");
    refused(Launch::on(&data))
        .assert(CANNOT, &["cannot use the data directory", data.to_str().unwrap()]);
}

#[test]
fn flags_that_do_not_exist_are_refused() {
    let place = scratch();
    let launch = Launch::on(place.path()).arg("--no-such-flag");
    refused(launch).assert(CHANGE_YOUR_SETTINGS, &["--no-such-flag"]);
}
