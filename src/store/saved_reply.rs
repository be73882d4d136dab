//! The records of answers that are kept for calls that come again.

use super::{
    Deaths, Purged, Requeued, SkipReason, codec,
    notation::{Damaged, Read, Reader, put_text, put_u64},
};
use crate::domain::ids::JobId;

pub(super) fn requeued(reply: &Requeued) -> Vec<u8> {
    let mut out = vec![codec::VERSION];
    put_u64(&mut out, reply.ids.len() as u64);
    for id in &reply.ids {
        put_text(&mut out, &id.to_string());
    }
    put_rest(&mut out, &reply.skipped, reply.has_more, reply.left);
    codec::seal(out)
}

/// A damaged record answers that nothing more was done, which is so.
pub(super) fn read_requeued(record: &[u8]) -> Requeued {
    let read = || -> Read<Requeued> {
        let mut read = codec::open(record)?;
        let count = read.u64()?;
        let ids = (0..count).map(|_| Ok(JobId::parse(&read.text()?))).collect::<Read<_>>()?;
        let (skipped, has_more, left) = read_rest(&mut read)?;
        Ok(Requeued { ids, skipped, has_more, left })
    };
    read().unwrap_or_default()
}

pub(super) fn purged(reply: &Purged) -> Vec<u8> {
    let mut out = vec![codec::VERSION];
    put_u64(&mut out, reply.count);
    put_rest(&mut out, &reply.skipped, reply.has_more, reply.left);
    codec::seal(out)
}

/// As [`read_requeued`].
pub(super) fn read_purged(record: &[u8]) -> Purged {
    let read = || -> Read<Purged> {
        let mut read = codec::open(record)?;
        let count = read.u64()?;
        let (skipped, has_more, left) = read_rest(&mut read)?;
        Ok(Purged { count, skipped, has_more, left })
    };
    read().unwrap_or_default()
}

type Skipped = Vec<(JobId, SkipReason)>;

fn put_rest(out: &mut Vec<u8>, skipped: &Skipped, has_more: bool, left: Deaths) {
    put_u64(out, skipped.len() as u64);
    for (id, reason) in skipped {
        put_text(out, &id.to_string());
        out.push(match reason {
            SkipReason::JobNotFound => 1,
            SkipReason::KeyTaken => 2,
            SkipReason::IdTaken => 3,
            SkipReason::DataCorrupt => 4,
        });
    }
    out.push(u8::from(has_more));
    put_u64(out, left.after);
    put_u64(out, left.up_to);
}

fn read_rest(read: &mut Reader<'_>) -> Read<(Skipped, bool, Deaths)> {
    let count = read.u64()?;
    let mut skipped = Vec::new();
    for _ in 0..count {
        let id = JobId::parse(&read.text()?);
        let reason = match read.u8()? {
            1 => SkipReason::JobNotFound,
            2 => SkipReason::KeyTaken,
            3 => SkipReason::IdTaken,
            4 => SkipReason::DataCorrupt,
            _ => return Err(Damaged),
        };
        skipped.push((id, reason));
    }
    let has_more = read.u8()? == 1;
    let left = Deaths { after: read.u64()?, up_to: read.u64()? };
    read.end()?;
    Ok((skipped, has_more, left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_read_back_and_damaged_ones_say_that_nothing_was_done() {
        let reasons = [
            SkipReason::JobNotFound,
            SkipReason::KeyTaken,
            SkipReason::IdTaken,
            SkipReason::DataCorrupt,
        ];
        let skipped: Skipped = reasons.map(|reason| (JobId::parse("s"), reason)).into();
        let left = Deaths { after: 3, up_to: 1 << 40 };
        let ids = vec![JobId::parse("a"), JobId::parse("0198f7c0-0000-7000-8000-000000000000")];
        let reply = Requeued { ids, skipped: skipped.clone(), has_more: true, left };
        let mut record = requeued(&reply);
        assert_eq!(read_requeued(&record), reply);
        record[2] ^= 1;
        assert_eq!(read_requeued(&record), Requeued::default());
        let reply = Purged { count: 9, skipped, has_more: false, left };
        let mut record = purged(&reply);
        assert_eq!(read_purged(&record), reply);
        record[2] ^= 1;
        assert_eq!(read_purged(&record), Purged::default());
    }
}
