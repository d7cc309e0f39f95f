//! The effect of a packet on its connection's state. How long a state lasts is `ageing.rs`'s.

use super::Worker;
use crate::flow::{Direction, FlowKey, Protocol};
use crate::l4::connection::{Flags, State};
use crate::l4::tcp;
use crate::offload::OffloadPolicy;
use crate::offload::OffloadState;
use crate::table::{Position, Table};
use crate::time::Time;
use crate::wire::Transport;
use crate::wire::tcp::{ACK, FIN, RST, SYN};

/// A flow whose answers do not pass, or never come, counts as its client's own after so many packets: syslog and the like
/// are never answered, and backends of direct server return answer by another way.
pub(super) const ONE_WAY_PACKETS: u64 = 8;

impl<P: OffloadPolicy, T: Table<FlowKey>> Worker<P, T> {
    /// Whether a backend accepts a connection that did not begin here, between the ends of one that is over: under NAT a
    /// client may go to the backend's own address from the port it has just used with the VIP.
    pub(super) fn accepts_another_connection(&self, position: Position, direction: Direction, at: &Transport) -> bool {
        let connection = self.slab.at(position);
        let over = connection.state.is_over() && connection.flags.has(Flags::PROVEN);
        let accepts = direction == Direction::FromBackend && at.tcp_flags & (SYN | ACK) == SYN | ACK;
        accepts && over && connection.protocol == Protocol::Tcp && !connection.flags.has(Flags::FULL_NAT)
    }

    /// Whether it is the first packet of another connection between the ends of one that is over.
    #[inline]
    pub(super) fn begins_anew(&self, position: Position, direction: Direction, tcp_flags: u8) -> bool {
        if direction != Direction::FromClient || tcp_flags & (SYN | ACK | RST) != SYN {
            return false;
        }
        let connection = self.slab.at(position);
        // The backend's FIN is not seen. A backend that takes no connections keeps the one it has, if the SYN is forged.
        let may_be_over = connection.state == State::FinClient && connection.flags.has(Flags::DIRECT);
        connection.state.is_over() || may_be_over && self.takes_connections(position)
    }

    /// Lets a packet move its connection's state.
    pub(super) fn advance(
        &mut self,
        now: Time,
        position: Position,
        direction: Direction,
        at: &Transport,
        bytes: &[u8],
    ) {
        if self.is_guessed(position) && direction == Direction::FromBackend {
            return self.note_answer(position, at, bytes);
        }
        let connection = self.slab.at(position);
        if connection.flags.has(Flags::DIRECT) && connection.protocol == Protocol::Tcp {
            return self.advance_one_way(now, position, at, bytes);
        }
        let hears = self.hears(position, direction, at, bytes);
        if !self.is_guessed(position) {
            self.step(now, position, direction, at.tcp_flags, hears);
        }
    }

    /// Lets a packet with these flags move its connection's state. `hears`: its sender has shown that it gets the other end's
    /// packets.
    pub(super) fn step(&mut self, now: Time, position: Position, direction: Direction, tcp_flags: u8, hears: bool) {
        let connection = *self.slab.at(position);
        if connection.awaits_revival() {
            // A backend that has the connection still answers another SYN by an ACK (RFC 9293, 3.10.7.4), and goes on.
            if direction == Direction::FromBackend && tcp_flags & (SYN | FIN | RST | ACK) == ACK {
                return self.revive(now, position);
            }
            if tcp_flags & (SYN | ACK) == SYN | ACK {
                self.slab.at_mut(position).flags.clear(Flags::REVIVED);
            }
        }
        let next = match connection.protocol {
            // what does not acknowledge the SYN-ACK may be forged, and opens nothing
            Protocol::Tcp if connection.state == State::SynReceived && !hears && tcp_flags & RST == 0 => {
                connection.state
            }
            Protocol::Tcp => tcp::next(connection.state, direction, tcp_flags),
            Protocol::Udp => {
                // A forged client does not speak again after the answer that it never got.
                let [sent, answered] = connection.forwarded.map(|volume| volume.packets);
                if answered == 0 && direction == Direction::FromBackend {
                    self.statistics.services[usize::from(connection.service)].answered += 1;
                    self.succeeded(position);
                }
                let proven = answered > 0 || sent + 1 >= ONE_WAY_PACKETS;
                match (connection.state, direction) {
                    (State::UdpNew, Direction::FromClient) if proven => State::UdpEstablished,
                    (state, _) => state,
                }
            }
        };
        if next == State::SynReceived && connection.pair.state() != OffloadState::Software {
            // started anew while its rules may be in force: the client's ACK may not come by here
            self.prove(position);
            self.succeeded(position);
            self.transition(now, position, State::Established);
        } else if next != connection.state {
            if next == State::UdpEstablished {
                self.prove(position);
            }
            if next == State::FinBackend {
                self.slab.at_mut(position).flags.set(Flags::BACKEND_CLOSED_FIRST);
            }
            self.transition(now, position, next);
            if next == State::Closed {
                self.wind_up(now, position);
            }
        } else if next.is_over() && tcp_flags & (FIN | RST) != 0 {
            self.slab.at_mut(position).changed = now;
        }
        let refuses = direction == Direction::FromBackend && tcp_flags & (RST | ACK) == RST | ACK;
        if connection.state == State::SynSent && refuses {
            // the answer to a SYN acknowledges it; one to a stray ACK of the client would not (RFC 9293, 3.5.2)
            self.failed(position);
        }
    }
}
