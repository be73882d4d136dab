//! Work: one worker's stream. Credits and settlements come in; jobs and answers go out.
//!
//! One round at a time: what the worker has sent since the last one is settled, and what it has credits for is claimed, in
//! one transaction. Between rounds the stream sleeps until the worker says something or there is work for it. A worker
//! that does not read stops its own stream: nothing is claimed until what was claimed before is on its way.

mod in_flight;
mod waiting;

use super::{ClaimReply, ClaimRequest, ConnectionBudget, Held, Order, Service, waiters::Waiter};
use crate::domain::{Lease, QueueName, Timestamp};
use crate::queue::{Claimed, Idle, REFUSED_BYTES, Settled, Settlements};
use crate::queue::{Error, Handover, Host};
use in_flight::InFlight;
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::{Interval, Sleep, interval, sleep};
use tokio_stream::Stream;
use waiting::{Expected, next_batch, together};

/// After so long without a word the stream says that it is there.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// A stream whose connection has no room for jobs looks again after this.
const LOOK_FOR_ROOM: Duration = Duration::from_millis(250);
/// Settlements that wait for the next round; more are not read yet.
const WAITING_MESSAGES: usize = 64;
const WAITING_BYTES: usize = 1 << 20;

/// What a stream works on.
#[derive(Clone, Debug)]
pub struct WorkHello {
    pub queues: Vec<QueueName>,
    pub order: Order,
    pub lease_duration: Option<Duration>,
    pub worker_id: String,
    /// Of jobs handed over and not settled.
    pub max_bytes_in_flight: usize,
    /// The worker says when it begins a job; what it has not begun returns at once when the stream breaks.
    pub reports_started: bool,
    /// Jobs in one message.
    pub max_jobs: usize,
    /// Bytes of jobs in one message.
    pub max_bytes: usize,
    pub connection: WorkConnection,
}

/// The connection that a stream runs on.
#[derive(Clone, Debug)]
pub struct WorkConnection {
    pub budget: Arc<ConnectionBudget>,
    /// Becomes true when the connection is to be left.
    pub retiring: watch::Receiver<bool>,
    /// A stream that drains is given up after this.
    pub drain_within: Duration,
}

/// What the worker says.
#[derive(Debug)]
pub struct WorkMessage<T> {
    pub add_credits: u32,
    pub settle: Option<WorkSettlements<T>>,
    pub started: Vec<Lease>,
    pub stop: bool,
}

/// Settlements that are answered together. `T` comes back with the answer.
#[derive(Debug)]
pub struct WorkSettlements<T> {
    pub tag: T,
    pub settle: Settlements,
    /// Items that were refused before they came here, and are answered as well.
    pub refused: usize,
    /// What all this takes until the answer is on its way.
    pub held: Held,
}

impl<T> WorkSettlements<T> {
    fn bytes(&self) -> usize {
        self.settle.bytes() + self.refused * REFUSED_BYTES
    }
}

/// What the stream says.
#[derive(Debug)]
pub struct WorkReply<T> {
    pub now: Timestamp,
    pub jobs: Option<Handover>,
    /// What the jobs and the answers take until the transport has them.
    pub held: Vec<Held>,
    pub settled: Option<(T, Settled)>,
    pub idle: Vec<Idle>,
    pub cancel_requested: Vec<Lease>,
    pub keepalive: bool,
    pub drain: bool,
}

impl<T> WorkReply<T> {
    fn empty(now: Timestamp) -> Self {
        Self {
            now,
            jobs: None,
            held: Vec::new(),
            settled: None,
            idle: Vec::new(),
            cancel_requested: Vec::new(),
            keepalive: false,
            drain: false,
        }
    }
}

/// Where the answers go; full while the worker does not read. `E`: how the stream is refused.
pub type Outbox<T, E> = mpsc::Sender<Result<WorkReply<T>, E>>;

/// A message, one that is refused and ends the stream, or (`None`) the end of the connection.
pub type Received<T, E> = Result<WorkMessage<T>, Option<E>>;

/// Why a stream ends early.
enum End<E> {
    /// The client is gone: there is nothing to answer.
    Gone,
    Failed(E),
}

impl<E: From<Error>> From<Error> for End<E> {
    fn from(error: Error) -> Self {
        Self::Failed(error.into())
    }
}

impl<H: Host> Service<H> {
    /// Runs until the worker goes, or the stream has drained.
    pub async fn work<T: Send, E: From<Error> + Send>(
        self: Arc<Self>, hello: WorkHello, inbox: impl Stream<Item = Received<T, E>> + Send, outbox: Outbox<T, E>,
    ) {
        let mut worker = Worker {
            cancels: self.waiters.cancels(),
            service: self,
            hello,
            outbox,
            credits: 0,
            in_flight: InFlight::default(),
            waiting: Vec::new(),
            last_idle: Vec::new(),
            draining: false,
            received_all: false,
            more: false,
            crowded: false,
            quiet: interval(KEEPALIVE),
            give_up: None,
        };
        worker.quiet.reset();
        let mut inbox = std::pin::pin!(inbox);
        if let Err(End::Failed(error)) = worker.run(inbox.as_mut()).await {
            drop(worker.outbox.send(Err(error)).await);
        }
        worker.leave().await;
    }
}

struct Worker<H, T, E> {
    service: Arc<Service<H>>,
    hello: WorkHello,
    outbox: Outbox<T, E>,
    cancels: broadcast::Receiver<Lease>,
    credits: usize,
    in_flight: InFlight,
    waiting: Vec<WorkSettlements<T>>,
    /// As the worker knows it.
    last_idle: Vec<Idle>,
    draining: bool,
    /// The worker has closed its side.
    received_all: bool,
    /// The last round found work; there may be more.
    more: bool,
    /// The connection had no room for jobs.
    crowded: bool,
    /// Ticks when nothing was sent for a while.
    quiet: Interval,
    /// Ends a stream that drains and is not left.
    give_up: Option<Pin<Box<Sleep>>>,
}

impl<H: Host, T: Send, E: From<Error> + Send> Worker<H, T, E> {
    async fn run<I: Stream<Item = Received<T, E>>>(&mut self, mut inbox: Pin<&mut I>) -> Result<(), End<E>> {
        let mut server_drains = self.service.draining.subscribe();
        let mut retiring = self.hello.connection.retiring.clone();
        loop {
            let waiter = self.round().await?;
            let received = self.receive_available(inbox.as_mut()).await?;
            if received || self.more || !self.waiting.is_empty() {
                continue;
            }
            if self.received_all || (self.draining && self.in_flight.is_empty()) {
                return Ok(());
            }
            tokio::select! {
                message = next(inbox.as_mut()) => self.receive(message)?,
                () = notified(waiter.as_ref()) => {}
                Ok(lease) = self.cancels.recv() => self.send_cancelled(lease).await?,
                // The block drops what it is handed, a guard that must not be held while waiting.
                () = async { drop(server_drains.wait_for(|drains| *drains).await) }, if !self.draining => {
                    self.drain().await?;
                }
                () = async { drop(retiring.wait_for(|retires| *retires).await) }, if !self.draining => {
                    self.drain().await?;
                }
                () = sleep(LOOK_FOR_ROOM), if self.crowded => {}
                () = over(self.give_up.as_mut()) => return Ok(()),
                _ = self.quiet.tick() => {
                    self.in_flight.forget_expired(self.service.queues.now());
                    let keepalive = WorkReply { keepalive: true, ..self.empty() };
                    self.send(keepalive).await?;
                }
                () = self.outbox.closed() => return Err(End::Gone),
            }
        }
    }

    fn empty(&self) -> WorkReply<T> {
        WorkReply::empty(self.service.queues.now())
    }

    async fn send(&mut self, reply: WorkReply<T>) -> Result<(), End<E>> {
        self.quiet.reset();
        self.outbox.send(Ok(reply)).await.map_err(|_| End::Gone)
    }

    /// Takes in what has arrived, as far as there is room for it. False: nothing has.
    async fn receive_available<I: Stream<Item = Received<T, E>>>(
        &mut self, mut inbox: Pin<&mut I>,
    ) -> Result<bool, End<E>> {
        let mut received = false;
        while !self.received_all
            && self.waiting.len() < WAITING_MESSAGES
            && self.waiting.iter().map(WorkSettlements::bytes).sum::<usize>() < WAITING_BYTES
            && let Some(message) = ready_now(inbox.as_mut()).await
        {
            self.receive(message)?;
            received = true;
        }
        Ok(received)
    }

    fn receive(&mut self, message: Option<Received<T, E>>) -> Result<(), End<E>> {
        let message = match message {
            Some(Ok(message)) => message,
            Some(Err(Some(error))) => return Err(End::Failed(error)),
            // What it said before is carried out all the same.
            Some(Err(None)) | None => {
                self.received_all = true;
                self.credits = 0;
                return Ok(());
            }
        };
        if message.stop {
            self.hello.max_jobs = 0;
        }
        if !self.draining {
            self.credits = self.credits.saturating_add(message.add_credits as usize);
        }
        for lease in &message.started {
            self.in_flight.start(lease);
        }
        self.waiting.extend(message.settle);
        Ok(())
    }

    async fn send_cancelled(&mut self, lease: Lease) -> Result<(), End<E>> {
        if !self.in_flight.has(&lease) {
            return Ok(());
        }
        let reply = WorkReply { cancel_requested: vec![lease], ..self.empty() };
        self.send(reply).await
    }

    /// No more jobs from here on. A worker that reads nothing does not hear of it: its connection is cut in the end.
    async fn drain(&mut self) -> Result<(), End<E>> {
        self.draining = true;
        self.credits = 0;
        self.give_up = Some(Box::pin(sleep(self.hello.connection.drain_within)));
        let reply = WorkReply { drain: true, ..self.empty() };
        self.send(reply).await
    }

    /// Settles what waits and claims what the worker can take. A worker that could take more than there is waits,
    /// registered before looking.
    async fn round(&mut self) -> Result<Option<Waiter>, End<E>> {
        let (wants, room) = self.wants();
        let batch = next_batch(&mut self.waiting, self.service.limits.batch_items);
        self.more = false;
        if wants == 0 && batch.is_empty() {
            return Ok(None);
        }
        let (settle, named, answers) = together(batch);
        if wants == 0 {
            let settled = self.service.queues.settle(settle).await?;
            self.in_flight.settled(&named, &settled);
            self.answer(answers, settled, None).await?;
            // That may have made room.
            self.more = self.wants().0 > 0;
            return Ok(None);
        }
        let waiter = self.service.waiters.register(self.hello.queues.clone(), wants);
        let request = ClaimRequest {
            queues: self.hello.queues.clone(),
            order: self.hello.order.clone(),
            max_jobs: wants,
            max_bytes: self.hello.max_bytes.min(room),
            wait: Duration::ZERO,
            lease_duration: self.hello.lease_duration,
            worker_id: self.hello.worker_id.clone(),
            request_id: String::new(),
            settle: Settlements::default(),
            budget: self.hello.connection.budget.clone(),
        };
        let ClaimReply { mut claimed, held, overloaded } = self.service.take(&request, settle).await?;
        self.crowded = overloaded;
        let settled = std::mem::take(&mut claimed.settled);
        self.in_flight.settled(&named, &settled);
        self.credits -= claimed.jobs.len();
        self.more = !claimed.jobs.is_empty();
        let reply = if overloaded { None } else { self.reply(claimed, held) };
        self.answer(answers, settled, reply).await?;
        Ok((!self.more).then_some(waiter))
    }

    /// How many jobs the worker can take now, and how many bytes of them.
    fn wants(&self) -> (usize, usize) {
        let room = self.in_flight.room(self.hello.max_bytes_in_flight);
        (if room == 0 { 0 } else { self.credits.min(self.hello.max_jobs) }, room)
    }

    /// One answer for each settlement, in order; what was claimed comes with the last.
    async fn answer(
        &mut self, answers: Vec<Expected<T>>, mut settled: Settled, reply: Option<WorkReply<T>>,
    ) -> Result<(), End<E>> {
        let mut replies: Vec<WorkReply<T>> = Vec::with_capacity(answers.len() + 1);
        for Expected { tag, acks, nacks, extensions, held } in answers {
            let part = Settled {
                acks: settled.acks.drain(..acks).collect(),
                nacks: settled.nacks.drain(..nacks).collect(),
                extensions: settled.extensions.drain(..extensions).collect(),
            };
            let (settled, held) = (Some((tag, part)), vec![held]);
            replies.push(WorkReply { settled, held, ..self.empty() });
        }
        match (replies.last_mut(), reply) {
            (Some(last), Some(reply)) => {
                last.held.extend(reply.held);
                (last.now, last.jobs, last.idle) = (reply.now, reply.jobs, reply.idle);
            }
            (None, Some(reply)) => replies.push(reply),
            (_, None) => {}
        }
        for reply in replies {
            self.send(reply).await?;
        }
        Ok(())
    }

    /// Jobs, or why there are none where the worker does not know that yet.
    fn reply(&mut self, claimed: Claimed, held: Option<Held>) -> Option<WorkReply<T>> {
        let mut reply = WorkReply::empty(claimed.now);
        if !claimed.jobs.is_empty() {
            self.last_idle.clear();
            let delivered = claimed.jobs.is_delivered();
            claimed.jobs.iter().for_each(|job| self.in_flight.add(job, delivered.clone()));
            (reply.jobs, reply.held) = (Some(claimed.jobs), held.into_iter().collect());
            return Some(reply);
        }
        let reasons = |all: &[Idle]| -> Vec<_> { all.iter().map(|idle| (idle.queue.clone(), idle.reason)).collect() };
        if reasons(&self.last_idle) == reasons(&claimed.idle) {
            return None;
        }
        self.last_idle.clone_from(&claimed.idle);
        reply.idle = claimed.idle;
        Some(reply)
    }

    /// The stream is over. What the worker has not begun returns at once, where it would have said that it had.
    async fn leave(self) {
        if !self.hello.reports_started || self.in_flight.is_empty() {
            return;
        }
        // From here on nothing more reaches the transport.
        drop(self.outbox);
        let nacks = self.in_flight.interrupted();
        let settle = Settlements { nacks, ..Settlements::default() };
        if let Err(error) = self.service.queues.settle(settle).await {
            tracing::warn!(%error, "jobs of a broken stream wait for their leases to run out");
        }
    }
}

async fn next<I: Stream>(mut inbox: Pin<&mut I>) -> Option<I::Item> {
    poll_fn(|context| inbox.as_mut().poll_next(context)).await
}

/// The next message if it has arrived; the inner `None` is the end.
async fn ready_now<I: Stream>(mut inbox: Pin<&mut I>) -> Option<Option<I::Item>> {
    poll_fn(|context| match inbox.as_mut().poll_next(context) {
        Poll::Ready(message) => Poll::Ready(Some(message)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

async fn notified(waiter: Option<&Waiter>) {
    match waiter {
        Some(waiter) => waiter.notified().await,
        None => pending().await,
    }
}

async fn over(time: Option<&mut Pin<Box<Sleep>>>) {
    match time {
        Some(time) => time.await,
        None => pending().await,
    }
}
