//! GetJob: one job, its history, and why it is not running now.

use super::{Broker, Error, Refusal};
use crate::{
    domain::{
        duration::human,
        ids::{JobId, QueueName},
        job::State,
        time::Timestamp,
    },
    store::{JobView, Store},
};

#[derive(Clone, Debug)]
pub struct JobReport {
    pub view: JobView,
    pub waiting_because: String,
}

impl<S: Store> Broker<S> {
    pub async fn get_job(&self, id: JobId, queue: Option<QueueName>) -> Result<JobReport, Error> {
        let mut views = self.store.job(id.clone(), queue.clone()).await?;
        if views.len() > 1 {
            let queues = views.into_iter().map(|view| view.queue).collect();
            return Err(Refusal::AmbiguousJobId { id: id.to_string(), queues }.into());
        }
        let Some(view) = views.pop() else {
            if let Some(queue) = queue
                && !self.queue_exists(&queue).await?
            {
                return Err(Refusal::QueueNotFound { queue }.into());
            }
            return Err(Refusal::JobNotFound { id: id.to_string() }.into());
        };
        let waiting_because = waiting_because(&view, self.store.now());
        Ok(JobReport { view, waiting_because })
    }
}

/// One sentence, naming the real reason. Nothing while it runs.
fn waiting_because(view: &JobView, now: Timestamp) -> String {
    let pause = view.pause.as_ref().filter(|pause| pause.holds(now));
    match view.state {
        State::Scheduled => {
            let wait = view.ready_at.map_or_else(String::new, |at| human(at.since(now)));
            if view.progress.tries > 0 {
                format!("its retry after attempt {} is due in {wait}", view.progress.tries)
            } else {
                format!("it is due in {wait}")
            }
        }
        State::Ready => match (pause, view.ahead) {
            (Some(pause), _) => format!("the queue is {pause}"),
            (None, Some(ahead)) if ahead.more => {
                format!("more than {} jobs of higher or equal priority go first", ahead.jobs)
            }
            (None, Some(ahead)) if ahead.jobs == 1 => {
                "1 job of higher or equal priority goes first".into()
            }
            (None, Some(ahead)) if ahead.jobs > 0 => {
                format!("{} jobs of higher or equal priority go first", ahead.jobs)
            }
            _ => "it is next; no worker has asked for it yet".into(),
        },
        State::Leased => String::new(),
        State::Dead => view.death.as_ref().map_or_else(String::new, |death| {
            format!(
                "it is dead ({}) and runs again only when it is requeued",
                death.reason.as_str()
            )
        }),
        State::Completed => "it is done".into(),
    }
}
