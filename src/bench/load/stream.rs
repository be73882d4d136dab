//! A worker on a Work stream: as many credits as its window, and everything that comes is settled at once.

use super::{
    Client, QUEUE, Round,
    caller::{settled, settlements},
    refused,
};
use crate::{
    bench::{Error, timings::Kind},
    env,
    grpc::pb,
};
use std::{collections::VecDeque, sync::Arc, time::Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

/// Messages that wait to be sent; the window bounds what is in them.
const OUTBOX: usize = 64;
/// Enough for a window of large bodies.
const BYTES_IN_FLIGHT: u32 = 256 << 20;

pub(super) async fn work(round: Arc<Round>, client: Client) -> Result<(), Error> {
    // A stream that the server ends, for its age, is followed by the next.
    while !round.is_finished() {
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
    next_settle_id: u64,
    leaving: bool,
}

struct Settling {
    id: u64,
    began: Instant,
    /// The jobs that failed.
    failing: Vec<String>,
}

impl<'a> Worker<'a> {
    async fn open(round: &'a Round, mut client: Client) -> Result<Self, Error> {
        let (outbox, messages) = mpsc::channel(OUTBOX);
        let hello = pb::WorkHello {
            queues: vec![QUEUE.into()],
            max_bytes_in_flight: BYTES_IN_FLIGHT,
            ..pb::WorkHello::default()
        };
        let window = u32::try_from(round.plan.window).unwrap_or(u32::MAX);
        let first =
            pb::WorkRequest { hello: Some(hello), add_credits: window, ..Default::default() };
        // The channel is empty and its other end is here.
        let _ = outbox.send(first).await;
        let opened = client.work(ReceiverStream::new(messages)).await;
        let inbox = opened.map_err(|status| refused("Work", &status))?.into_inner();
        Ok(Self {
            round,
            client,
            outbox: Some(outbox),
            inbox,
            unanswered: VecDeque::new(),
            next_settle_id: 1,
            leaving: false,
        })
    }

    async fn run(mut self) -> Result<(), Error> {
        loop {
            let message = tokio::select! {
                message = self.inbox.message() => message.map_err(|status| refused("Work", &status))?,
                () = self.round.finished(), if !self.leaving => {
                    self.leave().await;
                    continue;
                }
            };
            let Some(message) = message else {
                return self.ended();
            };
            if let Some(reply) = message.settled {
                self.answered(message.settle_id, reply)?;
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
            let reply = self.client.settle(settle).await;
            let reply = reply.map_err(|status| refused("Settle", &status))?.into_inner();
            return settled(self.round, reply, failing).map(drop);
        };
        let id = self.next_settle_id;
        self.next_settle_id += 1;
        self.unanswered.push_back(Settling { id, began: env::instant(), failing });
        let add_credits = if self.leaving { 0 } else { count };
        let message = pb::WorkRequest {
            add_credits,
            settle: Some(settle),
            settle_id: id,
            ..Default::default()
        };
        // A stream that has gone says so when it is read.
        let _ = outbox.send(message).await;
        Ok(())
    }

    fn answered(&mut self, id: u64, reply: pb::SettleResponse) -> Result<(), Error> {
        let expected = self.unanswered.pop_front().filter(|settling| settling.id == id);
        let Some(settling) = expected else {
            let why = format!("an answer came to settlement {id}, which is not the next");
            return Err(Error::Answer { call: "Work", why });
        };
        let took = env::instant().duration_since(settling.began);
        self.round.timings.record(Kind::Settle, took);
        settled(self.round, reply, settling.failing).map(drop)
    }

    fn ended(self) -> Result<(), Error> {
        match self.leaving && self.unanswered.is_empty() {
            true => Ok(()),
            false => Err(Error::Answer { call: "Work", why: "the stream ended by itself".into() }),
        }
    }
}
