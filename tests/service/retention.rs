//! Dead letters are kept for as long as their queue says.

use crate::server::{Server, Setup, error};
use redrive::domain::{DeadLetterSettings, QueueSettings};
use redrive::grpc::pb;
use std::time::Duration;

#[tokio::test]
async fn dead_letters_go_when_their_retention_is_over() {
    let retention = Some(Duration::from_secs(3_600));
    let dead_letters = DeadLetterSettings { retention, ..Default::default() };
    let defaults = QueueSettings { dead_letters, ..Default::default() };
    let server = Server::with(Setup { defaults, ..Setup::default() }).await;
    server.dead_letter("q", "a", error("E")).await;
    server.pass(Duration::from_secs(3_599)).await;
    let list = || pb::ListDeadLettersRequest { queue: "q".into(), ..Default::default() };
    assert_eq!(server.list_dead(list()).await.unwrap().queue_total, 1);
    server.pass(Duration::from_secs(1)).await;
    assert_eq!(server.list_dead(list()).await.unwrap().queue_total, 0);
    assert_eq!(server.get_job("a").await.unwrap_err().code(), tonic::Code::NotFound);
}
