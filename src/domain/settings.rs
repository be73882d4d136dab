//! What the operator decided about queues, resolved: every field has its value.

use super::breaker::{BreakerKind, BreakerName};
use super::glob::Glob;
use super::ids::QueueName;
use super::macros::with_defaults;
use super::max_rate::MaxRate;
use super::policy::RetryPolicy;
use super::presets::Preset;
use super::rules::{ErrorRule, Then, default_rules};
use sha2::{Digest, Sha256};
use std::{collections::HashMap, sync::Arc, time::Duration};

/// One consistent set of decisions; a reload swaps the whole of it.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub defaults: Arc<QueueSettings>,
    pub queues: HashMap<QueueName, Arc<QueueSettings>>,
}

impl Settings {
    pub fn queue(&self, name: &QueueName) -> &Arc<QueueSettings> {
        self.queues.get(name).unwrap_or(&self.defaults)
    }

    /// Of a breaker.
    pub fn breaker(&self, name: &BreakerName) -> &BreakerSettings {
        let queue = self.queue(&name.queue);
        match name.kind {
            BreakerKind::Work => &queue.breaker,
            BreakerKind::DeadLetters => &queue.dead_letters.breaker,
        }
    }

    /// A sum over every decision: servers that decide alike have the same.
    pub fn digest(&self) -> [u8; 32] {
        let mut queues: Vec<_> = self.queues.iter().collect();
        queues.sort_by_key(|(name, _)| *name);
        // Written out, no field can be forgotten here.
        let mut sum = Sha256::new();
        sum.update(format!("{:?}", self.defaults));
        for (name, settings) in queues {
            sum.update(format!("\n{name} {settings:?}"));
        }
        sum.finalize().into()
    }
}

with_defaults! {
    #[derive(Clone, Debug)]
    QueueSettings {
        /// Server and queue merged, job and rule not yet.
        policy: RetryPolicy = RetryPolicy::default(),
        /// By which a service that is down is waited for. None: server or queue sets `max_retries`.
        patient: Option<RetryPolicy> = Some(Preset::Patient.policy()),
        /// The queue's own, in order.
        rules: Vec<ErrorRule> = Vec::new(),
        /// The ones every queue has, unless switched off.
        default_rules: Vec<ErrorRule> = default_rules(),
        lease_duration: Duration = Duration::from_secs(30),
        max_run_time: Duration = Duration::from_secs(24 * 3600),
        max_retry_after: Duration = Duration::from_secs(3600),
        /// Jobs that are leased at once, by all servers.
        max_in_flight: Option<u64> = None,
        /// Jobs that are handed out each second, by all servers.
        max_rate: Option<MaxRate> = None,
        /// Limits of the jobs of each breaker key by itself: the first glob that fits it counts.
        breaker_keys: Vec<KeyLimits> = Vec::new(),
        /// Jobs that are not dead; none: no limit.
        max_depth: Option<u64> = None,
        key_retention: Duration = Duration::from_secs(3600),
        dead_jobs_hold_keys: bool = false,
        /// From completion; none: a job that is done is removed at once.
        completed_retention: Option<Duration> = None,
        breaker: BreakerSettings = BreakerSettings::default(),
        dead_letters: DeadLetterSettings = DeadLetterSettings::default(),
    }
}

impl QueueSettings {
    /// What holds for the jobs of a breaker key.
    pub fn limits_of_key(&self, key: &str) -> Option<&KeyLimits> {
        self.breaker_keys.iter().find(|limits| limits.keys.matches(key))
    }

    /// By which failures to reach what is called are retried, where the job does not set `max_retries`. None: as others.
    pub fn policy_of_outages(&self) -> Option<&RetryPolicy> {
        let applies = self.default_rules.iter().any(|rule| rule.then == Then::Patient);
        self.patient.as_ref().filter(|_| applies)
    }
}

/// Limits of the jobs of each breaker key that fits.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyLimits {
    pub keys: Glob,
    pub max_in_flight: Option<u64>,
    pub max_rate: Option<MaxRate>,
}

with_defaults! {
    #[derive(Clone, Debug, PartialEq, Eq)]
    BreakerSettings {
        failure_threshold: u32 = 5,
        /// The wait for the first probe of an outage; later ones wait as long as it has lasted.
        first_probe: Duration = Duration::from_secs(1),
        /// The longest wait for a probe, and how long one is waited for.
        recovery_timeout: Duration = Duration::from_secs(10),
        half_open_max_calls: u32 = 1,
        success_threshold: u32 = 1,
        /// So long an outage keeps the failures of a job from counting.
        outage_grace: Duration = Duration::from_secs(24 * 3600),
        /// After an outage the load grows; otherwise all is let out at once.
        ramp: bool = true,
        disabled: bool = false,
    }
}

with_defaults! {
    #[derive(Clone, Debug, PartialEq, Eq)]
    DeadLetterSettings {
        max_entries: u64 = 100_000,
        /// From death; none: for ever.
        retention: Option<Duration> = None,
        breaker: BreakerSettings = BreakerSettings {
            recovery_timeout: Duration::from_secs(60),
            ..BreakerSettings::default()
        },
    }
}
