//! How long a call may take. Around the service, so that a store that does not answer keeps no call for ever; a caller's own
//! deadline ends it earlier.

use crate::domain::Limits;
use std::time::Duration;

/// On top of the longest wait.
const CALL_EXTRA: Duration = Duration::from_secs(35);

pub(in crate::grpc) fn longest(limits: &Limits) -> Duration {
    limits.wait + CALL_EXTRA
}
