//! ExplainPolicy: the delays a policy gives, with the bounds that jitter leaves.

use super::Service;
use crate::domain::{Failure, FailureCategory, PolicyOverride, QueueName, RetryPolicy, Then, first_match};
use crate::queue::{Error, Host, Refusal};
use std::time::Duration;

#[derive(Clone, Debug, Default)]
pub struct ExplainRequest {
    /// Given: this policy, on top of the queue's or the server's; the failure then has no say.
    pub policy: Option<PolicyOverride>,
    pub queue: Option<QueueName>,
    pub error_type: String,
    pub category: Option<FailureCategory>,
    pub code: String,
}

#[derive(Clone, Debug)]
pub struct Explained {
    pub policy: RetryPolicy,
    /// The error rule that decides. Empty: none.
    pub rule: String,
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
        let ExplainRequest { error_type, category, code, .. } = request;
        let mut decides = None;
        let described = !error_type.is_empty() || category.is_some() || !code.is_empty();
        if request.policy.is_none() && described {
            let failure = Failure { error_type, category, code, ..Failure::default() }.with_category();
            decides = first_match(&queue.rules, &queue.default_rules, &failure, false)
                .filter(|rule| rule.then != Then::Patient || queue.patient.is_some());
            match decides.map(|rule| &rule.then) {
                Some(Then::Patient) => policy.clone_from(queue.patient.as_ref().unwrap_or(&queue.policy)),
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
        Ok(explain(policy, decides.map_or_else(String::new, |rule| rule.name.clone())))
    }
}

fn explain(policy: RetryPolicy, rule: String) -> Explained {
    let row = |retry| {
        let (delay, min, max) = policy.bounds(retry);
        ExplainedDelay { retry, delay, min, max }
    };
    let rows = (1..=policy.max_retries).map(row).collect();
    let (total_min, total_max) = policy.total_bounds();
    Explained { policy, rule, rows, total_min, total_max }
}
