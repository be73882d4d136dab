//! Failures as workers report them and as histories show them.

use super::{check::Check, json};
use crate::{domain::failure::Failure, grpc::pb};

/// Reads `error`. Texts are cut and flagged where the failure is judged.
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
    match given.map(|given| json::canonical_object(&given)) {
        None => String::new(),
        Some(Ok(text)) => {
            check.at_most("error.details", text.len(), check.limits.details_bytes);
            text
        }
        Some(Err(json::NotJson { path, message })) => {
            check.refuse(
                format_args!("error.details{path}"),
                format!("{message}; send it as a string"),
            );
            String::new()
        }
    }
}

pub(super) fn failure_out(failure: &Failure) -> pb::Failure {
    pb::Failure {
        r#type: failure.error_type.clone(),
        message: failure.message.clone(),
        stack_trace: failure.stack_trace.clone(),
        http_status: failure.http_status,
        response_body: failure.response_body.clone(),
        details: json::object_out(&failure.details),
        truncated: failure.truncated,
    }
}

/// Without stack trace and response body.
pub(super) fn brief_failure_out(failure: Failure) -> pb::Failure {
    pb::Failure {
        details: json::object_out(&failure.details),
        r#type: failure.error_type,
        message: failure.message,
        http_status: failure.http_status,
        truncated: failure.truncated,
        ..pb::Failure::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::limits::Limits;
    use crate::grpc::convert::{Invalid, testing::refusals};
    use prost_types::{Struct, Value, value::Kind};

    fn read(given: pb::Failure) -> Result<Failure, Invalid> {
        let limits = Limits::default();
        let mut check = Check::new(&limits);
        let failure = failure(&mut check, given);
        check.done(Some(failure))
    }

    fn details(kind: Kind) -> Option<Struct> {
        let value = Value { kind: Some(kind) };
        Some(Struct { fields: [("k".to_owned(), value)].into() })
    }

    #[test]
    fn a_failure_reads_back() {
        let given = pb::Failure {
            r#type: "Timeout".into(),
            message: "too slow".into(),
            stack_trace: "at x".into(),
            http_status: 503,
            response_body: "busy".into(),
            details: details(Kind::StringValue("v".into())),
            truncated: false,
        };
        let failure = read(given.clone()).unwrap();
        assert_eq!(failure.details, r#"{"k":"v"}"#);
        assert_eq!(failure_out(&failure), given);
        let brief = brief_failure_out(failure);
        assert_eq!((brief.stack_trace.as_str(), brief.response_body.as_str()), ("", ""));
        assert_eq!(brief.message, "too slow");
    }

    #[test]
    fn bad_fields_are_named() {
        for (given, start) in [
            (pb::Failure { r#type: "x".repeat(257), ..Default::default() }, "error.type: "),
            (pb::Failure { http_status: 99, ..Default::default() }, "error.http_status: "),
            (pb::Failure { http_status: 600, ..Default::default() }, "error.http_status: "),
            (
                pb::Failure {
                    details: details(Kind::StringValue("x".repeat(17 << 10))),
                    ..Default::default()
                },
                "error.details: ",
            ),
            (
                pb::Failure { details: details(Kind::NumberValue(f64::NAN)), ..Default::default() },
                "error.details.k: ",
            ),
        ] {
            let refused = refusals(read(given));
            assert!(refused.len() == 1 && refused[0].starts_with(start), "{refused:?}");
        }
    }
}
