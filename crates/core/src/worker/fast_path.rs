//! The fast path: a [plain](Plain) packet of a connection that has settled is counted and rewritten, and nothing else. It
//! is [`Worker::forward`] with everything left out that such a packet does not need; a packet in doubt takes that.
//!
//! Invariant: a packet on the fast path leaves behind what `forward` would have left, in the frame, in the connection and
//! in the statistics (`tests/fast_path.rs` compares them).

use super::views::volume_of;
use super::{ConnectionFlows, Worker};
use crate::flow::{Direction, FlowKey};
use crate::frame::{BATCH_MAX, Batch, Frame};
use crate::l4::connection::{Connection, Flags, Kept, State};
use crate::offload::OffloadState;
use crate::offload::{OffloadPolicy, Reason};
use crate::rewrite::Rewrite;
use crate::table::Table;
use crate::time::Time;
use crate::wire::plain::PlainPacket;
use crate::wire::tcp::{ACK, FIN, RST, SYN};

/// Whether a packet of this direction, with these flags, leaves the connection in the state in which it is, and tells
/// the worker nothing.
#[inline(always)]
fn is_settled(connection: &Connection, direction: Direction, tcp_flags: u8) -> bool {
    match connection.state {
        State::Established | State::FinClient | State::FinBackend | State::SynSent => {
            // A packet that may prove the connection takes the slow path. If only the client's packets come by, or the
            // backend's SYN-ACK did not, nothing proves it.
            let proofs = connection.flags.0 & (Flags::PROVEN | Flags::CHALLENGED | Flags::REVIVED);
            tcp_flags & (SYN | FIN | RST | ACK) == ACK && (proofs == 0 || proofs & Flags::PROVEN != 0)
        }
        // the backend's first answer counts
        State::UdpEstablished => {
            direction == Direction::FromClient || connection.forwarded[Direction::FromBackend as usize].packets > 0
        }
        State::SynReceived | State::Closed | State::Reset | State::UdpNew | State::Pass => false,
    }
}

/// Whether the policy has kept the connection before, and would be asked again.
#[inline(always)]
fn is_kept(connection: &Connection) -> bool {
    let doubts = connection.flags.0 & (Flags::MISSTEERED | Flags::REPORTED | Flags::JUDGED);
    matches!(connection.state, State::Established | State::UdpEstablished)
        && connection.pair.state() == OffloadState::Software
        && connection.kept == Kept::Policy
        && (doubts == 0 || doubts == Flags::JUDGED)
}

impl<P: OffloadPolicy, T: Table<FlowKey>> Worker<P, T> {
    /// Brings into the cache what the packets of these flows will need, [`BATCH_MAX`] of them at most, for a caller
    /// that knows of them beforehand. Nothing changes.
    pub fn warm(&self, keys: &[FlowKey]) {
        let mut found = [None; BATCH_MAX];
        self.table.find_burst(keys, &ConnectionFlows(&self.slab), &mut found);
        core::hint::black_box(&found);
    }

    /// Forwards the first packets of a burst, as long as each can take the fast path; returns how many: they are to be sent.
    /// `found` is what the index had for their keys a moment ago, or something else: each is compared. Inlined: out of line
    /// it costs 1 to 2 instructions a packet more (`make bench-instructions`).
    #[inline(always)]
    pub(super) fn forward_burst_fast<F: Frame>(
        &mut self,
        now: Time,
        rx: &mut Batch<F>,
        keys: &[FlowKey],
        plains: &[Option<PlainPacket>],
        found: &[Option<u32>],
    ) -> usize {
        let probed = self.index_changes;
        let mut fast = 0;
        for ((frame, key), (plain, found)) in rx.iter_mut().zip(keys).zip(plains.iter().zip(found)) {
            let (Some(plain), Some(found)) = (*plain, *found) else { break };
            if self.index_changes != probed || !self.forward_fast(now, frame, plain, key, found) {
                break;
            }
            fast += 1;
        }
        fast
    }

    /// Carries a packet of this key, if that has what was found and it is simple: `frame` is to be sent then. `false`, and
    /// nothing has happened, if not.
    #[inline(always)]
    pub(super) fn forward_fast<F: Frame>(
        &mut self,
        now: Time,
        frame: &mut F,
        plain: PlainPacket,
        key: &FlowKey,
        found: u32,
    ) -> bool {
        let (position, direction) = super::parts(found);
        let Some(connection) = self.slab.entry_mut(position) else { return false };
        if plain.ttl <= 1 || !connection.is_of(direction, key) || !is_settled(connection, direction, plain.tcp_flags) {
            return false;
        }
        // The fast path does not look at sequence numbers, and direct server return has to (`one_way.rs`).
        if connection.flags.has(Flags::DIRECT) {
            return false;
        }
        let meta = frame.meta();
        let (checksum, (packets, bytes)) = (meta.checksum, volume_of(meta, plain));
        // Of a policy that keeps everything nothing new is to be heard.
        let kept = is_kept(connection) && !self.policy.offloads();
        let offered = connection.pair.state() == OffloadState::Software && !kept;
        let Some(head) = frame.bytes_mut().first_chunk_mut() else { return false };
        connection.last_seen = now;
        connection.forwarded[direction as usize].add(packets, bytes);
        let number = usize::from(connection.backend_number);
        if let Some(backend) = self.statistics.backends.get_mut(number) {
            backend.software[direction as usize].add(packets, bytes);
        }
        if !connection.flags.has(Flags::FULL_NAT) {
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
