//! Event: a sealed record of something that was done to a job beside its deliveries.

use super::*;
use crate::domain::{JobEvent, JobEventKind};
use crate::queue::encoding::{FORMAT, Read, Reader, open, put_place, put_text, seal};
use bytes::Bytes;

/// Their places are their codes.
const KINDS: [JobEventKind; 7] = [
    JobEventKind::Requeued,
    JobEventKind::Moved,
    JobEventKind::Replaced,
    JobEventKind::RunNow,
    JobEventKind::CancelRequested,
    JobEventKind::ReturnedByBreaker,
    JobEventKind::AckedAfterLease,
];

pub(crate) fn event(event: &JobEvent) -> Bytes {
    let mut out = vec![FORMAT];
    put_event(&mut out, event);
    seal(out).into()
}

pub(crate) fn read_event(record: &[u8]) -> Read<JobEvent> {
    read_event_fields(&mut open(record)?)
}

pub(super) fn put_event(out: &mut Vec<u8>, event: &JobEvent) {
    put_place(out, &KINDS, &event.kind);
    put_time(out, event.at);
    for text in [&event.by, &event.reason, &event.detail] {
        put_text(out, text);
    }
}

/// What follows them is a newer server's.
pub(super) fn read_event_fields(read: &mut Reader<'_>) -> Read<JobEvent> {
    let (kind, at) = (read.place(&KINDS)?, read_time(read)?);
    Ok(JobEvent { at, kind, by: read.text()?, reason: read.text()?, detail: read.text()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_event_reads_back() {
        for kind in KINDS {
            let at = Timestamp::from_millis(1_800_000_000_000);
            let whole = JobEvent { by: "ada".into(), ..JobEvent::new(at, kind, "a reason", "a detail".into()) };
            assert_eq!(read_event(&event(&whole)), Ok(whole));
        }
    }
}
