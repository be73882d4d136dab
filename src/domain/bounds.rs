//! What clients together, and each of them, may take of the server. `[limits]` of the file sets them.

use super::macros::with_defaults;
use std::time::Duration;

with_defaults! {
    #[derive(Clone, Debug, PartialEq, Eq)]
    Bounds {
        /// At once; when all are taken, one without a call makes way.
        connections: usize = 10_000,
        /// From one IP address, or one /64 of IPv6. None: half of `connections`.
        connections_per_peer: Option<usize> = None,
        /// Open at once on a connection, as HTTP/2 tells the client.
        calls_per_connection: usize = 256,
        /// Claims that wait and Work streams of a connection: the rest is for calls that settle.
        waits_per_connection: usize = 200,
        /// The same of all connections.
        waits: usize = 10_000,
        /// Of one IP address. None: half of `waits`.
        waits_per_peer: Option<usize> = None,
        /// Calls of all connections; those that settle may be half as many more.
        calls: usize = 50_000,
        /// Of one IP address, half as many more for those that settle. None: half of `calls`.
        calls_per_peer: Option<usize> = None,
        /// All headers of a call.
        header_bytes: usize = 16 << 10,
        /// One request. Those that bring neither jobs nor settlements have at most 64 KiB.
        request_bytes: usize = 6 << 20,
        /// Messages on their way, of all connections: requests not yet complete and replies not yet read.
        message_bytes: usize = 96 << 20,
        /// The same of one IP address; less where others have taken theirs. None: half of `message_bytes`.
        message_bytes_per_peer: Option<usize> = None,
        /// The same of one connection; also at most a part of what is left for all and for its address.
        message_bytes_per_connection: usize = 12 << 20,
        /// PING, SETTINGS, RST_STREAM, PRIORITY and frames without content, of a connection each second.
        control_frames_per_second: usize = 10_000,
        /// From the connection to HTTP/2's preface, and from the beginning of a call's headers to their end.
        preface_timeout: Duration = Duration::from_secs(10),
        /// From a call's headers to the end of its request; of Work to its first message.
        request_timeout: Duration = Duration::from_secs(30),
        /// From a reply to its last byte on its way to the client.
        read_timeout: Duration = Duration::from_secs(60),
        /// A connection is ended after about this long, so that load moves on to other servers: ± 10 %.
        connection_age: Duration = Duration::from_secs(30 * 60),
        /// From then on for calls that are open.
        connection_age_grace: Duration = Duration::from_secs(60),
        /// Queues that come into being by being used.
        new_queues_per_minute: usize = 1_000,
    }
}

impl Bounds {
    pub fn connections_per_peer(&self) -> usize {
        self.connections_per_peer.unwrap_or_else(|| self.connections.div_ceil(2))
    }

    pub fn waits_per_peer(&self) -> usize {
        self.waits_per_peer.unwrap_or_else(|| self.waits.div_ceil(2))
    }

    pub fn message_bytes_per_peer(&self) -> usize {
        self.message_bytes_per_peer.unwrap_or(self.message_bytes / 2).min(self.message_bytes)
    }

    pub fn calls_per_peer(&self) -> usize {
        self.calls_per_peer.unwrap_or_else(|| self.calls.div_ceil(2))
    }
}
