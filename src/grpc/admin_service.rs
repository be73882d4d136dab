//! AdminService: decode, ask the service, encode.

use super::layers::record;
use super::pb;
use super::pb::admin_service_server::AdminService;
use super::{ServerFacts, convert};
use crate::domain::BreakerName;
use crate::queue::BreakerOrder;
use crate::queue::Host;
use crate::service::Service;
use crate::store::Health;
use std::sync::Arc;
use tonic::{Request, Response, Status};

#[derive(Debug)]
pub(super) struct AdminApi<H> {
    pub(super) service: Arc<Service<H>>,
    pub(super) facts: Arc<ServerFacts>,
}

type Reply<T> = Result<Response<T>, Status>;

impl<H: Host> AdminApi<H> {
    async fn order_breaker(&self, name: BreakerName, order: BreakerOrder) -> Result<pb::Breaker, Status> {
        let view = self.service.queues().set_breaker(name.clone(), order).await?;
        let settings = self.service.queues().settings();
        Ok(convert::breaker_out(&super::context(&self.service, &settings, &[]), &name, view))
    }
}

#[tonic::async_trait]
impl<H: Host> AdminService for AdminApi<H> {
    async fn get_job(&self, request: Request<pb::GetJobRequest>) -> Reply<pb::GetJobResponse> {
        let view = match convert::get_job(self.service.limits(), request.get_ref())? {
            convert::GetJob::Id(id, queue) => {
                record("job_id", &id);
                self.service.queues().job(id, queue).await?
            }
            convert::GetJob::Key(queue, key) => self.service.queues().job_of_key(queue, key).await?,
        };
        let settings = self.service.queues().settings();
        let info = convert::job_info(&super::context(&self.service, &settings, &[]), view, convert::View::Full);
        Ok(Response::new(pb::GetJobResponse { info: Some(info) }))
    }

    async fn list_jobs(&self, request: Request<pb::ListJobsRequest>) -> Reply<pb::ListJobsResponse> {
        let settings = self.service.queues().settings();
        let context = super::context(&self.service, &settings, &[]);
        let (query, listed) = convert::list_jobs(&context, request.into_inner())?;
        let page = self.service.queues().jobs(query).await?;
        Ok(Response::new(convert::jobs_page(&context, &listed, page)))
    }

    async fn cancel_job(&self, request: Request<pb::CancelJobRequest>) -> Reply<pb::CancelJobResponse> {
        let pb::CancelJobRequest { job_id, queue, reason, .. } = request.get_ref();
        let (id, queue) = convert::which_job(self.service.limits(), job_id, queue, reason)?;
        record("job_id", &id);
        let cancelled = self.service.cancel_job(id, queue, reason).await?;
        Ok(Response::new(convert::cancelled(cancelled)))
    }

    async fn run_job_now(&self, request: Request<pb::RunJobNowRequest>) -> Reply<pb::RunJobNowResponse> {
        let pb::RunJobNowRequest { job_id, queue, reason } = request.get_ref();
        let (id, queue) = convert::which_job(self.service.limits(), job_id, queue, reason)?;
        record("job_id", &id);
        self.service.queues().run_now(id, queue, reason.clone()).await?;
        Ok(Response::new(pb::RunJobNowResponse {}))
    }

    async fn list_queues(&self, request: Request<pb::ListQueuesRequest>) -> Reply<pb::ListQueuesResponse> {
        let (after, limit) = convert::list_queues(self.service.limits(), request.get_ref())?;
        let queues = self.service.queues().queues(after, limit).await?;
        let settings = self.service.queues().settings();
        let context = super::context(&self.service, &settings, &[]);
        Ok(Response::new(convert::queues_page(&context, &queues, limit)))
    }

    async fn pause_queue(&self, request: Request<pb::PauseQueueRequest>) -> Reply<pb::PauseQueueResponse> {
        let (queue, pause) = convert::pause_queue(self.service.limits(), request.into_inner())?;
        self.service.pause_queue(queue, pause).await?;
        Ok(Response::new(pb::PauseQueueResponse {}))
    }

    async fn resume_queue(&self, request: Request<pb::ResumeQueueRequest>) -> Reply<pb::ResumeQueueResponse> {
        let queue = convert::resume_queue(self.service.limits(), request.get_ref())?;
        self.service.resume_queue(queue).await?;
        Ok(Response::new(pb::ResumeQueueResponse {}))
    }

    async fn get_stats(&self, request: Request<pb::GetStatsRequest>) -> Reply<pb::GetStatsResponse> {
        let queue = convert::get_stats(self.service.limits(), request.get_ref())?;
        let stats = self.service.queues().stats(queue).await?;
        Ok(Response::new(convert::stats(stats)))
    }

    async fn get_dead_letter_stats(
        &self, request: Request<pb::GetDeadLetterStatsRequest>,
    ) -> Reply<pb::GetDeadLetterStatsResponse> {
        let limits = self.service.limits();
        let query = convert::dead_letter_stats(limits, request.get_ref())?;
        let counts = self.service.queues().dead_letter_counts(query.clone()).await?;
        Ok(Response::new(convert::dead_letter_stats_page(limits, &query, &counts)))
    }

    async fn purge_dead_letters(
        &self, request: Request<pb::PurgeDeadLettersRequest>,
    ) -> Reply<pb::PurgeDeadLettersResponse> {
        let settings = self.service.queues().settings();
        let context = super::context(&self.service, &settings, &[]);
        let (purge, reason) = convert::purge(&context, request.into_inner())?;
        let asked = convert::Asked::from(&purge);
        let purged = self.service.purge_dead_letters(purge, &reason).await?;
        Ok(Response::new(convert::purge_response(&asked, purged)))
    }

    async fn set_breaker(&self, request: Request<pb::SetBreakerRequest>) -> Reply<pb::SetBreakerResponse> {
        let (name, order) = convert::set_breaker(self.service.limits(), request.into_inner())?;
        let breaker = Some(self.order_breaker(name, order).await?);
        Ok(Response::new(pb::SetBreakerResponse { breaker }))
    }

    async fn reset_breaker(&self, request: Request<pb::ResetBreakerRequest>) -> Reply<pb::ResetBreakerResponse> {
        let name = convert::reset_breaker(self.service.limits(), request.into_inner())?;
        let breaker = Some(self.order_breaker(name, BreakerOrder::Reset).await?);
        Ok(Response::new(pb::ResetBreakerResponse { breaker }))
    }

    async fn explain_policy(&self, request: Request<pb::ExplainPolicyRequest>) -> Reply<pb::ExplainPolicyResponse> {
        let settings = self.service.queues().settings();
        let context = super::context(&self.service, &settings, &[]);
        let explain = convert::explain_request(&context, request.into_inner())?;
        let explained = self.service.explain_policy(explain).await?;
        Ok(Response::new(convert::explained(explained)))
    }

    async fn get_server_info(&self, _: Request<pb::GetServerInfoRequest>) -> Reply<pb::GetServerInfoResponse> {
        let store = self.service.queues();
        let unwell = match store.health() {
            Health::Well => None,
            Health::DiskLow(why) => Some(format!("the disk is nearly full: {why}")),
            Health::Stopped(why) => Some(format!("the store takes no writes: {why}")),
        };
        let warnings = self.facts.warnings.iter().cloned();
        Ok(Response::new(pb::GetServerInfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            engine: self.facts.engine.clone(),
            durability: self.facts.durability.clone(),
            server_time: Some(convert::timestamp_out(store.now())),
            limits: Some(convert::limits_out(self.service.limits(), &self.facts.bounds)),
            warnings: warnings.chain(store.warnings()).chain(unwell).collect(),
            features: Vec::new(),
        }))
    }
}
