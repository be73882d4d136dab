//! Work: between a worker's stream and the service.

use super::layers::peer::{OpenWait, Peer};
use super::{convert, pb, status};
use crate::queue::Host;
use crate::service::{Received, Service, WorkReply};
use std::{pin::Pin, sync::Arc};
use tokio::sync::mpsc;
use tokio_stream::{Stream, StreamExt, wrappers::ReceiverStream};
use tonic::{Code, Response, Status, Streaming};

pub(super) type WorkStream = Pin<Box<dyn Stream<Item = Result<pb::WorkResponse, Status>> + Send + 'static>>;
type Outbox = mpsc::Sender<Result<WorkReply<convert::SettleTag>, Status>>;

/// Answers at once; the first message is waited for on the stream itself.
pub(super) async fn open<H: Host>(
    service: &Arc<Service<H>>, peer: Arc<Peer>, inbound: Streaming<pb::WorkRequest>,
) -> Result<Response<WorkStream>, Status> {
    let place = peer.begin_wait(0).map_err(|why| status::overloaded(&why))?;
    // One message waits while the one before is being sent: a worker that does not read stops its own stream.
    let (outbox, replies) = mpsc::channel(1);
    tokio::spawn(run(service.clone(), peer, inbound, outbox, place));
    let service = service.clone();
    let replies = ReceiverStream::new(replies).map(move |reply: Result<WorkReply<_>, Status>| {
        Ok(convert::work_response(&service.queues().settings(), reply?))
    });
    Ok(Response::new(Box::pin(replies)))
}

async fn run<H: Host>(
    service: Arc<Service<H>>, peer: Arc<Peer>, mut inbound: Streaming<pb::WorkRequest>, outbox: Outbox,
    mut place: OpenWait,
) {
    let within = peer.request_timeout();
    let first = tokio::select! {
        first = inbound.message() => first,
        () = outbox.closed() => return,
        () = tokio::time::sleep(within) => Err(peer.request_is_late()),
    };
    let begun = match first {
        Ok(None) => return,
        Ok(Some(first)) => {
            let begun = convert::work_hello(service.limits(), peer.of_stream(), first);
            begun.map_err(Status::from).and_then(|(hello, message)| {
                place.for_queues(hello.queues.len()).map_err(|why| status::overloaded(&why))?;
                Ok((hello, message))
            })
        }
        Err(error) => match refusal(error) {
            Some(refusal) => Err(refusal),
            None => return,
        },
    };
    let (hello, message) = match begun {
        Ok(begun) => begun,
        Err(refusal) => {
            drop(outbox.send(Err(refusal)).await);
            return;
        }
    };
    let limits = service.limits().clone();
    let rest = inbound.map(move |message| match message {
        Ok(message) => {
            let message = convert::work_message(&limits, &peer.budget, message);
            peer.check_reserve();
            message.map_err(|invalid| Some(invalid.into()))
        }
        Err(error) => Err(refusal(error)),
    });
    let first: Received<_, Status> = Ok(message);
    // Apart from what waits for a hello, which must cost little.
    Box::pin(service.work(hello, tokio_stream::once(first).chain(rest), outbox)).await;
}

/// What a worker hears of a message that cannot be read. None: it has gone.
fn refusal(error: Status) -> Option<Status> {
    match error.code() {
        Code::OutOfRange => Some(status::message_too_large(error.message())),
        Code::ResourceExhausted | Code::InvalidArgument => Some(error),
        // Rubbish: a flag of compression that is none, or what is no message of the contract.
        Code::Internal | Code::Unimplemented if !error.message().contains("h2 protocol error") => {
            Some(status::unreadable(error.message()))
        }
        _ => None,
    }
}
