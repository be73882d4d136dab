//! The stable reasons of refusals, each with its code: programs decide by them, and README.md lists them.

use tonic::Code;

/// `reason` of `google.rpc.ErrorInfo` and of `ItemError`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    InvalidField,
    BodyTooLarge,
    JobNotFound,
    QueueNotFound,
    BreakerNotFound,
    LeaseLost,
    WrongState,
    AmbiguousJobId,
    KeyConflict,
    QueueFull,
    TooManyQueues,
    Overloaded,
    StoreUnavailable,
    DiskLow,
    OutcomeUnknown,
    DurabilityNotConfirmed,
}

impl Reason {
    pub const ALL: [Self; 16] = [
        Self::InvalidField,
        Self::BodyTooLarge,
        Self::JobNotFound,
        Self::QueueNotFound,
        Self::BreakerNotFound,
        Self::LeaseLost,
        Self::WrongState,
        Self::AmbiguousJobId,
        Self::KeyConflict,
        Self::QueueFull,
        Self::TooManyQueues,
        Self::Overloaded,
        Self::StoreUnavailable,
        Self::DiskLow,
        Self::OutcomeUnknown,
        Self::DurabilityNotConfirmed,
    ];

    /// As it is on the wire.
    pub fn as_str(self) -> &'static str {
        self.row().0
    }

    pub fn code(self) -> Code {
        self.row().1
    }

    /// When it is given, and what to do.
    pub fn meaning(self) -> &'static str {
        self.row().2
    }

    fn row(self) -> (&'static str, Code, &'static str) {
        use Code::{
            AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, ResourceExhausted,
            Unavailable,
        };
        match self {
            Self::InvalidField => (
                "INVALID_FIELD",
                InvalidArgument,
                "a field is missing, malformed or over its limit; every such field is named",
            ),
            Self::BodyTooLarge => (
                "BODY_TOO_LARGE",
                InvalidArgument,
                "the body is over its limit; keep the data elsewhere and send a reference",
            ),
            Self::JobNotFound => (
                "JOB_NOT_FOUND",
                NotFound,
                "there is no such job: it never was, it was removed, or it is done and not kept",
            ),
            Self::QueueNotFound => {
                ("QUEUE_NOT_FOUND", NotFound, "nobody has configured this queue or enqueued to it")
            }
            Self::BreakerNotFound => (
                "BREAKER_NOT_FOUND",
                NotFound,
                "no queue has this breaker; BreakerStatus without a name lists all",
            ),
            Self::LeaseLost => (
                "LEASE_LOST",
                FailedPrecondition,
                "the lease has ended or been superseded; drop the work",
            ),
            Self::WrongState => (
                "WRONG_STATE",
                FailedPrecondition,
                "the call does not fit the job's state, which the message names",
            ),
            Self::AmbiguousJobId => (
                "AMBIGUOUS_JOB_ID",
                FailedPrecondition,
                "several queues have a job of this id; name the queue as well",
            ),
            Self::KeyConflict => (
                "KEY_CONFLICT",
                AlreadyExists,
                "the id or idempotency key belongs to a different job",
            ),
            Self::QueueFull => (
                "QUEUE_FULL",
                ResourceExhausted,
                "the queue is at its depth limit; try again later",
            ),
            Self::TooManyQueues => (
                "TOO_MANY_QUEUES",
                ResourceExhausted,
                "the server has as many queues as it takes; use an existing one",
            ),
            Self::Overloaded => (
                "OVERLOADED",
                ResourceExhausted,
                "too much waits to be written, and nothing was changed; try again later",
            ),
            Self::StoreUnavailable => (
                "STORE_UNAVAILABLE",
                Unavailable,
                "the store cannot be reached, and nothing was changed; try again later",
            ),
            Self::DiskLow => (
                "DISK_LOW",
                Unavailable,
                "the disk, or Redis' memory, is nearly full: no new jobs, settling goes on; free some space",
            ),
            Self::OutcomeUnknown => (
                "OUTCOME_UNKNOWN",
                Unavailable,
                "the call may or may not have been carried out; repeat it",
            ),
            Self::DurabilityNotConfirmed => (
                "DURABILITY_NOT_CONFIRMED",
                Unavailable,
                "the call was carried out, but fewer replicas have it than must; repeat it",
            ),
        }
    }
}
