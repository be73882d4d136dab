//! sepp: EnqueueBatch, Reserve and Ack, each caller in turn; with `--batch 100` as far as its API has batches.

use sepp::pb::sepp::v1::{
    AckRequest, EnqueueBatchRequest, EnqueueRequest, Payload, ReserveRequest,
    queue_service_client::QueueServiceClient,
};
use std::{
    collections::HashMap,
    env,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tonic::transport::Channel;

const CALLERS: usize = 64;
const CONNECTIONS: usize = 4;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let flags: HashMap<&str, &str> = args
        .chunks_exact(2)
        .map(|pair| (pair[0].trim_start_matches('-'), pair[1].as_str()))
        .collect();
    let address = format!("http://{}", flags["address"]);
    let seconds: f64 = flags["seconds"].parse()?;
    let batch: usize = flags.get("batch").map_or(Ok(1), |batch| batch.parse())?;
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(QueueServiceClient::connect(address.clone()).await?);
    }
    let done = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let deadline = began + Duration::from_secs_f64(seconds);
    let callers = (0..CALLERS).map(|number| {
        let (client, done) = (clients[number % CONNECTIONS].clone(), done.clone());
        tokio::spawn(call(client, batch, deadline, done))
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await??;
    }
    let (seconds, jobs) = (began.elapsed().as_secs_f64(), done.load(Ordering::Relaxed));
    let rate = jobs as f64 / seconds;
    println!(r#"{{"jobs":{jobs},"seconds":{seconds},"jobs_per_second":{rate}}}"#);
    Ok(())
}

async fn call(
    mut client: QueueServiceClient<Channel>,
    batch: usize,
    deadline: Instant,
    done: Arc<AtomicU64>,
) -> Result<(), tonic::Status> {
    let job = EnqueueRequest {
        queue: "bench".into(),
        job_type: "bench".into(),
        payload: Some(Payload { data: vec![0; 256], encoding: "application/octet-stream".into() }),
        ..EnqueueRequest::default()
    };
    while Instant::now() < deadline {
        client.enqueue_batch(EnqueueBatchRequest { jobs: vec![job.clone(); batch] }).await?;
        let mut got = 0;
        while got < batch {
            let reserve = ReserveRequest {
                queues: vec!["bench".into()],
                wait_timeout: Some(prost_types::Duration { seconds: 5, nanos: 0 }),
                lease_duration: Some(prost_types::Duration { seconds: 30, nanos: 0 }),
                max_jobs: Some((batch - got) as u32),
                ..ReserveRequest::default()
            };
            let jobs = client.reserve(reserve).await?.into_inner().jobs;
            got += jobs.len();
            for job in jobs {
                let ack = AckRequest { job_id: job.id, attempt: job.attempt, worker_id: None };
                client.ack(ack).await?;
                done.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}
