//! One server and the ways to it: a connection for most calls, and one for writes that replicas must confirm.

use super::{
    durability::Durability,
    fault::Fault,
    lane::{Confirmed, Lane},
    link::{Line, Link},
    script::Script,
    sentinel::Finder,
    stream::Way,
    watch::Watch,
};
use crate::store::StoreError;
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
    /// Redis has to be told the script first.
    pub(super) load: bool,
    /// The slot is being moved here.
    pub(super) asking: bool,
}

pub(super) struct Node {
    link: Link,
    lane: Option<Lane>,
}

impl Node {
    pub(super) fn start(finder: Finder, way: &Arc<Way>, watch: &Arc<Watch>) -> Self {
        let timeout = way.options.response_timeout;
        let link = Link::start(finder.clone(), way.clone(), timeout, Some(watch.clone()));
        let confirmed = way.options.durability != Durability::Primary;
        let lane = confirmed.then(|| Lane::start(finder, way));
        Self { link, lane }
    }

    /// Waits until it is up, or has been tried in vain.
    pub(super) async fn tried(&self) -> Result<Arc<Line>, String> {
        self.link.tried().await
    }

    pub(super) fn down(&self) -> Option<String> {
        self.link.down()
    }

    /// The replies of several commands, errors of the server included.
    pub(super) async fn ask(&self, commands: &Pipeline) -> Result<Vec<Value>, Fault> {
        self.link.send(commands).await.map(|(_, replies)| replies)
    }

    /// Runs a call once.
    pub(super) async fn run(&self, call: &Call, preface: Preface) -> Result<Value, Fault> {
        match &self.lane {
            Some(lane) if call.writes => {
                let Confirmed { reply, shortfall } = lane.run(call.clone(), preface).await?;
                let reply = reply?;
                match shortfall {
                    None => Ok(reply),
                    Some(why) => {
                        let error = StoreError::DurabilityNotConfirmed(why);
                        Err(Fault::Refused { error, broken: false })
                    }
                }
            }
            _ => {
                let mut commands = redis::pipe();
                let count = call.write(preface, &mut commands);
                let (line, mut replies) = self.link.send(&commands).await?;
                reply_of(&mut replies.drain(..), count, &line)
            }
        }
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
    replies: &mut impl Iterator<Item = Value>,
    count: usize,
    line: &Line,
) -> Result<Value, Fault> {
    match replies.take(count).last() {
        Some(Value::ServerError(error)) => {
            let fault = Fault::of(&error, &line.endpoint);
            if let Fault::Refused { error, broken: true } = &fault {
                line.condemn(&error.to_string());
            }
            Err(fault)
        }
        Some(reply) => Ok(reply),
        None => Err(Fault::Lost("a reply is missing".into())),
    }
}
