//! Jobs as they are: finding them by their ids, and putting together what is shown of them.

use super::{
    Core,
    connection::Arg,
    enqueue::state_of,
    guards,
    record::{self, Number},
    registry::Queue,
    reply::Reply,
    scripts::{FIND, VIEWS},
};
use crate::{
    domain::{
        breaker::Breaker,
        failure::Failure,
        ids::{JobId, QueueName},
        job::{Spec, State},
        pause::Pause,
        time::Timestamp,
    },
    store::{Ahead, JobView, StoreError, codec, history},
};
use bytes::Bytes;
use std::sync::Arc;

/// Jobs that one script tells of, and about how many bytes.
const VIEWS_MAX: usize = 100;
const BYTES_MAX: u64 = 4 << 20;
/// READY jobs ahead are counted up to here.
pub(super) const AHEAD_MAX: usize = 10_000;

/// How much is shown of a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Show {
    /// Body and headers.
    pub(super) full: bool,
    pub(super) attempts: bool,
}

impl Core {
    /// The arguments that name a job by its id.
    pub(super) fn id_args(id: &JobId) -> [Arg; 3] {
        let (number, uuid) = match (id, id.number()) {
            (JobId::Uuid(uuid), Some(number)) => {
                (Number(number).bytes(), uuid.to_be_bytes().to_vec())
            }
            _ => Default::default(),
        };
        [id.to_string().as_str().into(), number.into(), uuid.into()]
    }

    /// The number of the job that has this id in this queue.
    pub(super) async fn number_in(
        &self,
        queue: &Queue,
        id: &JobId,
    ) -> Result<Option<Number>, StoreError> {
        let (_, mut reply) = self.run(&FIND, queue, Self::id_args(id).into()).await?;
        let number = reply.bytes()?;
        Ok((!number.is_empty()).then(|| Number::read(&number)))
    }

    /// The queues that have a job of this id: the one that is named, or whichever there are.
    pub(super) async fn queues_with(
        self: &Arc<Self>,
        id: &JobId,
        queue: Option<&QueueName>,
    ) -> Result<Vec<(Arc<Queue>, Number)>, StoreError> {
        let queues = match queue {
            Some(name) => self.find(name).await?.into_iter().collect(),
            None => self.all_queues().await?,
        };
        let id = id.clone();
        let found = self
            .each(queues, move |core, queue| {
                let id = id.clone();
                async move { core.number_in(&queue, &id).await }
            })
            .await?;
        Ok(found.into_iter().filter_map(|(queue, number)| Some((queue, number?))).collect())
    }

    pub(super) async fn job(
        self: &Arc<Self>,
        id: JobId,
        queue: Option<QueueName>,
    ) -> Result<Vec<JobView>, StoreError> {
        let found = self.queues_with(&id, queue.as_ref()).await?;
        // Whoever finds several has to ask again, and needs no bodies for that.
        let show = Show { full: found.len() == 1, attempts: true };
        let mut views = Vec::new();
        for (queue, number) in found {
            let view = self.views(&queue, &[number], show).await?.into_iter().flatten().next();
            if let Some(view) = view
                && !(view.state == State::Dead
                    && self.has_arrived_elsewhere(&queue, number).await?)
            {
                views.push(view);
            }
        }
        Ok(views)
    }

    /// A job whole, its place apart. None: it is not there.
    pub(super) async fn spec_of(
        &self,
        queue: &Queue,
        number: Number,
    ) -> Result<Option<Spec>, StoreError> {
        let show = Show { full: true, attempts: false };
        let view = self.views(queue, &[number], show).await?.into_iter().flatten().next();
        Ok(view.map(|view| view.spec))
    }

    /// Jobs by their numbers, in their order; none for one that is not there.
    pub(super) async fn views(
        &self,
        queue: &Queue,
        numbers: &[Number],
        show: Show,
    ) -> Result<Vec<Option<JobView>>, StoreError> {
        let mut views = Vec::with_capacity(numbers.len());
        while views.len() < numbers.len() {
            let wanted = &numbers[views.len()..];
            let wanted = &wanted[..wanted.len().min(VIEWS_MAX)];
            let mut args = vec![show.full.into(), show.attempts.into(), BYTES_MAX.into()];
            args.extend(wanted.iter().map(|number| Arg::from(number.bytes())));
            let (_, mut reply) = self.run(&VIEWS, queue, args).await?;
            let pause = read_pause(&mut reply)?;
            let breaker = guards::read(&reply.bytes()?);
            for number in wanted {
                if reply.left() == 0 {
                    break;
                }
                views.push(view(queue, *number, reply.list()?, (&pause, &breaker), show)?);
            }
        }
        Ok(views)
    }
}

/// The end of a pause and its reason.
pub(super) fn read_pause(reply: &mut Reply) -> Result<Option<Pause>, StoreError> {
    let (until, reason) = (reply.text()?, reply.text()?);
    let Ok(until) = until.parse::<i64>() else { return Ok(None) };
    let until = u64::try_from(until).ok().map(Timestamp::from_millis);
    Ok(Some(Pause { until, reason }))
}

fn view(
    queue: &Queue,
    number: Number,
    mut parts: Reply,
    (pause, breaker): (&Option<Pause>, &Breaker),
    show: Show,
) -> Result<Option<JobView>, StoreError> {
    if parts.left() == 0 {
        return Ok(None);
    }
    let (state, at, rank) = (state_of(parts.int()?), parts.time()?, parts.int()?);
    let (record, body) = (parts.bytes()?, parts.bytes()?);
    let (progress, lease, death) = (parts.bytes()?, parts.bytes()?, parts.bytes()?);
    let (first, last) = (failure(&parts.bytes()?), failure(&parts.bytes()?));
    let last = last.or_else(|| first.clone());
    let result = parts.bytes()?;
    let mut history = parts.list()?;
    let mut attempts = Vec::new();
    while history.left() > 0 {
        attempts.push(history.bytes()?);
    }
    let (spec, mut corrupt) = if show.full {
        match record::read_job(number, &record, body) {
            Ok(spec) => (spec, false),
            Err(spec) => (*spec, true),
        }
    } else {
        (Spec { headers: Vec::new(), ..record::read_head(number, &record) }, false)
    };
    let result = match &result[..] {
        [] => Ok(Bytes::new()),
        record => codec::read_result(record),
    };
    corrupt |= result.is_err();
    let mut progress = record::read_progress(&progress);
    let held = record::read_lease(number, &queue.name, &lease);
    if let Some(held) = &held {
        progress.cancel_requested |= held.cancel_requested;
        progress.deliveries = held.delivery.lease.delivery;
        if !held.checkpoint.is_empty() {
            progress.checkpoint.clone_from(&held.checkpoint);
        }
    }
    let waits = matches!(state, State::Ready | State::Scheduled);
    let ahead = usize::try_from(rank)
        .ok()
        .map(|rank| Ahead { jobs: rank.min(AHEAD_MAX), more: rank > AHEAD_MAX });
    let records = attempts.iter().map(Vec::as_slice);
    Ok(Some(JobView {
        queue: queue.name.clone(),
        spec,
        corrupt,
        state,
        ready_at: waits.then_some(at),
        old_place: held.as_ref().map(|held| held.ready_at),
        progress,
        delivery: held.map(|held| held.delivery),
        death: record::read_death(&death).map(|(death, _)| death),
        completed_at: (state == State::Completed).then_some(at),
        result: result.unwrap_or_default(),
        attempts: history::put_together(records, first.as_ref(), last.as_ref()),
        last_failure: last,
        ahead,
        pause: pause.clone(),
        breaker: breaker.clone(),
    }))
}

fn failure(record: &[u8]) -> Option<Failure> {
    codec::read_failure(record).ok()
}
