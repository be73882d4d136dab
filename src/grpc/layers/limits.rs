//! What one connection may ask for. Before everything that costs memory: a client that floods is stopped by HTTP/2 itself.

use std::time::Duration;
use tonic::transport::Server;

const CALLS_PER_CONNECTION: u32 = 256;
const RESETS_PER_CONNECTION: usize = 1024;
const HEADER_BYTES: u32 = 16 << 10;
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// tonic passes its own defaults on, and some of them switch off what hyper and h2 protect by.
pub(super) fn apply(server: Server) -> Server {
    server
        .max_concurrent_streams(CALLS_PER_CONNECTION)
        .http2_max_local_error_reset_streams(Some(RESETS_PER_CONNECTION))
        .http2_max_header_list_size(HEADER_BYTES)
        .http2_keepalive_interval(Some(PING_EVERY))
        .http2_keepalive_timeout(Some(PING_ANSWERED_WITHIN))
}
