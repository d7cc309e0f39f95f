//! For which numbers of an exchange a pair of rules holds.

use super::rules::OFFLOAD_RANGE_MAX;
use super::state::entry::{BackendConn, ClientConn};
use super::state::exchange::Message;
use super::tcp::numbers::before;
use crate::engine::Guard;

/// Whether the request is complete and its backend has acknowledged all of it. All that the backend sends from then on has one
/// acknowledgement number.
pub(super) fn only_answers(client_conn: &ClientConn, backend_conn: &BackendConn) -> bool {
    let exchange = &client_conn.exchange;
    exchange.request.is_done()
        && exchange.request_end.get().is_some_and(|end| {
            let end = end.wrapping_add(client_conn.up.delta_at_end());
            !before(backend_conn.peer.acknowledged, end)
        })
}

/// The offload ranges for which the pair of rules of an exchange holds: [the client's packets, the backend's]. `None`: there is
/// no offload range that is long enough.
pub(super) fn guards(client_conn: &ClientConn, backend_conn: &BackendConn, least: u64) -> Option<(Guard, Guard)> {
    let (exchange, down, up) = (&client_conn.exchange, client_conn.down.delta_at_end(), client_conn.up.delta_at_end());
    let is_open = !client_conn.peer.has_closed && !backend_conn.peer.has_closed;
    match (exchange.request.get(), exchange.response.get()) {
        // A response that ends with its connection. Its length is not known: it is worth rules once much of it was forwarded.
        (request, Message::Endless)
            if is_open && client_conn.forwarded.iter().any(|forwarded| forwarded.bytes >= least) =>
        {
            let (sequence, sequence_length) = match request {
                Message::Endless => (client_conn.peer.highest, OFFLOAD_RANGE_MAX as u32),
                _ => (exchange.request_end.get()?, 0),
            };
            let client = Guard {
                sequence,
                sequence_length,
                acknowledgement: backend_conn.peer.highest.wrapping_add(down),
                acknowledgement_length: OFFLOAD_RANGE_MAX as u32,
            };
            let backend = Guard {
                sequence: backend_conn.peer.highest,
                sequence_length: OFFLOAD_RANGE_MAX as u32,
                acknowledgement: sequence.wrapping_add(up),
                acknowledgement_length: sequence_length,
            };
            Some((client, backend))
        }
        // A response: the client sends acknowledgements alone.
        (Message::Done, Message::Bytes { next, left }) if left >= least => {
            let (request_end, length) = (exchange.request_end.get()?, left.min(OFFLOAD_RANGE_MAX) as u32);
            // The last segment of a client's last response goes through the worker, which adds FIN.
            let comes_by = exchange.close_client && left == u64::from(length);
            let client = Guard {
                sequence: request_end,
                sequence_length: 0,
                acknowledgement: next.wrapping_add(down),
                acknowledgement_length: length,
            };
            let backend = Guard {
                sequence: next,
                sequence_length: length - u32::from(comes_by),
                acknowledgement: request_end.wrapping_add(up),
                acknowledgement_length: 0,
            };
            Some((client, backend))
        }
        // A request's body: the backend sends acknowledgements alone, until it answers.
        (Message::Bytes { next, left }, Message::Head) if left >= least => {
            let length = left.min(OFFLOAD_RANGE_MAX) as u32;
            let answer = exchange.response_floor;
            let client = Guard {
                sequence: next,
                sequence_length: length,
                acknowledgement: answer.wrapping_add(down),
                acknowledgement_length: 0,
            };
            let backend = Guard {
                sequence: answer,
                sequence_length: 0,
                acknowledgement: next.wrapping_add(up),
                acknowledgement_length: length,
            };
            Some((client, backend))
        }
        _ => None,
    }
}
