//! How a client's connection begins: a SYN is answered by a cookie and forgotten; the first data that comes with it makes
//! a client connection.

use super::read::USELESS;
use super::remove::Detach;
use crate::config::{UnknownPacket, WhenFull};
use crate::flow::Direction;
use crate::frame::{Egress, Frame, FrameIo};
use crate::l7::config::Kind;
use crate::l7::cookie::{self, Offer};
use crate::l7::splice::state::entry::{ClientConn, ClientConnState};
use crate::l7::splice::state::peer::Peer;
use crate::l7::splice::tcp::segment::{Abilities, Own, Segment, phantoms};
use crate::l7::splice::tcp::send::emit;
use crate::l7::splice::tcp::timestamps::Timestamps;
use crate::l7::splice::{Context, Splices, port_of};
use crate::limit::{LimitAction, Limited};
use crate::offload::OffloadState;
use crate::wire::Transport;
use crate::wire::tcp::{ACK, FIN, RST, SYN};
use crate::worker::{Drop, is_denied};

/// Connections looked at for one to give up when there is no room.
const EVICTION_TRIES_MAX: usize = 32;

impl Splices {
    /// A packet to a spliced service that belongs to no client connection.
    pub(crate) fn new_flow<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        mut frame: IO::Frame,
        at: &Transport,
        service: u16,
    ) {
        if is_denied(cx.snapshot, cx.caps, cx.statistics, (service, at)) {
            return cx.drop(Drop::Denied);
        }
        match at.tcp_flags & (SYN | ACK | RST | FIN) {
            SYN => {
                let clock = cx.has_timestamps(service).then(|| cx.clock());
                if cookie::answer(&mut frame, at, &self.cookies, cx.now, clock) {
                    frame.meta_mut().egress = Egress::Route;
                    cx.statistics.http.cookies_sent += 1;
                    cx.send(frame);
                } else {
                    cx.drop(Drop::Unanswerable);
                }
            }
            // A client may say with its only request that it has no other.
            flags if flags & !FIN == ACK && at.end > at.payload => self.first(cx, frame, at, service),
            // Its server may be the first to speak.
            ACK if cx.kind(service).is_plain() => self.first(cx, frame, at, service),
            flags if flags == ACK | FIN => self.farewell(cx, &frame, at, service),
            _ => self.unknown(cx, &frame, at, service),
        }
    }

    /// The first data of a connection, if the cookie is right.
    pub(in crate::l7::splice) fn first<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        frame: IO::Frame,
        at: &Transport,
        service: u16,
    ) {
        if self.is_ending {
            // The client sends it again, to the next process.
            return cx.drop(Drop::Unknown);
        }
        let segment = Segment::of(frame.bytes(), at);
        let (theirs, ours) = (segment.sequence.wrapping_sub(1), segment.acknowledgement.wrapping_sub(1));
        let Some(offer) = self.cookies.check(cx.now, &at.key, theirs, ours) else {
            cx.statistics.http.cookies_invalid += 1;
            return self.unknown(cx, &frame, at, service);
        };
        if self.ended.has(cx.now, &at.key, [segment.sequence, segment.acknowledgement]) {
            cx.statistics.http.cookies_used += 1;
            return self.disclaim(cx, &frame, at, &segment, RST);
        }
        let Offer { mss, scale, sack } = offer;
        // It has timestamps if the SYN-ACK had.
        let abilities = Abilities { mss, scale, sack, timestamps: segment.timestamps };
        let mut peer = Peer::new(segment.sequence, segment.acknowledgement, &abilities);
        peer.window = u32::from(segment.window) << peer.scale;
        let client_conn = ClientConn {
            port: port_of(&frame),
            first: [segment.sequence, segment.acknowledgement],
            is_tls: matches!(cx.kind(service), Kind::Tls(_)),
            deadline: cx.now + self.head_timeout(cx, service),
            ..ClientConn::new(cx.now, &at.key, service, peer)
        };
        let deadline = client_conn.deadline;
        if self.client_conns.vacant().is_none() && !self.make_room(cx) {
            return self.refuse_full(cx, &frame, at, service);
        }
        if let Some(limited) = cx.begin_limited(service, &at.key.source.address) {
            return self.refuse_limited(cx, &frame, at, service, limited);
        }
        let Some(position) = self.add_client(client_conn) else {
            cx.count_for_limits(service, &at.key.source.address, false);
            return self.refuse_full(cx, &frame, at, service);
        };
        if !self.index(&at.key, position, Direction::FromClient) {
            cx.count_for_limits(service, &at.key.source.address, false);
            self.client_conns.forget(position);
            return self.refuse_full(cx, &frame, at, service);
        }
        self.stamp_client(position, deadline);
        cx.known.add(cx.steering.hash(&at.key.source));
        let statistics = &mut cx.statistics;
        if let Some(service) = statistics.services.get_mut(usize::from(service)) {
            service.created += 1;
            service.established += 1;
            service.client_conns_now += 1;
        }
        self.tell(&mut statistics.http);
        statistics.http.client_conns_peak = statistics.http.client_conns_peak.max(self.client_conns.len().into());
        self.take(cx, frame, at, &segment, position);
    }

    /// Whether a segment is the first with data of another connection that we have offered between a client connection's
    /// ends. The network may bring that of the client connection's own a second time, at any time.
    pub(in crate::l7::splice) fn begins<IO: FrameIo>(
        &self,
        cx: &Context<'_, IO>,
        at: &Transport,
        segment: &Segment,
        position: u32,
    ) -> bool {
        segment.payload > 0 && self.is_of_another(cx, at, segment, position)
    }

    /// Whether a segment has the first numbers of another connection that we have offered between a client connection's
    /// ends, and that has not ended.
    pub(in crate::l7::splice) fn is_of_another<IO: FrameIo>(
        &self,
        cx: &Context<'_, IO>,
        at: &Transport,
        segment: &Segment,
        position: u32,
    ) -> bool {
        let own = self.client_conns.get(position).map(|client_conn| client_conn.first);
        let (theirs, ours) = (segment.sequence.wrapping_sub(1), segment.acknowledgement.wrapping_sub(1));
        own != Some([segment.sequence, segment.acknowledgement])
            && self.cookies.check(cx.now, &at.key, theirs, ours).is_some()
            && !self.ended.has(cx.now, &at.key, [segment.sequence, segment.acknowledgement])
    }

    /// A packet whose numbers are not the client connection's: the client may have begun another connection between the
    /// same ends.
    pub(in crate::l7::splice) fn another<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        frame: IO::Frame,
        at: &Transport,
        segment: &Segment,
        position: u32,
    ) {
        let begins = self.begins(cx, at, segment, position);
        let Some(service) = self.client_conns.get(position).map(|client_conn| client_conn.service).filter(|_| begins)
        else {
            return cx.drop(USELESS);
        };
        self.detach(cx, position, Detach::Reset);
        self.remove_client(cx, position);
        self.first(cx, frame, at, service);
    }

    /// FIN of a client that has sent nothing before it, and waits for an answer. If the cookie is right it gets one, and
    /// nothing is kept of it.
    pub(in crate::l7::splice) fn farewell<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        frame: &IO::Frame,
        at: &Transport,
        service: u16,
    ) {
        let segment = Segment::of(frame.bytes(), at);
        let (theirs, ours) = (segment.sequence.wrapping_sub(1), segment.acknowledgement.wrapping_sub(1));
        match self.cookies.check(cx.now, &at.key, theirs, ours) {
            Some(_) => self.disclaim(cx, frame, at, &segment, ACK | FIN),
            None => self.unknown(cx, frame, at, service),
        }
    }

    /// A packet of no connection that begins none: answered with RST if the service is so configured, unless it may be
    /// of a connection that is just beginning. That is the acknowledgement which ends the handshake, a keep-alive probe
    /// before the first data, and data whose first segment the network has lost or delayed: that comes again.
    fn unknown<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, frame: &IO::Frame, at: &Transport, service: u16) {
        cx.drop(Drop::Unknown);
        let settings = cx.snapshot.services.get(usize::from(service));
        let resets = settings.is_some_and(|settings| settings.unknown == UnknownPacket::Reset);
        if !resets || at.tcp_flags & (SYN | ACK | RST) != ACK {
            return;
        }
        let segment = Segment::of(frame.bytes(), at);
        let begins = match at.end > at.payload || segment.has(FIN) {
            true => !self.unmatched.has_lasted(cx.now, &at.key, segment.acknowledgement),
            false => [segment.sequence.wrapping_sub(1), segment.sequence].into_iter().any(|theirs| {
                self.cookies.check(cx.now, &at.key, theirs, segment.acknowledgement.wrapping_sub(1)).is_some()
            }),
        };
        if !begins {
            self.disclaim(cx, frame, at, &segment, RST);
        }
    }

    /// Answers a segment, with the numbers it expects, of a connection that there is not, as often as answers are sent.
    fn disclaim<IO: FrameIo>(
        &self,
        cx: &mut Context<'_, IO>,
        frame: &IO::Frame,
        at: &Transport,
        segment: &Segment,
        flags: u8,
    ) {
        if !cx.answers.admits(cx.now) {
            return cx.drop(Drop::AnswerLimit);
        }
        let taken = segment.payload + phantoms(segment.flags);
        let has_number = flags & ACK != 0;
        let own = Own {
            source: at.key.destination,
            destination: at.key.source,
            sequence: segment.acknowledgement,
            acknowledgement: if has_number { segment.sequence.wrapping_add(taken) } else { 0 },
            flags,
            window: 0,
            port: port_of(frame),
            mss: u16::MAX,
            abilities: None,
            timestamps: segment.timestamps.map(|Timestamps { value, echo }| Timestamps { value: echo, echo: value }),
        };
        emit(cx, &own, [&[], &[]]);
    }

    /// Ends a connection that does nothing, if one is found soon: never one with an exchange.
    fn make_room<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>) -> bool {
        for _ in 0..EVICTION_TRIES_MAX {
            self.hand = (self.hand + 1) % self.client_conns_max.max(1);
            let state = self
                .client_conns
                .get(self.hand)
                .filter(|client_conn| client_conn.pair.state() == OffloadState::Software);
            match state.map(|client_conn| client_conn.state) {
                Some(ClientConnState::TimeWait | ClientConnState::Resetting) => self.remove_client(cx, self.hand),
                Some(ClientConnState::Reading | ClientConnState::Closing) => {
                    self.detach(cx, self.hand, Detach::Keep);
                    self.give_up(cx, self.hand);
                }
                _ => continue,
            }
            cx.statistics.evicted += 1;
            return true;
        }
        false
    }

    /// The client is beyond a limit.
    fn refuse_limited<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        frame: &IO::Frame,
        at: &Transport,
        service: u16,
        limited: Limited,
    ) {
        if let Some(service) = cx.statistics.services.get_mut(usize::from(service)) {
            service.refused += 1;
        }
        cx.drop(Drop::Limited);
        if limited.action == LimitAction::Refuse {
            self.disclaim(cx, frame, at, &Segment::of(frame.bytes(), at), RST);
        }
    }

    /// No room: the client tries again by itself, and there may be room then; or it is told, if it is so configured.
    fn refuse_full<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, frame: &IO::Frame, at: &Transport, service: u16) {
        if let Some(service) = cx.statistics.services.get_mut(usize::from(service)) {
            service.refused += 1;
        }
        cx.drop(Drop::TableFull);
        if cx.snapshot.when_full == WhenFull::Reset {
            self.disclaim(cx, frame, at, &Segment::of(frame.bytes(), at), RST);
        }
    }
}
