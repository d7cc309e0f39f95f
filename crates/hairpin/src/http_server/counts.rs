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
    /// It was no TLS, or either end refused the other one's certificate.
    Handshake,
}

impl Closed {
    /// All of them, in order.
    pub(crate) const ALL: [Closed; 7] = [
        Closed::Refused,
        Closed::GaveWay,
        Closed::Timeout,
        Closed::Malformed,
        Closed::Broken,
        Closed::AcceptFailed,
        Closed::Handshake,
    ];
    /// Those of a server without TLS.
    pub(crate) const CLEAR_TEXT: &[Closed] = {
        const ALL: &[Closed] = &Closed::ALL;
        ALL.split_at(ALL.len() - 1).0
    };

    /// Its label.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Closed::Refused => "refused",
            Closed::GaveWay => "gave-way",
            Closed::Timeout => "timeout",
            Closed::Malformed => "malformed",
            Closed::Broken => "broken",
            Closed::AcceptFailed => "accept-failed",
            Closed::Handshake => "handshake",
        }
    }
}

/// Totals since the start of the server.
#[derive(Debug)]
pub(crate) struct ServerCounts {
    closed: [AtomicU64; Closed::ALL.len()],
    /// The ends that its connections can have.
    ends: &'static [Closed],
    /// The HTTP status codes there are answers with.
    codes: &'static [u16],
    answers: Box<[AtomicU64]>,
}

impl ServerCounts {
    /// Those of a server whose answers have these status codes, and whose connections these ends.
    pub(crate) fn new(codes: &'static [u16], ends: &'static [Closed]) -> ServerCounts {
        let answers = codes.iter().map(|_| AtomicU64::new(0)).collect();
        ServerCounts { closed: Default::default(), ends, codes, answers }
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
        self.ends.iter().map(|why| (why.name(), self.closed[*why as usize].load(Ordering::Relaxed)))
    }

    /// Answers by status code.
    pub(crate) fn answers(&self) -> impl Iterator<Item = (u16, u64)> {
        self.codes.iter().zip(&self.answers).map(|(code, count)| (*code, count.load(Ordering::Relaxed)))
    }
}
