//! Where the primary is: where it was said to be, or where the sentinels say it is now.

use super::{address::Endpoint, secret::Credentials, stream::Way};
use redis::Value;
use std::collections::HashMap;
use tokio::{task::JoinSet, time::timeout};

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

    pub(super) async fn find(&self, way: &Way) -> Result<Endpoint, String> {
        let Self::Sentinel { sentinels, name, .. } = self else {
            return Ok(self.fixed());
        };
        let opinions = self.ask(way).await;
        let mut failures = Vec::new();
        let mut votes: HashMap<Endpoint, usize> = HashMap::new();
        for opinion in opinions {
            match opinion {
                Ok(endpoint) => *votes.entry(endpoint).or_default() += 1,
                Err(why) => failures.push(why),
            }
        }
        // One that was cut off may still name the old primary: the most have it.
        let most = votes.into_iter().max_by_key(|(_, votes)| *votes).map(|(endpoint, _)| endpoint);
        most.ok_or_else(|| {
            format!("none of {} sentinels knows {name:?}: {}", sentinels.len(), failures.join("; "))
        })
    }

    /// The primary that most sentinels agree on, if it is not this one.
    pub(super) async fn other_primary(&self, way: &Way, this: &Endpoint) -> Option<Endpoint> {
        let Self::Sentinel { sentinels, .. } = self else {
            return None;
        };
        let opinions = self.ask(way).await;
        let mut others = opinions.into_iter().flatten().filter(|endpoint| endpoint != this);
        let other = others.next()?;
        let agree = 1 + others.filter(|endpoint| *endpoint == other).count();
        (agree > sentinels.len() / 2).then_some(other)
    }

    fn fixed(&self) -> Endpoint {
        match self {
            Self::Fixed(endpoint) | Self::OfCluster(endpoint) => endpoint.clone(),
            Self::Sentinel { sentinels, .. } => sentinels[0].clone(),
        }
    }

    /// What each of them says, those that do not answer included.
    async fn ask(&self, way: &Way) -> Vec<Result<Endpoint, String>> {
        let Self::Sentinel { sentinels, name, credentials } = self else {
            return Vec::new();
        };
        let way = Way { credentials: credentials.clone(), db: 0, ..way.clone() };
        let mut asked = JoinSet::new();
        for sentinel in sentinels.clone() {
            let (way, name) = (way.clone(), name.clone());
            asked.spawn(async move {
                let answer = ask_one(&way, &sentinel, &name).await;
                answer.map_err(|why| format!("{sentinel}: {why}"))
            });
        }
        asked.join_all().await
    }
}

async fn ask_one(way: &Way, sentinel: &Endpoint, name: &str) -> Result<Endpoint, String> {
    let within = way.options.connect_timeout;
    let (mut connection, driver) = way.connect(sentinel, within).await?;
    let mut ask = redis::cmd("SENTINEL");
    ask.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
    let answer = async {
        tokio::select! {
            reply = connection.send_packed_command(&ask) => reply.map_err(|error| error.to_string()),
            () = driver => Err("it has closed the connection".into()),
        }
    };
    let reply = timeout(within, answer).await.map_err(|_| "no answer".to_owned())??;
    match reply {
        Value::ServerError(error) => Err(error.to_string()),
        Value::Nil => Err("it does not watch this name".into()),
        reply => {
            let (host, port) = redis::from_redis_value(reply).map_err(|error| error.to_string())?;
            Ok(Endpoint::Tcp { host, port })
        }
    }
}
