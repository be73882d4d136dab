use super::ms;
use redrive::domain::{Preset, RetryPolicy};

/// Each row: the delay before jitter, the shortest and the longest after it, in milliseconds,
/// for the retries 1, 2, 3 ...
#[track_caller]
fn delays_are(preset: Preset, rows: &[(u64, u64, u64)]) {
    for (n, (d, min, max)) in (1..).zip(rows) {
        let expected = (ms(*d), ms(*min), ms(*max));
        assert_eq!(preset.policy().bounds(n), expected, "{} retry {n}", preset.as_str());
    }
}

#[track_caller]
fn settings_are(preset: Preset, base_ms: u64, cap_ms: u64, max_retries: u32) {
    let policy = preset.policy();
    assert_eq!((policy.base_delay, policy.max_delay, policy.max_retries), (ms(base_ms), ms(cap_ms), max_retries));
}

#[test]
fn every_name_reads_back() {
    for preset in Preset::ALL {
        assert_eq!(Preset::parse(preset.as_str()), Some(preset));
    }
    assert_eq!(Preset::parse("Standard"), None);
}

#[test]
fn standard_is_the_default() {
    assert_eq!(RetryPolicy::default(), Preset::Standard.policy());
    settings_are(Preset::Standard, 1_000, 30_000, 3);
}

#[test]
fn standard_doubles_from_a_second_with_up_to_a_quarter_more() {
    delays_are(
        Preset::Standard,
        &[
            (1_000, 1_000, 1_250),
            (2_000, 2_000, 2_500),
            (4_000, 4_000, 5_000),
            (8_000, 8_000, 10_000),
            (16_000, 16_000, 20_000),
            (30_000, 30_000, 37_500),
            (30_000, 30_000, 37_500),
        ],
    );
}

#[test]
fn full_jitter_doubles_from_half_a_second_and_reaches_its_cap_at_the_seventh_retry() {
    settings_are(Preset::FullJitter, 500, 30_000, 3);
    delays_are(
        Preset::FullJitter,
        &[
            (500, 0, 500),
            (1_000, 0, 1_000),
            (2_000, 0, 2_000),
            (4_000, 0, 4_000),
            (8_000, 0, 8_000),
            (16_000, 0, 16_000),
            (30_000, 0, 30_000),
            (30_000, 0, 30_000),
        ],
    );
}

#[test]
fn conservative_aggressive_and_one_shot_have_their_settings() {
    settings_are(Preset::Conservative, 1_000, 60_000, 5);
    delays_are(Preset::Conservative, &[(1_000, 0, 1_000), (2_000, 0, 2_000)]);
    settings_are(Preset::Aggressive, 100, 5_000, 2);
    delays_are(Preset::Aggressive, &[(100, 0, 100), (200, 0, 200)]);
    assert_eq!(Preset::OneShot.policy().max_retries, 0);
    assert_eq!(Preset::OneShot.policy().total_bounds(), (ms(0), ms(0)));
}

#[test]
fn transient_spreads_over_5_to_80_seconds() {
    settings_are(Preset::Transient, 5_000, 80_000, 5);
    delays_are(
        Preset::Transient,
        &[
            (5_000, 0, 5_000),
            (10_000, 0, 10_000),
            (20_000, 0, 20_000),
            (40_000, 0, 40_000),
            (80_000, 0, 80_000),
            (80_000, 0, 80_000),
        ],
    );
}

#[test]
fn library_scan_waits_half_a_minute_to_ten_minutes_before_jitter() {
    settings_are(Preset::LibraryScan, 30_000, 600_000, 12);
    delays_are(
        Preset::LibraryScan,
        &[
            (30_000, 15_000, 30_000),
            (60_000, 30_000, 60_000),
            (120_000, 60_000, 120_000),
            (240_000, 120_000, 240_000),
            (480_000, 240_000, 480_000),
            (600_000, 300_000, 600_000),
            (600_000, 300_000, 600_000),
        ],
    );
}

#[test]
fn the_chronos_presets_count_minutes_give_or_take_a_fifth() {
    for (preset, minutes) in [
        (Preset::Chronos, [1, 2, 4, 8, 16].as_slice()),
        (Preset::ChronosLinear, &[1, 2, 3, 4]),
        (Preset::ChronosFixed, &[1, 1, 1]),
        (Preset::ChronosFibonacci, &[1, 1, 2, 3, 5]),
    ] {
        settings_are(preset, 60_000, 3_600_000, 3);
        let row = |m: &u64| (m * 60_000, m * 48_000, m * 72_000);
        delays_are(preset, &minutes.iter().map(row).collect::<Vec<_>>());
    }
    assert_eq!(Preset::Chronos.policy().bounds(7).0, ms(3_600_000));
}

#[test]
fn patient_keeps_trying_for_hours() {
    settings_are(Preset::Patient, 1_000, 3_600_000, 20);
    delays_are(Preset::Patient, &[(1_000, 500, 1_000), (2_000, 1_000, 2_000)]);
    assert_eq!(Preset::Patient.policy().horizon(), "21 attempts over 4h34m7.5s to 9h8m15s");
}
