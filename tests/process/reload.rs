//! SIGHUP: the settings of queues are replaced as a whole or not at all.

use crate::server::{Launch, config_file, scratch};

#[test]
fn a_good_file_is_taken_what_needs_a_restart_is_named_and_a_bad_file_changes_nothing() {
    let place = scratch();
    let path = config_file(place.path(), "");
    let mut server = Launch::on(&place.path().join("data")).arg("--config").arg(&path).start();

    config_file(place.path(), "[server]\nshutdown_timeout = \"3s\"\n[queues.q]\npolicy = { base_delay = \"1h\" }");
    server.reload();
    server.log_line("[server] shutdown_timeout has changed: this needs a restart");
    server.log_line("[queues.q]: base_delay asks for 1h but max_delay cuts it to 30s");
    server.log_line("configuration reloaded");

    config_file(place.path(), "[queues.good]\n[queues.bad]\npolicy = \"x\"\nlease_duration = \"1\"");
    server.reload();
    server.log_line("redrive.toml:3:10: unknown preset");
    server.log_line("redrive.toml:4:18: lease_duration");
    server.log_line("configuration not reloaded: everything stays as it was");
    server.stop();
}

#[test]
fn a_reload_says_what_has_changed_in_each_queue_or_that_nothing_has() {
    let place = scratch();
    let path = config_file(place.path(), "[queues.payments]\npolicy = { max_retries = 3 }\n[queues.old]\n");
    let mut server = Launch::on(&place.path().join("data")).arg("--config").arg(&path).start();
    server.reload();
    server.log_line("configuration reloaded: nothing has changed");

    let text = "[queues.payments]\npolicy = { max_retries = 8 }\nmax_depth = 10\n\
                [queues.mail]\nlease_duration = \"1m\"\n";
    config_file(place.path(), text);
    server.reload();
    server.log_line("queue payments: policy.max_retries 3 -> 8");
    server.log_line("queue payments: max_depth unlimited -> 10");
    server.log_line("queue mail: new in the file");
    server.log_line("queue mail: lease_duration 30s -> 1m");
    server.log_line("queue old: no longer in the file");
    server.log_line("configuration reloaded: 5 changes");
    server.stop();
}
