//! What Hairpin sends of its own: acknowledgements, what it owns, resets.

use super::entry::{Back, BackState, Front, FrontState, Message};
use super::numbers::{before, beyond, later};
use super::peer::{Heard, Peer};
use super::segment::{Abilities, Own};
use super::{Context, Splices};
use crate::frame::FrameIo;
use crate::l7::cookie;
use crate::wire::tcp::{ACK, FIN, PSH, RST, SYN};

/// Bytes of a client's that are taken in before they can go on.
pub(super) const RECEIVE_WINDOW: u32 = 65_535;
/// Payload of one frame at most; a super-packet is 64 KiB with its headers.
const PAYLOAD_MAX: u32 = 65_000;

/// What of what we own is sent.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// All that is not acknowledged.
    All,
    /// What was never sent.
    Unsent,
}

/// Payload of one frame at most: a super-packet's, or as many whole segments as there is room for where the plane's frames
/// are shorter.
fn payload_max<IO: FrameIo>(cx: &Context<'_, IO>, own: &Own) -> u32 {
    let room = cx.io.room().saturating_sub(own.headers()).clamp(1, PAYLOAD_MAX as usize);
    let mss = usize::from(own.mss).max(1);
    match room {
        room if room == PAYLOAD_MAX as usize || room < mss => room as u32,
        room => (room - room % mss) as u32,
    }
}

/// Sends a segment of our own, or counts that it could not be sent.
pub(super) fn emit<IO: FrameIo>(cx: &mut Context<'_, IO>, own: &Own, payload: [&[u8]; 2]) {
    let Some(mut frame) = cx.io.allocate() else { return cx.drop(crate::worker::Drop::NoFrame) };
    if own.write(&mut frame, payload) {
        cx.send(frame);
    } else {
        cx.drop(crate::worker::Drop::NoFrame);
    }
}

impl Front {
    /// Beside this acknowledgement number, what the backend is shown of a window of the client's, in bytes: no more than
    /// its hold until the response's head is read, nothing more then until it is let go.
    pub(super) fn window_for(&self, back: &Back, acknowledgement: u32, window: u32) -> u32 {
        match self.exchange.response {
            Message::Head => window.min(back.hold),
            _ if self.state != FrontState::Joined => window.min(back.hold),
            _ if self.holds => window.min(beyond(acknowledgement, back.peer.edge)),
            _ => window,
        }
    }
}

impl Splices {
    /// What a front's client may send beyond what it is told was received, in bytes.
    fn window_for_client(&self, front: &Front) -> u32 {
        let back = front.back.and_then(|back| self.backs.get(back));
        match (front.state, back) {
            (FrontState::Joined, Some(back)) => back.peer.window.min(front.most_for_client(front.peer.told)),
            (FrontState::Waiting, _) => RECEIVE_WINDOW.saturating_sub(beyond(front.input_start(), front.peer.told)),
            _ => RECEIVE_WINDOW.saturating_sub(front.waiting() as u32),
        }
    }

    fn own_of_front(&self, front: &Front, flags: u8, sequence: u32) -> Own {
        let acknowledgement = match front.state {
            // What goes through is acknowledged by the backend alone.
            FrontState::Joined => front.peer.told,
            // Nor what waits for one: the part that does not fit behind a longer head is sent again.
            FrontState::Waiting => front.peer.told,
            _ => later(front.peer.told, front.peer.expected),
        };
        Own {
            source: front.key.destination,
            destination: front.key.source,
            sequence,
            acknowledgement,
            flags,
            window: front.peer.field(self.window_for_client(front)),
            port: front.port,
            mss: front.peer.mss,
            abilities: None,
        }
    }

    fn own_of_back(&self, back: &Back, flags: u8, sequence: u32) -> Own {
        let front = back.front.and_then(|front| self.fronts.get(front));
        let reads_in_order = back.input.is_some() || !matches!(front, Some(front) if front.state == FrontState::Joined);
        let acknowledgement = if reads_in_order { later(back.peer.told, back.peer.expected) } else { back.peer.told };
        let window = match front {
            Some(front) if front.state == FrontState::Joined => {
                front.window_for(back, acknowledgement, front.peer.window)
            }
            _ => RECEIVE_WINDOW.min(back.hold),
        };
        Own {
            source: back.own_end(),
            destination: back.target(),
            sequence,
            acknowledgement,
            flags,
            window: back.peer.field(window),
            port: back.port,
            mss: back.peer.mss,
            abilities: None,
        }
    }

    /// Acknowledges to a client what we have.
    pub(super) fn acknowledge_front<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(front) = self.fronts.get(position) else { return };
        let own = self.own_of_front(front, ACK, front.peer.sent);
        emit(cx, &own, [&[], &[]]);
        if let Some(front) = self.fronts.get_mut(position) {
            front.peer.tell(own.acknowledgement, own.window);
        }
    }

    /// Acknowledges with a number that the client has acknowledged already: it answers with the one it expects.
    pub(super) fn acknowledge_below<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(front) = self.fronts.get(position) else { return };
        let own = self.own_of_front(front, ACK, front.peer.acknowledged.wrapping_sub(1));
        emit(cx, &own, [&[], &[]]);
    }

    /// Acknowledges to a backend what we have.
    pub(super) fn acknowledge_back<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(back) = self.backs.get(position) else { return };
        let own = self.own_of_back(back, ACK, back.peer.sent);
        emit(cx, &own, [&[], &[]]);
        if let Some(back) = self.backs.get_mut(position) {
            back.peer.tell(own.acknowledgement, own.window);
        }
    }

    /// Sends a backend an acknowledgement of one number less than the last, which it answers with its present numbers.
    pub(super) fn acknowledge_back_below<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(back) = self.backs.get(position) else { return };
        let own = self.own_of_back(back, ACK, back.peer.acknowledged.wrapping_sub(1));
        emit(cx, &own, [&[], &[]]);
    }

    /// Sends what we own to a client, from the first byte it has not acknowledged on, as far as its window goes.
    pub(super) fn send_owned_front<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        self.send_to_front(cx, position, Part::All);
    }

    /// Sends what we own to a client, all or the part not sent yet, if what the client has just said calls for it.
    pub(super) fn go_on_to_front<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32, heard: Heard) {
        if heard.again {
            cx.statistics.http.retransmitted += 1;
            self.send_to_front(cx, position, Part::All);
        } else if heard.more {
            self.send_to_front(cx, position, Part::Unsent);
        } else if heard.progress {
            let due = self.fronts.get(position).and_then(|front| Some(front.peer.owned.as_ref()?.due));
            due.into_iter().for_each(|due| self.stamp_front(position, due));
        }
    }

    fn send_to_front<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32, part: Part) {
        let Some(front) = self.fronts.get(position) else { return };
        let own = self.own_of_front(front, ACK, front.peer.sent);
        if let Some(end) = self.send_owned(cx, &front.peer, own, part)
            && let Some(front) = self.fronts.get_mut(position)
        {
            front.peer.has_sent(end);
            front.peer.tell(own.acknowledgement, own.window);
            let due = front.peer.owned.as_ref().map(|owned| owned.due);
            due.into_iter().for_each(|due| self.stamp_front(position, due));
        }
    }

    /// Sends what we own to a backend, from the first byte it has not acknowledged on, as far as its window goes.
    pub(super) fn send_owned_back<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        self.send_to_back(cx, position, Part::All);
    }

    /// Sends what we own to a backend, all or the part not sent yet, if what the backend has just said calls for it.
    pub(super) fn go_on_to_back<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32, heard: Heard) {
        if heard.again {
            cx.statistics.http.retransmitted += 1;
            self.send_to_back(cx, position, Part::All);
        } else if heard.more {
            self.send_to_back(cx, position, Part::Unsent);
        } else if heard.progress {
            let due = self.backs.get(position).and_then(|back| Some(back.peer.owned.as_ref()?.due));
            due.into_iter().for_each(|due| self.stamp_back(position, due));
        }
    }

    fn send_to_back<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32, part: Part) {
        let Some(back) = self.backs.get(position) else { return };
        let own = self.own_of_back(back, ACK, back.peer.sent);
        if let Some(end) = self.send_owned(cx, &back.peer, own, part)
            && let Some(back) = self.backs.get_mut(position)
        {
            back.peer.has_sent(end);
            back.peer.tell(own.acknowledgement, own.window);
            let due = back.peer.owned.as_ref().map(|owned| owned.due);
            due.into_iter().for_each(|due| self.stamp_back(position, due));
        }
    }

    /// Sends it in as few frames as it fits into; returns one past the last number sent.
    fn send_owned<IO: FrameIo>(&self, cx: &mut Context<'_, IO>, peer: &Peer, own: Own, part: Part) -> Option<u32> {
        let owned = peer.owned.as_ref()?;
        let bytes = owned.buffer.as_ref().map_or(&[][..], |buffer| self.buffers.bytes(buffer));
        let first = match part {
            Part::All => peer.acknowledged,
            Part::Unsent => later(peer.acknowledged, owned.sent),
        };
        let mut from = beyond(owned.start, first).min(owned.length);
        // A closed window is probed with one byte.
        let limit = peer.acknowledged.wrapping_add(peer.window.max(1));
        let end = owned.length.min(beyond(owned.start, limit));
        let mut last = owned.start.wrapping_add(from);
        let most = payload_max(cx, &own);
        loop {
            let length = end.saturating_sub(from).min(most);
            let is_last = from + length >= owned.length;
            let mut flags = own.flags;
            if is_last {
                flags |= if owned.fin { FIN } else { 0 } | if owned.length > 0 { PSH } else { 0 };
            }
            if length == 0 && !(is_last && owned.fin) {
                break;
            }
            let segment = Own { sequence: owned.start.wrapping_add(from), flags, ..own };
            emit(cx, &segment, [&bytes[from as usize..(from + length) as usize], &[]]);
            from += length;
            last = owned.start.wrapping_add(from).wrapping_add(u32::from(flags & FIN != 0));
            if is_last || from >= end {
                break;
            }
        }
        Some(last)
    }

    /// Resets a client's connection.
    pub(super) fn reset_front<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(front) = self.fronts.get(position) else { return };
        // The number the client expects next is the last that it has acknowledged, or one that is on its way.
        let sequence = later(front.peer.acknowledged, front.peer.sent);
        let own = self.own_of_front(front, RST | ACK, sequence);
        emit(cx, &own, [&[], &[]]);
        if before(front.peer.acknowledged, sequence) {
            emit(cx, &Own { sequence: front.peer.acknowledged, ..own }, [&[], &[]]);
        }
    }

    /// Resets a backend's connection.
    pub(super) fn reset_back<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(back) = self.backs.get(position) else { return };
        let sequence = later(back.peer.acknowledged, back.peer.sent);
        let own = self.own_of_back(back, RST | ACK, sequence);
        emit(cx, &own, [&[], &[]]);
        if before(back.peer.acknowledged, sequence) {
            emit(cx, &Own { sequence: back.peer.acknowledged, ..own }, [&[], &[]]);
        }
    }

    /// Resets what the backend takes a connection for, whether that is one of ours or not. Without ACK, for nothing of the
    /// backend's is acknowledged: what counts is `sequence`, the number that it expects.
    pub(super) fn reset_unopened<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32, sequence: u32) {
        let Some(back) = self.backs.get(position) else { return };
        let own = Own { acknowledgement: 0, window: 0, ..self.own_of_back(back, RST, sequence) };
        emit(cx, &own, [&[], &[]]);
    }

    /// Sends a connection's SYN to its backend.
    pub(super) fn send_syn<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(back) = self.backs.get(position) else { return };
        debug_assert_eq!(back.state, BackState::Connecting);
        let own = Own {
            source: back.own_end(),
            destination: back.target(),
            sequence: back.peer.sent.wrapping_sub(1),
            acknowledgement: 0,
            flags: SYN,
            window: u16::MAX,
            port: back.port,
            mss: u16::MAX,
            abilities: Some(Abilities { mss: back.asked, scale: Some(cookie::SCALE), sack: true }),
        };
        emit(cx, &own, [&[], &[]]);
    }
}
