//! Work: between a worker's stream and the service.

use super::{convert, pb};
use crate::queue::Error;
use crate::queue::Host;
use crate::service::{Received, Service, WorkReply};
use crate::store::StoreError;
use std::{pin::Pin, sync::Arc};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Response, Status, Streaming};

/// At the same time; each takes some memory.
pub(super) const STREAMS_MAX: usize = 10_000;

pub(super) type WorkStream = Pin<Box<dyn Stream<Item = Result<pb::WorkResponse, Status>> + Send + 'static>>;

/// Answers at once; the first message is waited for on the stream itself.
pub(super) async fn open<H: Host>(
    service: &Arc<Service<H>>, streams: &Arc<Semaphore>, inbound: Streaming<pb::WorkRequest>,
) -> Result<Response<WorkStream>, Status> {
    let place = streams.clone().try_acquire_owned().map_err(|_| {
        let why = format!("{STREAMS_MAX} workers stream already");
        Status::from(Error::Store(StoreError::Overloaded(why)))
    })?;
    // One message waits while the one before is being sent: a worker that does not read stops its own stream.
    let (outbox, replies) = mpsc::channel(1);
    tokio::spawn(run(service.clone(), inbound, outbox, place));
    let service = service.clone();
    let replies = ReceiverStream::new(replies).map(move |reply: Result<WorkReply<_>, Status>| {
        Ok(convert::work_response(&service.queues().settings(), reply?))
    });
    Ok(Response::new(Box::pin(replies)))
}

async fn run<H: Host>(
    service: Arc<Service<H>>, mut inbound: Streaming<pb::WorkRequest>,
    outbox: mpsc::Sender<Result<WorkReply<convert::SettleTag>, Status>>, _place: OwnedSemaphorePermit,
) {
    let first = tokio::select! {
        first = inbound.message() => first,
        () = outbox.closed() => return,
    };
    let Ok(Some(first)) = first else { return };
    let (hello, message) = match convert::work_hello(service.limits(), first) {
        Ok(hello) => hello,
        Err(invalid) => {
            drop(outbox.send(Err(invalid.into())).await);
            return;
        }
    };
    let limits = service.limits().clone();
    let rest = inbound.map(move |message| match message {
        Ok(message) => convert::work_message(&limits, message).map_err(|invalid| Some(invalid.into())),
        Err(_) => Err(None),
    });
    let first: Received<_, Status> = Ok(message);
    service.work(hello, tokio_stream::once(first).chain(rest), outbox).await;
}
