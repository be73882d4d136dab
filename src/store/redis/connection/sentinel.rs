//! Where the primary is: where it was said to be, or where the sentinels say it is now.

use super::{address::Endpoint, fault, secret::Credentials, stream::Connector};
use redis::Value;
use std::collections::HashMap;
use tokio::task::JoinSet;

#[derive(Clone, Debug)]
pub(super) enum Finder {
    Fixed(Endpoint),
    /// A server of a Cluster: it says itself what is not its own.
    OfCluster(Endpoint),
    Sentinel {
        sentinels: Vec<Endpoint>,
        name: String,
        credentials: Credentials,
    },
}

impl Finder {
    pub(super) fn must_be_primary(&self) -> bool {
        !matches!(self, Self::OfCluster(_))
    }

    /// One sentinel that was cut off may still name the old primary: the most have it.
    pub(super) async fn find(&self, connector: &Connector) -> Result<Endpoint, String> {
        let (sentinels, name, credentials) = match self {
            Self::Fixed(endpoint) | Self::OfCluster(endpoint) => return Ok(endpoint.clone()),
            Self::Sentinel { sentinels, name, credentials } => (sentinels, name, credentials),
        };
        let (most, failures) = votes(connector, sentinels, name, credentials).await;
        let none = || format!("none of {} sentinels knows {name:?}: {}", sentinels.len(), failures.join("; "));
        most.map(|(endpoint, _)| endpoint).ok_or_else(none)
    }

    /// The primary that most of all sentinels agree on, if it is not this one.
    pub(super) async fn other_primary(&self, connector: &Connector, this: &Endpoint) -> Option<Endpoint> {
        let Self::Sentinel { sentinels, name, credentials } = self else { return None };
        let (most, failures) = votes(connector, sentinels, name, credentials).await;
        for why in failures {
            tracing::debug!("a sentinel does not name the primary of {name:?}: {why}");
        }
        let (other, votes) = most?;
        (other != *this && votes > sentinels.len() / 2).then_some(other)
    }
}

/// The primary that the most sentinels name, with their number; and why others name none.
async fn votes(
    connector: &Connector, sentinels: &[Endpoint], name: &str, credentials: &Credentials,
) -> (Option<(Endpoint, usize)>, Vec<String>) {
    let connector = Connector { credentials: credentials.clone(), db: 0, ..connector.clone() };
    let mut asked = JoinSet::new();
    for sentinel in sentinels {
        let (connector, sentinel, name) = (connector.clone(), sentinel.clone(), name.to_owned());
        asked.spawn(async move {
            let answer = ask(&connector, &sentinel, &name).await;
            answer.map_err(|why| format!("{sentinel}: {why}"))
        });
    }
    let (mut votes, mut failures) = (HashMap::new(), Vec::new());
    for answer in asked.join_all().await {
        match answer {
            Ok(endpoint) => *votes.entry(endpoint).or_default() += 1,
            Err(why) => failures.push(why),
        }
    }
    (votes.into_iter().max_by_key(|(_, votes)| *votes), failures)
}

/// The time for the answer is bounded by the connection itself.
async fn ask(connector: &Connector, sentinel: &Endpoint, name: &str) -> Result<Endpoint, String> {
    let (mut connection, driver) = connector.connect(sentinel, connector.options.connect_timeout).await?;
    let mut ask = redis::cmd("SENTINEL");
    ask.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let reply = tokio::select! {
        reply = connection.send_packed_command(&ask) => reply.map_err(|error| error.to_string())?,
        () = driver => return Err("it has closed the connection".into()),
    };
    match reply {
        Value::ServerError(error) => Err(fault::text(&error)),
        Value::Nil => Err("it does not watch this name".into()),
        reply => {
            let (host, port) = redis::from_redis_value(reply).map_err(|error| error.to_string())?;
            Ok(Endpoint::Tcp { host, port })
        }
    }
}
