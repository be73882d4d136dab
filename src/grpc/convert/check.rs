//! Collects what is wrong with a request, each with the path of its field.

use super::same_name::SameName;
use crate::domain::{DeadPart, JobId, Lease, Limits, QueueName};
use std::fmt::{self, Display};

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// The item that it is in. None: the request itself.
    pub(crate) place: Option<Place>,
    /// Named within the item.
    pub(crate) field: String,
    pub(crate) message: String,
    /// It is the body, and this is its size and the limit.
    pub(crate) body_too_large: Option<(usize, usize)>,
}

impl Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Place { list, at }) = self.place {
            write!(f, "{list}[{at}].")?;
        }
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// What is wrong with a request or an item.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Invalid {
    /// The first of them; never empty.
    pub(crate) found: Vec<Violation>,
    /// All of them.
    pub(crate) count: usize,
}

/// A request can have many fields, and all of them may be wrong.
const KEPT: usize = 16;

impl Invalid {
    fn push(&mut self, violation: Violation) {
        self.count += 1;
        if self.found.len() < KEPT {
            // Mostly it stays the only one.
            self.found.reserve_exact(usize::from(self.found.is_empty()));
            self.found.push(violation);
        }
    }

    /// Those of a part are also those of the whole.
    pub(super) fn include(&mut self, part: Self) {
        let kept = part.found.len();
        part.found.into_iter().for_each(|violation| self.push(violation));
        self.count += part.count - kept;
    }
}

/// Where in the request an item stands: `jobs[3]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(super) list: &'static str,
    pub(super) at: usize,
}

#[derive(Debug)]
pub(super) struct Check<'a> {
    pub(super) limits: &'a Limits,
    place: Option<Place>,
    pub(super) invalid: Invalid,
}

impl<'a> Check<'a> {
    pub(super) fn new(limits: &'a Limits) -> Self {
        Self::at(limits, None)
    }

    pub(super) fn at(limits: &'a Limits, place: Option<Place>) -> Self {
        Self { limits, place, invalid: Invalid::default() }
    }

    pub(super) fn refuse(&mut self, field: impl Display, message: impl Into<String>) {
        self.push(field, message.into(), None);
    }

    fn push(&mut self, field: impl Display, message: String, size: Option<(usize, usize)>) {
        let (place, field) = (self.place, field.to_string());
        self.invalid.push(Violation { place, field, message, body_too_large: size });
    }

    /// The value, unless something was refused.
    pub(super) fn done<T>(self, value: Option<T>) -> Result<T, Invalid> {
        match value {
            Some(value) if self.invalid.count == 0 => Ok(value),
            // A value is only missing where something was refused.
            _ => Err(self.invalid),
        }
    }

    /// The value; where there is none, the field is refused.
    pub(super) fn or_refuse<T, M: Into<String>>(
        &mut self, value: Option<T>, field: impl Display, message: impl FnOnce() -> M,
    ) -> Option<T> {
        if value.is_none() {
            self.refuse(field, message());
        }
        value
    }

    pub(super) fn queue(&mut self, field: impl Display, name: &str) -> Option<QueueName> {
        self.or_refuse(QueueName::parse(name), field, || format!("a queue's name is {}", QueueName::RULE))
    }

    /// A queue that need not be named.
    pub(super) fn queue_if_given(&mut self, field: impl Display, name: &str) -> Option<QueueName> {
        if name.is_empty() { None } else { self.queue(field, name) }
    }

    pub(super) fn dead_part(&mut self, field: impl Display, name: &str) -> Option<DeadPart> {
        self.or_refuse(DeadPart::parse(name), field, || {
            format!("name a queue ({}), or its dead letters: dlq:name, dlq:overflow:name", QueueName::RULE)
        })
    }

    pub(super) fn lease(&mut self, field: impl Display, token: &str) -> Option<Lease> {
        self.or_refuse(Lease::parse(token), field, || "not a lease; send the `lease` of the claimed job unchanged")
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

    /// What this number of the wire stands for. None: not specified, or not known and refused.
    pub(super) fn one_of<T: SameName>(&mut self, field: impl Display, given: i32) -> Option<T> {
        let found = T::ALL.iter().copied().find(|value| value.out() == given);
        if found.is_none() && given != 0 {
            self.unknown_value(field, given);
        }
        found
    }

    pub(super) fn page_size(&self, given: u32) -> usize {
        bounded(given, self.limits.page_size_default, self.limits.page_size_max)
    }
}

/// 0 stands for the default; more than the most is cut.
pub(super) fn bounded(given: u32, default: usize, most: usize) -> usize {
    match given {
        0 => default,
        given => (given as usize).min(most),
    }
}
