//! TCP's states as they look from the middle (RFC 9293, 3.3.2), without sequence numbers.
//!
//! Software has no window for an offloaded flow, so it believes no segment: FIN and RST only shorten the timeout, and a
//! connection that goes on afterwards is brought back (`worker::ageing`). A forged RST kills nothing (invariant 3).

use super::connection::State;
use crate::flow::Direction;
use crate::wire::tcp::{ACK, FIN, RST, SYN};

/// The state after a packet with `flags` in `direction`.
///
/// A SYN from the client on a connection that is over starts it anew; the caller decides whether it may. That a client's
/// packet in [`State::SynReceived`] acknowledges the SYN-ACK ([`acknowledges`]) is the caller's to see.
pub fn next(state: State, direction: Direction, flags: u8) -> State {
    use Direction::{FromBackend, FromClient};
    if flags & RST != 0 {
        return State::Reset;
    }
    if flags & SYN != 0 {
        return match (state, direction, flags & ACK != 0) {
            (State::Closed | State::Reset, FromClient, false) => State::SynSent,
            (State::SynSent, FromBackend, true) => State::SynReceived,
            // a retransmission, or a forgery that the ends will answer with a challenge (RFC 5961, 4)
            _ => state,
        };
    }
    let fin = flags & FIN != 0;
    match (state, direction) {
        (State::SynReceived | State::Established, FromClient) if fin => State::FinClient,
        (State::SynReceived | State::Established, FromBackend) if fin => State::FinBackend,
        (State::SynReceived, FromClient) => State::Established,
        (State::FinClient, FromBackend) if fin => State::Closed,
        (State::FinBackend, FromClient) if fin => State::Closed,
        _ => state,
    }
}

/// How far behind the SYN-ACK the first acknowledgement may be: what a backend can have sent on its heels (RFC 7413).
const PROOF_WINDOW: u32 = 1 << 16;

/// The least acknowledgement of a client that has got a SYN-ACK of this sequence number. Never 0.
pub fn proof(sequence: u32) -> u32 {
    match sequence.wrapping_add(1) {
        0 => u32::MAX,
        next => next,
    }
}

/// Whether an acknowledgement number shows that the SYN-ACK of this proof has been received. Who has not, and guesses,
/// is right once in 65,536 times.
pub fn acknowledges(proof: u32, acknowledgement: u32) -> bool {
    proof != 0 && acknowledgement.wrapping_sub(proof) < PROOF_WINDOW
}

#[cfg(test)]
mod tests {
    use super::*;
    use Direction::{FromBackend, FromClient};

    fn run(steps: &[(Direction, u8)]) -> State {
        steps.iter().fold(State::SynSent, |state, &(direction, flags)| next(state, direction, flags))
    }

    #[test]
    fn a_whole_life() {
        let handshake = [(FromClient, SYN), (FromBackend, SYN | ACK)];
        assert_eq!(run(&handshake), State::SynReceived);
        let open = [handshake[0], handshake[1], (FromClient, ACK)];
        assert_eq!(run(&open), State::Established);
        let half = [open.as_slice(), &[(FromBackend, FIN | ACK), (FromClient, ACK)]].concat();
        assert_eq!(run(&half), State::FinBackend);
        let closed = [half.as_slice(), &[(FromClient, FIN | ACK), (FromBackend, ACK)]].concat();
        assert_eq!(run(&closed), State::Closed);
        let anew = [closed.as_slice(), &[(FromClient, SYN)]].concat();
        assert_eq!(run(&anew), State::SynSent);
    }

    #[test]
    fn a_syn_changes_no_living_connection() {
        for state in [State::SynReceived, State::Established, State::FinClient, State::FinBackend] {
            assert_eq!(next(state, FromClient, SYN), state);
            assert_eq!(next(state, FromBackend, SYN | ACK), state);
        }
    }

    #[test]
    fn nothing_but_a_syn_ack_answers_a_syn() {
        assert_eq!(run(&[(FromClient, ACK)]), State::SynSent);
        assert_eq!(run(&[(FromBackend, ACK)]), State::SynSent);
        assert_eq!(run(&[(FromBackend, RST | ACK)]), State::Reset);
    }

    #[test]
    fn a_fin_out_of_nowhere_opens_nothing() {
        assert_eq!(run(&[(FromClient, FIN | ACK)]), State::SynSent);
        assert_eq!(run(&[(FromBackend, FIN | ACK)]), State::SynSent);
    }

    #[test]
    fn only_who_got_the_syn_ack_acknowledges_it() {
        for sequence in [0, 1, 70_000, u32::MAX - 70_000, u32::MAX - 2, u32::MAX - 1, u32::MAX] {
            let proof = proof(sequence);
            assert!(acknowledges(proof, sequence.wrapping_add(1)), "{sequence}");
            assert!(acknowledges(proof, sequence.wrapping_add(1000)));
            assert!(
                !acknowledges(proof, sequence.wrapping_sub(1)) && !acknowledges(proof, sequence.wrapping_add(70_000))
            );
        }
        assert!(!acknowledges(0, 0) && !acknowledges(0, 1), "there was no SYN-ACK");
    }

    #[test]
    fn a_reset_connection_stays_so_until_it_is_judged() {
        assert_eq!(next(State::Reset, FromClient, ACK), State::Reset);
        assert_eq!(next(State::Reset, FromBackend, FIN | ACK), State::Reset);
        assert_eq!(next(State::Reset, FromBackend, SYN | ACK), State::Reset);
    }
}
