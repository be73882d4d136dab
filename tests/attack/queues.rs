//! Names made up by a client.

use crate::beside::job;
use crate::server::{Launch, config_file, scratch};
use redrive::grpc::pb::{ListQueuesRequest, PauseQueueRequest};
use tonic::Code;
use tonic_types::StatusExt;

#[tokio::test(flavor = "multi_thread")]
async fn so_many_queues_come_into_being_each_minute_and_those_there_are_go_on() {
    let data = scratch();
    let config = config_file(data.path(), "[limits]\nnew_queues_per_minute = 20\n[queues.configured]\n");
    let server = Launch::on(data.path()).arg("--config").arg(config).start();
    let mut client = server.queue().await;
    for number in 0..20 {
        client.enqueue(job(&format!("made-up-{number}"), 1)).await.unwrap();
    }
    let refused = client.enqueue(job("one-more", 1)).await.unwrap_err();
    let details = refused.get_error_details();
    let reason = details.error_info().map(|info| info.reason.as_str());
    assert_eq!((refused.code(), reason), (Code::ResourceExhausted, Some("TOO_MANY_QUEUES")), "{refused:?}");
    assert!(details.retry_info().is_some());
    server.log_line("new_queues_per_minute");
    let pause = PauseQueueRequest { queue: "one-more".into(), ..PauseQueueRequest::default() };
    assert_eq!(server.admin().await.pause_queue(pause).await.unwrap_err().code(), Code::ResourceExhausted);
    for queue in ["made-up-3", "configured"] {
        client.enqueue(job(queue, 1)).await.unwrap();
    }
    let queues = server.admin().await.list_queues(ListQueuesRequest::default()).await.unwrap().into_inner();
    assert_eq!(queues.queues.len(), 21);
}
