//! The stable reasons of refusals, each with its code: programs decide by them, and docs/errors-and-limits.md lists them.

use tonic::Code;

/// Each reason once: its name on the wire, its code, when it is given and what to do.
macro_rules! reasons {
    ($($reason:ident $name:literal $code:ident $meaning:literal)*) => {
        /// `reason` of `google.rpc.ErrorInfo` and of `ItemError`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reason {
            $($reason,)*
        }

        impl Reason {
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$reason),*];

            /// As it is on the wire.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$reason => $name,)*
                }
            }

            /// When it is given, and what to do.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$reason => $meaning,)*
                }
            }

            pub fn code(self) -> Code {
                match self {
                    $(Self::$reason => Code::$code,)*
                }
            }
        }
    };
}

reasons! {
    InvalidField "INVALID_FIELD" InvalidArgument
        "a field is missing, malformed or over its limit; every such field is named"
    BodyTooLarge "BODY_TOO_LARGE" InvalidArgument
        "the body is over its limit; keep the data elsewhere and send a reference"
    JobNotFound "JOB_NOT_FOUND" NotFound
        "there is no such job: it never was, it was removed, or it is done and not kept"
    QueueNotFound "QUEUE_NOT_FOUND" NotFound
        "there is no such queue: it is not configured, and no job, requeue or pause has made it"
    BreakerNotFound "BREAKER_NOT_FOUND" NotFound
        "no queue has this breaker; BreakerStatus without a name lists all"
    LeaseLost "LEASE_LOST" FailedPrecondition
        "the lease has ended or been superseded; drop the work"
    WrongState "WRONG_STATE" FailedPrecondition
        "the call does not fit the job's state, which the message names"
    AmbiguousJobId "AMBIGUOUS_JOB_ID" FailedPrecondition
        "several queues have a job of this id; name the queue as well"
    KeyConflict "KEY_CONFLICT" AlreadyExists
        "the id or idempotency key belongs to a different job"
    QueueFull "QUEUE_FULL" ResourceExhausted
        "the queue is at its depth limit; try again later"
    TooManyQueues "TOO_MANY_QUEUES" ResourceExhausted
        "the server has as many queues as it takes, or too many came into being within a minute (then with RetryInfo); use an existing one"
    Overloaded "OVERLOADED" ResourceExhausted
        "a bound of the server or of this connection is reached, and nothing was changed (what a Claim settles is settled); try again later"
    StoreUnavailable "STORE_UNAVAILABLE" Unavailable
        "the store cannot be reached, and nothing was changed; try again later"
    DiskLow "DISK_LOW" Unavailable
        "the disk, or Redis' memory, is nearly full: no new jobs, settling goes on until it is full; free some space"
    OutcomeUnknown "OUTCOME_UNKNOWN" Unavailable
        "the call may or may not have been carried out; repeat it"
    DurabilityNotConfirmed "DURABILITY_NOT_CONFIRMED" Unavailable
        "the call was carried out, but fewer replicas have it than must; repeat it"
}
