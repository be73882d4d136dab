//! Durations and times that are malformed, negative, too long, or one too many.

use crate::scene::Scene;
use crate::server::{claim, extend, inner, job, nack, time};
use crate::shapes::{self, after, expires_at, expires_in};
use prost_types::{Duration, Timestamp};
use redrive::grpc::pb;

const DAY: i64 = 24 * 3_600;
/// Where the scene's clock stands.
const NOW: i64 = 1_800_000_000;

/// Puts a duration into one field of a policy.
type Fill = fn(&mut pb::RetryPolicy, Duration);

/// Durations that no field takes.
fn malformed() -> Vec<Duration> {
    [
        (-1, 0),
        (0, -1),
        (1, -1),
        (-1, 1),
        (0, 1_000_000_000),
        (0, i32::MAX),
        (0, i32::MIN),
        (i64::MAX, 0),
        (i64::MIN, 0),
        (315_576_000_001, 0),
    ]
    .map(|(seconds, nanos)| Duration { seconds, nanos })
    .into()
}

#[tokio::test]
async fn a_job_takes_no_bad_delay_and_no_bad_lifetime() {
    let scene = Scene::set().await;
    let mut bad = malformed();
    bad.extend(time(366 * DAY, 1));
    for duration in bad {
        let delay = pb::EnqueueRequest { start: after(Some(duration)), ..job("q") };
        scene.refuses_fields(scene.server.enqueue(delay), &["delay"]).await;
        let expires = pb::EnqueueRequest { deadline: expires_in(Some(duration)), ..job("q") };
        scene.refuses_fields(scene.server.enqueue(expires), &["expires_in"]).await;
    }
    let longest = pb::EnqueueRequest { start: after(time(366 * DAY, 0)), ..job("far") };
    scene.server.enqueue(longest).await.unwrap();
}

#[tokio::test]
async fn a_job_takes_no_bad_time() {
    let scene = Scene::set().await;
    for (seconds, nanos) in [
        (NOW, -1),
        (NOW, 1_000_000_000),
        (i64::MAX, 0),
        (i64::MIN, 0),
        (-62_135_596_801, 0),
        (253_402_300_800, 0),
        (NOW + 366 * DAY, 1_000_000),
    ] {
        let bad = Some(Timestamp { seconds, nanos });
        let run_at = pb::EnqueueRequest { start: shapes::run_at(bad), ..job("q") };
        scene.refuses_fields(scene.server.enqueue(run_at), &["run_at"]).await;
        let expires = pb::EnqueueRequest { deadline: expires_at(bad), ..job("q") };
        scene.refuses_fields(scene.server.enqueue(expires), &["expires_at"]).await;
    }
    for seconds in [-5, 0, NOW - 1, NOW + 366 * DAY] {
        let run_at = Some(Timestamp { seconds, nanos: 0 });
        let fine = pb::EnqueueRequest { start: shapes::run_at(run_at), ..job("far") };
        let state = scene.server.enqueue(fine).await.unwrap().state();
        let expected = match seconds > NOW {
            true => pb::JobState::Scheduled,
            false => pb::JobState::Ready,
        };
        assert_eq!(state, expected, "{seconds}");
    }
}

#[tokio::test]
async fn a_policy_takes_no_bad_delay() {
    let scene = Scene::set().await;
    let set: [(&str, Fill); 4] = [
        ("base_delay", |policy, bad| policy.base_delay = Some(bad)),
        ("max_delay", |policy, bad| policy.max_delay = Some(bad)),
        ("jitter_max", |policy, bad| policy.jitter_max = Some(bad)),
        ("delays[1]", |policy, bad| policy.delays = vec![Duration::default(), bad]),
    ];
    for (field, set) in set {
        for duration in malformed() {
            let mut policy = pb::RetryPolicy::default();
            set(&mut policy, duration);
            let request = pb::EnqueueRequest { retry_policy: Some(policy), ..job("q") };
            let field = format!("retry_policy.{field}");
            scene.refuses_fields(scene.server.enqueue(request), &[&field]).await;
        }
    }
    // Longer than anything may take.
    for field in ["base_delay", "max_delay"] {
        let mut policy = pb::RetryPolicy::default();
        match field {
            "base_delay" => policy.base_delay = time(367 * DAY, 0),
            _ => policy.max_delay = time(367 * DAY, 0),
        }
        let explain = pb::ExplainPolicyRequest { policy: Some(policy), ..Default::default() };
        let call = async { inner(scene.server.admin().explain_policy(explain).await) };
        scene.refuses_fields(call, &[&format!("policy.{field}")]).await;
    }
}

#[tokio::test]
async fn a_claim_takes_no_bad_wait_and_no_bad_lease() {
    let scene = Scene::set().await;
    for duration in malformed() {
        let wait = pb::ClaimRequest { wait: Some(duration), ..claim("q") };
        scene.refuses_fields(scene.server.claim(wait), &["wait"]).await;
    }
    let mut bad = malformed();
    bad.extend([time(0, 0), time(0, 999_999_999), time(DAY, 1)].into_iter().flatten());
    for duration in bad {
        let lease_duration = Some(duration);
        let request = pb::ClaimRequest { lease_duration, ..claim("q") };
        scene.refuses_fields(scene.server.claim(request), &["lease_duration"]).await;
        let request = pb::ExtendRequest { lease_duration, ..extend(&scene.lease) };
        scene.refuses_fields(scene.server.extend(request), &["lease_duration"]).await;
    }
    for seconds in [1, DAY] {
        let lease_duration = time(seconds, 0);
        scene.server.enqueue(job("leases")).await.unwrap();
        let request = pb::ClaimRequest { lease_duration, ..claim("leases") };
        assert_eq!(scene.server.take_by(request).await.lease_duration, lease_duration);
    }
}

#[tokio::test]
async fn a_nack_takes_no_bad_retry_after() {
    let scene = Scene::set().await;
    for duration in malformed() {
        let retry_after = Some(duration);
        let request = pb::NackRequest { retry_after, ..nack(&scene.lease, "E") };
        scene.refuses_fields(scene.server.nack(request), &["retry_after"]).await;
    }
    scene.still_works().await;
}
