//! What operators see of breakers, and what they do to them.

use super::{Core, guards::TRIES_MAX, registry::Queue};
use crate::{
    domain::{
        breaker::{BreakerName, Guarded, probes_out},
        ids::QueueName,
        settings::QueueSettings,
    },
    store::{Ask, BreakerOrder, BreakerView, BreakerViews, QueueRefused, StoreError},
};

impl Core {
    pub(super) async fn breakers(
        &self,
        ask: Ask,
        names: Vec<QueueName>,
    ) -> Result<Vec<BreakerViews>, StoreError> {
        let mut views = Vec::with_capacity(names.len());
        for name in &names {
            views.push(match self.find(name).await? {
                None => BreakerViews::default(),
                Some(queue) => {
                    let settings = ask.settings.queue(name);
                    BreakerViews {
                        work: self.breaker_view(&queue, Guarded::Work, settings).await?,
                        dead_letters: self
                            .breaker_view(&queue, Guarded::DeadLetters, settings)
                            .await?,
                    }
                }
            });
        }
        Ok(views)
    }

    async fn breaker_view(
        &self,
        queue: &Queue,
        guarded: Guarded,
        settings: &QueueSettings,
    ) -> Result<BreakerView, StoreError> {
        let looked = self.look_at_guards(queue).await?;
        let memory = queue.guards.memory.lock().await;
        let (failures, probes) = match guarded {
            Guarded::Work => {
                let out = looked.probes.iter().copied();
                let transitions = queue.guards.breaker(Guarded::Work).transitions;
                let tally = queue.guards.counts().tally(transitions, &settings.breaker);
                (tally.failed(), probes_out(&settings.breaker, out, looked.now).0)
            }
            Guarded::DeadLetters => (memory.full_in_a_row, 0),
        };
        Ok(BreakerView { breaker: queue.guards.breaker(guarded), failures, probes })
    }

    pub(super) async fn set_breaker(
        &self,
        ask: Ask,
        name: BreakerName,
        order: BreakerOrder,
    ) -> Result<Result<BreakerView, QueueRefused>, StoreError> {
        let settings = ask.settings.queue(&name.queue);
        for _ in 0..TRIES_MAX {
            let queue = match self.find(&name.queue).await? {
                Some(queue) => queue,
                None if !ask.settings.queues.contains_key(&name.queue) => {
                    return Ok(Err(QueueRefused::NoSuchQueue));
                }
                None => match self.queue_for(&name.queue).await? {
                    Ok(queue) => queue,
                    Err(refused) => return Ok(Err(QueueRefused::NotMade(refused))),
                },
            };
            let mut memory = queue.guards.memory.lock().await;
            let set = self
                .move_guard(&queue, name.guarded, settings, |breaker, tally, now| {
                    match &order {
                        BreakerOrder::Force { open, reason } => {
                            breaker.force(*open, reason.clone(), now);
                        }
                        BreakerOrder::Reset => breaker.reset(),
                    }
                    if name.guarded == Guarded::Work {
                        *tally = None;
                    }
                    true
                })
                .await?;
            if set.is_none() {
                self.registry.forget(&queue);
                continue;
            }
            if name.guarded == Guarded::DeadLetters {
                memory.full_in_a_row = 0;
            }
            drop(memory);
            return self.breaker_view(&queue, name.guarded, settings).await.map(Ok);
        }
        Err(StoreError::Unavailable("the queue is forgotten again and again".into()))
    }
}
