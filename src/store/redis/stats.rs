//! Counters: of queues, of all that there ever were, and of dead letters. Looks at queues, never at all their jobs.

use super::{
    Core,
    connection::Arg,
    guards,
    look::{Show, read_pause},
    registry::Queue,
    reply::Reply,
    scripts::STATE,
};
use crate::{
    domain::{breaker::Breaker, ids::QueueName, pause::Pause, time::Timestamp},
    store::{
        DeadCount, DeadCountQuery, DeadCounts, Depths, LatestDeath, QueueView, Stats, StoreError,
        Totals,
    },
};
use redis::Value;
use std::sync::Arc;

/// The counters by their names, in the order of [`Totals`].
pub(super) const COUNTERS: [&str; Totals::COUNT] = [
    "enqueued",
    "completed",
    "failed_attempts",
    "retries",
    "successful_retries",
    "retried_finished",
    "dead_lettered",
    "requeued",
    "lease_expired",
    "purged",
    "cancelled",
    "retention_expired",
    "moved_in",
    "moved_out",
];

/// How many of those that moved in came from another store. Kept apart, since a queue that is no more is in another slot.
const TAKEN_IN: &str = "taken_in";

/// A queue as `state.lua` tells of it.
pub(super) struct State {
    pub(super) depths: Depths,
    pub(super) totals: Totals,
    /// Jobs on their way to other queues.
    pub(super) moving: u64,
    /// What it counts among the queues that are no more.
    pub(super) elsewhere: Totals,
    oldest_ready_at: Option<Timestamp>,
    pause: Option<Pause>,
    breaker: Breaker,
}

pub(super) fn counter_args() -> impl Iterator<Item = Arg> {
    COUNTERS.iter().chain([&TAKEN_IN]).map(|name| Arg::from(*name))
}

pub(super) fn read_totals(reply: &mut Reply) -> Result<Totals, StoreError> {
    let mut values = [0; Totals::COUNT];
    for value in &mut values {
        *value = reply.count()?;
    }
    Ok(Totals::of(values))
}

/// Follows the totals: where the jobs of another store come from is to this one like a queue that is no more.
pub(super) fn read_elsewhere(reply: &mut Reply) -> Result<Totals, StoreError> {
    let taken_in = reply.count()?;
    Ok(Totals { enqueued: taken_in, moved_out: taken_in, ..Totals::default() })
}

impl Core {
    pub(super) async fn state(&self, queue: &Queue) -> Result<State, StoreError> {
        let (_, mut reply) = self.run(&STATE, queue, counter_args().collect()).await?;
        reply.bytes()?;
        let (_used_at, _deaths) = (reply.int()?, reply.int()?);
        let pause = read_pause(&mut reply)?;
        let depths = Depths {
            ready: reply.count()?,
            scheduled: reply.count()?,
            leased: reply.count()?,
            completed: reply.count()?,
            dead: reply.count()?,
            overflow: reply.count()?,
        };
        let (_keys, moving) = (reply.count()?, reply.count()?);
        let oldest_ready_at = reply.maybe_time()?;
        let breaker = guards::read(&reply.bytes()?);
        let totals = read_totals(&mut reply)?;
        let elsewhere = read_elsewhere(&mut reply)?;
        Ok(State { depths, totals, moving, elsewhere, oldest_ready_at, pause, breaker })
    }

    pub(super) async fn states(
        self: &Arc<Self>,
        queues: Vec<Arc<Queue>>,
    ) -> Result<Vec<(Arc<Queue>, State)>, StoreError> {
        self.each(queues, |core, queue| async move { core.state(&queue).await }).await
    }

    pub(super) async fn queues(
        self: &Arc<Self>,
        after: Option<QueueName>,
        limit: usize,
    ) -> Result<Vec<QueueView>, StoreError> {
        let mut queues = self.all_queues().await?;
        queues.retain(|queue| after.as_ref().is_none_or(|after| queue.name > *after));
        queues.truncate(limit);
        let view = |(queue, state): (Arc<Queue>, State)| QueueView {
            name: queue.name.clone(),
            depths: state.depths,
            totals: state.totals,
            oldest_ready_at: state.oldest_ready_at,
            pause: state.pause,
            breaker: state.breaker,
        };
        Ok(self.states(queues).await?.into_iter().map(view).collect())
    }

    pub(super) async fn stats(
        self: &Arc<Self>,
        name: Option<QueueName>,
    ) -> Result<Option<Stats>, StoreError> {
        if let Some(name) = name {
            let Some(queue) = self.find(&name).await? else { return Ok(None) };
            let state = self.state(&queue).await?;
            return Ok(Some(Stats { totals: state.totals, held: state.depths.held() }));
        }
        let mut all = Stats { totals: self.forgotten().await?, held: 0 };
        for (_, state) in self.states(self.all_queues().await?).await? {
            all.totals += state.totals;
            all.totals += state.elsewhere;
            all.held += state.depths.held();
        }
        Ok(Some(all))
    }

    /// The counters of queues that were forgotten.
    pub(super) async fn forgotten(&self) -> Result<Totals, StoreError> {
        let [.., forgotten] = self.names.registry();
        let mut command = redis::cmd("HMGET");
        command.arg(&forgotten).arg(&COUNTERS);
        let Value::Array(values) = self.redis.command(&forgotten, command).await? else {
            return Ok(Totals::default());
        };
        let counts = values.into_iter().map(|value| match value {
            Value::Nil => Value::Int(0),
            value => value,
        });
        read_totals(&mut Reply::of(Value::Array(counts.collect()))?)
    }

    pub(super) async fn dead_letter_counts(
        self: &Arc<Self>,
        query: DeadCountQuery,
    ) -> Result<DeadCounts, StoreError> {
        let queues = match &query.queue {
            Some(name) => self.find(name).await?.into_iter().collect(),
            None => self.all_queues().await?,
        };
        let mut counts = DeadCounts::default();
        for (queue, State { depths, .. }) in self.states(queues).await? {
            counts.total += depths.dead;
            let past = query.after.as_ref().is_none_or(|after| queue.name > *after);
            let wanted = query.queue.is_some() || (depths.dead > 0 && past);
            if wanted && counts.queues.len() < query.limit {
                counts.queues.push(self.dead_count(&queue, &depths, &query).await?);
            }
        }
        Ok(counts)
    }

    async fn dead_count(
        &self,
        queue: &Arc<Queue>,
        depths: &Depths,
        query: &DeadCountQuery,
    ) -> Result<DeadCount, StoreError> {
        let oldest = self.letters(queue, false, 0, u64::MAX, 1).await?;
        Ok(DeadCount {
            queue: queue.name.clone(),
            count: depths.dead,
            overflow: depths.overflow,
            oldest: oldest.first().map(|letter| letter.died_at),
            by_error_type: self.error_types(queue, query.types).await?,
            latest: self.latest(queue, query.latest).await?,
        })
    }

    /// At most a thousand, so they are sorted here.
    async fn error_types(
        &self,
        queue: &Queue,
        limit: usize,
    ) -> Result<Vec<(String, u64)>, StoreError> {
        let key = queue.keys.of(b't');
        let mut command = redis::cmd("HGETALL");
        command.arg(key);
        let all = match self.redis.command(key, command).await? {
            Value::Map(entries) => {
                Value::Array(entries.into_iter().flat_map(|(name, count)| [name, count]).collect())
            }
            other => other,
        };
        let mut all = Reply::of(all)?;
        let mut types = Vec::new();
        while all.left() > 0 {
            types.push((all.text()?, all.count()?));
        }
        types.sort_by(|(a, more), (b, less)| less.cmp(more).then_with(|| a.cmp(b)));
        types.truncate(limit);
        Ok(types)
    }

    async fn latest(&self, queue: &Queue, limit: usize) -> Result<Vec<LatestDeath>, StoreError> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        let key = queue.keys.of(b'd');
        let mut command = redis::cmd("ZRANGE");
        command.arg(key).arg(0).arg(limit - 1).arg("REV").arg("WITHSCORES");
        let mut reply = Reply::of(self.redis.command(key, command).await?)?;
        let mut latest = Vec::new();
        while reply.left() > 0 {
            reply.bytes()?;
            let death = reply.count()?;
            let letters = self.letters(queue, false, death.saturating_sub(1), death, 1).await?;
            let Some(letter) = letters.into_iter().next() else { continue };
            let show = Show { full: false, attempts: false };
            let views = self.views(queue, &[letter.number], show).await?;
            latest.extend(views.into_iter().flatten().map(|view| LatestDeath {
                id: view.spec.id,
                error_type: letter.counted_as.clone(),
                died_at: letter.died_at,
            }));
        }
        Ok(latest)
    }
}
