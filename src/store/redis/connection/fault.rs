//! What an error means: was anything applied, and who has to change what before it works.

use super::address::Endpoint;
use crate::store::StoreError;
use redis::ServerError;

/// Why there is no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
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
    /// What the caller gets. `writes`: it might have changed something.
    pub fn store_error(self, writes: bool) -> StoreError {
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

    /// An error that the server `asked` has answered with.
    pub fn of(error: &ServerError, asked: &Endpoint) -> Self {
        let (detail, text) = (error.details().unwrap_or_default(), text(error));
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

/// An error as Redis words it.
pub(super) fn text(error: &ServerError) -> String {
    format!("{} {}", error.code(), error.details().unwrap_or_default())
}

/// `3999 127.0.0.1:6381`.
fn redirect(detail: &str, asked: &Endpoint) -> Option<Endpoint> {
    let (host, port) = detail.split_ascii_whitespace().nth(1)?.rsplit_once(':')?;
    asked.sibling(host.trim_start_matches('[').trim_end_matches(']'), port.parse().ok()?)
}
