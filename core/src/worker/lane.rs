//! The fast lane: a [plain](Plain) packet of a connection that has settled is counted and rewritten, and nothing else. It
//! is [`Worker::carry`] with everything left out that such a packet does not need; whoever is not sure takes that.
//!
//! Invariant: a packet in the lane leaves behind what `carry` would have left, in the frame, in the connection and in the
//! statistics (`tests/lane.rs` compares them).

use super::packets::volume_of;
use super::{Flows, Worker};
use crate::flow::{Direction, FlowKey};
use crate::frame::{BATCH_MAX, Frame};
use crate::l4::connection::{Connection, Flags, Kept, Ledger, State};
use crate::offload::{OffloadPolicy, Reason};
use crate::rewrite::Rewrite;
use crate::table::{Position, Table};
use crate::time::Time;
use crate::wire::plain::Plain;
use crate::wire::tcp::{ACK, FIN, RST, SYN};

/// Whether a packet of this direction, with these flags, leaves the connection in the state in which it is, and tells
/// nobody anything.
#[inline(always)]
fn is_settled(connection: &Connection, direction: Direction, tcp_flags: u8) -> bool {
    match connection.state {
        State::Established | State::FinClient | State::FinBackend | State::SynSent => {
            // What may prove the connection is no plain matter. Where only the client's packets come by, or the backend's
            // SYN-ACK did not, nothing proves it.
            let doubt = connection.flags.0 & (Flags::PROVEN | Flags::CHALLENGED);
            tcp_flags & (SYN | FIN | RST | ACK) == ACK && doubt != Flags::CHALLENGED
        }
        // the backend's first answer counts
        State::UdpEstablished => {
            direction == Direction::FromClient || connection.carried[Direction::FromBackend as usize].packets > 0
        }
        State::SynReceived | State::Closed | State::Reset | State::UdpNew | State::Pass => false,
    }
}

/// Whether the policy has kept the connection before, and would be asked again.
#[inline(always)]
fn is_kept(connection: &Connection) -> bool {
    let doubts = connection.flags.0 & (Flags::MISSTEERED | Flags::REPORTED | Flags::JUDGED);
    matches!(connection.state, State::Established | State::UdpEstablished)
        && connection.ledger == Ledger::Software
        && connection.kept == Kept::Policy
        && (doubts == 0 || doubts == Flags::JUDGED)
}

impl<P: OffloadPolicy, T: Table<FlowKey>> Worker<P, T> {
    /// Brings into the cache what the packets of these flows will need, [`BATCH_MAX`] of them at most, for whoever knows of
    /// them beforehand. Nothing changes.
    pub fn warm(&self, keys: &[FlowKey]) {
        let mut found = [None; BATCH_MAX];
        self.table.find_burst(keys, &Flows(&self.slab), &mut found);
        core::hint::black_box(&found);
    }

    /// Carries a packet of a known connection, if that is simple: `frame` is to be sent then. `false`, and nothing has
    /// happened, if it is not.
    #[inline(always)]
    pub(super) fn ride<F: Frame>(
        &mut self,
        now: Time,
        frame: &mut F,
        plain: Plain,
        position: Position,
        direction: Direction,
    ) -> bool {
        let connection = self.slab.at_mut(position);
        if plain.ttl <= 1 || !is_settled(connection, direction, plain.tcp_flags) {
            return false;
        }
        let meta = frame.meta();
        let (checksum, (packets, bytes)) = (meta.checksum, volume_of(meta, plain));
        // Of a policy that keeps everything nothing new is to be heard.
        let kept = is_kept(connection) && !self.policy.offloads();
        let offered = connection.ledger == Ledger::Software && !kept;
        let Some(head) = frame.bytes_mut().first_chunk_mut() else { return false };
        connection.last_seen = now;
        connection.carried[direction as usize].add(packets, bytes);
        let number = usize::from(connection.backend_number);
        if let Some(backend) = self.statistics.backends.get_mut(number) {
            backend.software[direction as usize].add(packets, bytes);
        }
        if connection.source == connection.client {
            let end = connection.other_end(direction);
            let end = (end.address.ipv4_octets(), end.port);
            Rewrite::readdress_plain_end(head, direction, end, connection.protocol, checksum);
        } else {
            Rewrite::readdress_plain(head, connection.ends(direction), connection.protocol, checksum);
        }
        if kept {
            self.statistics.offload.kept[Reason::Never as usize] += 1;
        } else if offered {
            self.offer(now, position, bytes, direction);
        }
        true
    }
}
