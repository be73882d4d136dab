//! What keeps a server from starting, and what it says then.

use crate::requests::job;
use crate::server::{Launch, Refused, config_file, scratch};
use rusqlite::Connection;
use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

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
    refused(Launch::on(place.path())).assert(CANNOT, &["it is not a database", path.to_str().unwrap()]);
    assert_eq!(fs::read_to_string(&path).unwrap(), notes);
}

#[test]
fn a_database_of_another_program_is_left_as_it_is() {
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
    refused(launch.arg("--listen").arg(&address)).assert(
        CANNOT,
        &[
            &format!("cannot listen on {address}: another program, perhaps another redrive, listens there"),
            "choose another with --listen, for example --listen 127.0.0.1:0 for any free port",
        ],
    );
    assert!(!data.exists());
}

#[test]
fn an_address_of_another_machine_is_said_to_be_one() {
    let place = scratch();
    let launch = Launch::bare().arg("--insecure").arg("--data").arg(place.path());
    refused(launch.arg("--listen").arg("192.0.2.1:7433")).assert(
        CANNOT,
        &["cannot listen on 192.0.2.1:7433: this machine does not have that address\nchoose one that it has with --listen"],
    );
}

#[test]
fn directives_that_cannot_be_read_are_refused_by_name() {
    let place = scratch();
    let launch = Launch::on(place.path()).env("RUST_LOG", "redrive=loud");
    refused(launch).assert(CHANGE_YOUR_SETTINGS, &["RUST_LOG=\"redrive=loud\" cannot be read: "]);
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
    refused(Launch::on(&data)).assert(CANNOT, &["cannot use the data directory", data.to_str().unwrap()]);
}

#[test]
fn a_data_directory_that_is_a_file_is_said_to_be_one() {
    let place = scratch();
    let file = place.path().join("file");
    fs::write(&file, "").unwrap();
    let said = format!("cannot use the data directory {}: it is a file, not a directory", file.display());
    refused(Launch::on(&file)).assert(CANNOT, &[&said]);
    refused(Launch::on(&file.join("data")))
        .assert(CANNOT, &[&format!("{} is a file, not a directory", file.display())]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_for_the_owner_alone_also_in_a_directory_that_was_there_before() {
    let place = scratch();
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, Permissions::from_mode(0o755)).unwrap();
    let files = ["redrive.db", "redrive.db-wal", "redrive.db-shm"].map(|name| data.join(name));
    let modes = || files.each_ref().map(|file| fs::metadata(file).unwrap().permissions().mode() & 0o777);
    let mut server = Launch::on(&data).start();
    server.queue().await.enqueue(job("q")).await.unwrap();
    assert_eq!(modes(), [0o600; 3]);
    // A server that was killed leaves all three, and they may be from before.
    server.kill();
    for file in &files {
        fs::set_permissions(file, Permissions::from_mode(0o644)).unwrap();
    }
    let server = Launch::on(&data).start();
    server.queue().await.enqueue(job("q")).await.unwrap();
    assert_eq!(modes(), [0o600; 3]);
}

#[test]
fn a_log_of_json_has_a_banner_of_json() {
    let place = scratch();
    let server = Launch::on(place.path()).arg("--log-format").arg("json").start();
    let banner: Vec<serde_json::Value> =
        server.banner().iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let value = |label: &str| {
        let line = banner.iter().find(|line| line["label"] == label);
        line.map(|line| line["value"].as_str().unwrap().to_owned())
    };
    assert_eq!(value("data"), Some(place.path().display().to_string()));
    assert_eq!(value("durability"), Some("fsync: what is answered is on the disk".into()));
    assert!(value("try").unwrap().starts_with("grpcurl "), "{banner:#?}");
}

#[test]
fn flags_that_do_not_exist_are_refused() {
    let place = scratch();
    let launch = Launch::on(place.path()).arg("--no-such-flag");
    refused(launch).assert(CHANGE_YOUR_SETTINGS, &["--no-such-flag"]);
}

#[test]
fn the_banner_says_what_runs_where_and_what_to_try_next() {
    let place = scratch();
    let server = Launch::on(place.path()).start();
    let job = r#"{"queue":"emails","type":"welcome","json":{"to":"ada@example.com"}}"#;
    assert_eq!(
        server.banner(),
        [
            &format!("  data        {}", place.path().display()),
            "  durability  fsync: what is answered is on the disk",
            "  config      built-in values; a redrive.toml in the working directory is read",
            "  retries     4 attempts over 7s to 8.75s, unless a queue says otherwise",
            "  outages     what is down: 21 attempts over 4h34m7.5s to 9h8m15s",
            "",
            "Try it, in another terminal:",
            &format!("  grpcurl -plaintext -d '{job}' {} redrive.v1.QueueService/Enqueue", server.address),
        ]
    );
}

#[test]
fn the_banner_tells_of_an_open_address_and_of_less_durability() {
    let place = scratch();
    let launch = Launch::bare().arg("--data").arg(place.path()).arg("--durability").arg("none");
    let server = launch.arg("--listen").arg("0.0.0.0:0").arg("--insecure").start();
    let banner = server.banner();
    assert_eq!(banner[0], "  access      open: all who reach this address may do everything");
    assert_eq!(banner[2], "  durability  none: for experiments, a power cut loses what was acknowledged");
    let reachable = format!(" 127.0.0.1:{} redrive.v1.", server.address.port());
    assert!(banner.iter().any(|line| line.contains(&reachable)), "{banner:#?}");
}

#[test]
fn the_banner_names_the_file_and_how_long_each_queue_keeps_trying() {
    for (queues, named) in [(2, true), (20, false), (23, false)] {
        let place = scratch();
        let text = (10..10 + queues).map(|n| {
            let policy = if n == 12 { "" } else { "policy = \"one-shot\"\n" };
            format!("[queues.q{n}]\n{policy}")
        });
        let text: String = text.collect();
        let path = config_file(place.path(), &text);
        let launch = Launch::on(&place.path().join("data")).within(place.path());
        let server = if named { launch.arg("--config").arg(&path) } else { launch }.start();
        let banner = server.banner();
        let found = if named { "" } else { " (found in the working directory)" };
        assert_eq!(banner[2], format!("  config      {}{found}", path.display()));
        let blank = banner.iter().position(String::is_empty).unwrap();
        let of_queues = &banner[5..blank];
        assert_eq!(of_queues[1], "              q11: 1 attempt, no retries");
        let waits =
            "              q12: 4 attempts over 7s to 8.75s; what is down: 21 attempts over 4h34m7.5s to 9h8m15s";
        assert_eq!(of_queues.get(2).map(String::as_str), (queues > 2).then_some(waits));
        let more = format!("              and {} more queues: see redrive config check", queues - 20.min(queues));
        assert_eq!(of_queues.len(), queues.min(21));
        assert_eq!(of_queues.contains(&more), queues > 20, "{banner:#?}");
    }
}

#[test]
fn a_client_reaches_the_address_that_is_shown() {
    for (listens, shown) in
        [("0.0.0.0:7000", "127.0.0.1:7000"), ("[::]:7000", "[::1]:7000"), ("10.0.0.1:1", "10.0.0.1:1")]
    {
        assert_eq!(redrive::serve::reachable(listens.parse().unwrap()).to_string(), shown);
    }
}
