//! A worker on a Work stream: as many credits as its window, and everything that comes is settled at once.

use super::caller::{settled, settlements};
use super::{Client, QUEUE, Round, answered};
use crate::{bench::Error, bench::timings::Kind, env, grpc::pb};
use std::{collections::VecDeque, sync::Arc, time::Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Streaming};

/// Messages that wait to be sent; the window bounds what is in them.
const OUTBOX: usize = 64;
/// Enough for a window of large bodies.
const BYTES_IN_FLIGHT: u32 = 256 << 20;

pub(super) async fn work(round: Arc<Round>, client: Client) -> Result<(), Error> {
    // A stream that the server ends, for its age, is followed by the next.
    while !round.took.initialized() {
        Box::pin(Worker::open(&round, client.clone()).await?.run()).await?;
    }
    Ok(())
}

struct Worker<'a> {
    round: &'a Round,
    client: Client,
    /// None: nothing more is said.
    outbox: Option<mpsc::Sender<pb::WorkRequest>>,
    inbox: Streaming<pb::WorkResponse>,
    /// Settlements without an answer, in order.
    unanswered: VecDeque<Settling>,
    leaving: bool,
}

/// When it began, and the jobs that failed.
type Settling = (Instant, Vec<String>);

impl<'a> Worker<'a> {
    async fn open(round: &'a Round, mut client: Client) -> Result<Self, Error> {
        let (outbox, messages) = mpsc::channel(OUTBOX);
        let hello = pb::WorkHello {
            queues: vec![QUEUE.into()],
            max_bytes_in_flight: BYTES_IN_FLIGHT,
            ..pb::WorkHello::default()
        };
        let window = u32::try_from(round.plan.window).unwrap_or(u32::MAX);
        let first = pb::WorkRequest { hello: Some(hello), add_credits: window, ..Default::default() };
        // The channel is empty and its other end is here.
        let _ = outbox.send(first).await;
        let inbox = answered("Work", client.work(ReceiverStream::new(messages)).await)?;
        Ok(Self { round, client, outbox: Some(outbox), inbox, unanswered: VecDeque::new(), leaving: false })
    }

    async fn run(mut self) -> Result<(), Error> {
        loop {
            let message = tokio::select! {
                message = self.inbox.message() => answered("Work", message.map(Response::new))?,
                _ = self.round.took.wait(), if !self.leaving => {
                    self.leave().await;
                    continue;
                }
            };
            let Some(message) = message else {
                return self.ended();
            };
            if let Some(reply) = message.settled {
                self.answered(reply)?;
            }
            if message.drain {
                self.leaving = true;
            }
            if !message.jobs.is_empty() {
                self.settle(message.jobs).await?;
            }
            if self.leaving && self.unanswered.is_empty() {
                self.outbox = None;
            }
        }
    }

    /// No more jobs; what is out is settled, and then the stream ends.
    async fn leave(&mut self) {
        self.leaving = true;
        if let Some(outbox) = &self.outbox {
            let _ = outbox.send(pb::WorkRequest { stop: true, ..Default::default() }).await;
        }
        if self.unanswered.is_empty() {
            self.outbox = None;
        }
    }

    async fn settle(&mut self, jobs: Vec<pb::Job>) -> Result<(), Error> {
        self.round.delivered(&jobs);
        self.round.wait_for_producers().await;
        let count = u32::try_from(jobs.len()).unwrap_or(u32::MAX);
        let (settle, failing) = settlements(self.round, jobs);
        let Some(outbox) = &self.outbox else {
            // They crossed our last word on the way.
            let reply = answered("Settle", self.client.settle(settle).await)?;
            return settled(self.round, reply, failing).map(drop);
        };
        self.unanswered.push_back((env::instant(), failing));
        let add_credits = if self.leaving { 0 } else { count };
        let message = pb::WorkRequest { add_credits, settle: Some(settle), ..Default::default() };
        // A stream that has gone says so when it is read.
        let _ = outbox.send(message).await;
        Ok(())
    }

    /// Settlements are answered in their order.
    fn answered(&mut self, reply: pb::SettleResponse) -> Result<(), Error> {
        let Some((began, failing)) = self.unanswered.pop_front() else {
            return Err(Error::Answer { call: "Work", why: "a settlement was answered twice".into() });
        };
        self.round.timings.record(Kind::Settle, env::instant().duration_since(began));
        settled(self.round, reply, failing).map(drop)
    }

    fn ended(self) -> Result<(), Error> {
        match self.leaving && self.unanswered.is_empty() {
            true => Ok(()),
            false => Err(Error::Answer { call: "Work", why: "the stream ended by itself".into() }),
        }
    }
}
