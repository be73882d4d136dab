//! What a closed breaker counts, kept in Redis so that it is one truth for all servers.
//!
//! Three fields of the queue's state. `wins` counts the successes since the last transition; scripts do that, so that an Ack
//! costs no second call. `tally` is a `Tally` that some server has put together, with how many of the successes are in it.
//! `fails` are failures that came from others while it did that: they wait beside it for the next one who looks.
//!
//! Whoever looks puts the three together in the order in which they happened. Failures of one row may change places, for
//! only their number and their jobs count; a success knows its place by how many there were before a failure.
//!
//! It stays small: a tally names no more jobs than a threshold asks for, and whoever counts next takes in what is beside it.

use super::reply::Reply;
use crate::{
    domain::{breaker::Tally, ids::JobId, settings::BreakerSettings, time::Timestamp},
    store::{
        StoreError, codec,
        notation::{Damaged, Read, Reader, put_f64, put_id, put_option, put_u64},
    },
};

/// As it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    tally: Vec<u8>,
    fails: Vec<u8>,
    wins: Vec<u8>,
}

/// What becomes of it.
#[derive(Clone, Debug)]
pub(super) struct Counted {
    /// The tally as it is now.
    pub(super) after: Vec<u8>,
    /// As it was.
    pub(super) before: Vec<u8>,
    /// Bytes of failures that are in it now.
    pub(super) known: u64,
    /// What has failed, for those who have to add it to what others know.
    pub(super) failures: Vec<u8>,
}

/// A tally that some server has put together.
#[derive(Debug, Default, PartialEq)]
struct Together {
    /// Of the breaker.
    transitions: u64,
    /// Successes since that transition that are in it.
    wins: u64,
    tally: Tally,
}

impl Counts {
    pub(super) fn read(reply: &mut Reply) -> Result<Self, StoreError> {
        Ok(Self { tally: reply.bytes()?, fails: reply.bytes()?, wins: reply.bytes()? })
    }

    /// Put together for a breaker with so many transitions: what is from before the last of them changes nothing.
    pub(super) fn tally(&self, transitions: u64, settings: &BreakerSettings) -> Tally {
        let Together { transitions: then, mut wins, mut tally } =
            read_tally(&self.tally).unwrap_or_default();
        if then != transitions {
            tally.end_row();
            wins = 0;
        }
        let (won, last) = self.wins(transitions);
        let mut fails = Reader(&self.fails);
        while let Ok((before, failed)) = read_failures(&mut fails, transitions) {
            if before > wins {
                tally.successes(before - wins, last);
                wins = before;
            }
            for job in &failed {
                tally.failure(job, settings);
            }
        }
        tally.successes(won.saturating_sub(wins), last);
        tally
    }

    /// Successes since that transition, and when the last of them was.
    fn wins(&self, transitions: u64) -> (u64, Timestamp) {
        let read = |wins| -> Read<(u64, u64, u64)> {
            let mut read = Reader(wins);
            let wins = (read_u64(&mut read)?, read_u64(&mut read)?, read_u64(&mut read)?);
            read.end().map(|()| wins)
        };
        match read(&self.wins) {
            Ok((since, won, last)) if since == transitions => (won, Timestamp::from_millis(last)),
            _ => (0, Timestamp::default()),
        }
    }

    /// The same after more has been counted: it was put together at one number of transitions, and this is another one or
    /// the same.
    pub(super) fn counted(
        self,
        tally: &Tally,
        transitions_before: u64,
        transitions: u64,
        failed: &[JobId],
    ) -> Counted {
        let moved = transitions != transitions_before;
        let wins = if moved { 0 } else { self.wins(transitions).0 };
        Counted {
            after: write_tally(tally, transitions, wins),
            before: self.tally,
            known: self.fails.len() as u64,
            failures: if moved || failed.is_empty() {
                Vec::new()
            } else {
                write_failures(transitions, failed)
            },
        }
    }

    /// Whether it is what was written.
    pub(super) fn is_whole(&self) -> bool {
        let mut fails = Reader(&self.fails);
        while !fails.0.is_empty() {
            if read_failures(&mut fails, 0).is_err() {
                return false;
            }
        }
        let whole_tally = self.tally.is_empty() || read_tally(&self.tally).is_ok();
        whole_tally && matches!(self.wins.len(), 0 | 24)
    }
}

// ---- as scripts write numbers ----

fn read_u64(read: &mut Reader<'_>) -> Read<u64> {
    let bytes = read.take(8)?.try_into().map_err(|_| Damaged)?;
    Ok(u64::from_be_bytes(bytes))
}

// ---- as servers write ----

fn write_tally(tally: &Tally, transitions: u64, wins: u64) -> Vec<u8> {
    let mut out = vec![codec::VERSION];
    put_u64(&mut out, transitions);
    put_u64(&mut out, wins);
    put_u64(&mut out, u64::from(tally.row));
    put_option(&mut out, tally.last_success.map(Timestamp::millis));
    put_f64(&mut out, tally.outcomes);
    put_f64(&mut out, tally.failures);
    put_jobs(&mut out, tally.failed.iter());
    codec::seal(out)
}

/// One that is damaged is as new: its queue goes on.
fn read_tally(record: &[u8]) -> Read<Together> {
    let mut read = codec::open(record)?;
    let (transitions, wins) = (read.u64()?, read.u64()?);
    let (row, last_success) = (read.u32()?, read.option()?.map(Timestamp::from_millis));
    let (outcomes, failures) = (read.f64()?, read.f64()?);
    let failed = read_jobs(&mut read)?.into_iter().collect();
    let tally = Tally { failed, row, last_success, outcomes, failures };
    Ok(Together { transitions, wins, tally })
}

/// The script writes before it how many successes there were.
fn write_failures(transitions: u64, failed: &[JobId]) -> Vec<u8> {
    let mut out = Vec::new();
    put_u64(&mut out, transitions);
    put_jobs(&mut out, failed.iter());
    out
}

/// Successes before them and who failed; nobody, if that was before the transition.
fn read_failures(read: &mut Reader<'_>, transitions: u64) -> Read<(u64, Vec<JobId>)> {
    let (since, won) = (read_u64(read)?, read_u64(read)?);
    let then = read.u64()?;
    let failed = read_jobs(read)?;
    let won = if since == transitions { won } else { 0 };
    Ok(if then == transitions { (won, failed) } else { (0, Vec::new()) })
}

fn put_jobs<'a>(out: &mut Vec<u8>, jobs: impl ExactSizeIterator<Item = &'a JobId>) {
    put_u64(out, jobs.len() as u64);
    jobs.for_each(|job| put_id(out, job));
}

fn read_jobs(read: &mut Reader<'_>) -> Read<Vec<JobId>> {
    (0..read.u64()?).map(|_| read.id()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> JobId {
        JobId::parse(name)
    }

    fn wins(since: u64, won: u64, last: u64) -> Vec<u8> {
        [since, won, last].map(u64::to_be_bytes).concat()
    }

    /// As `end.lua` writes it.
    fn fails(since: u64, won: u64, failed: &[JobId]) -> Vec<u8> {
        [wins(since, won, 0)[..16].to_vec(), write_failures(since, failed)].concat()
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    /// Two failures at three transitions, after five successes.
    fn begun(settings: &BreakerSettings) -> (Tally, Vec<u8>) {
        let mut tally = Tally::default();
        tally.successes(5, at(100));
        tally.failure(&id("a"), settings);
        tally.failure(&JobId::Uuid(7), settings);
        let record = write_tally(&tally, 3, 5);
        (tally, record)
    }

    #[test]
    fn a_tally_reads_back_and_one_that_is_damaged_is_as_new() {
        let settings = BreakerSettings::default();
        let (tally, mut record) = begun(&settings);
        let read = read_tally(&record).unwrap();
        assert_eq!(read, Together { transitions: 3, wins: 5, tally });
        record[4] ^= 1;
        let damaged = Counts { tally: record, fails: b"nonsense".to_vec(), wins: b"too".to_vec() };
        assert!(!damaged.is_whole());
        assert_eq!(damaged.tally(3, &settings), Tally::default());
        assert!(Counts::default().is_whole());
        assert_eq!(Counts::default().tally(0, &settings), Tally::default());
    }

    #[test]
    fn what_others_counted_is_put_together_in_its_order() {
        let settings = BreakerSettings::default();
        let (mut expected, record) = begun(&settings);
        let others = [fails(3, 5, &[id("b")]), fails(3, 6, &[id("c"), id("d")])].concat();
        let counts = Counts { tally: record, fails: others, wins: wins(3, 6, 400) };
        assert!(counts.is_whole());
        expected.failure(&id("b"), &settings);
        expected.successes(1, at(400));
        expected.failure(&id("c"), &settings);
        expected.failure(&id("d"), &settings);
        assert_eq!(counts.tally(3, &settings), expected);
        // Once more, after it was put together: nothing counts twice.
        let Counted { after, .. } = counts.clone().counted(&expected, 3, 3, &[]);
        let counts = Counts { tally: after, fails: Vec::new(), ..counts };
        assert_eq!(counts.tally(3, &settings), expected);
        let more = Counts { wins: wins(3, 8, 900), ..counts };
        expected.successes(2, at(900));
        assert_eq!(more.tally(3, &settings), expected);
    }

    #[test]
    fn a_transition_ends_the_row_and_makes_everything_before_it_void() {
        let settings = BreakerSettings::default();
        let (mut expected, record) = begun(&settings);
        let counts =
            Counts { tally: record, fails: fails(3, 6, &[id("b")]), wins: wins(3, 9, 800) };
        expected.end_row();
        assert_eq!(counts.tally(4, &settings), expected);
        let counted = counts.clone().counted(&expected, 3, 4, &[id("x")]);
        assert_eq!(counted.failures, b"", "they are from before");
        let after = Counts { tally: counted.after, wins: wins(4, 2, 900), ..counts };
        expected.successes(2, at(900));
        assert_eq!(after.tally(4, &settings), expected);
    }
}
