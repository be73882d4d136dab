//! Writes that replicas must confirm. WAIT tells of what its own connection has written, and holds that connection up
//! meanwhile: so these writes have a connection of their own, and all that have come together share one WAIT.
//!
//! A call that is repeated may find that all is done already, and write nothing. What it found may come from another
//! connection and be confirmed by nobody, so a mark is written before each WAIT: whoever has that has all before it.

use super::{
    address::Endpoint,
    durability::Durability,
    fault::Fault,
    link::Link,
    node::{Call, Preface, reply_of},
    sentinel::Finder,
    stream::Way,
};
use redis::{Cmd, Pipeline, Value};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{mpsc, oneshot},
    task::AbortHandle,
};

/// Calls that share one WAIT, at most: each is bounded, and so is the time that they take together.
const BATCH_MAX: usize = 256;
const QUEUE_MAX: usize = 10_000;

pub(super) struct Lane {
    queue: mpsc::Sender<Waiting>,
    task: AbortHandle,
}

struct Waiting {
    call: Call,
    preface: Preface,
    answer: oneshot::Sender<Result<Confirmed, Fault>>,
}

/// A reply, and why it is not as durable as it must be.
pub(super) struct Confirmed {
    pub(super) reply: Result<Value, Fault>,
    pub(super) shortfall: Option<String>,
}

impl Lane {
    pub(super) fn start(finder: Finder, way: &Arc<Way>) -> Self {
        let options = &way.options;
        let timeout = options.response_timeout + options.confirm_within;
        let link = Link::start(finder, way.clone(), timeout, None);
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let confirm = Confirm { level: options.durability, within: options.confirm_within };
        let task = tokio::spawn(work(link, waiting, confirm)).abort_handle();
        Self { queue, task }
    }

    pub(super) async fn run(&self, call: Call, preface: Preface) -> Result<Confirmed, Fault> {
        let (answer, answered) = oneshot::channel();
        let full = |_| Fault::Unsent("too many writes wait for replicas".into());
        self.queue.try_send(Waiting { call, preface, answer }).map_err(full)?;
        answered.await.unwrap_or_else(|_| Err(Fault::Lost("the connection was closed".into())))
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn work(link: Link, mut waiting: mpsc::Receiver<Waiting>, confirm: Confirm) {
    let mut batch = Vec::new();
    while waiting.recv_many(&mut batch, BATCH_MAX).await > 0 {
        send(&link, &mut batch, confirm).await;
    }
}

async fn send(link: &Link, batch: &mut Vec<Waiting>, confirm: Confirm) {
    let mut commands = redis::pipe();
    let counts: Vec<_> =
        batch.iter().map(|waiting| waiting.call.write(waiting.preface, &mut commands)).collect();
    confirm.write(batch, &mut commands);
    match link.send(&commands).await {
        Ok((line, mut replies)) => {
            let (confirmed, marked) = (replies.pop(), replies.pop());
            let shortfall = match (marked, confirmed) {
                (Some(marked), Some(confirmed)) => {
                    unmarked(marked, &line.endpoint).or_else(|| confirm.shortfall(&confirmed))
                }
                _ => Some("a reply is missing".to_owned()),
            };
            let mut replies = replies.into_iter();
            for (waiting, count) in batch.drain(..).zip(counts) {
                let reply = reply_of(&mut replies, count, &line);
                let _ = waiting.answer.send(Ok(Confirmed { reply, shortfall: shortfall.clone() }));
            }
        }
        Err(fault) => {
            for waiting in batch.drain(..) {
                let _ = waiting.answer.send(Err(fault.clone()));
            }
        }
    }
}

/// Writes something beside `key`, in its slot, and leaves nothing behind; also where memory is used up.
pub(super) fn mark(key: &[u8]) -> Cmd {
    const MARK: &str = "#!lua flags=allow-oom\n\
                        redis.call('SET', KEYS[1], '') return redis.call('DEL', KEYS[1])";
    let mut cmd = redis::cmd("EVAL");
    cmd.arg(MARK).arg(1).arg([key, b"~"].concat());
    cmd
}

/// Why there is no mark. A slot on its way refuses it; then WAIT tells of this connection's own writes, as ever.
fn unmarked(reply: Value, endpoint: &Endpoint) -> Option<String> {
    let Value::ServerError(error) = reply else { return None };
    match Fault::of(&error, endpoint) {
        Fault::Moved(_) | Fault::Ask(_) | Fault::TryAgain => None,
        fault => Some(fault.told(true).to_string()),
    }
}

#[derive(Clone, Copy, Debug)]
struct Confirm {
    level: Durability,
    within: Duration,
}

impl Confirm {
    fn write(self, batch: &[Waiting], commands: &mut Pipeline) {
        // Plain commands leave something to wait for by themselves, and may be for keys that no mark can be beside.
        let beside = batch.iter().find(|waiting| waiting.call.script.is_some());
        let beside = beside.or_else(|| batch.first()).map(|waiting| &waiting.call.key[..]);
        commands.add_command(mark(beside.unwrap_or_default()));
        let within = self.within.as_millis() as u64;
        match self.level {
            Durability::Primary => commands.cmd("WAIT").arg(0).arg(within),
            Durability::Replicated(replicas) => commands.cmd("WAIT").arg(replicas).arg(within),
            Durability::Fsync(replicas) => commands.cmd("WAITAOF").arg(1).arg(replicas).arg(within),
        };
    }

    /// What is missing, if something is.
    fn shortfall(self, reply: &Value) -> Option<String> {
        let within = self.within;
        match (self.level, reply) {
            (_, Value::ServerError(error)) => {
                Some(format!("{} {}", error.code(), error.details().unwrap_or_default()))
            }
            (Durability::Primary, _) => None,
            (Durability::Replicated(wanted), Value::Int(have)) if *have >= i64::from(wanted) => {
                None
            }
            (Durability::Replicated(wanted), Value::Int(have)) => {
                Some(format!("{have} of {wanted} replicas have it after {within:?}"))
            }
            (Durability::Fsync(wanted), reply) => match fsynced(reply) {
                Some((1.., have)) if have >= i64::from(wanted) => None,
                Some((1.., have)) => Some(format!(
                    "{have} of {wanted} replicas have it on their disks after {within:?}"
                )),
                _ => Some(format!("the primary does not have it on its disk after {within:?}")),
            },
            (_, reply) => Some(format!("WAIT was answered with {reply:?}")),
        }
    }
}

/// How many have it on their disks: the primary, replicas.
fn fsynced(reply: &Value) -> Option<(i64, i64)> {
    match reply {
        Value::Array(counts) => match counts[..] {
            [Value::Int(primary), Value::Int(replicas)] => Some((primary, replicas)),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shortfall(level: Durability, reply: Value) -> Option<String> {
        Confirm { level, within: Duration::from_secs(1) }.shortfall(&reply)
    }

    #[test]
    fn too_few_replicas_are_told_with_their_number() {
        assert_eq!(shortfall(Durability::Replicated(1), Value::Int(1)), None);
        assert_eq!(shortfall(Durability::Replicated(1), Value::Int(2)), None);
        let short = shortfall(Durability::Replicated(2), Value::Int(1));
        assert_eq!(short.as_deref(), Some("1 of 2 replicas have it after 1s"));
        assert!(shortfall(Durability::Replicated(1), Value::Nil).is_some());
    }

    #[test]
    fn fsync_needs_the_primary_and_its_replicas() {
        let reply =
            |primary, replicas| Value::Array(vec![Value::Int(primary), Value::Int(replicas)]);
        assert_eq!(shortfall(Durability::Fsync(0), reply(1, 0)), None);
        assert_eq!(shortfall(Durability::Fsync(1), reply(1, 1)), None);
        let replica = shortfall(Durability::Fsync(1), reply(1, 0)).unwrap();
        assert!(replica.starts_with("0 of 1 replicas"), "{replica}");
        let primary = shortfall(Durability::Fsync(1), reply(0, 1)).unwrap();
        assert!(primary.starts_with("the primary does not"), "{primary}");
    }
}
