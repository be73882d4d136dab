//! Enqueue: the job and its place, and a row more only for a caller's own id, a key or a deadline.

use super::{
    codec,
    memory::{QueueNumber, timestamp, unsigned},
    places::{BodyColumn, Place, Tie},
    writer::{Failure, Writer},
};
use crate::{
    domain::{
        chance::Dice,
        ids::{JobId, QueueName},
        job::{NewJob, Sameness, State},
        time::Timestamp,
    },
    store::{Ask, Enqueued, Refused},
};

/// A job on its way in, with its print where it has an id or key of its own: made before the writer gets it, which has
/// other things to do.
pub(super) struct Incoming {
    pub(super) job: NewJob,
    print: Option<Sameness>,
}

impl Incoming {
    pub(super) fn new(job: NewJob) -> Self {
        let named = job.id.is_some() || job.key.is_some();
        let print = named.then(|| job.sameness());
        Self { job, print }
    }
}

/// A job that is already there under the same id or key.
struct Earlier {
    number: u64,
    id: JobId,
    same: bool,
    /// Its key outlives it.
    finished: bool,
}

impl Writer<'_> {
    pub(super) fn enqueue(
        &mut self,
        ask: &Ask,
        jobs: Vec<Incoming>,
    ) -> Result<Vec<Result<Enqueued, Refused>>, Failure> {
        let mut dice = Dice::new(ask.seed);
        jobs.into_iter().map(|incoming| self.enqueue_one(ask, incoming, &mut dice)).collect()
    }

    fn enqueue_one(
        &mut self,
        ask: &Ask,
        Incoming { job, print }: Incoming,
        dice: &mut Dice,
    ) -> Result<Result<Enqueued, Refused>, Failure> {
        let queue = match self.queue_for(&job.queue)? {
            Ok(queue) => queue,
            Err(refused) => return Ok(Err(refused)),
        };
        if let Some(print) = &print {
            match self.earlier(queue, &job, print)? {
                Ok(None) => {}
                Ok(Some(earlier)) => return self.deduplicated(&earlier).map(Ok),
                Err(refused) => return Ok(Err(refused)),
            }
        }
        let settings = ask.settings.queue(&job.queue);
        if let Some(limit) = settings.max_depth
            && let Some(state) = self.memory.queue(queue)
            && state.depths.ready + state.depths.scheduled + state.depths.leased >= limit
        {
            return Ok(Err(Refused::QueueFull { limit }));
        }
        self.add(queue, job, print, dice).map(Ok)
    }

    fn add(
        &mut self,
        queue: QueueNumber,
        mut job: NewJob,
        print: Option<Sameness>,
        dice: &mut Dice,
    ) -> Result<Enqueued, Failure> {
        let number = self.memory.next_number;
        self.memory.next_number += 1;
        let row = number.cast_signed();
        let own_id = job.id.take();
        let id = own_id.unwrap_or_else(|| JobId::make(self.now, number, dice.roll()));
        let (spec, _) = job.admit(self.now, id);
        let mut head = std::mem::take(&mut self.scratch);
        codec::head(&spec, &mut head);
        self.sql.insert_job.execute((row, queue, &head, BodyColumn(&spec.body)))?;
        self.scratch = head;
        let place = Place::of(queue, number, &spec, false);
        let state = self.wait(&place, spec.run_at)?;
        self.memory.change(queue, |queue| queue.totals.enqueued += 1);
        self.watch_deadline(number, spec.expires_at)?;
        if let Some(print) = print {
            let id = spec.id.to_string();
            // Whoever has its own number in its id is found by that, as are the ids that the store makes.
            if matches!(place.tie, Tie::Id(_)) {
                self.sql.insert_id.execute((&id, queue, row, print))?;
            }
            if let Some(key) = &spec.key {
                self.save_key(queue, key, number, &id, &print)?;
            }
        }
        Ok(Enqueued { id: spec.id, deduplicated: false, state, run_at: Some(spec.run_at) })
    }

    /// Gives a key to a job, taking it from a finished one if need be.
    pub(super) fn save_key(
        &mut self,
        queue: QueueNumber,
        key: &str,
        number: u64,
        id: &str,
        print: &Sameness,
    ) -> Result<(), Failure> {
        let mut rows = self.sql.key.query((queue, key))?;
        let was_finished =
            rows.next()?.map(|row| row.get::<_, Option<i64>>(3)).transpose()?.flatten().is_some();
        drop(rows);
        let nobody_frees_it: Option<i64> = None;
        self.sql.save_key.execute((
            queue,
            key,
            number.cast_signed(),
            id,
            print,
            nobody_frees_it,
        ))?;
        self.memory.change(queue, |queue| queue.finished_keys -= u64::from(was_finished));
        Ok(())
    }

    /// The queue of this name, made on first use.
    pub(super) fn queue_for(
        &mut self,
        name: &QueueName,
    ) -> Result<Result<QueueNumber, Refused>, Failure> {
        if let Some(number) = self.memory.find(name) {
            return Ok(Ok(number));
        }
        let limit = self.options.max_queues;
        if self.memory.queue_count() >= limit {
            return Ok(Err(Refused::TooManyQueues { limit }));
        }
        self.sql.insert_queue.execute((name.as_str(), self.now.millis().cast_signed()))?;
        let number = self.connection.last_insert_rowid();
        self.memory.add_queue(number, name.clone(), self.now);
        Ok(Ok(number))
    }

    /// Who has the id or the key already; a refusal if that is a different job.
    fn earlier(
        &mut self,
        queue: QueueNumber,
        job: &NewJob,
        print: &Sameness,
    ) -> Result<Result<Option<Earlier>, Refused>, Failure> {
        let by_id = match &job.id {
            Some(id) => self.earlier_by_id(queue, id, print)?,
            None => None,
        };
        let by_key = match &job.key {
            Some(key) => self.earlier_by_key(queue, key, print)?,
            None => None,
        };
        Ok(match (by_id, by_key) {
            (Some(by_id), _) if !by_id.same => Err(Refused::IdTaken),
            (_, Some(by_key)) if !by_key.same => Err(Refused::KeyTaken),
            (Some(by_id), Some(by_key)) if by_id.number != by_key.number => {
                Err(Refused::IdAndKeyDiffer)
            }
            (by_id, Some(by_key)) => match &job.id {
                // The key's job has another id than the one asked for.
                Some(id) if by_id.is_none() && *id != by_key.id => Err(Refused::IdAndKeyDiffer),
                _ => Ok(Some(by_key)),
            },
            (by_id, None) => Ok(by_id),
        })
    }

    fn earlier_by_id(
        &mut self,
        queue: QueueNumber,
        id: &JobId,
        print: &Sameness,
    ) -> Result<Option<Earlier>, Failure> {
        let mut rows = self.sql.id.query((id.to_string(), queue))?;
        if let Some(row) = rows.next()? {
            let same = row.get::<_, Sameness>(1)? == *print;
            let number = unsigned(row, 0)?;
            return Ok(Some(Earlier { number, id: id.clone(), same, finished: false }));
        }
        drop(rows);
        // An id that the server made has no row of its own.
        let Some(number) = id.number() else {
            return Ok(None);
        };
        match self.read_head(number)? {
            Some((head, of_queue)) if head.id == *id && of_queue == queue => {}
            _ => return Ok(None),
        }
        let (Ok(spec) | Err(spec)) = self.read_job(number)?;
        let same = spec.sameness() == *print;
        Ok(Some(Earlier { number, id: id.clone(), same, finished: false }))
    }

    fn earlier_by_key(
        &mut self,
        queue: QueueNumber,
        key: &str,
        print: &Sameness,
    ) -> Result<Option<Earlier>, Failure> {
        let now = self.now;
        let mut rows = self.sql.key.query((queue, key))?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        let finished = row.get::<_, Option<i64>>(3)?.is_some();
        if finished && timestamp(row, 3)? <= now {
            return Ok(None);
        }
        let id: String = row.get(1)?;
        let same = row.get::<_, Sameness>(2)? == *print;
        Ok(Some(Earlier { number: unsigned(row, 0)?, id: JobId::parse(&id), same, finished }))
    }

    fn deduplicated(&mut self, earlier: &Earlier) -> Result<Enqueued, Failure> {
        let (state, run_at) = if earlier.finished {
            (State::Completed, None)
        } else {
            self.state_of(earlier.number)?
        };
        Ok(Enqueued { id: earlier.id.clone(), deduplicated: true, state, run_at })
    }

    /// Where a job is now, and when it became or becomes ready.
    fn state_of(&mut self, number: u64) -> Result<(State, Option<Timestamp>), Failure> {
        if self.memory.leases.of_number(number).is_some() {
            return Ok((State::Leased, None));
        }
        let found = super::lookup::place(self.connection, number)?;
        Ok(found.map_or((State::Completed, None), |found| {
            let waits = matches!(found.state, State::Ready | State::Scheduled);
            (found.state, waits.then_some(found.at))
        }))
    }
}
