//! Egress paths with an MTU below the size of what is sent: Hairpin cuts segments smaller, and neither end has to be told.

use super::segment::resegment;
use crate::flow::Direction;
use crate::frame::{Arrival, Egress, Frame, FrameIo};
use crate::l7::splice::{Context, End, Splices};
use crate::wire::{Transport, tcp};
use crate::worker::Drop;

/// The least payload of a segment that we let ourselves be told: RFC 9293 (3.7.1) over IPv4, RFC 8200 (5) over IPv6.
const MSS_LEAST: [u16; 2] = [1220, 536];

impl Splices {
    /// The way to an end (found by what it sends) takes packets of at most `mtu` bytes. Returns what a segment may have then,
    /// and whether that is less than was agreed on.
    fn learn(&mut self, (position, direction): (u32, Direction), is_ipv4: bool, mtu: u16) -> Option<(u16, bool)> {
        let headers = if is_ipv4 { 20 } else { 40 } + tcp::HEADER as u16;
        let mss = mtu.saturating_sub(headers).max(MSS_LEAST[usize::from(is_ipv4)]);
        let peer = match direction {
            Direction::FromClient => &mut self.client_conns.get_mut(position)?.peer,
            Direction::FromBackend => &mut self.backend_conns.get_mut(position)?.peer,
        };
        peer.is_narrow |= mss < peer.mss;
        peer.mss = peer.mss.min(mss);
        Some((peer.mss, peer.is_narrow))
    }

    /// A packet that we have sent came back because its way out takes no more than `mtu` bytes: it goes in smaller
    /// segments.
    pub(crate) fn too_big<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        mut frame: IO::Frame,
        at: &Transport,
        mtu: u16,
        found: (u32, Direction),
    ) {
        let Some((mss, _)) = self.learn(found, at.key.is_ipv4(), mtu) else { return cx.drop(Drop::TooBig) };
        let options = (at.payload - at.l4).saturating_sub(tcp::HEADER) as u16;
        let size = mss.saturating_sub(options);
        let meta = frame.meta_mut();
        meta.arrival = Arrival::Received;
        meta.egress = Egress::Route;
        if at.end - at.payload <= usize::from(size) || !resegment(&mut frame, at, size) {
            return cx.drop(Drop::TooBig);
        }
        cx.send(frame);
    }

    /// A router says that a packet of ours, which began with number `sequence`, was too big for a link: what is ours is sent
    /// again, in smaller segments; what is not, its sender sends again. A message about a number that is not under way
    /// is a guess (RFC 5927, 4.1).
    pub(crate) fn path_is_narrow<IO: FrameIo>(
        &mut self,
        cx: &mut Context<'_, IO>,
        is_ipv4: bool,
        mtu: u16,
        found: (u32, Direction),
        sequence: u32,
    ) {
        let peer = match found.1 {
            Direction::FromClient => self.client_conns.get(found.0).map(|client_conn| &client_conn.peer),
            Direction::FromBackend => self.backend_conns.get(found.0).map(|backend_conn| &backend_conn.peer),
        };
        if !peer.is_some_and(|peer| peer.may_be_on_its_way(sequence)) {
            return cx.drop(Drop::Unknown);
        }
        let Some((_, is_narrow)) = self.learn(found, is_ipv4, mtu) else { return cx.impossible() };
        cx.statistics.icmp_errors += 1;
        let client_conn = match found {
            (position, Direction::FromClient) => {
                self.send_all(cx, End::Client(position));
                Some(position)
            }
            (position, Direction::FromBackend) => {
                self.send_all(cx, End::Backend(position));
                self.backend_conns.get(position).and_then(|backend_conn| backend_conn.client_conn.get())
            }
        };
        if let Some(client_conn) = client_conn.filter(|_| is_narrow) {
            // What the engine carries would be lost there again and again.
            self.remove_rules(cx, client_conn);
        }
    }
}
