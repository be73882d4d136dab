//! What operators do to queues and jobs.

use super::{Answer, Model};
use std::time::Duration;

impl Model {
    pub(super) fn pause(&mut self, queue: usize, duration: Option<Duration>) -> Answer {
        let until = duration.map(|duration| self.now.after(duration));
        self.queues.entry(queue).or_default().paused = Some(until);
        Answer::Nothing
    }

    pub(super) fn resume(&mut self, queue: usize) -> Answer {
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.paused = None;
        }
        Answer::Nothing
    }

    pub(super) fn is_paused(&self, queue: usize) -> bool {
        let paused = self.queues.get(&queue).and_then(|queue| queue.paused);
        paused.is_some_and(|until| until.is_none_or(|until| until > self.now))
    }

    pub(super) fn end_pauses(&mut self) {
        for queue in self.queues.values_mut() {
            let now = self.now;
            queue.paused = queue.paused.filter(|until| until.is_none_or(|until| until > now));
        }
    }
}
