//! Other queues beside it: their workers call the same downstream over HTTP, with what each does by default.

use crate::World;
use std::process::Stdio;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Answers calls until the process ends. Says where.
pub(crate) async fn serve(world: Arc<World>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            tokio::spawn(answer(world.clone(), stream));
        }
    });
    format!("http://{address}/")
}

/// Each request of a connection is one call. One that is refused is cut off.
async fn answer(world: Arc<World>, mut stream: TcpStream) {
    let (mut request, mut part) = (Vec::new(), [0; 4_096]);
    while let Ok(read @ 1..) = stream.read(&mut part).await {
        request.extend_from_slice(&part[..read]);
        if !request.ends_with(b"\r\n\r\n") {
            continue;
        }
        request.clear();
        let (takes, failed) = world.call(0);
        tokio::time::sleep(takes).await;
        let status = match failed {
            None => "200 OK",
            Some((_, 0)) => return,
            Some((_, 429)) => "429 Too Many Requests",
            Some(_) => "503 Service Unavailable",
        };
        let reply = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        if stream.write_all(reply.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Runs the workers of a peer until the end, and says how many jobs are done and dead.
pub(crate) async fn run(program: &[&str], redis: &str, downstream: &str, world: &World) -> (usize, u64) {
    let plan = &world.plan;
    let numbers = [plan.jobs.to_string(), plan.rate.to_string(), plan.slots.to_string(), plan.end.to_string()];
    let socket = redis.trim_start_matches("redis+unix://");
    let child = tokio::task::block_in_place(|| {
        std::process::Command::new(program[0])
            .args(&program[1..])
            .args([socket, downstream])
            .args(&numbers)
            .stdout(Stdio::piped())
            .output()
            .expect("script/outage has installed it")
    });
    let said = String::from_utf8_lossy(&child.stdout);
    let mut numbers = said.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
    let (done, dead) = (numbers.next(), numbers.next());
    let (Some(done), Some(dead)) = (done, dead) else { panic!("{program:?} said {said:?}") };
    (done as usize, dead)
}
