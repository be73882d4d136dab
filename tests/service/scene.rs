//! A server with one job in every state, on which bad calls must leave no mark.

use crate::server::{Server, Setup, error, job_of, nack, steady, time};
use crate::shapes::after;
use redrive::{domain::QueueSettings, grpc::pb};
use std::{fmt::Debug, future::Future, time::Duration};
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// For how long queue `q` keeps a job that is done.
pub(crate) const KEPT: Duration = Duration::from_secs(3_600);

pub(crate) struct Scene {
    pub(crate) server: Server,
    /// Of the job that is running.
    pub(crate) lease: String,
}

/// All that can be seen of the scene.
#[derive(Debug, PartialEq)]
struct Seen {
    queues: Vec<pb::QueueInfo>,
    jobs: Vec<pb::JobInfo>,
}

impl Scene {
    /// Queue `q` has the jobs `dead`, `done`, `cancelled`, `retrying`, `running`, `waiting` and `later`.
    pub(crate) async fn set() -> Self {
        let defaults = steady(Duration::from_secs(10));
        let keeps = QueueSettings { completed_retention: Some(KEPT), ..defaults.clone() };
        let queues = vec![("q", keeps)];
        let server = Server::with(Setup { defaults, queues, ..Setup::default() }).await;
        server.dead_letter("q", "dead", error("E")).await;
        server.enqueue(job_of("q", "done")).await.unwrap();
        server.ack(&server.take("q").await.lease).await.unwrap();
        server.enqueue(job_of("q", "cancelled")).await.unwrap();
        let cancel = pb::CancelJobRequest { job_id: "cancelled".into(), queue: "q".into(), ..Default::default() };
        server.admin().cancel_job(cancel).await.unwrap();
        server.enqueue(job_of("q", "retrying")).await.unwrap();
        server.nack(nack(&server.take("q").await.lease, "E")).await.unwrap();
        server.enqueue(job_of("q", "running")).await.unwrap();
        let lease = server.take("q").await.lease;
        server.enqueue(job_of("q", "waiting")).await.unwrap();
        let later = pb::EnqueueRequest { start: after(time(60, 0)), ..job_of("q", "later") };
        server.enqueue(later).await.unwrap();
        Self { server, lease }
    }

    async fn look(&self) -> Seen {
        let mut jobs = Vec::new();
        for id in ["dead", "done", "cancelled", "retrying", "running", "waiting", "later"] {
            jobs.push(self.server.get_job_in(id, "q").await.unwrap());
        }
        let queues = self.server.list_queues().await;
        Seen { queues, jobs }
    }

    /// The call is refused with this code and reason, for these fields and no others, and changes nothing.
    pub(crate) async fn refuses<T: Debug>(
        &self, call: impl Future<Output = Result<T, Status>>, code: Code, reason: &str, fields: &[&str],
    ) -> Status {
        let before = self.look().await;
        let status = call.await.expect_err(&format!("{reason} {fields:?}"));
        assert_refused(&status, code, reason, fields);
        assert_eq!(self.look().await, before, "{status:?} left a mark");
        status
    }

    /// The call is carried out, and there was nothing to do.
    pub(crate) async fn unmoved<T>(&self, call: impl Future<Output = Result<T, Status>>) -> T {
        let before = self.look().await;
        let done = call.await.unwrap();
        assert_eq!(self.look().await, before, "it left a mark");
        done
    }

    /// As `refuses`, for what is most often wrong.
    pub(crate) async fn refuses_fields<T: Debug>(
        &self, call: impl Future<Output = Result<T, Status>>, fields: &[&str],
    ) -> Status {
        self.refuses(call, Code::InvalidArgument, "INVALID_FIELD", fields).await
    }

    /// The server still does its work: a job comes, is taken and done.
    pub(crate) async fn still_works(&self) {
        self.server.enqueue(job_of("after", "x")).await.unwrap();
        let job = self.server.take("after").await;
        assert!(!self.server.ack(&job.lease).await.unwrap().already_gone);
        self.server.ack(&self.lease).await.unwrap();
    }
}

#[track_caller]
pub(crate) fn assert_refused(status: &Status, code: Code, reason: &str, fields: &[&str]) {
    assert_eq!(status.code(), code, "{status:?}");
    let details = status.get_error_details();
    let info = details.error_info().expect("every refusal has a reason");
    assert_eq!((info.reason.as_str(), info.domain.as_str()), (reason, "redrive"));
    let named: Vec<_> = details
        .bad_request()
        .map(|bad| bad.field_violations.as_slice())
        .unwrap_or_default()
        .iter()
        .map(|violation| violation.field.as_str())
        .collect();
    assert_eq!(named, fields, "{}", status.message());
    assert!(!status.message().is_empty());
}
