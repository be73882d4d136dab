//! Values that the wire has under the same names.

use super::job::View;
use crate::domain::{AttemptStatus, BreakerState, DeadReason, Jitter, JobEventKind, State, Strategy};
use crate::grpc::pb;
use crate::queue::{Cancelled, EnqueueOutcome, IdleReason};

pub(super) trait SameName: Copy + 'static {
    const ALL: &'static [Self];

    /// The wire's number for it.
    fn out(self) -> i32;
}

macro_rules! same_names {
    ($($ours:ident => $wire:ident: $($variant:ident)*;)*) => {$(
        impl SameName for $ours {
            const ALL: &'static [Self] = &[$(Self::$variant),*];

            fn out(self) -> i32 {
                match self {
                    $(Self::$variant => pb::$wire::$variant.into(),)*
                }
            }
        }
    )*};
}

same_names! {
    AttemptStatus => AttemptStatus: Running Succeeded Failed LeaseExpired Released Interrupted Cancelled;
    BreakerState => BreakerState: Closed Open HalfOpen;
    DeadReason => DeadReason: Exhausted NonRetryable Expired WouldMissDeadline Corrupt;
    EnqueueOutcome => EnqueueOutcome: Added Existing Replaced;
    IdleReason => IdleReason: Draining NoSuchQueue Paused BreakerOpen Limited NotDue Empty;
    JobEventKind => JobEventKind:
        Requeued Moved Replaced RunNow CancelRequested ReturnedByBreaker AckedAfterLease;
    Jitter => JitterKind: None Proportional Symmetric Full Equal Decorrelated Additive;
    State => JobState: Scheduled Retrying Ready Leased Completed Cancelled Dead;
    Cancelled => CancelOutcome: Cancelled Requested;
    Strategy => BackoffStrategy: Exponential Linear Fixed Fibonacci List;
    View => JobView: Basic Full;
}
