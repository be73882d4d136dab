//! Many callers at once, doing everything a queue is for.

use crate::ledger::{Ledger, QUEUE};
use crate::power_cut_image::random::Random;
use crate::server::Server;
use crate::shapes::by_ids;
use redrive::grpc::pb::enqueue_request::Body;
use redrive::grpc::pb::queue_service_client::QueueServiceClient;
use redrive::grpc::pb::{
    AckRequest, ClaimRequest, EnqueueBatchRequest, EnqueueRequest, Failure, Job, ListDeadLettersRequest, NackKind,
    NackOutcome, NackRequest, RequeueRequest, SettleRequest, ack_result, enqueue_result, nack_result,
};
use std::sync::Arc;
use tokio::task::JoinSet;
use tonic::{Code, Status, transport::Channel};

/// Retries come fast, and the second failure is the last.
pub(crate) const CONFIG: &str = r#"
[defaults]
lease_duration = "10m"
breaker = { disabled = true }
policy = { strategy = "fixed", base_delay = "10ms", jitter = "none", max_retries = 1 }
"#;

const PRODUCERS: u64 = 4;
const WORKERS: u64 = 6;
/// Beyond this producers help to work it off.
const BACKLOG: usize = 150;

/// Callers who go on until the server is gone.
pub(crate) struct Load {
    callers: JoinSet<Status>,
}

impl Load {
    pub(crate) async fn on(server: &Server, ledger: &Arc<Ledger>, seed: u64) -> Self {
        let mut callers = JoinSet::new();
        for number in 0..PRODUCERS + WORKERS {
            let mut caller = Caller {
                queue: server.queue().await,
                ledger: ledger.clone(),
                random: Random(seed ^ (number << 32)),
                name: format!("{seed:x}-{number}"),
                made: 0,
            };
            callers.spawn(async move {
                loop {
                    let result = match number < PRODUCERS {
                        true => caller.produce().await,
                        false => caller.work().await,
                    };
                    if let Err(status) = result {
                        return status;
                    }
                }
            });
        }
        Self { callers }
    }

    /// Until so many more answers came. A call that fails while the server runs is a failure of the test.
    pub(crate) async fn run(&mut self, ledger: &Ledger, answers: u64) {
        tokio::select! {
            () = ledger.wait_for_more(answers) => {}
            ended = self.callers.join_next() => panic!("a call failed: {ended:?}"),
        }
    }

    /// After the server has gone: every caller notices. Returns how many calls were cut off.
    pub(crate) async fn end(self) -> usize {
        self.callers.join_all().await.len()
    }
}

struct Caller {
    queue: QueueServiceClient<Channel>,
    ledger: Arc<Ledger>,
    random: Random,
    name: String,
    made: u64,
}

impl Caller {
    async fn produce(&mut self) -> Result<(), Status> {
        // Now and then also on top of it: what is out with workers that were cut off comes back only when its lease ends.
        if self.ledger.live() > BACKLOG && self.random.below(4) > 0 {
            return self.work().await;
        }
        if self.random.below(4) > 0 {
            let job = self.job();
            let reply = self.queue.enqueue(job).await?.into_inner();
            self.ledger.enqueued(&reply.job_id);
            return Ok(());
        }
        let jobs = (0..2 + self.random.below(6)).map(|_| self.job()).collect();
        let request = EnqueueBatchRequest { jobs };
        let reply = self.queue.enqueue_batch(request).await?.into_inner();
        for result in reply.results {
            match result.outcome {
                Some(enqueue_result::Outcome::Ok(job)) => self.ledger.enqueued(&job.job_id),
                other => return Err(Status::internal(format!("{other:?}"))),
            }
        }
        Ok(())
    }

    fn job(&mut self) -> EnqueueRequest {
        self.made += 1;
        let job_id = match self.random.below(2) {
            0 => String::new(),
            _ => format!("{}-{}", self.name, self.made),
        };
        EnqueueRequest {
            queue: QUEUE.into(),
            r#type: "load".into(),
            job_id,
            priority: self.random.below(3) as i32,
            body: Some(Body::Text("x".repeat(self.random.below(3_000) as usize))),
            ..EnqueueRequest::default()
        }
    }

    async fn work(&mut self) -> Result<(), Status> {
        if self.random.below(12) == 0 {
            return self.requeue().await;
        }
        let request = ClaimRequest {
            queues: vec![QUEUE.into()],
            max_jobs: 1 + self.random.below(6) as u32,
            wait: Some(prost_types::Duration { seconds: 0, nanos: 50_000_000 }),
            worker_id: self.name.clone(),
            ..ClaimRequest::default()
        };
        let jobs = self.queue.claim(request).await?.into_inner().jobs;
        for job in &jobs {
            self.ledger.claimed(&job.job_id, &job.lease);
        }
        if self.random.below(3) == 0 {
            return self.settle_together(&jobs).await;
        }
        for job in &jobs {
            match self.random.below(20) {
                // Kept, to be settled by a later server.
                0 => {}
                1..6 => self.nack(job).await?,
                _ => self.ack(job).await?,
            }
        }
        Ok(())
    }

    async fn ack(&mut self, job: &Job) -> Result<(), Status> {
        self.ledger.settling(&job.job_id, &job.lease, true);
        self.queue.ack(ack(job)).await?;
        self.ledger.acked(&job.job_id);
        Ok(())
    }

    async fn nack(&mut self, job: &Job) -> Result<(), Status> {
        let request = self.failure(job);
        self.ledger.settling(&job.job_id, &job.lease, false);
        let reply = self.queue.nack(request).await?.into_inner();
        let is_dead = reply.outcome() == NackOutcome::DeadLettered;
        self.ledger.nacked(&job.job_id, is_dead);
        Ok(())
    }

    fn failure(&mut self, job: &Job) -> NackRequest {
        let kind = match self.random.below(4) {
            0 => NackKind::Permanent,
            1 => NackKind::Release,
            _ => NackKind::Retry,
        };
        NackRequest {
            lease: job.lease.clone(),
            error: Some(Failure { r#type: "Timeout".into(), message: "it took too long".into(), ..Failure::default() }),
            kind: kind.into(),
            ..NackRequest::default()
        }
    }

    async fn settle_together(&mut self, jobs: &[Job]) -> Result<(), Status> {
        let (done, failed) = jobs.split_at(jobs.len() / 2);
        let request = SettleRequest {
            acks: done.iter().map(ack).collect(),
            nacks: failed.iter().map(|job| self.failure(job)).collect(),
            extensions: Vec::new(),
        };
        for job in done {
            self.ledger.settling(&job.job_id, &job.lease, true);
        }
        for job in failed {
            self.ledger.settling(&job.job_id, &job.lease, false);
        }
        let reply = self.queue.settle(request).await?.into_inner();
        for (job, result) in done.iter().zip(reply.acks) {
            match result.outcome {
                Some(ack_result::Outcome::Ok(_)) => self.ledger.acked(&job.job_id),
                other => return Err(Status::internal(format!("{other:?}"))),
            }
        }
        for (job, result) in failed.iter().zip(reply.nacks) {
            match result.outcome {
                Some(nack_result::Outcome::Ok(reply)) => {
                    let is_dead = reply.outcome() == NackOutcome::DeadLettered;
                    self.ledger.nacked(&job.job_id, is_dead);
                }
                other => return Err(Status::internal(format!("{other:?}"))),
            }
        }
        Ok(())
    }

    async fn requeue(&mut self) -> Result<(), Status> {
        let request =
            ListDeadLettersRequest { queue: QUEUE.into(), page_size: 10, ..ListDeadLettersRequest::default() };
        let page = match self.queue.list_dead_letters(request).await {
            Ok(page) => page.into_inner(),
            // No job was enqueued yet.
            Err(status) if status.code() == Code::NotFound => return Ok(()),
            Err(status) => return Err(status),
        };
        let job_ids: Vec<String> = page.dead_letters.into_iter().filter_map(|dead| Some(dead.job?.job_id)).collect();
        if job_ids.is_empty() {
            return Ok(());
        }
        for id in &job_ids {
            self.ledger.requeuing(id);
        }
        let request = RequeueRequest { queue: QUEUE.into(), selector: by_ids(job_ids), ..RequeueRequest::default() };
        self.queue.requeue(request).await?;
        self.ledger.requeued();
        Ok(())
    }
}

fn ack(job: &Job) -> AckRequest {
    AckRequest { lease: job.lease.clone(), ..AckRequest::default() }
}
