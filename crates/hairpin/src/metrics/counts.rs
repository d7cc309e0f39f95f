//! The server's counters of itself.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Why a connection was closed other than in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closed {
    /// There were as many as there may be, all of them being answered.
    Refused,
    /// It was the oldest without a request when another one needed its place.
    GaveWay,
    /// Its client took too long to send its first request or to read an answer.
    Timeout,
    /// Its request was not HTTP, or too long.
    Malformed,
    /// Its client was gone before the end.
    Broken,
    /// It could not even be accepted.
    AcceptFailed,
}

impl Closed {
    /// All of them, in order.
    pub(super) const ALL: [Closed; 6] =
        [Closed::Refused, Closed::GaveWay, Closed::Timeout, Closed::Malformed, Closed::Broken, Closed::AcceptFailed];

    /// Its label.
    pub(super) fn name(self) -> &'static str {
        match self {
            Closed::Refused => "refused",
            Closed::GaveWay => "gave-way",
            Closed::Timeout => "timeout",
            Closed::Malformed => "malformed",
            Closed::Broken => "broken",
            Closed::AcceptFailed => "accept-failed",
        }
    }
}

/// The HTTP status codes there are answers with.
pub(super) const CODES: [u16; 7] = [200, 400, 404, 405, 413, 421, 503];

/// Totals since the start of the server.
#[derive(Debug, Default)]
pub(super) struct ServerCounts {
    closed: [AtomicU64; Closed::ALL.len()],
    answers: [AtomicU64; CODES.len()],
    started_unix_s: OnceLock<f64>,
}

impl ServerCounts {
    /// A connection ended out of order.
    pub(super) fn close(&self, why: Closed) {
        self.closed[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A request was answered with `code`.
    pub(super) fn answer(&self, code: u16) {
        if let Some(index) = CODES.iter().position(|known| *known == code) {
            self.answers[index].fetch_add(1, Ordering::Relaxed);
        }
    }

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

    /// Connections that ended out of order, by label.
    pub(super) fn closed(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Closed::ALL.iter().zip(&self.closed).map(|(why, count)| (why.name(), count.load(Ordering::Relaxed)))
    }

    /// Answers by status code.
    pub(super) fn answers(&self) -> impl Iterator<Item = (u16, u64)> {
        CODES.iter().zip(&self.answers).map(|(code, count)| (*code, count.load(Ordering::Relaxed)))
    }
}
