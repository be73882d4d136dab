//! BreakerStatus, SetBreaker and ResetBreaker: the breakers as they stand, and an operator's word.

use super::{Broker, Error, Refusal};
use crate::{
    domain::{
        breaker::{BreakerName, BreakerState, Guarded},
        ids::QueueName,
        settings::{BreakerSettings, Settings},
        time::Timestamp,
    },
    store::{BreakerOrder, BreakerView, QueueRefused, Store},
};

#[derive(Clone, Debug)]
pub struct BreakerReport {
    pub name: BreakerName,
    pub view: BreakerView,
    /// In force.
    pub settings: BreakerSettings,
    pub now: Timestamp,
}

impl BreakerReport {
    pub fn state(&self) -> BreakerState {
        self.view.breaker.state(&self.settings, self.now)
    }
}

impl<S: Store> Broker<S> {
    /// One breaker by its name.
    pub async fn breaker(&self, name: &str) -> Result<BreakerReport, Error> {
        let name = known(name)?;
        if !self.queue_exists(&name.queue).await? {
            return Err(not_found(&name).into());
        }
        let views = self.store.breakers(self.ask(), vec![name.queue.clone()]).await?;
        let views = views.into_iter().next().unwrap_or_default();
        let view = match name.guarded {
            Guarded::Work => views.work,
            Guarded::DeadLetters => views.dead_letters,
        };
        Ok(self.report(&self.settings(), name, view))
    }

    /// The breakers of every queue by its name, each queue's own before that of its dead letters; those after `after`.
    pub async fn breakers(
        &self,
        after: Option<BreakerName>,
        limit: usize,
    ) -> Result<Vec<BreakerReport>, Error> {
        // Of the queue where the page before ended, one may be left.
        let begun = after.as_ref().filter(|after| after.guarded == Guarded::Work);
        let begun = begun.map(|after| after.queue.clone());
        let behind = after.map(|after| after.queue);
        let queues = self.list_queues(behind, limit).await?;
        let mut names: Vec<QueueName> = queues.into_iter().map(|queue| queue.view.name).collect();
        let skip = usize::from(begun.is_some());
        names.splice(0..0, begun);
        let views = self.store.breakers(self.ask(), names.clone()).await?;
        let settings = self.settings();
        let both = names.into_iter().zip(views).flat_map(|(queue, views)| {
            [(Guarded::Work, views.work), (Guarded::DeadLetters, views.dead_letters)]
                .map(|(guarded, view)| (BreakerName { queue: queue.clone(), guarded }, view))
        });
        let reports = both.skip(skip).take(limit);
        Ok(reports.map(|(name, view)| self.report(&settings, name, view)).collect())
    }

    pub async fn set_breaker(
        &self,
        name: &str,
        order: BreakerOrder,
    ) -> Result<BreakerReport, Error> {
        let name = known(name)?;
        let set = self.store.set_breaker(self.ask(), name.clone(), order).await?;
        let view = set.map_err(|refused| match refused {
            QueueRefused::NoSuchQueue => not_found(&name),
            QueueRefused::NotMade(refused) => Refusal::NotAdded(refused),
        })?;
        Ok(self.report(&self.settings(), name, view))
    }

    fn report(&self, settings: &Settings, name: BreakerName, view: BreakerView) -> BreakerReport {
        let queue = settings.queue(&name.queue);
        let settings = match name.guarded {
            Guarded::Work => queue.breaker.clone(),
            Guarded::DeadLetters => queue.dead_letters.breaker.clone(),
        };
        BreakerReport { name, view, settings, now: self.store.now() }
    }
}

/// No other name can be that of a breaker.
fn known(name: &str) -> Result<BreakerName, Refusal> {
    BreakerName::parse(name).ok_or_else(|| not_found(name))
}

fn not_found(name: impl ToString) -> Refusal {
    Refusal::BreakerNotFound { name: name.to_string() }
}
