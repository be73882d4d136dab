//! ListJobs: the jobs of a queue, a page at a time.

use super::{Broker, Error, JobReport, Refusal, get_job::waiting_because};
use crate::store::{JobPosition, JobQuery, Store};

#[derive(Clone, Debug, Default)]
pub struct JobListing {
    pub jobs: Vec<(JobPosition, JobReport)>,
    /// There is more after this.
    pub next: Option<JobPosition>,
}

impl<S: Store> Broker<S> {
    pub async fn list_jobs(&self, query: JobQuery) -> Result<JobListing, Error> {
        let queue = query.queue.clone();
        let Some(page) = self.store.jobs(query).await? else {
            if self.is_configured(&queue) {
                return Ok(JobListing::default());
            }
            return Err(Refusal::QueueNotFound { queue }.into());
        };
        let (settings, now) = (self.settings(), self.store.now());
        let jobs = page.jobs.into_iter().map(|(position, view)| {
            let waiting_because = waiting_because(&view, &settings, now);
            (position, JobReport { view, waiting_because })
        });
        Ok(JobListing { jobs: jobs.collect(), next: page.next })
    }
}
