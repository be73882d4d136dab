//! Writes that replicas must confirm. WAIT covers what its own connection has written, and holds that connection up
//! meanwhile: so these writes have a connection of their own, and all that have come together share one WAIT.
//!
//! A call that is repeated may find that all is done already, and write nothing. What it found may come from another
//! connection and be unconfirmed, so a mark is written before each WAIT: a replica with the mark has all before it.

use super::address::Endpoint;
use super::durability::Durability;
use super::fault::{self, Fault};
use super::node::{Call, Preface, reply_of};
use super::reconnecting::Reconnecting;
use super::sentinel::Finder;
use super::stream::Connector;
use super::task::Task;
use crate::store::StoreError;
use redis::{Cmd, Pipeline, Value};
use std::{sync::Arc, time::Duration};
use tokio::sync::{mpsc, oneshot};

/// Calls that share one WAIT, at most: each is bounded, and so is the time that they take together.
const BATCH_MAX: usize = 256;
const QUEUE_MAX: usize = 10_000;

pub(super) struct ReplicatedWrites {
    queue: mpsc::Sender<Waiting>,
    _task: Task,
}

struct Waiting {
    call: Call,
    preface: Preface,
    answer: oneshot::Sender<Result<Value, Fault>>,
}

impl ReplicatedWrites {
    pub(super) fn start(finder: Finder, connector: &Arc<Connector>) -> Self {
        let options = &connector.options;
        let timeout = options.response_timeout + options.confirm_within;
        let reconnecting = Reconnecting::start(finder, connector.clone(), timeout, None);
        let (queue, mut waiting) = mpsc::channel(QUEUE_MAX);
        let confirm = Confirm { level: options.durability, within: options.confirm_within };
        let work = async move {
            let mut batch = Vec::new();
            while waiting.recv_many(&mut batch, BATCH_MAX).await > 0 {
                send(&reconnecting, &mut batch, confirm).await;
            }
        };
        Self { queue, _task: Task::spawn(work) }
    }

    /// The reply, once it is as durable as it must be.
    pub(super) async fn run(&self, call: Call, preface: Preface) -> Result<Value, Fault> {
        let (answer, answered) = oneshot::channel();
        let full = |_| Fault::Unsent("too many writes wait for replicas".into());
        self.queue.try_send(Waiting { call, preface, answer }).map_err(full)?;
        answered.await.unwrap_or_else(|_| Err(Fault::Lost("the connection was closed".into())))
    }
}

async fn send(reconnecting: &Reconnecting, batch: &mut Vec<Waiting>, confirm: Confirm) {
    let mut commands = redis::pipe();
    let counts: Vec<_> = batch.iter().map(|waiting| waiting.call.write(waiting.preface, &mut commands)).collect();
    confirm.write(batch, &mut commands);
    // A caller that has gone away needs no answer.
    let (connection, mut replies) = match reconnecting.send(&commands).await {
        Ok(sent) => sent,
        Err(fault) => {
            return batch.drain(..).for_each(|waiting| drop(waiting.answer.send(Err(fault.clone()))));
        }
    };
    let shortfall = match (replies.pop(), replies.pop()) {
        (Some(confirmed), Some(marked)) => {
            unmarked(&marked, &connection.endpoint).or_else(|| confirm.shortfall(&confirmed))
        }
        _ => Some("a reply is missing".to_owned()),
    };
    let mut replies = replies.into_iter();
    for (waiting, count) in batch.drain(..).zip(counts) {
        let reply = reply_of(&mut replies, count, &connection);
        let answer = match &shortfall {
            Some(why) if reply.is_ok() => {
                let error = StoreError::DurabilityNotConfirmed(why.clone());
                Err(Fault::Refused { error, broken: false })
            }
            _ => reply,
        };
        drop(waiting.answer.send(answer));
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

/// Why there is no mark. A slot on its way refuses it; then WAIT covers this connection's own writes, as ever.
fn unmarked(reply: &Value, endpoint: &Endpoint) -> Option<String> {
    let Value::ServerError(error) = reply else { return None };
    match Fault::of(error, endpoint) {
        Fault::Moved(_) | Fault::Ask(_) | Fault::TryAgain => None,
        fault => Some(fault.store_error(true).to_string()),
    }
}

/// What is waited for after each write.
#[derive(Clone, Copy, Debug)]
pub struct Confirm {
    pub level: Durability,
    pub within: Duration,
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
    pub fn shortfall(self, reply: &Value) -> Option<String> {
        let not_on_disk = || Some(format!("the primary does not have it on its disk after {:?}", self.within));
        let (have, wanted, how) = match (self.level, reply) {
            (_, Value::ServerError(error)) => return Some(fault::text(error)),
            (Durability::Primary, _) => return None,
            (Durability::Replicated(wanted), Value::Int(have)) => (*have, wanted, "have it"),
            (Durability::Replicated(_), reply) => return Some(format!("WAIT was answered with {reply:?}")),
            (Durability::Fsync(wanted), Value::Array(counts)) => match counts[..] {
                [Value::Int(1..), Value::Int(have)] => (have, wanted, "have it on their disks"),
                _ => return not_on_disk(),
            },
            (Durability::Fsync(_), _) => return not_on_disk(),
        };
        let short = || format!("{have} of {wanted} replicas {how} after {:?}", self.within);
        (have < i64::from(wanted)).then(short)
    }
}
