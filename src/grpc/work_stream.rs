//! Work: between a worker's stream and the broker.

use super::{convert, pb, status};
use crate::{
    broker::{Broker, Error, Heard, WorkReply},
    store::{Store, StoreError},
};
use std::{pin::Pin, sync::Arc};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Response, Status, Streaming};

/// At the same time; each takes some memory.
pub(super) const STREAMS_MAX: usize = 10_000;

pub(super) type WorkStream =
    Pin<Box<dyn Stream<Item = Result<pb::WorkResponse, Status>> + Send + 'static>>;

/// Answers at once; the first message is waited for on the stream itself.
pub(super) async fn open<S: Store>(
    broker: &Arc<Broker<S>>,
    streams: &Arc<Semaphore>,
    inbound: Streaming<pb::WorkRequest>,
) -> Result<Response<WorkStream>, Status> {
    let place = streams.clone().try_acquire_owned().map_err(|_| {
        let why = format!("{STREAMS_MAX} workers stream already");
        status::status(Error::Store(StoreError::Overloaded(why)))
    })?;
    // One message waits while the one before is being sent: a worker that does not read stops its own stream.
    let (outbox, replies) = mpsc::channel(1);
    tokio::spawn(run(broker.clone(), inbound, outbox, place));
    let broker = broker.clone();
    let replies = ReceiverStream::new(replies).map(move |reply: Result<WorkReply<_>, Status>| {
        Ok(convert::work_response(&broker.settings(), reply?))
    });
    Ok(Response::new(Box::pin(replies)))
}

async fn run<S: Store>(
    broker: Arc<Broker<S>>,
    mut inbound: Streaming<pb::WorkRequest>,
    outbox: mpsc::Sender<Result<WorkReply<convert::SettleTag>, Status>>,
    _place: OwnedSemaphorePermit,
) {
    let first = tokio::select! {
        first = inbound.message() => first,
        () = outbox.closed() => return,
    };
    let Ok(Some(first)) = first else { return };
    let (hello, message) = match convert::work_hello(broker.limits(), first) {
        Ok(hello) => hello,
        Err(invalid) => {
            drop(outbox.send(Err(status::invalid(&invalid))).await);
            return;
        }
    };
    let limits = broker.limits().clone();
    let rest = inbound.map(move |message| match message {
        Ok(message) => convert::work_message(&limits, message)
            .map_err(|invalid| Some(status::invalid(&invalid))),
        Err(_) => Err(None),
    });
    let first: Heard<_, Status> = Ok(message);
    broker.work(hello, tokio_stream::once(first).chain(rest), outbox).await;
}
