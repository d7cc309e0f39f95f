//! TCP timestamps (RFC 7323) between the two ends of an exchange.
//!
//! Each end has a clock of its own. What one end sends goes to the other with the difference of their clocks added, which is
//! chosen when a client connection gets a backend connection, so that what the receiver sees never runs backwards (it would
//! drop that: RFC 7323, 5.3); what it echoes comes back with the difference taken off again. So a sender measures the way to
//! the other end and back, and the engine can do the same with two additions.
//!
//! A segment of Hairpin's own has the highest value that its receiver may have seen: what it echoes, and what its peer has sent
//! last, for the engine may have forwarded anything up to that. A higher one could make the receiver drop what its peer sends
//! next.

use super::numbers::later;
use super::segment::settle;
use crate::flow::Direction;
use crate::frame::{Frame, FrameIo};
use crate::l7::splice::Context;
use crate::l7::splice::state::entry::{BackendConn, ClientConn};
use crate::wire::Transport;
use crate::wire::bytes::{array_at, u32_at};
use crate::wire::tcp::{self, ALIGNED_TIMESTAMPS, OPTION_PADDING, TIMESTAMPS};

/// Bytes of a TCP header at most.
const HEADER_MAX: usize = 60;
/// Offset of the header's length in words, in the upper half of the byte.
const DATA_OFFSET: usize = 12;

/// What a timestamps option says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::l7::splice) struct Timestamps {
    /// The sender's clock (TSval).
    pub(in crate::l7::splice) value: u32,
    /// The receiver's clock, as the sender has it from the receiver (TSecr).
    pub(in crate::l7::splice) echo: u32,
}

impl Timestamps {
    /// Read from `options`: a header's bytes from the 20th on.
    #[inline]
    pub(in crate::l7::splice) fn of(options: &[u8]) -> Option<Timestamps> {
        let at = match options.first_chunk::<4>()? {
            &ALIGNED_TIMESTAMPS => 4,
            _ => tcp::timestamps(options).last()?,
        };
        Some(Timestamps { value: u32_at(options, at)?, echo: u32_at(options, at + 4)? })
    }

    /// As an option of [`TIMESTAMPS`] bytes.
    pub(in crate::l7::splice) fn option(&self) -> [u8; TIMESTAMPS] {
        let mut option = [0; TIMESTAMPS];
        option[..4].copy_from_slice(&ALIGNED_TIMESTAMPS);
        option[4..8].copy_from_slice(&self.value.to_be_bytes());
        option[8..].copy_from_slice(&self.echo.to_be_bytes());
        option
    }
}

/// Whether `options` are timestamps, aligned, and nothing else.
pub(in crate::l7::splice) fn are_timestamps(options: &[u8]) -> bool {
    options.len() == TIMESTAMPS && array_at(options, 0) == Some(ALIGNED_TIMESTAMPS)
}

/// Writes timestamps over those in `options`; `None`: no-operation options. Says whether there were any.
pub(in crate::l7::splice) fn replace(options: &mut [u8], timestamps: Option<Timestamps>) -> bool {
    let aligned = array_at(options, 0) == Some(ALIGNED_TIMESTAMPS);
    let mut from = 0;
    while let Some(at) = match aligned && from == 0 {
        true => Some(4),
        false => tcp::timestamps(options.get(from..).unwrap_or_default()).next().map(|at| from + at),
    } {
        let Some(option) = options.get_mut(at - 2..at + 8) else { break };
        match timestamps {
            Some(Timestamps { value, echo }) => {
                option[2..6].copy_from_slice(&value.to_be_bytes());
                option[6..].copy_from_slice(&echo.to_be_bytes());
            }
            None => option.fill(OPTION_PADDING),
        }
        from = at + 8;
    }
    from > 0
}

/// Puts timestamps into a segment that has none, in front of its other options. Returns where things are now; `None`, and nothing
/// is changed: the header or the frame has no room.
pub(in crate::l7::splice) fn insert<F: Frame>(
    frame: &mut F,
    at: &Transport,
    timestamps: Timestamps,
) -> Option<Transport> {
    let header = at.payload.checked_sub(at.l4)? + TIMESTAMPS;
    if header > HEADER_MAX || !frame.resize(at.end + TIMESTAMPS) {
        return None;
    }
    let (bytes, options) = (frame.bytes_mut(), at.l4 + tcp::HEADER);
    bytes.copy_within(options..at.end, options + TIMESTAMPS);
    bytes[options..options + TIMESTAMPS].copy_from_slice(&timestamps.option());
    let offset = &mut bytes[at.l4 + DATA_OFFSET];
    *offset = *offset & 0xf | (header as u8 / 4) << 4;
    let at = Transport { payload: at.payload + TIMESTAMPS, end: at.end + TIMESTAMPS, ..*at };
    settle(frame, &at);
    Some(at)
}

impl<IO: FrameIo> Context<'_, IO> {
    /// The clock of SYN-ACKs and SYNs of Hairpin's own, in ms: it begins at a secret number, so that it does not tell how long
    /// the machine has been up (RFC 7323, 7.1).
    pub(in crate::l7::splice) fn clock(&self) -> u32 {
        ((self.now.as_nanos() / 1_000_000) as u32).wrapping_add(self.clock_ahead)
    }

    /// Whether a service's clients are offered timestamps: not where bodies would stay in software for them.
    pub(in crate::l7::splice) fn has_timestamps(&self, service: u16) -> bool {
        self.kind(service).has_timestamps() && (self.caps.rewrites_timestamps || !self.caps.rewrites_sequence)
    }
}

/// Settles what is added to a client's timestamps on their way to its backend, when the two are joined, by Hairpin's
/// `clock`; what is added to the backend's is settled when the first of them comes by.
pub(in crate::l7::splice) fn join(client_conn: &mut ClientConn, backend_conn: &mut BackendConn, clock: u32) {
    let (client, backend) = (&client_conn.peer, &mut backend_conn.peer);
    if client.has_timestamps && backend.has_timestamps && client_conn.clock_up.is_none() {
        backend.timestamp_sent = later(backend.timestamp_sent, clock);
        client_conn.clock_up = Some(backend.timestamp_sent.wrapping_sub(client.timestamp)).into();
    }
    catch_up(client_conn, backend_conn);
}

/// Notes that the backend may have seen the client's latest value, by the engine.
#[inline]
pub(in crate::l7::splice) fn catch_up(client_conn: &ClientConn, backend_conn: &mut BackendConn) {
    if let Some(up) = client_conn.clock_up.get() {
        let backend = &mut backend_conn.peer;
        backend.timestamp_sent = later(backend.timestamp_sent, client_conn.peer.timestamp.wrapping_add(up));
    }
}

/// The timestamps of a segment that goes on from the end that `direction` names to the other, of which it had `timestamps`.
/// `None`: its receiver has not agreed to any.
#[inline]
pub(in crate::l7::splice) fn forward(
    client_conn: &mut ClientConn,
    backend_conn: &mut BackendConn,
    direction: Direction,
    timestamps: Option<Timestamps>,
    clock: impl FnOnce() -> u32,
) -> Option<Timestamps> {
    let agreed = client_conn.peer.has_timestamps && backend_conn.peer.has_timestamps;
    let (up, mut down) = (client_conn.clock_up.get(), client_conn.clock_down.get());
    let (to, there, back) = match direction {
        Direction::FromClient => (&mut backend_conn.peer, up, down),
        Direction::FromBackend => {
            let to = &mut client_conn.peer;
            if let (None, true, Some(Timestamps { value, .. })) = (down, agreed, timestamps) {
                down = Some(later(to.timestamp_sent, clock()).wrapping_sub(value));
                client_conn.clock_down = down.into();
            }
            (to, down, up)
        }
    };
    let own = to.timestamps()?;
    let Some((Timestamps { value, echo }, there)) = timestamps.zip(there).filter(|_| agreed) else { return Some(own) };
    let value = value.wrapping_add(there);
    to.timestamp_sent = later(to.timestamp_sent, value);
    // As long as the way back is not settled, the sender has seen nothing of the receiver's.
    Some(Timestamps { value, echo: back.map_or(own.echo, |back| echo.wrapping_sub(back)) })
}
