//! The server's counters of itself.

use crate::http_server::{Closed, ServerCounts};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

/// The HTTP status codes there are answers with.
pub(super) const CODES: [u16; 7] = [200, 400, 404, 405, 413, 421, 503];

/// Totals since the start of the server.
#[derive(Debug)]
pub(super) struct MetricsCounts {
    /// Connections and answers.
    pub(super) server: ServerCounts,
    started_unix_s: OnceLock<f64>,
}

impl Default for MetricsCounts {
    fn default() -> MetricsCounts {
        MetricsCounts { server: ServerCounts::new(&CODES, Closed::CLEAR_TEXT), started_unix_s: OnceLock::new() }
    }
}

impl MetricsCounts {
    /// When a process with this uptime started, in seconds since 1970. Worked out once, so that it stays the same
    /// however the clock is set.
    pub(super) fn started(&self, uptime_s: f64) -> f64 {
        *self.started_unix_s.get_or_init(|| {
            let uptime = Duration::try_from_secs_f64(uptime_s).unwrap_or_default();
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            // To the millisecond: more would pretend too much.
            now.saturating_sub(uptime).as_millis() as f64 / 1000.0
        })
    }
}
