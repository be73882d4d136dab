use proptest::{prelude::*, sample::select, strategy::Strategy as Generator};
// proptest's prelude has a `Strategy` too: by name, ours is meant.
use redrive::domain::{Jitter, MAX_RETRIES, PolicyError, PolicyOverride, Preset, RetryPolicy, Strategy};
use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);

fn refusals(over: PolicyOverride) -> Vec<String> {
    assert_eq!(over.validate().err(), over.problems().first().cloned());
    over.problems().iter().map(PolicyError::to_string).collect()
}

#[test]
fn every_word_reads_back() {
    for (strategy, name) in [
        (Strategy::Exponential, "exponential"),
        (Strategy::Linear, "linear"),
        (Strategy::Fixed, "fixed"),
        (Strategy::Fibonacci, "fibonacci"),
        (Strategy::List, "list"),
    ] {
        assert_eq!((strategy.as_str(), Strategy::parse(name)), (name, Some(strategy)));
    }
    for (jitter, name) in [
        (Jitter::None, "none"),
        (Jitter::Proportional, "proportional"),
        (Jitter::Symmetric, "symmetric"),
        (Jitter::Full, "full"),
        (Jitter::Equal, "equal"),
        (Jitter::Decorrelated, "decorrelated"),
        (Jitter::Additive, "additive"),
    ] {
        assert_eq!((jitter.as_str(), Jitter::parse(name)), (name, Some(jitter)));
    }
    assert_eq!(Strategy::parse("Exponential"), None);
    assert_eq!(Jitter::parse(""), None);
}

#[test]
fn what_is_not_allowed_is_named_with_what_is() {
    let given = PolicyOverride {
        max_retries: Some(1_001),
        factor: Some(0.5),
        jitter_fraction: Some(1.5),
        base_delay: Some(367 * DAY),
        max_delay: Some(400 * DAY),
        jitter_max: Some(500 * DAY),
        delays: vec![DAY, 1_000 * DAY],
        ..PolicyOverride::default()
    };
    assert_eq!(
        refusals(given),
        [
            "max_retries: must be between 0 and 1000, not 1001",
            "factor: must be between 1 and 1000, not 0.5",
            "jitter_fraction: must be between 0 and 1, not 1.5",
            "base_delay: must be at most 366d, not 367d",
            "max_delay: must be at most 366d, not 400d",
            "jitter_max: must be at most 366d, not 500d",
            "delays: each must be at most 366d, not 1000d",
        ]
    );
}

#[test]
fn a_number_that_is_none_is_refused() {
    for wrong in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.1, 1_000.1] {
        let factor = PolicyOverride { factor: Some(wrong), ..PolicyOverride::default() };
        assert_eq!(refusals(factor).len(), 1, "factor {wrong}");
        let fraction = PolicyOverride { jitter_fraction: Some(wrong), ..PolicyOverride::default() };
        assert_eq!(refusals(fraction).len(), 1, "jitter_fraction {wrong}");
    }
}

#[test]
fn a_list_may_be_long_but_not_endless() {
    let of = |count| PolicyOverride { delays: vec![DAY; count], ..PolicyOverride::default() };
    assert_eq!(refusals(of(1_000)), [""; 0]);
    assert_eq!(refusals(of(1_001)), ["delays: must be at most 1000 delays, not 1001"]);
}

#[test]
fn the_limits_themselves_are_allowed() {
    let limits = PolicyOverride {
        max_retries: Some(1_000),
        factor: Some(1_000.0),
        jitter_fraction: Some(1.0),
        base_delay: Some(366 * DAY),
        max_delay: Some(366 * DAY),
        jitter_max: Some(366 * DAY),
        delays: vec![366 * DAY],
        ..PolicyOverride::default()
    };
    assert_eq!(limits.validate(), Ok(()));
    let least = PolicyOverride {
        max_retries: Some(0),
        factor: Some(1.0),
        jitter_fraction: Some(0.0),
        base_delay: Some(Duration::ZERO),
        ..PolicyOverride::default()
    };
    assert_eq!(least.validate(), Ok(()));
}

#[test]
fn a_list_strategy_needs_its_list_from_some_layer() {
    let list = PolicyOverride { strategy: Some(Strategy::List), ..PolicyOverride::default() };
    let without = RetryPolicy::default().apply(&list);
    assert_eq!(without.validate().map_err(|e| e.field), Err("delays"));

    let delays = PolicyOverride { delays: vec![DAY], ..PolicyOverride::default() };
    assert_eq!(without.apply(&delays).validate(), Ok(()));
}

#[test]
fn an_inherited_cap_below_the_delay_asked_for_is_pointed_out() {
    let slow = PolicyOverride { base_delay: Some(DAY), ..PolicyOverride::default() };
    assert_eq!(RetryPolicy::default().apply(&slow).warnings(), ["base_delay asks for 1d but max_delay cuts it to 30s"]);
    let list = PolicyOverride {
        strategy: Some(Strategy::List),
        delays: vec![Duration::from_secs(60), DAY],
        ..PolicyOverride::default()
    };
    assert_eq!(RetryPolicy::default().apply(&list).warnings(), ["delays asks for 1d but max_delay cuts it to 30s"]);
}

#[test]
fn delays_without_the_list_strategy_are_pointed_out() {
    let delays = vec![Duration::from_secs(1)];
    let unused = RetryPolicy { delays, ..RetryPolicy::default() };
    assert_eq!(unused.warnings(), ["delays are not used because strategy is \"exponential\", not \"list\""]);
    let ignored = RetryPolicy { strategy: Strategy::List, jitter: Jitter::Decorrelated, ..unused };
    assert_eq!(ignored.warnings(), ["delays are not used because jitter is \"decorrelated\""]);
}

#[test]
fn no_preset_needs_a_warning() {
    for preset in Preset::ALL {
        assert_eq!(preset.policy().validate(), Ok(()), "{}", preset.as_str());
        assert_eq!(preset.policy().warnings(), [""; 0], "{}", preset.as_str());
    }
}

#[test]
fn a_job_goes_over_its_rule_over_its_queue_over_the_server() {
    let queue = PolicyOverride { preset: Some(Preset::Transient), max_retries: Some(8), ..PolicyOverride::default() };
    let rule =
        PolicyOverride { base_delay: Some(Duration::from_secs(7)), max_retries: Some(9), ..PolicyOverride::default() };
    let job = PolicyOverride { max_retries: Some(10), ..PolicyOverride::default() };
    let merged = RetryPolicy::default().apply(&queue).apply(&rule).apply(&job);
    let expected = RetryPolicy { max_retries: 10, base_delay: Duration::from_secs(7), ..Preset::Transient.policy() };
    assert_eq!(merged, expected);
}

fn some_policy() -> impl Generator<Value = RetryPolicy> {
    let millis = || (0..100_000_u64).prop_map(Duration::from_millis);
    (
        (0..=MAX_RETRIES, select(Strategy::ALL.as_slice()), millis(), 1.0..10.0),
        (millis(), prop::collection::vec(millis(), 0..4), select(Jitter::ALL.as_slice())),
        (0.0..1.0, millis()),
    )
        .prop_map(|((retries, strategy, base, factor), (cap, delays, jitter), (f, t))| RetryPolicy {
            max_retries: retries,
            strategy,
            base_delay: base,
            factor,
            max_delay: cap,
            delays,
            jitter,
            jitter_fraction: f,
            jitter_max: t,
        })
}

proptest! {
    #[test]
    fn layers_merge_field_by_field(
        under in some_policy(),
        top in some_policy(),
        preset in prop::option::of(select(Preset::ALL.as_slice())),
        given in prop::array::uniform9(any::<bool>()),
    ) {
        let over = PolicyOverride {
            preset,
            max_retries: given[0].then_some(top.max_retries),
            strategy: given[1].then_some(top.strategy),
            base_delay: given[2].then_some(top.base_delay),
            factor: given[3].then_some(top.factor),
            max_delay: given[4].then_some(top.max_delay),
            delays: if given[5] { top.delays.clone() } else { Vec::new() },
            jitter: given[6].then_some(top.jitter),
            jitter_fraction: given[7].then_some(top.jitter_fraction),
            jitter_max: given[8].then_some(top.jitter_max),
        };
        let from = preset.map_or_else(|| under.clone(), Preset::policy);
        let got = under.apply(&over);

        macro_rules! comes_from_the_right_layer {
            ($($field:ident: $given:expr),*) => {
                $(let want = if $given { &top.$field } else { &from.$field };
                prop_assert_eq!(&got.$field, want, "{}", stringify!($field));)*
            };
        }
        comes_from_the_right_layer!(
            max_retries: given[0], strategy: given[1], base_delay: given[2], factor: given[3],
            max_delay: given[4], delays: given[5] && !top.delays.is_empty(), jitter: given[6],
            jitter_fraction: given[7], jitter_max: given[8]
        );
        prop_assert_eq!(over.is_empty(), over == PolicyOverride::default());
        prop_assert_eq!(under.apply(&PolicyOverride::default()), under);
    }
}
