//! QueueService: decode, ask the broker, encode.

use super::{
    convert,
    pb::{self, queue_service_server::QueueService},
    reply_room::ReplyRoom,
    status,
    unanswered::IfUnanswered,
    work_stream,
};
use crate::{
    broker::{Broker, Error, Refusal},
    store::{Settlements, Store, StoreError, Unanswered},
};
use std::sync::Arc;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status, Streaming};

#[derive(Debug)]
pub(super) struct QueueApi<S> {
    pub(super) broker: Arc<Broker<S>>,
    pub(super) room: ReplyRoom,
    /// Places for workers' streams.
    pub(super) streams: Arc<Semaphore>,
}

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl<S: Store> QueueService for QueueApi<S> {
    async fn enqueue(&self, request: Request<pb::EnqueueRequest>) -> Reply<pb::EnqueueResponse> {
        let trace = convert::trace_headers(request.metadata());
        let settings = self.broker.settings();
        let context = super::context(&self.broker, &settings, &trace);
        let job = convert::enqueue(&context, None, request.into_inner()).map_err(refused)?;
        let enqueued = self.broker.enqueue(job).await.map_err(status::status)?;
        Ok(Response::new(convert::enqueued(enqueued)))
    }

    async fn enqueue_batch(
        &self,
        request: Request<pb::EnqueueBatchRequest>,
    ) -> Reply<pb::EnqueueBatchResponse> {
        let trace = convert::trace_headers(request.metadata());
        let settings = self.broker.settings();
        let context = super::context(&self.broker, &settings, &trace);
        let (jobs, bad) =
            convert::enqueue_batch(&context, request.into_inner()).map_err(refused)?;
        let results = match jobs.is_empty() {
            true => Vec::new(),
            false => self.broker.enqueue_batch(jobs).await.map_err(status::status)?,
        };
        Ok(Response::new(convert::enqueue_batch_response(results, bad)))
    }

    async fn claim(&self, request: Request<pb::ClaimRequest>) -> Reply<pb::ClaimResponse> {
        let patience = convert::caller_patience(request.metadata());
        let settles = request.get_ref().settle.is_some();
        let (claim, bad) = convert::claim(self.broker.limits(), patience, request.into_inner())
            .map_err(refused)?;
        // Who waits may go at any moment. Who does not is answered before it can; watching it would cost a write each time.
        let request_id = (!claim.wait.is_zero()).then(|| claim.request_id.clone());
        let reply = self.broker.claim(claim).await.map_err(status::status)?;
        let settings = self.broker.settings();
        let undo = request_id.filter(|_| !reply.jobs.is_empty()).map(|request_id| {
            let broker = self.broker.clone();
            let unanswered = Unanswered::new(&reply.jobs, reply.answer, &request_id);
            IfUnanswered::new(move || broker.unclaim(unanswered))
        });
        let reply = convert::claim_response(&settings, reply, settles.then_some(bad));
        let mut response = Response::new(reply);
        if let Some(undo) = undo {
            response.extensions_mut().insert(undo);
        }
        Ok(response)
    }

    async fn ack(&self, request: Request<pb::AckRequest>) -> Reply<pb::AckResponse> {
        let ack =
            convert::ack(self.broker.limits(), None, request.into_inner()).map_err(refused)?;
        let settle = Settlements { acks: vec![ack], ..Settlements::default() };
        let reply = self.broker.settle(settle).await.map_err(status::status)?;
        Ok(Response::new(convert::acked(only(reply.acks)?)))
    }

    async fn nack(&self, request: Request<pb::NackRequest>) -> Reply<pb::NackResponse> {
        let nack =
            convert::nack(self.broker.limits(), None, request.into_inner()).map_err(refused)?;
        let settle = Settlements { nacks: vec![nack], ..Settlements::default() };
        let reply = self.broker.settle(settle).await.map_err(status::status)?;
        Ok(Response::new(convert::nacked(only(reply.nacks)?)))
    }

    async fn extend(&self, request: Request<pb::ExtendRequest>) -> Reply<pb::ExtendResponse> {
        let extend =
            convert::extend(self.broker.limits(), None, request.into_inner()).map_err(refused)?;
        let settle = Settlements { extends: vec![extend], ..Settlements::default() };
        let reply = self.broker.settle(settle).await.map_err(status::status)?;
        Ok(Response::new(convert::extended(only(reply.extends)?)))
    }

    async fn settle(&self, request: Request<pb::SettleRequest>) -> Reply<pb::SettleResponse> {
        let (settle, bad) = convert::settlements(self.broker.limits(), request.into_inner(), false)
            .map_err(refused)?;
        let reply = match settle.is_empty() {
            true => Default::default(),
            false => self.broker.settle(settle).await.map_err(status::status)?,
        };
        Ok(Response::new(convert::settle_response(reply, bad)))
    }

    type WorkStream = work_stream::WorkStream;

    async fn work(
        &self,
        request: Request<Streaming<pb::WorkRequest>>,
    ) -> Reply<work_stream::WorkStream> {
        work_stream::open(&self.broker, &self.streams, request.into_inner()).await
    }

    async fn list_dead_letters(
        &self,
        request: Request<pb::ListDeadLettersRequest>,
    ) -> Reply<pb::ListDeadLettersResponse> {
        let settings = self.broker.settings();
        let context = super::context(&self.broker, &settings, &[]);
        let query = convert::list_dead_letters(&context, request.into_inner()).map_err(refused)?;
        let page = self.broker.list_dead_letters(query.clone()).await.map_err(status::status)?;
        let limits = self.broker.limits();
        self.room.response(convert::dead_letters_page(&settings, limits, &query, page))
    }

    async fn requeue(&self, request: Request<pb::RequeueRequest>) -> Reply<pb::RequeueResponse> {
        let settings = self.broker.settings();
        let context = super::context(&self.broker, &settings, &[]);
        let requeue = convert::requeue(&context, request.into_inner()).map_err(refused)?;
        let asked = convert::Asked::from(&requeue);
        let requeued = self.broker.requeue(requeue).await.map_err(status::status)?;
        Ok(Response::new(convert::requeue_response(&asked, requeued)))
    }

    async fn breaker_status(
        &self,
        request: Request<pb::BreakerStatusRequest>,
    ) -> Reply<pb::BreakerStatusResponse> {
        let limits = self.broker.limits();
        let response = match convert::breaker_status(limits, request.get_ref()).map_err(refused)? {
            convert::WhichBreakers::One(name) => {
                let report = self.broker.breaker(&name).await.map_err(status::status)?;
                let breakers = vec![convert::breaker_out(report)];
                pb::BreakerStatusResponse { breakers, next_page_token: String::new() }
            }
            convert::WhichBreakers::Page { after, limit } => {
                let reports = self.broker.breakers(after, limit).await.map_err(status::status)?;
                convert::breakers_page(limits, reports, limit)
            }
        };
        Ok(Response::new(response))
    }
}

fn refused(invalid: convert::Invalid) -> Status {
    status::invalid(&invalid)
}

/// The one answer to a settlement that was sent alone.
fn only<T>(mut results: Vec<Result<T, Refusal>>) -> Result<T, Status> {
    let unanswered = || StoreError::OutcomeUnknown("the store did not answer for it".into());
    let result = results.pop().ok_or_else(|| status::status(Error::Store(unanswered())))?;
    result.map_err(|refusal| status::status(Error::Refused(refusal)))
}
