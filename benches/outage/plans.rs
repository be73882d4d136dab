//! The scenarios, and what must hold in each.

use crate::downstream::Downstream;
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Scenario {
    /// Down for 120 s.
    Outage,
    /// Down for 85 s.
    Short,
    /// Does not slow before it falls.
    Flat,
    /// Calls hang for 5 s while it is down.
    Hanging,
    /// With `max_rate = "200/s"`.
    MaxRate,
    /// Nine of ten calls fail for 120 s.
    Brownout,
    /// One job in a hundred always fails, and nothing else does.
    Poison,
    /// 30 calls a second, and 40 jobs come.
    Quota,
    /// Half the jobs depend on one that is down, and say so at Enqueue.
    TwoDownstreams,
    /// The same, where only the failures name it.
    TwoDownstreamsLearnt,
    /// Four jobs, and ten minutes without what they call.
    SmallQueue,
    /// Handlers of half a minute.
    LongHandlers,
}

/// How workers and server learn which downstream a job depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keys {
    None,
    Given,
    Learnt,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) jobs: usize,
    /// Jobs each second.
    pub(crate) rate: f64,
    pub(crate) slots: usize,
    /// Seconds.
    pub(crate) end: f64,
    /// Of the queue, in the configuration file.
    pub(crate) config: &'static str,
    /// Jobs go to them in turn.
    pub(crate) downstreams: Vec<Downstream>,
    pub(crate) keys: Keys,
    /// Every so many-th job is poison; 0: none.
    pub(crate) poison: usize,
    pub(crate) bounds: Bounds,
}

/// None: it is not looked at.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    pub(crate) failed: u32,
    pub(crate) counted: Option<u64>,
    pub(crate) falls: u32,
    pub(crate) peak: Option<usize>,
    pub(crate) first_success: Option<f64>,
    pub(crate) drained: Option<f64>,
    /// The 99th percentile of the waits of jobs whose downstream is well, over 1.2 times that before the outage: milliseconds.
    pub(crate) well_above_usual: Option<u64>,
    /// Openings.
    pub(crate) trips: Option<u32>,
}

impl Plan {
    pub(crate) fn of(scenario: Scenario, several_servers: bool) -> Self {
        let bounds = Bounds {
            failed: if several_servers { 150 } else { 100 },
            counted: Some(0),
            falls: 0,
            peak: Some(300),
            first_success: Some(12.0),
            drained: Some(50.0),
            well_above_usual: None,
            trips: None,
        };
        let plan = Self {
            jobs: 10_000,
            rate: 40.0,
            slots: 20,
            end: 330.0,
            config: "",
            downstreams: vec![Downstream::default()],
            keys: Keys::None,
            poison: 0,
            bounds: bounds.clone(),
        };
        let never = (f64::MAX, f64::MAX);
        let not_recovering = Bounds { first_success: None, drained: None, peak: None, ..bounds.clone() };
        let with = |change: fn(&mut Downstream)| {
            let mut downstream = Downstream::default();
            change(&mut downstream);
            vec![downstream]
        };
        match scenario {
            Scenario::Outage => plan,
            Scenario::Short => Self { downstreams: with(|it| it.down = (20.0, 105.0)), ..plan },
            Scenario::Flat => Self {
                downstreams: with(|it| it.slows = false),
                // One fall is a few calls too many.
                bounds: Bounds { falls: 1, peak: Some(450), drained: Some(90.0), ..bounds },
                ..plan
            },
            Scenario::Hanging => Self { downstreams: with(|it| it.hangs = Some(Duration::from_secs(5))), ..plan },
            Scenario::MaxRate => Self {
                config: "max_rate = \"200/s\"\n",
                bounds: Bounds { peak: Some(210), drained: Some(60.0), ..bounds },
                ..plan
            },
            Scenario::Brownout => Self {
                downstreams: with(|it| it.fails = 0.9),
                bounds: Bounds { failed: 1_000, counted: None, first_success: None, peak: None, ..bounds },
                ..plan
            },
            Scenario::Poison => Self {
                downstreams: with(|it| it.down = (f64::MAX, f64::MAX)),
                poison: 100,
                bounds: Bounds { failed: 0, counted: None, trips: Some(0), ..not_recovering },
                ..plan
            },
            Scenario::Quota => Self {
                jobs: 2_400,
                end: 400.0,
                downstreams: vec![Downstream { quota: Some(30), down: never, ..Downstream::default() }],
                // At most 20 in 80 s.
                bounds: Bounds { failed: 60, ..not_recovering },
                ..plan
            },
            Scenario::TwoDownstreams | Scenario::TwoDownstreamsLearnt => {
                let given = scenario == Scenario::TwoDownstreams;
                // Where only failures name it, each job that depends on it has to fail once.
                let failed = if given { bounds.failed } else { 3_000 };
                Self {
                    downstreams: vec![Downstream::default(), Downstream { down: never, ..Downstream::default() }],
                    keys: if given { Keys::Given } else { Keys::Learnt },
                    bounds: Bounds { failed, counted: None, well_above_usual: Some(20), ..bounds },
                    ..plan
                }
            }
            Scenario::SmallQueue => Self {
                jobs: 4,
                end: 900.0,
                downstreams: with(|it| it.down = (0.0, 600.0)),
                bounds: Bounds { drained: None, ..bounds },
                ..plan
            },
            Scenario::LongHandlers => Self {
                jobs: 1_200,
                rate: 2.0,
                slots: 400,
                end: 900.0,
                downstreams: vec![Downstream {
                    capacity: 5,
                    falls_above: 8,
                    takes: Duration::from_secs(30),
                    down: (120.0, 240.0),
                    ..Downstream::default()
                }],
                bounds: Bounds {
                    failed: bounds.failed,
                    peak: Some(8),
                    first_success: Some(12.0),
                    drained: None,
                    ..bounds
                },
                ..plan
            },
        }
    }
}
