//! Failures as workers report them and as histories show them.

use super::json;
use crate::domain::{Failure, FailureCategory, Limits, UNKNOWN_TYPE, cut_bytes};
use crate::grpc::pb;

/// Reads `error`. Nothing in it refuses a Nack: a worker that reports a failure in the wrong form still reports it. Texts
/// without a limit in bytes are cut and flagged where it is decided what follows from the failure.
pub(super) fn failure(limits: &Limits, given: pb::Failure) -> Failure {
    let category = category(given.category());
    let (mut error_type, mut code, mut breaker_key) = (given.r#type, given.code, given.breaker_key);
    if error_type.is_empty() {
        UNKNOWN_TYPE.clone_into(&mut error_type);
    }
    let cut = |text: &mut String| cut_bytes(text, limits.name_bytes);
    // As in the keys that producers give.
    breaker_key.retain(|c| !c.is_control());
    let truncated = cut(&mut error_type) | cut(&mut code) | cut(&mut breaker_key);
    let had_details = given.details.is_some();
    let details = given.details.and_then(|details| json::canonical_object(details).ok());
    let details = details.filter(|text| text.len() <= limits.details_bytes);
    Failure {
        category,
        category_derived: false,
        error_type,
        code,
        message: given.message,
        stack_trace: given.stack_trace,
        http_status: if (100..=599).contains(&given.http_status) { given.http_status } else { 0 },
        response_body: given.response_body,
        truncated,
        details_dropped: had_details && details.is_none(),
        details: details.unwrap_or_default(),
        breaker_key,
    }
}

/// A category that this server does not know is none: it derives one.
pub(super) fn category(given: pb::FailureCategory) -> Option<FailureCategory> {
    Some(match given {
        pb::FailureCategory::Unspecified => return None,
        pb::FailureCategory::Unreachable => FailureCategory::Unreachable,
        pb::FailureCategory::Timeout => FailureCategory::Timeout,
        pb::FailureCategory::Unavailable => FailureCategory::Unavailable,
        pb::FailureCategory::RateLimited => FailureCategory::RateLimited,
        pb::FailureCategory::Invalid => FailureCategory::Invalid,
        pb::FailureCategory::NotFound => FailureCategory::NotFound,
        pb::FailureCategory::Unauthorized => FailureCategory::Unauthorized,
        pb::FailureCategory::Forbidden => FailureCategory::Forbidden,
        pb::FailureCategory::Conflict => FailureCategory::Conflict,
        pb::FailureCategory::Internal => FailureCategory::Internal,
    })
}

fn category_out(category: Option<FailureCategory>) -> pb::FailureCategory {
    let Some(category) = category else {
        return pb::FailureCategory::Unspecified;
    };
    match category {
        FailureCategory::Unreachable => pb::FailureCategory::Unreachable,
        FailureCategory::Timeout => pb::FailureCategory::Timeout,
        FailureCategory::Unavailable => pb::FailureCategory::Unavailable,
        FailureCategory::RateLimited => pb::FailureCategory::RateLimited,
        FailureCategory::Invalid => pb::FailureCategory::Invalid,
        FailureCategory::NotFound => pb::FailureCategory::NotFound,
        FailureCategory::Unauthorized => pb::FailureCategory::Unauthorized,
        FailureCategory::Forbidden => pb::FailureCategory::Forbidden,
        FailureCategory::Conflict => pb::FailureCategory::Conflict,
        FailureCategory::Internal => pb::FailureCategory::Internal,
    }
}

pub(super) fn failure_out(failure: Failure) -> pb::Failure {
    pb::Failure {
        details: json::object_out(&failure.details),
        category: category_out(failure.category).into(),
        category_derived: failure.category_derived,
        code: failure.code,
        r#type: failure.error_type,
        message: failure.message,
        stack_trace: failure.stack_trace,
        http_status: failure.http_status,
        response_body: failure.response_body,
        truncated: failure.truncated,
        details_dropped: failure.details_dropped,
        breaker_key: failure.breaker_key,
    }
}

/// Without stack trace and response body.
pub(super) fn brief_failure_out(failure: Failure) -> pb::Failure {
    pb::Failure { stack_trace: String::new(), response_body: String::new(), ..failure_out(failure) }
}
