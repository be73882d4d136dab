//! Every way to say no, and how it looks to the caller: code, stable reason, and a message that says what happened, why,
//! and what to do next. The same table serves whole calls and items of batches.

use super::convert::{Invalid, duration_out};
use super::pb;
use super::reason::Reason;
use crate::domain::State;
use crate::domain::duration::human;
use crate::queue::{Error, Refusal};
use crate::store::StoreError;
use prost::Message;
use std::{collections::HashMap, time::Duration};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Status, codegen::Bytes};
use tonic_types::{ErrorDetails, StatusExt};

const DOMAIN: &str = "redrive";
/// A full queue or a busy writer empties within about this time.
const SOON: Duration = Duration::from_secs(1);
/// A full disk stays full until an operator makes room.
const LATER: Duration = Duration::from_secs(10);

/// Errors travel in headers, and some clients take no more than 8 KiB of them.
const FIELD_BYTES: usize = 128;
const FIELD_MESSAGE_BYTES: usize = 256;
const ALL_FIELDS_BYTES: usize = 3_000;
const MESSAGE_BYTES: usize = 600;
const FACT_BYTES: usize = 300;
const NAMES_MAX: usize = 5;

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let explanation = match error {
            Error::Refused(refusal) => explain(&refusal),
            Error::Store(error) => explain_store(&error),
        };
        explanation.into_status()
    }
}

impl From<Invalid> for Status {
    fn from(invalid: Invalid) -> Self {
        explain_invalid(&invalid).into_status()
    }
}

/// All that is said about one refusal.
#[derive(Debug)]
struct Explanation {
    reason: Reason,
    message: String,
    /// Fields at fault, with what is wrong with each.
    fields: Vec<(String, String)>,
    /// Given: waiting this long may help.
    retry_after: Option<Duration>,
    /// What the message speaks of, for programs.
    facts: Vec<(&'static str, String)>,
}

impl Explanation {
    fn new(reason: Reason, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { reason, message, fields: vec![], retry_after: None, facts: vec![] }
    }

    fn field(mut self, field: &str) -> Self {
        self.fields.push((field.to_owned(), self.message.clone()));
        self
    }

    fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    fn fact(mut self, name: &'static str, value: impl ToString) -> Self {
        self.facts.push((name, value.to_string()));
        self
    }

    /// Long texts come from callers' own names; the beginning is enough to recognise them.
    fn bound(&mut self) {
        for (field, message) in &mut self.fields {
            cut(field, FIELD_BYTES);
            cut(message, FIELD_MESSAGE_BYTES);
        }
        let mut left = ALL_FIELDS_BYTES;
        self.fields.retain(|(field, message)| {
            left = left.saturating_sub(field.len() + message.len());
            left > 0
        });
        for (_, value) in &mut self.facts {
            cut(value, FACT_BYTES);
        }
        cut(&mut self.message, MESSAGE_BYTES);
    }

    fn into_status(mut self) -> Status {
        self.bound();
        let item = self.item();
        let code = self.reason.code();
        let facts: HashMap<_, _> = self.facts.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let mut details = ErrorDetails::with_error_info(self.reason.as_str(), DOMAIN, facts);
        for (field, message) in self.fields {
            details.add_bad_request_violation(field, message);
        }
        let mut metadata = MetadataMap::new();
        // For callers that cannot read details.
        metadata.insert("redrive-reason", MetadataValue::from_static(self.reason.as_str()));
        if let Some(after) = self.retry_after {
            details.set_retry_info(Some(after));
            // What the retry support built into gRPC clients goes by.
            if let Ok(millis) = after.as_millis().to_string().parse() {
                metadata.insert("grpc-retry-pushback-ms", millis);
            }
        }
        let details = with_item(Status::with_error_details(code, self.message.as_str(), details).details(), &item);
        Status::with_details_and_metadata(code, self.message, details, metadata)
    }

    fn into_item(mut self) -> pb::ItemError {
        self.bound();
        self.item()
    }

    fn item(&self) -> pb::ItemError {
        pb::ItemError {
            code: self.reason.code().into(),
            reason: self.reason.as_str().to_owned(),
            message: self.message.clone(),
            retryable: self.retry_after.is_some(),
            retry_after: self.retry_after.map(duration_out),
            field: self.fields.first().map(|(field, _)| field.clone()).unwrap_or_default(),
        }
    }
}

/// The details of a status, and the item among them.
fn with_item(details: &[u8], item: &pb::ItemError) -> Bytes {
    let mut status = tonic_types::pb::Status::decode(details).unwrap_or_default();
    let type_url = "type.googleapis.com/redrive.v1.ItemError".to_owned();
    status.details.push(prost_types::Any { type_url, value: item.encode_to_vec() });
    status.encode_to_vec().into()
}

fn cut(text: &mut String, most: usize) {
    if text.len() > most {
        let end = (0..=most).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        text.push('…');
    }
}

pub(super) fn item(refusal: &Refusal) -> pb::ItemError {
    explain(refusal).into_item()
}

pub(super) fn invalid_item(invalid: &Invalid) -> pb::ItemError {
    explain_invalid(invalid).into_item()
}

/// A request that the transport could not hand over.
pub(super) fn message_too_large(detail: &str) -> Status {
    let message = format!(
        "the request is too long; send fewer items in a call, or keep the data elsewhere and send \
         a reference: {detail}"
    );
    Explanation::new(Reason::BodyTooLarge, message).into_status()
}

/// A request that is not decoded: its many small parts would take too much memory.
pub(super) fn takes_too_much(mib: usize) -> Status {
    let message = format!(
        "decoded, the request would take more than {mib} MiB of memory: send fewer items in a call, and large JSON in `text`"
    );
    Explanation::new(Reason::InvalidField, message).into_status()
}

/// A bound of the server is reached.
pub(super) fn overloaded(why: &str) -> Status {
    Explanation::new(Reason::Overloaded, format!("{why}; nothing was changed, try again in a moment"))
        .retry_after(SOON)
        .into_status()
}

/// A claim that was refused after it had settled.
pub(super) fn overloaded_but_settled(why: &str) -> Status {
    let message = format!("{why}; what the call settles was settled, and no job was claimed: try again in a moment");
    Explanation::new(Reason::Overloaded, message).fact("settled", true).retry_after(SOON).into_status()
}

/// A request that takes too long to arrive.
pub(super) fn incomplete(within: &str) -> Status {
    let message = format!("the request was not complete within {within}: nothing was changed; send it again");
    Explanation::new(Reason::Overloaded, message).retry_after(SOON).into_status()
}

/// A request that is not what the contract says.
pub(super) fn unreadable(detail: &str) -> Status {
    let message = format!(
        "the request cannot be read: {detail}; check that both sides use the same contract, and \
         send deeply nested JSON in `text`"
    );
    Explanation::new(Reason::InvalidField, message).into_status()
}

fn explain_invalid(Invalid { found, count }: &Invalid) -> Explanation {
    let mut messages: Vec<_> = found.iter().map(ToString::to_string).collect();
    if *count > found.len() {
        messages.insert(0, format!("{count} fields are wrong"));
    }
    let message = messages.join("; ");
    let sizes: Vec<_> = found.iter().filter_map(|violation| violation.body_too_large).collect();
    let mut explanation = match sizes[..] {
        // Only if nothing else is wrong: shrinking the body would then be enough.
        [(bytes, limit), ..] if sizes.len() == *count => {
            Explanation::new(Reason::BodyTooLarge, message).fact("bytes", bytes).fact("limit", limit)
        }
        _ => Explanation::new(Reason::InvalidField, message),
    };
    let field = |violation: &super::convert::Violation| (violation.field.clone(), violation.message.clone());
    explanation.fields = found.iter().map(field).collect();
    explanation
}

fn explain(refusal: &Refusal) -> Explanation {
    let conflict = |field, message| Explanation::new(Reason::KeyConflict, message).field(field);
    match refusal {
        Refusal::Field { field, message } => {
            let whole = format!("{field}: {message}");
            let mut explanation = Explanation::new(Reason::InvalidField, whole);
            explanation.fields.push((field.clone(), message.clone()));
            explanation
        }
        Refusal::JobNotFound { id, searched } => {
            let (place, kept) = match searched {
                None => {
                    let kept = "completed jobs are kept only where their queue sets completed_retention";
                    (String::new(), kept.to_owned())
                }
                Some((queue, kept)) => (format!(" in {queue}"), completed_jobs(*kept)),
            };
            let message = format!("there is no job {id:?}{place}: it never was, it was removed, or it is done; {kept}");
            Explanation::new(Reason::JobNotFound, message).fact("job_id", id)
        }
        Refusal::KeyNotFound { key, queue, kept } => {
            let kept = completed_jobs(*kept);
            let message = format!(
                "there is no job with idempotency_key {key:?} in {queue}: it never was, its key is held no longer, it was \
                 removed, or it is done; {kept}"
            );
            Explanation::new(Reason::JobNotFound, message).fact("idempotency_key", key).fact("queue", queue)
        }
        Refusal::QueueNotFound { queue } => {
            let message = format!(
                "there is no queue {queue}: it comes into being with its first job, with PauseQueue, as the target of a \
                 requeue, or in the configuration; ListQueues tells which there are"
            );
            Explanation::new(Reason::QueueNotFound, message).fact("queue", queue)
        }
        Refusal::BreakerNotFound { name } => {
            let message = format!(
                "there is no breaker {name}: each queue has \"queue:<name>\" and \"dlq:<name>\", and \
                 \"queue:<name>/<key>\" for each breaker key of its jobs; BreakerStatus without a name lists all"
            );
            Explanation::new(Reason::BreakerNotFound, message).fact("breaker", name)
        }
        Refusal::LeaseLost => Explanation::new(
            Reason::LeaseLost,
            "the lease is over: it was settled before, it ran out, or the job was delivered to another \
             worker. Drop the work; if it ran out, extend earlier or ask for a longer lease_duration",
        ),
        Refusal::AmbiguousJobId { id, queues } => {
            let mut names: Vec<_> = queues.iter().map(ToString::to_string).collect();
            if names.len() > NAMES_MAX {
                let more = names.split_off(NAMES_MAX).len();
                names.push(format!("{more} more"));
            }
            let names = names.join(", ");
            let message = format!("the id {id:?} is in use in {names}; name the queue as well");
            Explanation::new(Reason::AmbiguousJobId, message).fact("job_id", id).fact("queues", names)
        }
        Refusal::WrongState { id, state } => {
            let (name, advice) = match state {
                State::Scheduled => ("SCHEDULED", "it waits for its time"),
                State::Retrying => ("RETRYING", "it waits for its retry"),
                State::Ready => ("READY", "it waits for a worker"),
                State::Leased => ("LEASED", "a worker has it already"),
                State::Completed => ("COMPLETED", "it is done"),
                State::Cancelled => ("CANCELLED", "enqueue it anew to run it"),
                State::Dead => ("DEAD", "requeue it to run it again, or purge it to be rid of it"),
            };
            let message = format!("the job {id:?} is {name}: {advice}");
            Explanation::new(Reason::WrongState, message).fact("job_id", id).fact("state", name)
        }
        Refusal::IdTaken => conflict(
            "job_id",
            "the job_id belongs to a job of another type or body in this queue; use another id, \
             or send the same job to have it recognised",
        ),
        Refusal::KeyTaken => conflict(
            "idempotency_key",
            "the idempotency_key belongs to a job of another type or body in this queue; use \
             another key, or send the same job to have it recognised",
        ),
        Refusal::IdAndKeyDiffer => conflict(
            "job_id",
            "the job_id and the idempotency_key belong to two different jobs; send the pair that \
             was used together, or only one of them",
        ),
        Refusal::RequestIdTaken => {
            let message = "was used for a call with other fields within the last 10 minutes; repeat that call as it was, or \
                           use a new id";
            explain(&Refusal::Field { field: "request_id".into(), message: message.into() })
        }
        Refusal::QueueFull { limit } => {
            let message = format!(
                "the queue is at its depth limit of {limit} jobs; try again when workers have \
                 caught up, or raise max_depth"
            );
            Explanation::new(Reason::QueueFull, message).fact("limit", limit).retry_after(SOON)
        }
        Refusal::TooManyQueues { limit } => {
            let message = format!(
                "there are already {limit} queues, the most this server has; use an existing one \
                 (queues left empty are forgotten after 24 h)"
            );
            Explanation::new(Reason::TooManyQueues, message).fact("limit", limit)
        }
        Refusal::NewQueuesTooFast { limit, after } => {
            let message = format!(
                "{limit} queues have come into being within a minute, the most that may; use an existing one, name it in the \
                 configuration, or try again later"
            );
            Explanation::new(Reason::TooManyQueues, message).fact("limit", limit).retry_after(*after)
        }
    }
}

/// Of one queue.
fn completed_jobs(kept: Option<Duration>) -> String {
    match kept {
        None => "this queue keeps no completed jobs, since it sets no completed_retention".into(),
        Some(kept) => format!("this queue keeps completed jobs for {}", human(kept)),
    }
}

fn explain_store(error: &StoreError) -> Explanation {
    let (reason, after, what, detail) = match error {
        StoreError::Unavailable(detail) => {
            (Reason::StoreUnavailable, SOON, "the store cannot be reached, and nothing was changed; try again", detail)
        }
        StoreError::DiskLow(detail) => (
            Reason::DiskLow,
            LATER,
            "the disk is nearly full, so no new jobs are taken while those there are can still be \
             finished; free some space, then try again",
            detail,
        ),
        // For programs these are the same case.
        StoreError::DiskFull(detail) => (
            Reason::DiskLow,
            LATER,
            "the disk is full, and nothing was changed; free some space, then try again",
            detail,
        ),
        StoreError::MemoryLow(detail) => (
            Reason::DiskLow,
            LATER,
            "Redis has used all the memory that it may, and refused this call; raise its maxmemory or let jobs \
             finish, then try again",
            detail,
        ),
        StoreError::Overloaded(detail) => (
            Reason::Overloaded,
            SOON,
            "more is waiting to be written than the server takes, and nothing was changed; \
             try again in a moment",
            detail,
        ),
        StoreError::OutcomeUnknown(detail) => (
            Reason::OutcomeUnknown,
            SOON,
            "the call may or may not have been carried out; repeat it (with the same \
             idempotency_key, job_id or request_id nothing happens twice)",
            detail,
        ),
        StoreError::DurabilityNotConfirmed(detail) => (
            Reason::DurabilityNotConfirmed,
            SOON,
            "the call was carried out, but it is not yet as durable as the server must make \
             it; repeat it (with the same idempotency_key, job_id or request_id nothing \
             happens twice)",
            detail,
        ),
        StoreError::NewerFormat(detail) => (
            Reason::StoreUnavailable,
            LATER,
            "a newer server has written to this store, and this one changed nothing",
            detail,
        ),
    };
    Explanation::new(reason, format!("{what}: {detail}")).retry_after(after)
}
