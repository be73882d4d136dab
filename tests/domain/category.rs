use redrive::domain::{CategoryTable, ERROR_CATEGORIES, Failure, FailureCategory, derived_category};

fn error(error_type: &str, message: &str) -> Failure {
    Failure::new(error_type, message)
}

fn with_status(http_status: u32) -> Failure {
    Failure { http_status, ..Failure::default() }
}

fn with_code(code: &str) -> Failure {
    Failure { code: code.into(), ..Failure::default() }
}

#[track_caller]
fn derives(failure: &Failure, name: &str) {
    let derived = derived_category(failure);
    assert_eq!(derived.map(FailureCategory::as_str), Some(name).filter(|name| !name.is_empty()), "{failure:?}");
}

#[test]
fn every_line_of_the_table_is_understood_and_no_name_has_two_categories() {
    assert_eq!(CategoryTable::read(ERROR_CATEGORIES).1, Vec::<String>::new());
    let (_, problems) = CategoryTable::read("type timeout: A\ntype internal: A\ntype hot: B\nword\nsort internal: C");
    assert_eq!(
        problems,
        [
            "type A has two categories",
            "not understood: type hot: B",
            "not understood: word",
            "not understood: sort internal: C"
        ]
    );
}

#[test]
fn a_status_decides_first() {
    let of = [
        (400, "invalid"),
        (422, "invalid"),
        (401, "unauthorized"),
        (403, "forbidden"),
        (404, "not-found"),
        (410, "not-found"),
        (408, "timeout"),
        (504, "timeout"),
        (409, "conflict"),
        (429, "rate-limited"),
        (502, "unavailable"),
        (503, "unavailable"),
        (500, "internal"),
        (599, "internal"),
        (200, ""),
        (418, ""),
    ];
    for (status, name) in of {
        derives(&with_status(status), name);
    }
    derives(&Failure { code: "ETIMEDOUT".into(), ..with_status(404) }, "not-found");
    derives(&Failure { code: "ETIMEDOUT".into(), ..with_status(200) }, "timeout");
}

#[test]
fn then_a_code() {
    for (code, name) in [
        ("ECONNREFUSED", "unreachable"),
        ("econnreset", "unreachable"),
        ("ENOTFOUND", "unreachable"),
        ("EPIPE", "unreachable"),
        ("CERT_HAS_EXPIRED", "unreachable"),
        ("40P01", "conflict"),
        ("40001", "conflict"),
        ("23505", "conflict"),
        ("23502", "invalid"),
        ("22P02", "invalid"),
        ("08006", "unreachable"),
        ("57014", "timeout"),
        ("57P01", "unavailable"),
        ("53300", "unavailable"),
        ("42501", "forbidden"),
        ("28P01", "unauthorized"),
        ("UNAVAILABLE", "unavailable"),
        ("DeadlineExceeded", "timeout"),
        ("RESOURCE_EXHAUSTED", "rate-limited"),
        ("not-found", "not-found"),
        ("503", "unavailable"),
        ("1", ""),
        ("137", ""),
        ("0503", ""),
        ("99999", ""),
        ("40p01", ""),
    ] {
        derives(&with_code(code), name);
    }
    derives(&Failure { code: "40P01".into(), ..error("TimeoutError", "") }, "conflict");
}

#[test]
fn then_a_well_known_type_with_or_without_its_package() {
    for (error_type, name) in [
        ("ConnectionRefusedError", "unreachable"),
        ("requests.exceptions.ConnectionError", "unreachable"),
        ("httpx.ReadTimeout", "timeout"),
        ("java.net.ConnectException", "unreachable"),
        ("java.net.SocketTimeoutException", "timeout"),
        ("*net.OpError", "unreachable"),
        ("Net::ReadTimeout", "timeout"),
        ("psycopg.errors.DeadlockDetected", "conflict"),
        ("ValidationError", "invalid"),
        ("MyValidationError", ""),
        ("TypeError", ""),
        ("*errors.errorString", ""),
        ("", ""),
    ] {
        derives(&error(error_type, ""), name);
    }
    derives(&error("TimeoutError", "connection refused"), "timeout");
}

#[test]
fn then_words_of_the_message_and_last_a_type_that_wraps_many_errors() {
    for (message, name) in [
        ("connect ECONNREFUSED 127.0.0.1:9", "unreachable"),
        ("fetch failed", "unreachable"),
        ("dial tcp: lookup nowhere: no such host", "unreachable"),
        ("Get \"http://x\": dial tcp 127.0.0.1:9: connect: Connection Refused", "unreachable"),
        ("the call timed out", "timeout"),
        ("context deadline exceeded", "timeout"),
        ("Request failed with status code 429", "rate-limited"),
        ("status code 4290", ""),
        ("404 Client Error: for url", "not-found"),
        ("StatusCode.UNAVAILABLE", "unavailable"),
        ("an internal matter, aborted", ""),
        ("it broke", ""),
    ] {
        derives(&error("E", message), name);
    }
    derives(&error("*url.Error", "Get \"http://x\": context deadline exceeded"), "timeout");
    derives(&error("*url.Error", "Get \"http://x\": EOF"), "unreachable");
    let far = format!("{} timed out", "x".repeat(5_000));
    derives(&error("E", &far), "");
}

#[test]
fn a_workers_own_category_wins_and_is_not_derived() {
    let given = Failure { category: Some(FailureCategory::Conflict), ..with_status(503) }.with_category();
    assert_eq!((given.category, given.category_derived), (Some(FailureCategory::Conflict), false));
    let derived = with_status(503).with_category();
    assert_eq!((derived.category, derived.category_derived), (Some(FailureCategory::Unavailable), true));
    let none = error("E", "it broke").with_category();
    assert_eq!((none.category, none.category_derived), (None, false));
    assert_eq!(derived.summary().category, derived.category);
    assert!(derived.summary().category_derived);
}
