//! Hints from other servers: messages that are published, received by the current subscribers.
//!
//! A hint may get lost, so nothing may rely on one; that some may have been lost is an event. In a Cluster every server
//! passes on what is published on any, so one connection is enough there, too.

use super::{Servers, reconnecting::pause, stream::Connector, task::Task};
use crate::env;
use redis::aio::PubSub;
use std::sync::Arc;
use tokio::{sync::mpsc, time::sleep};
use tokio_stream::StreamExt;

/// Hints that were not taken yet; beyond it they are dropped, which is a gap as well.
const WAITING_MAX: usize = 4_096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PubSubEvent {
    Message {
        channel: Vec<u8>,
        payload: Vec<u8>,
    },
    /// Before this, some may have been missed: at the beginning, and after every interruption.
    Gap,
}

/// Ends when dropped.
#[derive(Debug)]
pub struct Subscription {
    events: mpsc::Receiver<PubSubEvent>,
    _task: Task,
}

impl Subscription {
    pub(super) fn start(servers: Servers, connector: Arc<Connector>, pattern: String) -> Self {
        let (sender, events) = mpsc::channel(WAITING_MAX);
        Self { events, _task: Task::spawn(listen(servers, connector, pattern, sender)) }
    }

    /// Waits for the next. None: never again.
    pub async fn next(&mut self) -> Option<PubSubEvent> {
        self.events.recv().await
    }
}

async fn listen(servers: Servers, connector: Arc<Connector>, pattern: String, sender: mpsc::Sender<PubSubEvent>) {
    let mut tries = 0;
    loop {
        match subscribe(&servers, &connector, tries, &pattern).await {
            Ok(messages) => {
                tries = 0;
                pass_on(messages, &sender).await;
                tracing::debug!("the subscription to hints of other servers has ended, and is made anew");
            }
            Err(why) => tracing::debug!("cannot subscribe to Redis: {why}"),
        }
        tries += 1;
        sleep(pause(tries, env::random())).await;
    }
}

async fn subscribe(servers: &Servers, connector: &Connector, tries: u32, pattern: &str) -> Result<PubSub, String> {
    let endpoint = servers.endpoint(connector, tries).await?;
    let as_text = |error: redis::RedisError| error.to_string();
    let subscribing = async {
        let stream = connector.dial(&endpoint).await?;
        let mut messages = PubSub::new(&connector.login()?, stream).await.map_err(as_text)?;
        messages.psubscribe(pattern).await.map_err(as_text)?;
        Ok(messages)
    };
    connector.within(subscribing).await
}

/// Until the connection ends.
async fn pass_on(mut messages: PubSub, sender: &mpsc::Sender<PubSubEvent>) {
    let mut missed = true;
    let mut messages = messages.on_message();
    loop {
        if missed && sender.try_send(PubSubEvent::Gap).is_ok() {
            missed = false;
        }
        let Some(message) = messages.next().await else { return };
        let (channel, payload) = (message.get_channel_name().into(), message.get_payload_bytes().into());
        if let Err(error) = sender.try_send(PubSubEvent::Message { channel, payload }) {
            tracing::debug!("a hint of another server is dropped: {error}");
            missed = true;
        }
    }
}
