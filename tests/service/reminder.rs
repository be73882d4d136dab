//! What the log says while there are dead letters.

use crate::server::{Server, error, job_of, time};
use crate::shapes;
use redrive::{domain::Timestamp, grpc::pb};
use std::time::Duration;

#[tokio::test]
async fn the_log_tells_of_dead_letters_every_ten_minutes() {
    let server = Server::start().await;
    let mut next = server.service.queues().now();
    let minute = Duration::from_secs(60);
    assert_eq!(server.service.remind_if_due(&mut next).await, Ok(None), "there are none");
    let expires_in = time(1, 0);
    server
        .enqueue(pb::EnqueueRequest { deadline: shapes::expires_in(expires_in), ..job_of("late", "z") })
        .await
        .unwrap();
    for _ in 0..2 {
        server.pass(Duration::from_secs(1)).await;
    }
    for id in ["a", "b"] {
        server.dead_letter("q", id, error("Timeout")).await;
        server.pass(Duration::from_secs(1)).await;
    }
    assert_eq!(server.service.remind_if_due(&mut next).await, Ok(None), "it is not time");
    server.pass(minute * 10).await;
    let told = server.service.remind_if_due(&mut next).await.unwrap().unwrap();
    assert_eq!((told.total, told.queues().as_str()), (3, "q 2, late 1"));
    assert_eq!(told.latest(), "b in q (Timeout), a in q (Timeout), z in late");
    server.pass(minute * 9).await;
    assert_eq!(server.service.remind_if_due(&mut next).await, Ok(None), "it was just said");
    server.pass(minute).await;
    assert!(server.service.remind_if_due(&mut next).await.unwrap().is_some());
}

#[tokio::test]
async fn the_line_stays_short() {
    let server = Server::start().await;
    for number in 0..7 {
        server.dead_letter(&format!("q{number}"), "x", error("E")).await;
    }
    let told = server.service.remind_if_due(&mut Timestamp::default()).await.unwrap().unwrap();
    assert_eq!((told.total, told.latest.len()), (7, 3));
    assert_eq!(told.queues(), "q0 1, q1 1, q2 1, q3 1, q4 1 and 2 more");
}
