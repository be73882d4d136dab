//! What an error means: was anything applied, and who has to change what before it works.

use super::address::Endpoint;
use crate::store::StoreError;
use redis::ServerError;

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Redis does not know the script, and so has not run it.
    NoScript,
    /// The slot lives elsewhere now; nothing was run.
    Moved(Endpoint),
    /// The slot is on its way there; nothing was run.
    Ask(Endpoint),
    /// The slot's keys are on both sides of a move; nothing was run.
    TryAgain,
    /// Redis is there, and says no before anything is applied. `broken`: this connection leads to the wrong place.
    Refused { error: StoreError, broken: bool },
    /// The script has stopped, and what it did before stays.
    Stopped(String),
    /// Nothing was sent.
    Unsent(String),
    /// It was handed to the connection, and then no answer came.
    Lost(String),
}

impl Fault {
    /// What the caller hears. `writes`: it might have changed something.
    pub(super) fn told(self, writes: bool) -> StoreError {
        match self {
            Self::Refused { error, .. } => error,
            Self::Unsent(why) => StoreError::Unavailable(why),
            Self::Lost(why) | Self::Stopped(why) if writes => StoreError::OutcomeUnknown(why),
            Self::Lost(why) | Self::Stopped(why) => StoreError::Unavailable(why),
            Self::NoScript => StoreError::Unavailable("Redis forgets scripts at once".into()),
            Self::Moved(_) | Self::Ask(_) | Self::TryAgain => {
                StoreError::Unavailable("the Cluster moves this queue about".into())
            }
        }
    }

    pub(super) fn of(error: &ServerError, asked: &Endpoint) -> Self {
        let detail = error.details().unwrap_or_default();
        let text = format!("{} {detail}", error.code());
        let refused = |broken| {
            let error = StoreError::Unavailable(format!("Redis at {asked} says: {text}"));
            Self::Refused { error, broken }
        };
        match error.code() {
            "NOSCRIPT" => Self::NoScript,
            "TRYAGAIN" => Self::TryAgain,
            "MOVED" => redirect(detail, asked).map_or_else(|| refused(false), Self::Moved),
            "ASK" => redirect(detail, asked).map_or_else(|| refused(false), Self::Ask),
            "READONLY" | "LOADING" | "MASTERDOWN" | "NOAUTH" | "WRONGPASS" => refused(true),
            // All of them are said in place of the first write of a script, never after one.
            "CLUSTERDOWN" | "NOREPLICAS" | "MISCONF" | "BUSY" => refused(false),
            "OOM" => Self::Refused { error: StoreError::MemoryLow(text), broken: false },
            _ => Self::Stopped(text),
        }
    }
}

/// `3999 127.0.0.1:6381`; without a host it is the one that was asked.
fn redirect(detail: &str, asked: &Endpoint) -> Option<Endpoint> {
    let (host, port) = detail.split_ascii_whitespace().nth(1)?.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = match (host, asked) {
        ("" | "?", Endpoint::Tcp { host, .. }) => host.as_str(),
        (host, _) => host,
    };
    Some(Endpoint::Tcp { host: host.into(), port: port.parse().ok()? })
}

#[cfg(test)]
mod tests;
