//! Failures as workers report them and as histories show them.

use super::{check::Check, json};
use crate::{domain::Failure, grpc::pb};

/// Reads `error`. Texts are cut and flagged where it is decided what follows from the failure.
pub(super) fn failure(check: &mut Check<'_>, given: pb::Failure) -> Failure {
    check.name("error.type", &given.r#type);
    if given.http_status != 0 && !(100..=599).contains(&given.http_status) {
        let message = format!("must be 100 to 599, or 0 for none, not {}", given.http_status);
        check.refuse("error.http_status", message);
    }
    Failure {
        error_type: given.r#type,
        message: given.message,
        stack_trace: given.stack_trace,
        http_status: given.http_status,
        response_body: given.response_body,
        details: details(check, given.details),
        truncated: false,
    }
}

fn details(check: &mut Check<'_>, given: Option<prost_types::Struct>) -> String {
    match given.map(json::canonical_object) {
        None => String::new(),
        Some(Ok(text)) => {
            check.at_most("error.details", text.len(), check.limits.details_bytes);
            text
        }
        Some(Err(json::NotJson { path, message })) => {
            check.refuse(format_args!("error.details{path}"), format!("{message}; send it as a string"));
            String::new()
        }
    }
}

pub(super) fn failure_out(failure: Failure) -> pb::Failure {
    pb::Failure {
        details: json::object_out(&failure.details),
        r#type: failure.error_type,
        message: failure.message,
        stack_trace: failure.stack_trace,
        http_status: failure.http_status,
        response_body: failure.response_body,
        truncated: failure.truncated,
    }
}

/// Without stack trace and response body.
pub(super) fn brief_failure_out(failure: Failure) -> pb::Failure {
    pb::Failure { stack_trace: String::new(), response_body: String::new(), ..failure_out(failure) }
}
