//! sepp: EnqueueBatch, Reserve and Ack. With `--batch 100` as far as its API has batches: there is an Ack for each job,
//! so those of a batch are sent at once.

use sepp::pb::sepp::v1::{
    AckRequest, EnqueueBatchRequest, EnqueueRequest, Job, Payload, ReserveRequest,
    job_result::Outcome, queue_service_client::QueueServiceClient,
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
use tokio::task::JoinSet;
use tonic::transport::Channel;

const CONNECTIONS: usize = 4;
const BODY: usize = 256;

type Client = QueueServiceClient<Channel>;
type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let args: Vec<String> = env::args().skip(1).collect();
    let flags: HashMap<&str, &str> = args
        .chunks_exact(2)
        .map(|pair| (pair[0].trim_start_matches('-'), pair[1].as_str()))
        .collect();
    let address = format!("http://{}", flags["address"]);
    let seconds: f64 = flags["seconds"].parse()?;
    let batch: usize = flags.get("batch").map_or(Ok(1), |batch| batch.parse())?;
    let callers: usize = flags["callers"].parse()?;
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(QueueServiceClient::connect(address.clone()).await?);
    }
    let done = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let deadline = began + Duration::from_secs_f64(seconds);
    let callers = (0..callers).map(|number| {
        let (client, done) = (clients[number % CONNECTIONS].clone(), done.clone());
        tokio::spawn(call(client, batch, deadline, done))
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await??;
    }
    let (seconds, jobs) = (began.elapsed().as_secs_f64(), done.load(Ordering::Relaxed));
    let left = reserve(&mut clients[0], 1, 0).await?.len();
    if left > 0 || jobs == 0 {
        return Err(format!("{jobs} jobs were acknowledged, and the queue is not empty").into());
    }
    let rate = jobs as f64 / seconds;
    println!(r#"{{"jobs":{jobs},"seconds":{seconds},"jobs_per_second":{rate}}}"#);
    Ok(())
}

async fn call(
    mut client: Client,
    batch: usize,
    deadline: Instant,
    done: Arc<AtomicU64>,
) -> Result<(), Error> {
    let job = EnqueueRequest {
        queue: "bench".into(),
        job_type: "bench".into(),
        payload: Some(Payload { data: vec![0; BODY], encoding: "application/octet-stream".into() }),
        ..EnqueueRequest::default()
    };
    while Instant::now() < deadline {
        let jobs = EnqueueBatchRequest { jobs: vec![job.clone(); batch] };
        let results = client.enqueue_batch(jobs).await?.into_inner().results;
        let taken = |result: &_| matches!(result, Some(Outcome::Success(_)));
        if results.iter().filter(|result| taken(&result.outcome)).count() != batch {
            return Err("a job was rejected".into());
        }
        let mut got = 0;
        while got < batch {
            let jobs = reserve(&mut client, batch - got, 5).await?;
            got += jobs.len();
            acknowledge(&mut client, jobs, &done).await?;
        }
    }
    Ok(())
}

async fn reserve(client: &mut Client, jobs: usize, wait: i64) -> Result<Vec<Job>, Error> {
    let request = ReserveRequest {
        queues: vec!["bench".into()],
        wait_timeout: Some(prost_types::Duration { seconds: wait, nanos: 0 }),
        lease_duration: Some(prost_types::Duration { seconds: 30, nanos: 0 }),
        max_jobs: Some(jobs as u32),
        ..ReserveRequest::default()
    };
    let jobs = client.reserve(request).await?.into_inner().jobs;
    if jobs.iter().any(|job| job.payload.as_ref().is_none_or(|body| body.data.len() != BODY)) {
        return Err(format!("a job without its {BODY} bytes was delivered").into());
    }
    Ok(jobs)
}

async fn acknowledge(client: &mut Client, jobs: Vec<Job>, done: &AtomicU64) -> Result<(), Error> {
    let count = jobs.len() as u64;
    let mut requests = jobs.into_iter().map(|job| AckRequest {
        job_id: job.id,
        attempt: job.attempt,
        worker_id: None,
    });
    if count == 1 {
        client.ack(requests.next().unwrap_or_default()).await?;
    } else {
        let acks = requests.map(|request| {
            let mut client = client.clone();
            async move { client.ack(request).await }
        });
        let mut acks: JoinSet<_> = acks.collect();
        while let Some(ack) = acks.join_next().await {
            ack??;
        }
    }
    done.fetch_add(count, Ordering::Relaxed);
    Ok(())
}
