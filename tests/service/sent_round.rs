//! Ten thousand dead letters are sent back in steps while their worker fails them again, and a reader lists them.

use crate::server::{Server, claim, inner, job_of, nack, time};
use crate::shapes::by_filter;
use crate::stats::assert_balanced;
use redrive::grpc::pb;
use std::collections::HashSet;
use tokio::sync::watch;

const SENT: usize = 10_000;
/// One in so many died of something else, and stays where it is.
const STAYS: usize = 50;
const BATCH: usize = 1_000;
const STEP: u32 = 900;
const PAGE: u32 = 1_000;

fn stays(number: usize) -> bool {
    number.is_multiple_of(STAYS)
}

/// Jobs claimed together fail together, for good.
async fn fail(server: &Server, jobs: Vec<pb::Job>, error_type: impl Fn(&pb::Job) -> &'static str) {
    let kind = pb::NackKind::Permanent.into();
    let nacks = jobs.iter().map(|job| nack(&job.lease, error_type(job)));
    let nacks = nacks.map(|nack| pb::NackRequest { kind, ..nack }).collect();
    let settled = server.settle(pb::SettleRequest { nacks, ..Default::default() }).await.unwrap();
    for result in settled.nacks {
        let Some(pb::nack_result::Outcome::Ok(nacked)) = result.outcome else {
            panic!("{result:?}");
        };
        assert_eq!(nacked.outcome(), pb::NackOutcome::DeadLettered);
    }
}

/// A server on whose queue `q` all of them have died, most of a timeout.
async fn all_dead() -> Server {
    let server = Server::start().await;
    let all: Vec<usize> = (0..).filter(|number| !stays(*number)).take(SENT).collect();
    let last = *all.last().unwrap();
    for from in (0..=last).step_by(BATCH) {
        let numbers = from..=last.min(from + BATCH - 1);
        let jobs = numbers.map(|number| job_of("q", &number.to_string())).collect();
        server.queue().enqueue_batch(pb::EnqueueBatchRequest { jobs }).await.unwrap();
        let claimed = pb::ClaimRequest { max_jobs: BATCH as u32, ..claim("q") };
        let jobs = server.claim(claimed).await.unwrap().jobs;
        let hopeless = |job: &pb::Job| stays(job.job_id.parse().unwrap());
        fail(&server, jobs, |job| if hopeless(job) { "Hopeless" } else { "Timeout" }).await;
    }
    server
}

/// The operator: step by step until there is no more. Says who was sent, and in how many steps.
async fn send_round(server: &Server) -> (Vec<String>, u32) {
    let filter = pb::DeadLetterFilter { error_type: "Timeout".into(), ..Default::default() };
    let mut request =
        pb::RequeueRequest { queue: "q".into(), selector: by_filter(filter), limit: STEP, ..Default::default() };
    let (mut sent, mut steps) = (Vec::new(), 0);
    loop {
        let reply = server.requeue(request.clone()).await.unwrap();
        assert_eq!((reply.requeued as usize, reply.skipped.len()), (reply.job_ids.len(), 0));
        sent.extend(reply.job_ids);
        steps += 1;
        if !reply.has_more {
            return (sent, steps);
        }
        request.cutoff = reply.cutoff;
    }
}

/// The worker: fails whatever comes, until it has failed as many as were sent. Says whom.
async fn fail_again(server: &Server) -> Vec<String> {
    let mut failed = Vec::new();
    while failed.len() < SENT {
        let request = pb::ClaimRequest { max_jobs: 700, wait: time(30, 0), ..claim("q") };
        let jobs = server.claim(request).await.unwrap().jobs;
        assert!(!jobs.is_empty(), "{} have come, and no more do", failed.len());
        failed.extend(jobs.iter().map(|job| job.job_id.clone()));
        fail(server, jobs, |_| "Timeout").await;
    }
    failed
}

/// One walk over all pages: each letter by its job, and how often that had been sent round when it died.
async fn walk(server: &Server) -> Vec<(usize, u32)> {
    let mut request = pb::ListDeadLettersRequest { queue: "q".into(), page_size: PAGE, ..Default::default() };
    let mut letters = Vec::new();
    loop {
        let page = server.list_dead(request.clone()).await.unwrap();
        letters.extend(page.dead_letters.into_iter().map(|letter| {
            let job = letter.job.unwrap();
            (job.job_id.parse().unwrap(), letter.redrives)
        }));
        if page.next_page_token.is_empty() {
            return letters;
        }
        request.page_token = page.next_page_token;
    }
}

/// The reader: walk after walk, the last of which begins when all is over. Says what that one saw.
async fn read_along(server: &Server, over: watch::Receiver<bool>) -> Vec<(usize, u32)> {
    loop {
        let last = *over.borrow();
        let letters = walk(server).await;
        let seen: HashSet<_> = letters.iter().collect();
        assert_eq!(seen.len(), letters.len(), "a letter was shown twice");
        let staying = letters.iter().filter(|(number, _)| stays(*number)).count();
        assert_eq!(staying, SENT.div_ceil(STAYS - 1), "one that was there all the time is missing");
        if last {
            return letters;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_letters_that_die_again_are_each_sent_round_once() {
    let server = all_dead().await;
    let staying = SENT.div_ceil(STAYS - 1);
    let before = server.stats("q").await.unwrap();
    assert_eq!(before.dead_lettered as usize, SENT + staying);

    let (is_over, over) = watch::channel(false);
    let work = async {
        let done = tokio::join!(send_round(&server), fail_again(&server));
        is_over.send_replace(true);
        done
    };
    let (((sent, steps), failed), letters) = tokio::join!(work, read_along(&server, over));

    assert_eq!(steps as usize, SENT.div_ceil(STEP as usize));
    let each = sent.iter().collect::<HashSet<_>>();
    assert_eq!((sent.len(), each.len()), (SENT, SENT), "each was sent once");
    assert_eq!((failed.len(), failed.iter().collect()), (SENT, each), "and failed once");
    assert!(letters.iter().all(|(number, redrives)| *redrives == u32::from(!stays(*number))));
    assert_eq!(letters.len(), SENT + staying);

    let stats = server.stats("q").await.unwrap();
    assert_balanced(&stats);
    let expected = pb::GetStatsResponse {
        requeued: SENT as u64,
        dead_lettered: before.dead_lettered + SENT as u64,
        failed_attempts: before.failed_attempts + SENT as u64,
        ..before
    };
    assert_eq!(stats, expected);
    let request = pb::GetDeadLetterStatsRequest { queue: "q".into(), ..Default::default() };
    let counted = inner(server.admin().get_dead_letter_stats(request).await).unwrap();
    let types = counted.queues[0].by_error_type.iter();
    let types: Vec<_> = types.map(|of| (of.error_type.as_str(), of.count as usize)).collect();
    assert_eq!(types, [("Timeout", SENT), ("Hopeless", staying)]);
}
