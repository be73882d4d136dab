//! A worker with a stream. When the stream breaks, it settles by single calls what was not answered, and opens another.

use crate::ledger::QUEUE;
use crate::load::{Caller, Ending, may_repeat, nack};
use crate::requests::ack;
use redrive::grpc::pb::{
    ItemError, Job, SettleRequest, SettleResponse, WorkHello, WorkRequest, ack_result, nack_result,
};
use std::{collections::HashMap, time::Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

const CREDITS: u32 = 4;

pub(crate) struct StreamWorker {
    pub(crate) caller: Caller,
}

/// What was sent under one settle_id.
#[derive(Default)]
struct Sent {
    acks: Vec<Job>,
    nacks: Vec<(Job, Ending)>,
}

impl StreamWorker {
    pub(crate) async fn work(mut self) {
        loop {
            let mut sent = HashMap::new();
            let Err(status) = self.stream(&mut sent).await;
            for Sent { acks, nacks } in sent.into_values() {
                let acks = acks.into_iter().map(|job| (job, Ending::Ack));
                for (job, ending) in acks.chain(nacks) {
                    self.caller.settle_again(&job, ending).await;
                }
            }
            assert!(may_repeat(&status), "{status:?}");
            // How long the stream lasted says nothing about how fast it was refused.
            self.caller.go_on(&status, Instant::now()).await;
        }
    }

    /// Until the stream ends.
    async fn stream(&mut self, sent: &mut HashMap<u64, Sent>) -> Result<std::convert::Infallible, Status> {
        let (says, messages) = mpsc::channel(64);
        let hello =
            WorkHello { queues: vec![QUEUE.into()], worker_id: self.caller.name.clone(), ..WorkHello::default() };
        let first = WorkRequest { hello: Some(hello), add_credits: CREDITS, ..WorkRequest::default() };
        let gone = |_| Status::unavailable("the stream has ended");
        says.send(first).await.map_err(gone)?;
        let hears = self.caller.way().work(ReceiverStream::new(messages)).await?;
        let mut hears: Streaming<_> = hears.into_inner();
        for id in 1.. {
            let Some(message) = hears.message().await? else {
                return Err(Status::unavailable("the stream has ended"));
            };
            if let Some(settled) = message.settled {
                let answered = sent.remove(&message.settle_id).expect("it was sent");
                self.settled(answered, settled).await;
            }
            if message.jobs.is_empty() {
                continue;
            }
            let credits = message.jobs.len() as u32;
            let settle = self.choose(message.jobs, sent.entry(id).or_default());
            let settle =
                WorkRequest { settle: Some(settle), settle_id: id, add_credits: credits, ..WorkRequest::default() };
            says.send(settle).await.map_err(gone)?;
        }
        unreachable!("numbers do not end")
    }

    fn choose(&mut self, jobs: Vec<Job>, sent: &mut Sent) -> SettleRequest {
        let mut settle = SettleRequest::default();
        for job in jobs {
            self.caller.ledger.delivered(&job);
            match self.caller.ending() {
                Ending::Forget => continue,
                Ending::Ack => {
                    settle.acks.push(ack(&job.lease));
                    self.caller.ledger.settling(&job);
                    sent.acks.push(job);
                }
                Ending::Nack(kind) => {
                    settle.nacks.push(nack(&job, kind));
                    self.caller.ledger.settling(&job);
                    sent.nacks.push((job, Ending::Nack(kind)));
                }
            }
        }
        settle
    }

    async fn settled(&mut self, sent: Sent, settled: SettleResponse) {
        for (job, result) in sent.acks.into_iter().zip(settled.acks) {
            match result.outcome.expect("an outcome") {
                ack_result::Outcome::Ok(reply) => {
                    self.caller.ledger.acked(&job, reply.already_gone, true);
                }
                ack_result::Outcome::Error(error) => self.failed(&job, Ending::Ack, &error).await,
            }
        }
        for ((job, ending), result) in sent.nacks.into_iter().zip(settled.nacks) {
            match result.outcome.expect("an outcome") {
                nack_result::Outcome::Ok(reply) => self.caller.ledger.nacked(&job, &reply),
                nack_result::Outcome::Error(error) => self.failed(&job, ending, &error).await,
            }
        }
    }

    async fn failed(&mut self, job: &Job, ending: Ending, error: &ItemError) {
        if error.retryable {
            self.caller.settle_again(job, ending).await;
        } else {
            assert_eq!(error.reason, "LEASE_LOST", "{error:?}");
            self.caller.ledger.lease_lost(job, true);
        }
    }
}
