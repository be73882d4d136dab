//! Parts of requests of which one is set.

#![allow(dead_code, reason = "not every test crate needs all of them")]

use prost_types::{Duration, Timestamp};
use redrive::grpc::pb::dead_letter_selector::By;
use redrive::grpc::pb::enqueue_request::{Deadline, Start};
use redrive::grpc::pb::{DeadLetterFilter, DeadLetterSelector, JobIds};

fn selector(by: By) -> Option<DeadLetterSelector> {
    Some(DeadLetterSelector { by: Some(by) })
}

pub(crate) fn by_ids(ids: Vec<String>) -> Option<DeadLetterSelector> {
    selector(By::JobIds(JobIds { ids }))
}

pub(crate) fn by_filter(filter: DeadLetterFilter) -> Option<DeadLetterSelector> {
    selector(By::Filter(filter))
}

pub(crate) fn by_oldest(count: u32) -> Option<DeadLetterSelector> {
    selector(By::Oldest(count))
}

pub(crate) fn by_all() -> Option<DeadLetterSelector> {
    selector(By::All(true))
}

pub(crate) fn after(delay: Option<Duration>) -> Option<Start> {
    delay.map(Start::Delay)
}

pub(crate) fn run_at(time: Option<Timestamp>) -> Option<Start> {
    time.map(Start::RunAt)
}

pub(crate) fn expires_in(time: Option<Duration>) -> Option<Deadline> {
    time.map(Deadline::ExpiresIn)
}

pub(crate) fn expires_at(time: Option<Timestamp>) -> Option<Deadline> {
    time.map(Deadline::ExpiresAt)
}
