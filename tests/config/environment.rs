use redrive::config::Environment;

const KNOWN: [&str; 3] = ["REDRIVE_CONFIG", "REDRIVE_LISTEN", "REDRIVE_LOG_LEVEL"];

fn warnings(names: &[&str]) -> Vec<String> {
    let names = names.iter().map(ToString::to_string).collect();
    Environment { names, rust_log: None }.warnings(&KNOWN)
}

#[test]
fn a_variable_that_nothing_reads_is_pointed_out_with_its_near_miss() {
    assert_eq!(
        warnings(&["REDRIVE_LISTEN", "REDRIVE_LISTN", "REDRIVE_COLOUR"]),
        [
            "unknown environment variable REDRIVE_LISTN; did you mean REDRIVE_LISTEN?",
            "unknown environment variable REDRIVE_COLOUR; known: REDRIVE_CONFIG, \
             REDRIVE_LISTEN, REDRIVE_LOG_LEVEL",
        ]
    );
}

#[test]
fn what_kubernetes_sets_for_a_service_of_this_name_is_no_mistake() {
    let names = ["REDRIVE_PORT", "REDRIVE_PORT_7433_TCP_ADDR", "REDRIVE_SERVICE_HOST"];
    assert_eq!(warnings(&names), [""; 0]);
}
