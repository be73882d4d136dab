//! How servers hear of each other's work: hints that Redis passes on, and a slow look around as the net under them.
//!
//! A script that puts something into an empty line, moves a breaker or cancels a job that is out publishes that on the
//! channel of its queue. Nobody relies on it: whatever is missed is found by the next look, or by the next Extend.

use super::{
    Core,
    connection::{Ear, Heard},
    record,
    registry::Queue,
};
use crate::{domain::ids::QueueName, store::StoreError};
use std::{sync::Arc, time::Duration};
use tokio::{sync::Notify, task::AbortHandle};

/// How often the queues are looked at, so many of them each time.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const QUEUES_MAX: usize = 100;

/// Ends with its owner.
#[derive(Debug)]
pub(super) struct Watch([AbortHandle; 2]);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

impl Watch {
    pub(super) fn start(core: &Arc<Core>) -> Self {
        let missed = Arc::new(Notify::new());
        let ear = core.redis.hear(&core.names.channels());
        let hearing = tokio::spawn(hear(core.clone(), ear, missed.clone()));
        let looking = tokio::spawn(look_around(core.clone(), missed));
        Self([hearing.abort_handle(), looking.abort_handle()])
    }
}

async fn hear(core: Arc<Core>, mut ear: Ear, missed: Arc<Notify>) {
    while let Some(heard) = ear.next().await {
        match heard {
            Heard::Gap => missed.notify_one(),
            Heard::Message { channel, payload } => {
                if let Some(name) = core.names.queue_of_channel(&channel) {
                    // Whatever goes wrong here, the next look goes right.
                    drop(core.hear(&name, &payload).await);
                }
            }
        }
    }
}

/// Looks at a part of the queues each time; at all of them when something may have been missed.
async fn look_around(core: Arc<Core>, missed: Arc<Notify>) {
    let mut from = 0;
    loop {
        let all = tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => false,
            () = missed.notified() => true,
        };
        // The next look makes up for one that fails.
        drop(core.introduce().await);
        let Ok(queues) = core.all_queues().await else { continue };
        if from >= queues.len() || all {
            from = 0;
        }
        let most = if all { queues.len() } else { QUEUES_MAX };
        let part: Vec<_> = queues.into_iter().skip(from).take(most).collect();
        from += part.len();
        let looked =
            core.each(part, |core, queue| async move { core.look_around_in(&queue).await });
        drop(looked.await);
    }
}

impl Core {
    async fn hear(&self, name: &QueueName, payload: &[u8]) -> Result<(), StoreError> {
        let Some(queue) = self.find(name).await? else { return Ok(()) };
        if let Some(name) = payload.strip_prefix(b"cancel") {
            let lease = record::read_named_lease(name, &queue.name);
            lease.into_iter().for_each(|lease| self.listener.cancel_requested(lease));
            return Ok(());
        }
        match std::str::from_utf8(payload).ok().and_then(|jobs| jobs.parse().ok()) {
            Some(jobs) => self.tell(&queue, jobs).await,
            None => self.look_at_gate(&queue).await?,
        }
        Ok(())
    }

    /// What others left behind: when something is due, and what is in line.
    async fn look_around_in(&self, queue: &Queue) -> Result<(), StoreError> {
        if let Some(at) = self.first_due(queue).await? {
            self.agenda.note(queue.number, at);
        }
        self.look_at_gate(queue).await
    }
}
