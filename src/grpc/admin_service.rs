//! AdminService: decode, ask the broker, encode.

use super::{
    ServerFacts, convert, limits,
    pb::{self, admin_service_server::AdminService},
    reply_room::ReplyRoom,
    status,
};
use crate::{
    broker::Broker,
    store::{BreakerOrder, Cancelled, Health, Store},
};
use std::sync::Arc;
use tonic::{Request, Response, Status};

#[derive(Debug)]
pub(super) struct AdminApi<S> {
    pub(super) broker: Arc<Broker<S>>,
    pub(super) facts: Arc<ServerFacts>,
    pub(super) room: ReplyRoom,
}

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl<S: Store> AdminService for AdminApi<S> {
    async fn get_job(&self, request: Request<pb::GetJobRequest>) -> Reply<pb::GetJobResponse> {
        let (id, queue) =
            convert::get_job(self.broker.limits(), request.into_inner()).map_err(refused)?;
        let report = self.broker.get_job(id, queue).await.map_err(status::status)?;
        let info = convert::job_info(&self.broker.settings(), report, convert::View::Full);
        self.room.response(pb::GetJobResponse { info: Some(info) })
    }

    async fn list_jobs(
        &self,
        request: Request<pb::ListJobsRequest>,
    ) -> Reply<pb::ListJobsResponse> {
        let settings = self.broker.settings();
        let context = super::context(&self.broker, &settings, &[]);
        let (query, listed) =
            convert::list_jobs(&context, request.into_inner()).map_err(refused)?;
        let listing = self.broker.list_jobs(query).await.map_err(status::status)?;
        self.room.response(convert::jobs_page(&settings, self.broker.limits(), &listed, listing))
    }

    async fn cancel_job(
        &self,
        request: Request<pb::CancelJobRequest>,
    ) -> Reply<pb::CancelJobResponse> {
        let (id, queue, reason) =
            convert::cancel_job(self.broker.limits(), request.into_inner()).map_err(refused)?;
        let cancelled = self.broker.cancel_job(id, queue, &reason).await.map_err(status::status)?;
        let removed = cancelled == Cancelled::Removed;
        Ok(Response::new(pb::CancelJobResponse { removed }))
    }

    async fn run_job_now(
        &self,
        request: Request<pb::RunJobNowRequest>,
    ) -> Reply<pb::RunJobNowResponse> {
        let (id, queue) =
            convert::run_job_now(self.broker.limits(), request.get_ref()).map_err(refused)?;
        self.broker.run_job_now(id, queue).await.map_err(status::status)?;
        Ok(Response::new(pb::RunJobNowResponse {}))
    }

    async fn list_queues(
        &self,
        request: Request<pb::ListQueuesRequest>,
    ) -> Reply<pb::ListQueuesResponse> {
        let (after, limit) =
            convert::list_queues(self.broker.limits(), request.get_ref()).map_err(refused)?;
        let reports = self.broker.list_queues(after, limit).await.map_err(status::status)?;
        Ok(Response::new(convert::queues_page(self.broker.limits(), reports, limit)))
    }

    async fn pause_queue(
        &self,
        request: Request<pb::PauseQueueRequest>,
    ) -> Reply<pb::PauseQueueResponse> {
        let (queue, pause) =
            convert::pause_queue(self.broker.limits(), request.into_inner()).map_err(refused)?;
        self.broker.pause_queue(queue, pause).await.map_err(status::status)?;
        Ok(Response::new(pb::PauseQueueResponse {}))
    }

    async fn resume_queue(
        &self,
        request: Request<pb::ResumeQueueRequest>,
    ) -> Reply<pb::ResumeQueueResponse> {
        let queue =
            convert::resume_queue(self.broker.limits(), request.get_ref()).map_err(refused)?;
        self.broker.resume_queue(queue).await.map_err(status::status)?;
        Ok(Response::new(pb::ResumeQueueResponse {}))
    }

    async fn get_stats(
        &self,
        request: Request<pb::GetStatsRequest>,
    ) -> Reply<pb::GetStatsResponse> {
        let queue = convert::get_stats(self.broker.limits(), request.get_ref()).map_err(refused)?;
        let stats = self.broker.get_stats(queue).await.map_err(status::status)?;
        Ok(Response::new(convert::stats(stats)))
    }

    async fn get_dead_letter_stats(
        &self,
        request: Request<pb::GetDeadLetterStatsRequest>,
    ) -> Reply<pb::GetDeadLetterStatsResponse> {
        let limits = self.broker.limits();
        let query = convert::dead_letter_stats(limits, request.get_ref()).map_err(refused)?;
        let (queue, after) = (query.queue.clone(), query.after.clone());
        let counts = self.broker.dead_letter_stats(queue, after, query.limit).await;
        let counts = counts.map_err(status::status)?;
        Ok(Response::new(convert::dead_letter_stats_page(limits, &query, &counts)))
    }

    async fn purge_dead_letters(
        &self,
        request: Request<pb::PurgeDeadLettersRequest>,
    ) -> Reply<pb::PurgeDeadLettersResponse> {
        let settings = self.broker.settings();
        let context = super::context(&self.broker, &settings, &[]);
        let purge = convert::purge(&context, request.into_inner()).map_err(refused)?;
        let asked = convert::Asked::from(&purge);
        let purged = self.broker.purge_dead_letters(purge).await.map_err(status::status)?;
        Ok(Response::new(convert::purge_response(&asked, purged)))
    }

    async fn set_breaker(
        &self,
        request: Request<pb::SetBreakerRequest>,
    ) -> Reply<pb::SetBreakerResponse> {
        let (name, order) =
            convert::set_breaker(self.broker.limits(), request.into_inner()).map_err(refused)?;
        let report = self.broker.set_breaker(&name, order).await.map_err(status::status)?;
        let breaker = Some(convert::breaker_out(report));
        Ok(Response::new(pb::SetBreakerResponse { breaker }))
    }

    async fn reset_breaker(
        &self,
        request: Request<pb::ResetBreakerRequest>,
    ) -> Reply<pb::ResetBreakerResponse> {
        let name =
            convert::reset_breaker(self.broker.limits(), request.into_inner()).map_err(refused)?;
        let reset = self.broker.set_breaker(&name, BreakerOrder::Reset).await;
        let breaker = Some(convert::breaker_out(reset.map_err(status::status)?));
        Ok(Response::new(pb::ResetBreakerResponse { breaker }))
    }

    async fn explain_policy(
        &self,
        request: Request<pb::ExplainPolicyRequest>,
    ) -> Reply<pb::ExplainPolicyResponse> {
        let settings = self.broker.settings();
        let context = super::context(&self.broker, &settings, &[]);
        let explain = convert::explain_request(&context, request.into_inner()).map_err(refused)?;
        let explained = self.broker.explain_policy(explain).await.map_err(status::status)?;
        Ok(Response::new(convert::explained(explained)))
    }

    async fn get_server_info(
        &self,
        _: Request<pb::GetServerInfoRequest>,
    ) -> Reply<pb::GetServerInfoResponse> {
        let store = self.broker.store();
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
            limits: limits::published(self.broker.limits()),
            warnings: warnings.chain(store.notices()).chain(unwell).collect(),
        }))
    }
}

fn refused(invalid: convert::Invalid) -> Status {
    status::invalid(&invalid)
}
