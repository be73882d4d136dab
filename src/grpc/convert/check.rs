//! Collects what is wrong with a request, each with the path of its field.

use crate::domain::{
    ids::{DeadPart, JobId, QueueName},
    lease::Lease,
    limits::Limits,
};
use std::fmt::{self, Display};

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::grpc) struct Violation {
    /// The item that it is in. None: the request itself.
    pub(in crate::grpc) place: Option<Place>,
    /// Named within the item.
    pub(in crate::grpc) field: String,
    pub(in crate::grpc) message: String,
    /// It is the body, and this is its size and the limit.
    pub(in crate::grpc) body_too_large: Option<(usize, usize)>,
}

impl Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Place { list, at }) = self.place {
            write!(f, "{list}[{at}].")?;
        }
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// All that is wrong with a request or an item; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::grpc) struct Invalid(pub(in crate::grpc) Vec<Violation>);

impl Invalid {
    pub(super) fn one(field: impl Into<String>, message: impl Into<String>) -> Self {
        let (field, message) = (field.into(), message.into());
        Self(vec![Violation { place: None, field, message, body_too_large: None }])
    }
}

/// Where in the request an item stands: `jobs[3]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::grpc) struct Place {
    pub(super) list: &'static str,
    pub(super) at: usize,
}

#[derive(Debug)]
pub(super) struct Check<'a> {
    pub(super) limits: &'a Limits,
    place: Option<Place>,
    found: Vec<Violation>,
}

impl<'a> Check<'a> {
    pub(super) fn new(limits: &'a Limits) -> Self {
        Self { limits, place: None, found: Vec::new() }
    }

    pub(super) fn at(limits: &'a Limits, place: Option<Place>) -> Self {
        Self { limits, place, found: Vec::new() }
    }

    pub(super) fn refuse(&mut self, field: impl Display, message: impl Into<String>) {
        self.push(field, message.into(), None);
    }

    fn push(&mut self, field: impl Display, message: String, size: Option<(usize, usize)>) {
        let (place, field) = (self.place, field.to_string());
        self.found.push(Violation { place, field, message, body_too_large: size });
    }

    /// The value, unless something was refused.
    pub(super) fn done<T>(self, value: Option<T>) -> Result<T, Invalid> {
        match value {
            Some(value) if self.found.is_empty() => Ok(value),
            // A value is only missing where something was refused.
            _ => Err(Invalid(self.found)),
        }
    }

    pub(super) fn queue(&mut self, field: impl Display, name: &str) -> Option<QueueName> {
        let queue = QueueName::parse(name);
        if queue.is_none() {
            self.refuse(field, format!("a queue's name is {}", QueueName::RULE));
        }
        queue
    }

    /// A queue that need not be named.
    pub(super) fn queue_if_given(&mut self, field: impl Display, name: &str) -> Option<QueueName> {
        if name.is_empty() { None } else { self.queue(field, name) }
    }

    pub(super) fn dead_part(&mut self, field: impl Display, name: &str) -> Option<DeadPart> {
        let part = DeadPart::parse(name);
        if part.is_none() {
            let rule = QueueName::RULE;
            let message =
                format!("name a queue ({rule}), or its dead letters: dlq:name, dlq:overflow:name");
            self.refuse(field, message);
        }
        part
    }

    pub(super) fn lease(&mut self, field: impl Display, token: &str) -> Option<Lease> {
        let lease = Lease::parse(token);
        if lease.is_none() {
            self.refuse(field, "not a lease; send the `lease` of the claimed job unchanged");
        }
        lease
    }

    pub(super) fn at_most(&mut self, field: impl Display, bytes: usize, limit: usize) {
        if bytes > limit {
            self.refuse(field, format!("must be at most {limit} bytes, not {bytes}"));
        }
    }

    /// A type, an id, a key and the like.
    pub(super) fn name(&mut self, field: impl Display, name: &str) {
        self.at_most(field, name.len(), self.limits.name_bytes);
    }

    /// A name that is shown and typed again.
    pub(super) fn clean_name(&mut self, field: &str, name: &str) {
        self.name(field, name);
        if name.chars().any(char::is_control) {
            self.refuse(field, "must not contain control characters");
        }
    }

    pub(super) fn job_id(&mut self, field: impl Display, id: &str) -> Option<JobId> {
        if id.is_empty() {
            self.refuse(field, "must be given");
            return None;
        }
        self.name(field, id);
        Some(JobId::parse(id))
    }

    pub(super) fn body(&mut self, field: &str, bytes: usize) {
        let limit = self.limits.body_bytes;
        if bytes > limit {
            let message = format!(
                "a body is at most {limit} bytes and this one has {bytes}; \
                 keep the data elsewhere and send a reference"
            );
            self.push(field, message, Some((bytes, limit)));
        }
    }

    /// A field of the contract that this version does nothing with: better refused than ignored.
    pub(super) fn without_meaning(&mut self, field: &str, given: bool) {
        if given {
            self.refuse(field, "has no meaning yet; leave it out");
        }
    }

    pub(super) fn unknown_value(&mut self, field: impl Display, value: i32) {
        self.refuse(field, format!("{value} is not a value that this server knows"));
    }
}
