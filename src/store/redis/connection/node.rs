//! One server and the ways to it: a connection for most calls, and one for writes that replicas must confirm.

use super::durability::Durability;
use super::failover_monitor::FailoverMonitor;
use super::fault::Fault;
use super::reconnecting::{LiveConnection, Reconnecting};
use super::replicated_writes::ReplicatedWrites;
use super::script::Script;
use super::sentinel::Finder;
use super::stream::Connector;
use redis::{Cmd, Pipeline, Value};
use std::sync::Arc;

/// One call: what to send, and what it means.
#[derive(Clone)]
pub(super) struct Call {
    /// Where it belongs.
    pub(super) key: Vec<u8>,
    pub(super) cmd: Cmd,
    pub(super) script: Option<Script>,
    pub(super) writes: bool,
}

/// What a call needs in front of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Preface {
    /// Redis has to load the script first.
    pub(super) load: bool,
    /// The slot is being moved here.
    pub(super) asking: bool,
}

pub(super) struct Node {
    pub(super) connection: Reconnecting,
    replicated: Option<ReplicatedWrites>,
}

impl Node {
    pub(super) fn start(finder: Finder, connector: &Arc<Connector>, monitor: &Arc<FailoverMonitor>) -> Self {
        let timeout = connector.options.response_timeout;
        let connection = Reconnecting::start(finder.clone(), connector.clone(), timeout, Some(monitor.clone()));
        let confirmed = connector.options.durability != Durability::Primary;
        let replicated = confirmed.then(|| ReplicatedWrites::start(finder, connector));
        Self { connection, replicated }
    }

    /// The reply to one command of our own; an error of the server is a reply as well.
    pub(super) async fn ask(&self, cmd: &Cmd) -> Result<Value, String> {
        let mut commands = redis::pipe();
        commands.add_command(cmd.clone());
        let (_, mut replies) =
            self.connection.send(&commands).await.map_err(|fault| fault.store_error(false).to_string())?;
        replies.pop().ok_or_else(|| "a reply is missing".into())
    }

    /// Runs a call once.
    pub(super) async fn run(&self, call: &Call, preface: Preface) -> Result<Value, Fault> {
        if let Some(replicated) = self.replicated.as_ref().filter(|_| call.writes) {
            return replicated.run(call.clone(), preface).await;
        }
        let mut commands = redis::pipe();
        let count = call.write(preface, &mut commands);
        let (connection, mut replies) = self.connection.send(&commands).await?;
        reply_of(&mut replies.drain(..), count, &connection)
    }
}

impl Call {
    /// Adds its commands, and says how many they are; the last has the reply.
    pub(super) fn write(&self, preface: Preface, commands: &mut Pipeline) -> usize {
        let before = commands.len();
        if let Some(script) = self.script.as_ref().filter(|_| preface.load) {
            commands.add_command(script.load());
        }
        // Holds for the very next command only.
        if preface.asking {
            commands.cmd("ASKING");
        }
        commands.add_command(self.cmd.clone());
        commands.len() - before
    }
}

/// Takes the replies of one call, and looks at the last.
pub(super) fn reply_of(
    replies: &mut impl Iterator<Item = Value>, count: usize, connection: &LiveConnection,
) -> Result<Value, Fault> {
    match replies.take(count).last() {
        Some(Value::ServerError(error)) => {
            let fault = Fault::of(&error, &connection.endpoint);
            if let Fault::Refused { error, broken: true } = &fault {
                connection.mark_broken(&error.to_string());
            }
            Err(fault)
        }
        Some(reply) => Ok(reply),
        None => Err(Fault::Lost("a reply is missing".into())),
    }
}
