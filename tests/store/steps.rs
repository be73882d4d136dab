//! The steps of a story, and how chance makes them up.

use crate::builders;
use crate::engines::Engine;
use crate::model::{Id, Model};
use proptest::{prelude::*, sample::select};
use proptest_state_machine::ReferenceStateMachine;
use redrive::domain::{
    ErrorRule, Failure, Glob, Jitter, Matcher, OnConflict, Outcome, QueueName, QueueSettings, Settings, Then,
};
use std::{marker::PhantomData, sync::Arc, time::Duration};

pub(crate) const START: Duration = Duration::from_secs(1_000_000_000);
const QUEUES: usize = 3;

pub(crate) fn name(queue: usize) -> QueueName {
    builders::queue(["a", "b", "c"][queue])
}

#[derive(Clone, Debug)]
pub(crate) struct New {
    pub(crate) queue: usize,
    pub(crate) id: Option<u8>,
    pub(crate) key: Option<u8>,
    pub(crate) body: u8,
    pub(crate) priority: i8,
    pub(crate) delay: Duration,
    pub(crate) expires: Option<Duration>,
    pub(crate) on_conflict: OnConflict,
}

#[derive(Clone, Debug)]
pub(crate) enum Pick {
    Ids(Vec<Id>),
    /// `back`: so many deaths before the newest is the cutoff.
    Oldest {
        limit: usize,
        back: u64,
    },
    /// The oldest that died of this.
    Found {
        error_type: &'static str,
        limit: usize,
        back: u64,
    },
}

/// One step. Leases are named by the order in which they were given out.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Enqueue(Vec<New>),
    Claim {
        shares: Vec<(usize, usize)>,
        max_jobs: usize,
        request: Option<u8>,
    },
    Ack(usize),
    Nack {
        lease: usize,
        outcome: Outcome,
        checkpoint: String,
    },
    Extend {
        lease: usize,
        duration: Option<Duration>,
        checkpoint: String,
    },
    Unclaim(usize),
    Requeue {
        queue: usize,
        pick: Pick,
        overflow: bool,
        target: Option<usize>,
        keep_attempts: bool,
        dry_run: bool,
    },
    Pause {
        queue: usize,
        duration: Option<Duration>,
    },
    Resume(usize),
    Cancel {
        id: Id,
        queue: Option<usize>,
    },
    RunNow {
        id: Id,
        queue: Option<usize>,
    },
    Purge {
        queue: usize,
        pick: Pick,
        overflow: bool,
        dry_run: bool,
    },
    /// `dead_letters`: of its dead letters. `forced`: open or closed; none: a reset.
    SetBreaker {
        queue: usize,
        dead_letters: bool,
        forced: Option<bool>,
    },
    Sweep,
    Advance(Duration),
    JumpWall(i64),
    Reopen {
        reboot: bool,
    },
}

impl Op {
    fn lease(&self) -> Option<usize> {
        match self {
            Self::Ack(lease) | Self::Unclaim(lease) => Some(*lease),
            Self::Nack { lease, .. } | Self::Extend { lease, .. } => Some(*lease),
            _ => None,
        }
    }
}

/// Small limits, so that they are met; queues that differ; no jitter, so that the model can tell every time.
pub(crate) fn settings() -> Settings {
    let rule = |error_type: &str, then| {
        let matcher = Matcher { error_type: Some(Glob::new(error_type)), ..Matcher::default() };
        ErrorRule::at(0, matcher, then)
    };
    let mut defaults = QueueSettings::default();
    defaults.policy.jitter = Jitter::None;
    defaults.policy.max_retries = 2;
    defaults.patient = None;
    defaults.rules = vec![rule("Busy", Then::Release), rule("Held", Then::Hold)];
    defaults.dead_letters.max_entries = 2;
    defaults.dead_letters.breaker.failure_threshold = 2;
    defaults.max_run_time = Duration::from_secs(600);
    defaults.breaker.failure_threshold = 2;
    defaults.breaker.recovery_timeout = Duration::from_secs(20);
    defaults.breaker.ramp = false;
    let a = defaults.clone();
    let mut b = defaults.clone();
    b.max_depth = Some(6);
    b.policy.base_delay = Duration::ZERO;
    b.breaker.half_open_max_calls = 2;
    b.breaker.success_threshold = 2;
    let mut c = defaults.clone();
    c.dead_jobs_hold_keys = true;
    b.completed_retention = Some(Duration::from_secs(60));
    c.breaker.disabled = true;
    c.max_in_flight = Some(2);
    c.completed_retention = Some(Duration::from_secs(60));
    // Configured queues are not forgotten.
    let queues = [a, b, c].into_iter().enumerate().map(|(n, queue)| (name(n), Arc::new(queue)));
    Settings { defaults: Arc::new(defaults), queues: queues.collect() }
}

fn durations() -> impl Strategy<Value = Duration> {
    prop_oneof![
        2 => (0u64..50).prop_map(Duration::from_millis),
        4 => (1u64..40).prop_map(Duration::from_secs),
        2 => (1u64..120).prop_map(Duration::from_secs),
        1 => (1u64..30).prop_map(|hours| Duration::from_secs(hours * 1_800)),
    ]
}

fn new_job() -> impl Strategy<Value = New> {
    let delay = prop_oneof![3 => Just(Duration::ZERO), 1 => durations()];
    let rare = |most: u8| prop::option::weighted(0.4, 0..most);
    (
        0..QUEUES,
        rare(4),
        rare(3),
        prop::bool::weighted(0.15),
        -1i8..=1,
        delay,
        prop::option::weighted(0.25, durations()),
        prop_oneof![
            3 => Just(OnConflict::RejectDifferent),
            1 => Just(OnConflict::ReturnExisting),
            2 => Just(OnConflict::ReplaceWaiting),
        ],
    )
        .prop_map(|(queue, id, key, other, priority, delay, expires, on_conflict)| New {
            queue,
            id,
            key,
            body: u8::from(other),
            priority,
            delay,
            expires,
            on_conflict,
        })
}

fn outcome() -> impl Strategy<Value = Outcome> {
    let failed = |error_type: &'static str, permanent, retry_after| Outcome::Failed {
        failure: Failure::new(error_type, "no"),
        permanent,
        retry_after,
    };
    // Longer ones are stretched by chance.
    let soon = Some(Duration::from_millis(0));
    prop_oneof![
        4 => Just(failed("Timeout", false, None)),
        1 => Just(failed("Timeout", false, soon)),
        4 => Just(failed("Timeout", true, None)),
        1 => Just(failed("ValidationError", false, None)),
        1 => Just(failed("Busy", false, Some(Duration::from_secs(3)))),
        1 => prop::option::of(durations())
            .prop_map(move |retry_after| failed("Held", false, retry_after)),
        2 => (prop::option::of(durations()), any::<bool>())
            .prop_map(|(retry_after, keep_position)| Outcome::Released { retry_after, keep_position }),
        2 => Just(Outcome::Interrupted),
    ]
}

fn pick(made: usize) -> impl Strategy<Value = Pick> {
    let id = prop_oneof![(0..4u8).prop_map(Id::Own), (0..made.max(1)).prop_map(Id::Made)];
    let error_type = select(vec!["Timeout", "Lease*", "*Error"]);
    prop_oneof![
        1 => prop::collection::vec(id, 1..4).prop_map(Pick::Ids),
        2 => (0usize..4, 0u64..3).prop_map(|(limit, back)| Pick::Oldest { limit, back }),
        2 => (error_type, 0usize..4, 0u64..3)
            .prop_map(|(error_type, limit, back)| Pick::Found { error_type, limit, back }),
    ]
}

fn purge(made: usize) -> impl Strategy<Value = Op> {
    let unlikely = || prop::bool::weighted(0.2);
    (0..QUEUES, pick(made), unlikely(), unlikely()).prop_map(|(queue, pick, overflow, dry_run)| Op::Purge {
        queue,
        pick,
        overflow,
        dry_run,
    })
}

fn requeue(made: usize) -> impl Strategy<Value = Op> {
    let unlikely = || prop::bool::weighted(0.2);
    (0..QUEUES, pick(made), unlikely(), prop::option::weighted(0.4, 0..QUEUES), unlikely(), unlikely()).prop_map(
        |(queue, pick, overflow, target, keep_attempts, dry_run)| Op::Requeue {
            queue,
            pick,
            overflow,
            target,
            keep_attempts,
            dry_run,
        },
    )
}

/// One job, more often than not one that is there.
fn meant(model: &Model) -> impl Strategy<Value = (Id, Option<usize>)> + use<> {
    let mut ids: Vec<Id> = model.jobs.values().map(|job| job.id).collect();
    ids.extend((0..4).map(Id::Own));
    (select(ids), prop::option::weighted(0.5, 0..QUEUES))
}

/// How chance makes up a story for this engine.
pub(crate) struct Story<S>(PhantomData<S>);

impl<S: Engine> ReferenceStateMachine for Story<S> {
    type State = Model;
    type Transition = Op;

    fn init_state() -> BoxedStrategy<Model> {
        Just(Model::new(START, Arc::new(settings()), S::KEEPS_OUTCOME_STATS)).boxed()
    }

    fn transitions(model: &Model) -> BoxedStrategy<Op> {
        let shares = Just((0..QUEUES).collect::<Vec<_>>()).prop_shuffle().prop_flat_map(|queues| {
            (Just(queues), 1..=QUEUES, prop::collection::vec(0usize..3, QUEUES))
                .prop_map(|(queues, count, firsts)| queues.into_iter().zip(firsts).take(count).collect::<Vec<_>>())
        });
        let claim = (shares, 0usize..5, prop::option::weighted(0.3, 0u8..2))
            .prop_map(|(shares, max_jobs, request)| Op::Claim { shares, max_jobs, request });
        let always = prop_oneof![
            6 => prop::collection::vec(new_job(), 1..4).prop_map(Op::Enqueue),
            6 => claim,
            4 => requeue(model.made),
            1 => purge(model.made),
            3 => Just(Op::Sweep),
            1 => (0..QUEUES, prop::option::weighted(0.7, durations()))
                .prop_map(|(queue, duration)| Op::Pause { queue, duration }),
            1 => (0..QUEUES).prop_map(Op::Resume),
            1 => (0..QUEUES, any::<bool>(), prop::option::of(any::<bool>()))
                .prop_map(|(queue, dead_letters, forced)| Op::SetBreaker { queue, dead_letters, forced }),
            2 => meant(model).prop_map(|(id, queue)| Op::Cancel { id, queue }),
            1 => meant(model).prop_map(|(id, queue)| Op::RunNow { id, queue }),
            4 => durations().prop_map(Op::Advance),
            1 => (-7200i64..7200).prop_map(Op::JumpWall),
            1 => prop::bool::weighted(0.3).prop_map(|reboot| Op::Reopen { reboot }),
        ];
        let all: Vec<usize> = (0..model.leases.len()).collect();
        if all.is_empty() {
            return always.boxed();
        }
        let mut likely: Vec<usize> = all.iter().copied().filter(|lease| model.opens(*lease).is_some()).collect();
        if likely.is_empty() {
            likely.clone_from(&all);
        }
        let lease = move || prop_oneof![4 => select(likely.clone()), 1 => select(all.clone())];
        let checkpoint = || prop_oneof![2 => Just(String::new()), 1 => "[xyz]"];
        let settle = prop_oneof![
            3 => lease().prop_map(Op::Ack),
            6 => (lease(), outcome(), checkpoint())
                .prop_map(|(lease, outcome, checkpoint)| Op::Nack { lease, outcome, checkpoint }),
            2 => (lease(), prop::option::of(durations()), checkpoint())
                .prop_map(|(lease, duration, checkpoint)| Op::Extend { lease, duration, checkpoint }),
            1 => lease().prop_map(Op::Unclaim),
        ];
        prop_oneof![3 => always, 2 => settle].boxed()
    }

    fn preconditions(model: &Model, op: &Op) -> bool {
        op.lease().is_none_or(|lease| lease < model.leases.len())
    }

    fn apply(mut model: Model, op: &Op) -> Model {
        model.apply(op);
        model
    }
}
