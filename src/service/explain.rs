//! ExplainPolicy: the delays a policy gives, with the bounds that jitter leaves.

use super::Service;
use crate::domain::{Failure, PolicyOverride, QueueName, RetryPolicy, Then, first_match};
use crate::queue::{Error, Host, Refusal};
use std::time::Duration;

#[derive(Clone, Debug, Default)]
pub struct ExplainRequest {
    /// Given: this policy, on top of the queue's or the server's; the error type then has no say.
    pub policy: Option<PolicyOverride>,
    pub queue: Option<QueueName>,
    pub error_type: String,
}

#[derive(Clone, Debug)]
pub struct Explained {
    pub policy: RetryPolicy,
    pub rows: Vec<ExplainedDelay>,
    pub total_min: Duration,
    pub total_max: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExplainedDelay {
    pub retry: u32,
    pub delay: Duration,
    pub min: Duration,
    pub max: Duration,
}

impl<H: Host> Service<H> {
    pub async fn explain_policy(&self, request: ExplainRequest) -> Result<Explained, Error> {
        let settings = self.queues.settings();
        let queue = match &request.queue {
            None => &settings.defaults,
            Some(name) => {
                self.queues.check_queue(name).await?;
                settings.queue(name)
            }
        };
        let mut policy = queue.policy.clone();
        if request.policy.is_none() && !request.error_type.is_empty() {
            let failure = Failure::new(&request.error_type, "");
            match first_match(&queue.rules, &queue.default_rules, &failure).map(|rule| &rule.then) {
                Some(Then::Policy(over)) => policy = policy.apply(over),
                // Never retried: a policy without retries says just that.
                Some(Then::DeadLetter) => policy.max_retries = 0,
                Some(Then::Release | Then::Hold) | None => {}
            }
        }
        if let Some(over) = &request.policy {
            policy = policy.apply(over);
            policy
                .validate()
                .map_err(|error| Refusal::Field { field: format!("policy.{}", error.field), message: error.message })?;
        }
        Ok(explain(policy))
    }
}

fn explain(policy: RetryPolicy) -> Explained {
    let row = |retry| {
        let (delay, min, max) = policy.bounds(retry);
        ExplainedDelay { retry, delay, min, max }
    };
    let rows = (1..=policy.max_retries).map(row).collect();
    let (total_min, total_max) = policy.total_bounds();
    Explained { policy, rows, total_min, total_max }
}
