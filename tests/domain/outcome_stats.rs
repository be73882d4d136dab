use redrive::domain::{BreakerSettings, JobId, OutcomeStats, Timestamp};

fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn fail(outcome_stats: &mut OutcomeStats, times: usize) {
    for time in 0..times {
        outcome_stats.failure(&JobId::parse(&format!("job-{time}")), &BreakerSettings::default());
    }
}

#[test]
fn successes_that_were_only_counted_are_those_that_were_seen_one_by_one() {
    for (before, row, count) in [(0, 0, 1), (0, 3, 1), (0, 3, 7), (150, 9, 80), (199, 4, 2_000)] {
        let mut seen = OutcomeStats::default();
        fail(&mut seen, 7);
        seen.successes(before, at(1));
        fail(&mut seen, row);
        let mut counted = seen.clone();
        (0..count).for_each(|time| seen.successes(1, at(10 + time)));
        counted.successes(count, at(9 + count));
        assert_eq!(counted, seen, "{before} before, {row} in a row, {count} counted");
    }
}

#[test]
fn a_count_of_none_changes_nothing() {
    let mut outcome_stats = OutcomeStats::default();
    fail(&mut outcome_stats, 3);
    let before = outcome_stats.clone();
    outcome_stats.successes(0, at(5));
    assert_eq!(outcome_stats, before);
}
