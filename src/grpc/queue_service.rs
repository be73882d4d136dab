//! QueueService: decode, ask the service, encode.

use super::layers::calls::{HeldForResponse, InReserve};
use super::layers::{peer::Peer, record, undelivered::HandoverInResponse};
use super::pb;
use super::pb::queue_service_server::QueueService;
use super::{convert, status, work_stream};
use crate::domain::Lease;
use crate::queue::Settlements;
use crate::queue::{Error, Host, Refusal};
use crate::service::{ClaimReply, Service};
use crate::store::StoreError;
use std::sync::Arc;
use tonic::{Request, Response, Status, Streaming};

#[derive(Debug)]
pub(super) struct QueueApi<H> {
    pub(super) service: Arc<Service<H>>,
}

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl<H: Host> QueueService for QueueApi<H> {
    async fn enqueue(&self, request: Request<pb::EnqueueRequest>) -> Reply<pb::EnqueueResponse> {
        let trace = convert::trace_headers(request.metadata());
        let settings = self.service.queues().settings();
        let context = super::context(&self.service, &settings, &trace);
        let job = convert::enqueue(&context, None, request.into_inner())?;
        record("queue", &job.queue);
        let added = self.service.queues().enqueue(vec![job]).await?;
        let added = only(added)?;
        record("job_id", &added.id);
        Ok(Response::new(convert::enqueued(added)))
    }

    async fn enqueue_batch(&self, request: Request<pb::EnqueueBatchRequest>) -> Reply<pb::EnqueueBatchResponse> {
        let trace = convert::trace_headers(request.metadata());
        let settings = self.service.queues().settings();
        let context = super::context(&self.service, &settings, &trace);
        let (jobs, bad) = convert::enqueue_batch(&context, request.into_inner())?;
        let results = match jobs.is_empty() {
            true => Vec::new(),
            false => self.service.queues().enqueue(jobs).await?,
        };
        Ok(Response::new(convert::enqueue_batch_response(results, bad)))
    }

    async fn claim(&self, request: Request<pb::ClaimRequest>) -> Reply<pb::ClaimResponse> {
        let patience = convert::caller_patience(request.metadata());
        let settles = request.get_ref().settle.is_some();
        let peer = peer(&request)?;
        let budget = peer.budget.clone();
        let in_reserve = request.extensions().get::<InReserve>().is_some();
        let (claim, bad) = convert::claim(self.service.limits(), patience, budget, request.into_inner())?;
        let refused = |why: &str| if settles { status::overloaded_but_settled(why) } else { status::overloaded(why) };
        let begun = match claim.wait.is_zero() {
            _ if in_reserve => Err("so many calls are open that only what settles is taken".into()),
            true => Ok(None),
            false => peer.begin_wait(claim.queues.len()).map(Some),
        };
        let _wait = match begun {
            Ok(wait) => wait,
            // What it settles is settled all the same.
            Err(why) => {
                if !claim.settle.is_empty() {
                    self.service.queues().settle(claim.settle).await?;
                }
                return Err(refused(&why));
            }
        };
        // Who waits may go at any moment. Who does not is answered before it can; watching it would cost a write each time.
        claim.queues.iter().take(1).for_each(|queue| record("queue", queue));
        let waits = !claim.wait.is_zero();
        let ClaimReply { mut claimed, held, overloaded } = self.service.claim(claim).await?;
        if overloaded {
            return Err(refused(&peer.too_many_bytes()));
        }
        let handover = std::mem::take(&mut claimed.jobs);
        let (jobs, guard) = if waits { handover.split() } else { (handover.delivered(), None) };
        let settings = self.service.queues().settings();
        let mut response = Response::new(convert::claim_response(&settings, claimed, jobs, settles.then_some(bad)));
        if let Some(guard) = guard {
            response.extensions_mut().insert(HandoverInResponse::new(guard));
        }
        if let Some(held) = held {
            response.extensions_mut().insert(HeldForResponse::from(held));
        }
        Ok(response)
    }

    async fn ack(&self, request: Request<pb::AckRequest>) -> Reply<pb::AckResponse> {
        let ack = convert::ack(self.service.limits(), None, request.into_inner())?;
        record_lease(&ack.lease);
        let settle = Settlements { acks: vec![ack], ..Settlements::default() };
        let reply = self.service.queues().settle(settle).await?;
        Ok(Response::new(convert::acked(only(reply.acks)?)))
    }

    async fn nack(&self, request: Request<pb::NackRequest>) -> Reply<pb::NackResponse> {
        let nack = convert::nack(self.service.limits(), None, request.into_inner())?;
        record_lease(&nack.lease);
        let settle = Settlements { nacks: vec![nack], ..Settlements::default() };
        let reply = self.service.queues().settle(settle).await?;
        Ok(Response::new(convert::nacked(only(reply.nacks)?)))
    }

    async fn extend(&self, request: Request<pb::ExtendRequest>) -> Reply<pb::ExtendResponse> {
        let extend = convert::extend(self.service.limits(), None, request.into_inner())?;
        record_lease(&extend.lease);
        let settle = Settlements { extensions: vec![extend], ..Settlements::default() };
        let reply = self.service.queues().settle(settle).await?;
        Ok(Response::new(convert::extended(only(reply.extensions)?)))
    }

    async fn settle(&self, request: Request<pb::SettleRequest>) -> Reply<pb::SettleResponse> {
        let (settle, bad) = convert::settlements(self.service.limits(), request.into_inner(), false)?;
        let reply = match settle.is_empty() {
            true => Default::default(),
            false => self.service.queues().settle(settle).await?,
        };
        Ok(Response::new(convert::settle_response(reply, bad)))
    }

    type WorkStream = work_stream::WorkStream;

    async fn work(&self, request: Request<Streaming<pb::WorkRequest>>) -> Reply<work_stream::WorkStream> {
        let peer = peer(&request)?;
        work_stream::open(&self.service, peer, request.into_inner()).await
    }

    async fn list_dead_letters(
        &self, request: Request<pb::ListDeadLettersRequest>,
    ) -> Reply<pb::ListDeadLettersResponse> {
        let settings = self.service.queues().settings();
        let context = super::context(&self.service, &settings, &[]);
        let query = convert::list_dead_letters(&context, request.into_inner())?;
        let page = self.service.queues().dead_letters(query.clone()).await?;
        let limits = self.service.limits();
        Ok(Response::new(convert::dead_letters_page(&settings, limits, &query, page)))
    }

    async fn requeue(&self, request: Request<pb::RequeueRequest>) -> Reply<pb::RequeueResponse> {
        let settings = self.service.queues().settings();
        let context = super::context(&self.service, &settings, &[]);
        let requeue = convert::requeue(&context, request.into_inner())?;
        let asked = convert::Asked::from(&requeue);
        let requeued = self.service.queues().requeue(requeue).await?;
        Ok(Response::new(convert::requeue_response(&asked, requeued)))
    }

    async fn breaker_status(&self, request: Request<pb::BreakerStatusRequest>) -> Reply<pb::BreakerStatusResponse> {
        let settings = self.service.queues().settings();
        let context = super::context(&self.service, &settings, &[]);
        let response = match convert::breaker_status(context.limits, request.get_ref())? {
            convert::WhichBreakers::One(name) => {
                let view = self.service.queues().breaker(&name).await?;
                let breakers = vec![convert::breaker_out(&context, &name, view)];
                pb::BreakerStatusResponse { breakers, next_page_token: String::new() }
            }
            convert::WhichBreakers::Page { after, limit } => {
                let breakers = self.service.queues().breakers_after(after, limit).await?;
                convert::breakers_page(&context, breakers, limit)
            }
        };
        Ok(Response::new(response))
    }
}

/// The connection that a request came by.
fn peer<T>(request: &Request<T>) -> Result<Arc<Peer>, Status> {
    request.extensions().get::<Arc<Peer>>().cloned().ok_or_else(|| Status::internal("a call without a connection"))
}

/// A worker's token names the queue, and the job where its id is the caller's own.
fn record_lease(lease: &Lease) {
    record("queue", &lease.queue);
    lease.own_id.iter().for_each(|id| record("job_id", id));
}

/// The one answer to a settlement that was sent alone.
fn only<T>(mut results: Vec<Result<T, Refusal>>) -> Result<T, Status> {
    let unanswered = || StoreError::OutcomeUnknown("the store did not answer for it".into());
    let result = results.pop().ok_or_else(|| Error::Store(unanswered()))?;
    Ok(result.map_err(Error::Refused)?)
}
