//! Hints from other servers: what is published, heard by whoever listens just then.
//!
//! A hint may get lost, so nobody may rely on one; that some may have been lost is told. In a Cluster every server hears
//! what is published on any, so one connection is enough there, too.

use super::{address::Endpoint, link::pause, sentinel::Finder, stream::Way};
use crate::env;
use redis::{Msg, aio::PubSub};
use std::sync::Arc;
use tokio::{
    sync::mpsc,
    task::AbortHandle,
    time::{sleep, timeout},
};
use tokio_stream::StreamExt;

/// Hints that nobody has taken yet; beyond it they are dropped, which is told as well.
const WAITING_MAX: usize = 4_096;

/// What is heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    Message {
        channel: Vec<u8>,
        payload: Vec<u8>,
    },
    /// Before this, some may have been missed: at the beginning, and after every interruption.
    Gap,
}

/// Listens until dropped.
#[derive(Debug)]
pub struct Ear {
    heard: mpsc::Receiver<Heard>,
    task: AbortHandle,
}

impl Ear {
    pub(super) fn start(places: Places, way: Arc<Way>, pattern: String) -> Self {
        let (hear, heard) = mpsc::channel(WAITING_MAX);
        let task = tokio::spawn(listen(places, way, pattern, hear)).abort_handle();
        Self { heard, task }
    }

    /// Waits for the next. None: never again.
    pub async fn next(&mut self) -> Option<Heard> {
        self.heard.recv().await
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Where one can listen: the primary, or any server of a Cluster.
pub(super) enum Places {
    One(Finder),
    Any(Box<dyn Fn() -> Vec<Endpoint> + Send + Sync>),
}

impl Places {
    async fn next(&self, way: &Way, tries: u32) -> Result<Endpoint, String> {
        match self {
            Self::One(finder) => finder.find(way).await,
            Self::Any(all) => {
                let all = all();
                let at = tries as usize % all.len().max(1);
                all.into_iter().nth(at).ok_or_else(|| "no server of the Cluster is known".into())
            }
        }
    }
}

async fn listen(places: Places, way: Arc<Way>, pattern: String, hear: mpsc::Sender<Heard>) {
    let mut tries = 0;
    loop {
        let connected = async {
            let endpoint = places.next(&way, tries).await?;
            subscribe(&way, &endpoint, &pattern).await
        };
        match connected.await {
            Ok(messages) => {
                tries = 0;
                pass_on(messages, &hear).await;
            }
            Err(why) => tracing::debug!("nothing is heard from Redis: {why}"),
        }
        tries += 1;
        sleep(pause(tries, env::random())).await;
    }
}

async fn subscribe(way: &Way, endpoint: &Endpoint, pattern: &str) -> Result<PubSub, String> {
    let subscribing = async {
        let stream = way.dial(endpoint).await?;
        let subscribed = async {
            let mut messages = PubSub::new(&way.login()?, stream).await.map_err(told)?;
            messages.psubscribe(pattern).await.map_err(told)?;
            Ok(messages)
        };
        subscribed.await
    };
    let within = way.options.connect_timeout;
    timeout(within, subscribing).await.unwrap_or_else(|_| Err("no answer".into()))
}

fn told(error: redis::RedisError) -> String {
    error.to_string()
}

/// Until the connection ends.
async fn pass_on(mut messages: PubSub, hear: &mpsc::Sender<Heard>) {
    let mut missed = true;
    let mut messages = messages.on_message();
    loop {
        if missed && hear.try_send(Heard::Gap).is_ok() {
            missed = false;
        }
        let Some(message) = messages.next().await else { return };
        missed |= hear.try_send(of(&message)).is_err();
    }
}

fn of(message: &Msg) -> Heard {
    Heard::Message {
        channel: message.get_channel_name().as_bytes().to_vec(),
        payload: message.get_payload_bytes().to_vec(),
    }
}
