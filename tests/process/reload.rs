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
