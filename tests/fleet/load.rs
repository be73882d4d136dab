//! Producers and workers spread over a fleet. A call that is not answered is repeated, at the next server.

use crate::fleet::Fleet;
use crate::ledger::{Ledger, LedgerReport, QUEUE};
use crate::random::Random;
use crate::requests::{ack, job};
use crate::stream::StreamWorker;
use redrive::env;
use redrive::grpc::pb::enqueue_request::Body;
use redrive::grpc::pb::queue_service_client::QueueServiceClient;
use redrive::grpc::pb::{ClaimRequest, EnqueueRequest, Failure, Job, NackKind, NackRequest};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::{sync::watch, task::JoinSet};
use tonic::{Code, Status, transport::Channel};
use tonic_types::StatusExt;

const PRODUCERS: usize = 3;
const WORKERS: usize = 4;
const STREAMS: usize = 2;
/// Beyond this producers wait.
const BACKLOG: usize = 150;
/// After a server was lost for a while, leases from before are left alone for 30 seconds.
const DRAINS_WITHIN: Duration = Duration::from_secs(75);

/// Sends a call until it is answered; what is wrong with the call itself is its answer. Also: whether it went out once.
macro_rules! repeated {
    ($caller:expr, $call:ident, $request:expr) => {{
        let (request, mut first) = ($request, true);
        loop {
            let began = Instant::now();
            match $caller.way().$call(request.clone()).await {
                Ok(reply) => break (Ok(reply.into_inner()), first),
                Err(status) if may_repeat(&status) => $caller.go_on(&status, began).await,
                Err(status) => break (Err(status), first),
            }
            first = false;
        }
    }};
}

/// What a worker does with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Ack,
    Nack(NackKind),
    /// Its lease runs out.
    Forget,
}

pub(crate) struct Load {
    ledger: Arc<Ledger>,
    producing: watch::Sender<bool>,
    producers: JoinSet<()>,
    workers: JoinSet<()>,
}

impl Load {
    pub(crate) fn on(fleet: &Fleet) -> Self {
        Self::with(fleet, false)
    }

    /// `forgetful`: some workers never settle what they have.
    pub(crate) fn with(fleet: &Fleet, forgetful: bool) -> Self {
        let ledger = Arc::new(Ledger::new());
        let seed: u64 = env::random();
        let producing = watch::Sender::new(true);
        let mut caller = (0..).map(|number: usize| Caller {
            ways: fleet.ways(),
            at: number,
            ledger: ledger.clone(),
            random: Random(seed ^ ((number as u64) << 32)),
            name: format!("{seed:x}-{number}"),
            made: 0,
            forgetful,
        });
        let (mut producers, mut workers) = (JoinSet::new(), JoinSet::new());
        for caller in caller.by_ref().take(PRODUCERS) {
            producers.spawn(caller.produce(producing.subscribe()));
        }
        for caller in caller.by_ref().take(WORKERS) {
            workers.spawn(caller.work());
        }
        for caller in caller.take(STREAMS) {
            workers.spawn(StreamWorker { caller }.work());
        }
        Self { ledger, producing, producers, workers }
    }

    /// Until so many more answers came.
    pub(crate) async fn run(&mut self, answers: u64) {
        let more = tokio::time::timeout(DRAINS_WITHIN, self.ledger.wait_for_more(answers));
        tokio::select! {
            more = more => more.expect("answers keep coming"),
            ended = self.workers.join_next() => panic!("a worker failed: {ended:?}"),
        }
    }

    /// Until a call more was refused for this reason.
    pub(crate) async fn refused(&mut self, reason: &str) {
        let before = self.ledger.times(reason);
        let more = self.ledger.until(|book| book.times(reason) > before);
        tokio::time::timeout(DRAINS_WITHIN, more).await.expect("a call is refused");
    }

    /// Works everything off, and compares what was promised with what this server of the fleet has.
    pub(crate) async fn finish(mut self, fleet: &Fleet, at: usize) -> LedgerReport {
        self.producing.send_replace(false);
        while let Some(ended) = self.producers.join_next().await {
            ended.unwrap();
        }
        let drained = self.ledger.until(|book| book.live() == 0);
        tokio::select! {
            // What is left then is decided as it is.
            _ = tokio::time::timeout(DRAINS_WITHIN, drained) => {}
            ended = self.workers.join_next() => panic!("a worker failed: {ended:?}"),
        }
        self.workers.shutdown().await;
        self.ledger.report(fleet, at).await
    }
}

pub(crate) struct Caller {
    ways: Vec<QueueServiceClient<Channel>>,
    at: usize,
    pub(crate) ledger: Arc<Ledger>,
    random: Random,
    pub(crate) name: String,
    made: u64,
    forgetful: bool,
}

impl Caller {
    pub(crate) fn way(&self) -> QueueServiceClient<Channel> {
        self.ways[self.at % self.ways.len()].clone()
    }

    fn next_name(&mut self) -> String {
        self.made += 1;
        format!("{}-{}", self.name, self.made)
    }

    /// Another server may do better.
    pub(crate) async fn go_on(&mut self, status: &Status, began: Instant) {
        let reason = status.get_details_error_info().map_or_else(|| "no answer".into(), |info| info.reason);
        self.ledger.repeated(&reason, began.elapsed());
        self.at += 1;
        // As callers do: a server that refuses is not asked again in the same moment.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    async fn produce(mut self, mut producing: watch::Receiver<bool>) {
        while *producing.borrow_and_update() {
            let ledger = self.ledger.clone();
            tokio::select! {
                () = ledger.until(|book| book.live() < BACKLOG) => {}
                _ = producing.changed() => return,
            }
            let id = self.next_name();
            let request = EnqueueRequest {
                job_id: id.clone(),
                // An id is free again when its job is done, which it may be before the call is repeated.
                idempotency_key: id.clone(),
                body: Some(Body::Text("x".repeat(self.random.below(2_000) as usize))),
                ..job(QUEUE)
            };
            self.ledger.enqueuing(&id);
            let (reply, _) = repeated!(self, enqueue, request);
            reply.unwrap();
            self.ledger.enqueued(&id);
        }
    }

    async fn work(mut self) {
        loop {
            let request = ClaimRequest {
                queues: vec![QUEUE.into()],
                max_jobs: 1 + self.random.below(4) as u32,
                wait: Some(prost_types::Duration { seconds: 0, nanos: 300_000_000 }),
                worker_id: self.name.clone(),
                // Repeated, it gets the jobs whose delivery was cut off.
                request_id: self.next_name(),
                ..ClaimRequest::default()
            };
            let (claimed, _) = repeated!(self, claim, request);
            let jobs = claimed.unwrap().jobs;
            for job in &jobs {
                self.ledger.delivered(job);
            }
            for job in &jobs {
                let ending = self.ending();
                if ending != Ending::Forget {
                    self.ledger.settling(job);
                }
                self.settle(job, ending, true).await;
            }
        }
    }

    pub(crate) fn ending(&mut self) -> Ending {
        match self.random.below(40) {
            0 => Ending::Nack(NackKind::Permanent),
            1..8 => Ending::Nack(NackKind::Retry),
            8 => Ending::Nack(NackKind::Release),
            9 if self.forgetful => Ending::Forget,
            _ => Ending::Ack,
        }
    }

    /// As a call of its own, after an answer that never came.
    pub(crate) async fn settle_again(&mut self, job: &Job, ending: Ending) {
        self.settle(job, ending, false).await;
    }

    async fn settle(&mut self, job: &Job, ending: Ending, is_new: bool) {
        match ending {
            Ending::Forget => {}
            Ending::Ack => {
                let (reply, first) = repeated!(self, ack, ack(&job.lease));
                match reply {
                    Ok(reply) => self.ledger.acked(job, reply.already_gone, is_new && first),
                    Err(status) => self.lost(job, &status, is_new && first),
                }
            }
            Ending::Nack(kind) => {
                let (reply, first) = repeated!(self, nack, nack(job, kind));
                match reply {
                    Ok(reply) => self.ledger.nacked(job, &reply),
                    Err(status) => self.lost(job, &status, is_new && first),
                }
            }
        }
    }

    fn lost(&self, job: &Job, status: &Status, first: bool) {
        assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
        self.ledger.lease_lost(job, first);
    }
}

pub(crate) fn nack(job: &Job, kind: NackKind) -> NackRequest {
    NackRequest {
        lease: job.lease.clone(),
        error: Some(Failure { r#type: "Timeout".into(), ..Failure::default() }),
        kind: kind.into(),
        ..NackRequest::default()
    }
}

/// The server says so, or there was none.
pub(crate) fn may_repeat(status: &Status) -> bool {
    let retryable = matches!(status.code(), Code::Unavailable | Code::ResourceExhausted);
    retryable || status.source().is_some()
}
