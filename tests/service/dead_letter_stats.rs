//! How many died, and of what.

use crate::server::{Server, Setup, at, error, inner, job};
use redrive::{domain::QueueSettings, grpc::pb};
use tonic::{Code, Status};

async fn stats(
    server: &Server, request: pb::GetDeadLetterStatsRequest,
) -> Result<pb::GetDeadLetterStatsResponse, Status> {
    inner(server.admin().get_dead_letter_stats(request).await)
}

fn of(queue: &str) -> pb::GetDeadLetterStatsRequest {
    pb::GetDeadLetterStatsRequest { queue: queue.into(), ..Default::default() }
}

#[tokio::test]
async fn dead_letters_are_counted_by_queue_and_type() {
    let queues = vec![("configured", QueueSettings::default())];
    let server = Server::with(Setup { queues, ..Setup::default() }).await;
    server.enqueue(job("alive")).await.unwrap();
    for (queue, id, error_type) in [("q", "1", "A"), ("q", "2", "B"), ("q", "3", "B"), ("p", "4", "C")] {
        server.dead_letter(queue, id, error(error_type)).await;
    }
    let all = stats(&server, of("")).await.unwrap();
    assert_eq!((all.total_count, all.next_page_token.as_str()), (4, ""));
    let names: Vec<_> = all.queues.iter().map(|queue| queue.queue.as_str()).collect();
    assert_eq!(names, ["p", "q"]);
    let q = &all.queues[1];
    assert_eq!((q.count, q.overflow), (3, 0));
    assert!(at(q.oldest) > 0);
    let types: Vec<_> = q.by_error_type.iter().map(|count| (count.error_type.as_str(), count.count)).collect();
    assert_eq!(types, [("B", 2), ("A", 1)]);

    let one = pb::GetDeadLetterStatsRequest { page_size: 1, ..of("dlq:q") };
    let one = stats(&server, one).await.unwrap();
    assert_eq!((one.total_count, &one.queues[0], one.next_page_token.as_str()), (3, q, ""));
    for empty in ["alive", "configured"] {
        let none = stats(&server, of(empty)).await.unwrap();
        assert_eq!((none.total_count, none.queues[0].count), (0, 0), "{empty}");
        assert_eq!(none.queues[0].oldest, None);
    }
}

#[tokio::test]
async fn counts_come_in_pages() {
    let server = Server::start().await;
    for queue in ["a", "b", "c"] {
        server.dead_letter(queue, "x", error("E")).await;
    }
    let mut request = pb::GetDeadLetterStatsRequest { page_size: 2, ..of("") };
    let mut names = Vec::new();
    loop {
        let page = stats(&server, request.clone()).await.unwrap();
        assert_eq!(page.total_count, 3);
        names.extend(page.queues.into_iter().map(|queue| queue.queue));
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    assert_eq!(names, ["a", "b", "c"]);
}

#[tokio::test]
async fn what_cannot_be_counted_is_refused() {
    let server = Server::start().await;
    let unknown = stats(&server, of("nope")).await.unwrap_err();
    crate::scene::assert_refused(&unknown, Code::NotFound, "QUEUE_NOT_FOUND", &[]);
    let rubbish = pb::GetDeadLetterStatsRequest { page_token: "rubbish".into(), ..of("") };
    for (request, field) in [(of("!"), "queue"), (of("dlq:overflow:q"), "queue"), (rubbish, "page_token")] {
        let status = stats(&server, request).await.unwrap_err();
        let code = Code::InvalidArgument;
        crate::scene::assert_refused(&status, code, "INVALID_FIELD", &[field]);
    }
}
