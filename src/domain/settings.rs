//! What the operator decided about queues, resolved: every field has its value.

use super::{
    ids::QueueName,
    policy::RetryPolicy,
    rules::{ErrorRule, default_rules},
};
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

    /// A sum over every decision: servers that judge alike have the same.
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

#[derive(Clone, Debug)]
pub struct QueueSettings {
    /// Server and queue merged, job and rule not yet.
    pub policy: RetryPolicy,
    /// The queue's own, in order.
    pub rules: Vec<ErrorRule>,
    /// The ones every queue has, unless switched off.
    pub default_rules: Vec<ErrorRule>,
    pub lease_duration: Duration,
    pub max_run_time: Duration,
    pub max_retry_after: Duration,
    /// Jobs that are not dead; none: no limit.
    pub max_depth: Option<u64>,
    pub key_retention: Duration,
    pub dead_jobs_hold_keys: bool,
    /// From completion; none: a job that is done is removed at once.
    pub completed_retention: Option<Duration>,
    pub breaker: BreakerSettings,
    pub dead_letters: DeadLetterSettings,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            policy: RetryPolicy::default(),
            rules: Vec::new(),
            default_rules: default_rules(),
            lease_duration: Duration::from_secs(30),
            max_run_time: Duration::from_secs(24 * 3600),
            max_retry_after: Duration::from_secs(3600),
            max_depth: None,
            key_retention: Duration::from_secs(3600),
            dead_jobs_hold_keys: false,
            completed_retention: None,
            breaker: BreakerSettings::default(),
            dead_letters: DeadLetterSettings::default(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakerSettings {
    pub failure_threshold: u32,
    pub recovery_timeout: Duration,
    pub half_open_max_calls: u32,
    pub success_threshold: u32,
    pub quiet_period: Duration,
    pub disabled: bool,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            failure_threshold: 5,
            recovery_timeout: Duration::from_secs(60),
            half_open_max_calls: 1,
            success_threshold: 1,
            quiet_period: Duration::from_secs(1),
            disabled: false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterSettings {
    pub max_entries: u64,
    /// From death; none: for ever.
    pub retention: Option<Duration>,
    pub breaker: BreakerSettings,
}

impl Default for DeadLetterSettings {
    fn default() -> Self {
        Self { max_entries: 100_000, retention: None, breaker: BreakerSettings::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_that_of_the_decisions_in_whatever_order_they_were_read() {
        let with = |names: &[&str]| {
            let queues = names.iter().map(|name| (QueueName::parse(name).unwrap(), Arc::default()));
            Settings { queues: queues.collect(), ..Settings::default() }
        };
        assert_eq!(with(&["a", "b", "c", "d"]).digest(), with(&["d", "c", "b", "a"]).digest());
        assert_ne!(with(&["a"]).digest(), with(&["b"]).digest());
        let mut other = with(&["a"]);
        Arc::make_mut(&mut other.defaults).breaker.failure_threshold += 1;
        assert_ne!(with(&["a"]).digest(), other.digest());
    }
}
