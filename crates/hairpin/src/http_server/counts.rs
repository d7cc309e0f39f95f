//! A server's counters of itself.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a connection was closed other than in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
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
    pub(crate) const ALL: [Closed; 6] =
        [Closed::Refused, Closed::GaveWay, Closed::Timeout, Closed::Malformed, Closed::Broken, Closed::AcceptFailed];

    /// Its label.
    pub(crate) fn name(self) -> &'static str {
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

/// Totals since the start of the server.
#[derive(Debug)]
pub(crate) struct ServerCounts {
    closed: [AtomicU64; Closed::ALL.len()],
    /// The HTTP status codes there are answers with.
    codes: &'static [u16],
    answers: Box<[AtomicU64]>,
}

impl ServerCounts {
    /// Those of a server whose answers have these status codes.
    pub(crate) fn new(codes: &'static [u16]) -> ServerCounts {
        ServerCounts { closed: Default::default(), codes, answers: codes.iter().map(|_| AtomicU64::new(0)).collect() }
    }

    /// A connection ended out of order.
    pub(crate) fn close(&self, why: Closed) {
        self.closed[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A request was answered with `code`.
    pub(crate) fn answer(&self, code: u16) {
        if let Some(index) = self.codes.iter().position(|known| *known == code) {
            self.answers[index].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Connections that ended out of order, by label.
    pub(crate) fn closed(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Closed::ALL.iter().zip(&self.closed).map(|(why, count)| (why.name(), count.load(Ordering::Relaxed)))
    }

    /// Answers by status code.
    pub(crate) fn answers(&self) -> impl Iterator<Item = (u16, u64)> {
        self.codes.iter().zip(&self.answers).map(|(code, count)| (*code, count.load(Ordering::Relaxed)))
    }
}
