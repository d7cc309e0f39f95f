//! Requests through the splice, for a caller that times them.

use crate::http::Requests;
use crate::packet::Family;
use crate::script::{CaseRecording, Hand};

/// Requests for 1 KB over kept connections, recorded: what arrives at a worker.
pub struct SplicedRequests {
    requests: Requests,
    recording: CaseRecording,
    rounds: usize,
}

/// A worker of its own with the connections open, before the first round.
pub struct PreparedRequests<'a> {
    of: &'a SplicedRequests,
    hand: Hand,
}

impl SplicedRequests {
    /// So many rounds, of 32 requests each.
    pub fn record(rounds: usize) -> SplicedRequests {
        let requests = Requests { family: Family::V4, new: false, reuse: true, timestamps: false, recorded: false };
        SplicedRequests { requests, recording: requests.record(rounds), rounds }
    }

    /// A worker that has seen all that comes before the rounds.
    pub fn prepare(&self) -> PreparedRequests<'_> {
        let mut hand = Hand::new(Some(self.requests.worker()));
        hand.play_rounds(&self.recording, 0, 0);
        PreparedRequests { of: self, hand }
    }

    /// Requests in all rounds.
    pub fn requests(&self) -> usize {
        self.rounds * self.requests.per_round()
    }
}

impl PreparedRequests<'_> {
    /// Hands all rounds to the worker, once.
    ///
    /// # Panics
    /// When the worker does not send as many frames as the one did that the recording was made with.
    pub fn play(mut self) {
        self.hand.play_rounds(&self.of.recording, 0, self.of.rounds);
    }
}
