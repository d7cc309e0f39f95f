//! Passing a segment of one end on to the other.

use super::numbers::{before, earlier, later};
use super::segment::{Segment, amend, phantoms, resegment};
use super::timestamps::{Timestamps, are_timestamps, forward, insert, replace};
use crate::flow::Direction;
use crate::frame::{Frame, FrameIo};
use crate::l7::sequence::{strip_sack, translate_sack};
use crate::l7::splice::Context;
use crate::l7::splice::state::entry::{BackendConn, ClientConn};
use crate::rewrite::Rewrite;
use crate::wire::Transport;
use crate::wire::bytes::array_at;
use crate::wire::tcp::{self, ACK};
use crate::worker::volume;

/// Passes a segment of the end that `direction` names on to the other, its first byte as `sequence` of the receiver's numbers,
/// with these flags. Both are spliced with each other.
pub(in crate::l7::splice) fn pass<IO: FrameIo>(
    cx: &mut Context<'_, IO>,
    (mut frame, at, segment): (IO::Frame, &Transport, &Segment),
    (client_conn, backend_conn): (&mut ClientConn, &mut BackendConn),
    direction: Direction,
    (sequence, flags): (u32, u8),
) {
    if direction == Direction::FromBackend && segment.payload > 0 {
        client_conn.is_sent_more(cx.now);
        let end = sequence.wrapping_add(segment.payload);
        // One byte asks for a window.
        let is_old = segment.payload > 1 && !before(client_conn.peer.sent, end);
        let is_last = end == client_conn.peer.sent;
        backend_conn.has_repeated |= is_old && (!is_last || backend_conn.has_probed);
        backend_conn.has_probed |= is_old;
    }
    let timestamps = forward(client_conn, backend_conn, direction, segment.timestamps, || cx.clock());
    let inserted = match (timestamps, segment.timestamps) {
        (Some(timestamps), None) => insert(&mut frame, at, timestamps),
        _ => None,
    };
    let at = inserted.as_ref().unwrap_or(at);
    let both = (&*client_conn, &*backend_conn);
    let (acknowledgement, window) = translate(both, (&mut frame, at, segment), direction, flags, timestamps);
    let (packets, bytes) = volume(frame.meta(), at);
    let (source, destination) = match direction {
        Direction::FromClient => (backend_conn.key.destination, backend_conn.key.source),
        Direction::FromBackend => (client_conn.key.destination, client_conn.key.source),
    };
    let sequence_delta = sequence.wrapping_sub(segment.sequence);
    let checksum = frame.meta().checksum;
    Rewrite { source, destination, sequence_delta, ..Rewrite::default() }.apply(frame.bytes_mut(), at, checksum);
    let number = usize::from(backend_conn.number);
    client_conn.forwarded[direction as usize].add(packets, bytes);
    cx.statistics.backends[number].software[direction as usize].add(packets, bytes);
    let to = match direction {
        Direction::FromClient => &mut backend_conn.peer,
        Direction::FromBackend => &mut client_conn.peer,
    };
    let largest = to.mss.saturating_sub((at.payload - at.l4).saturating_sub(20) as u16);
    let size = match frame.meta().gso_size {
        0 => segment.payload,
        size => u32::from(size),
    };
    if size > u32::from(largest) {
        resegment(&mut frame, at, largest);
    }
    to.tell(acknowledgement, window);
    // A bare acknowledgement may come before what its number stands behind.
    if segment.payload > 0 || phantoms(flags) > 0 {
        to.sent = later(to.sent, sequence.wrapping_add(segment.payload).wrapping_add(phantoms(flags)));
    }
    let is_bare = segment.payload == 0 && flags == ACK && is_plain(&frame, at);
    match cx.tx.last_mut() {
        Some(last) if is_bare && supersedes(&frame, last, at) => {
            *last = frame;
            cx.statistics.http.superseded += 1;
        }
        _ => cx.send(frame),
    }
}

/// Makes what a segment says of the receiver's own numbers true for it: acknowledgement number, window and SACK blocks, with
/// these flags. Returns the first two.
fn translate<F: Frame>(
    (client_conn, backend_conn): (&ClientConn, &BackendConn),
    (frame, at, segment): (&mut F, &Transport, &Segment),
    direction: Direction,
    flags: u8,
    timestamps: Option<Timestamps>,
) -> (u32, u16) {
    let (map, from, to) = match direction {
        Direction::FromClient => (&client_conn.down, &client_conn.peer, &backend_conn.peer),
        Direction::FromBackend => (&client_conn.up, &backend_conn.peer, &client_conn.peer),
    };
    let translated = map.acknowledgement(segment.acknowledgement);
    let acknowledgement = later(translated, to.told);
    let most = match direction {
        Direction::FromClient => client_conn.window_for(backend_conn, acknowledgement, u32::MAX),
        Direction::FromBackend => client_conn.most_for_client(acknowledgement),
    };
    let excess = map.window_excess(segment.acknowledgement) + acknowledgement.wrapping_sub(translated);
    let window = (u32::from(segment.window) << from.scale).saturating_sub(excess).min(most);
    let window = to.field(acknowledgement, window);
    // What of ours is behind a response, FIN, its backend has not sent: blocks that cover it would be ignored.
    let ends =
        direction == Direction::FromClient && client_conn.peer.was_closed && client_conn.exchange.response.is_done();
    let end = client_conn.exchange.response_end.get().filter(|_| ends);
    let both_sack = from.sack && to.sack;
    amend(frame, at, (acknowledgement, window, flags), |options| {
        let is_stamped = segment.timestamps.is_some() && replace(options, timestamps);
        let has_only_these = is_stamped && options.len() == tcp::TIMESTAMPS;
        let has_sack = !has_only_these
            && match both_sack {
                true => translate_sack(options, |left, right| upto(map.sack(left, right)?, end)),
                false => strip_sack(options),
            };
        is_stamped || has_sack
    });
    (acknowledgement, window)
}

/// What of a block lies before `end`.
fn upto((left, right): (u32, u32), end: Option<u32>) -> Option<(u32, u32)> {
    let right = end.map_or(right, |end| earlier(right, end));
    before(left, right).then_some((left, right))
}

/// Whether a segment has no options, or timestamps alone.
fn is_plain<F: Frame>(frame: &F, at: &Transport) -> bool {
    let options = frame.bytes().get(at.l4 + tcp::HEADER..at.payload).unwrap_or_default();
    options.is_empty() || are_timestamps(options)
}

/// Whether a bare acknowledgement (`at` says where things are in it) says all that the frame `last` says, and more: that
/// is a bare one of the same connection, too, of less. One after the other in a burst they tell their receiver no more
/// than the last does, and cost a way each: a client acknowledges every segment of a first flight.
fn supersedes<F: Frame>(frame: &F, last: &F, at: &Transport) -> bool {
    let (new, old) = (frame.bytes(), last.bytes());
    // Everything in front of the acknowledged number but identification, hops and IPv4's checksum; then offset and flags.
    let (upto, protocol, from) = if at.key.is_ipv4() { (4, 9, 12) } else { (6, 6, 8) };
    let same = |from: usize, to: usize| old.get(from..to) == new.get(from..to);
    let number = |bytes: &[u8]| Some(u32::from_be_bytes(array_at(bytes, at.l4 + 8)?));
    frame.meta().port == last.meta().port
        && same(12, at.l3 + upto)
        && same(at.l3 + protocol, at.l3 + protocol + 1)
        && same(at.l3 + from, at.l4 + 8)
        && same(at.l4 + 12, at.l4 + 14)
        && same(at.l4 + tcp::HEADER, (at.l4 + tcp::HEADER + 4).min(at.payload))
        && number(old).zip(number(new)).is_some_and(|(old, new)| before(old, new))
}
