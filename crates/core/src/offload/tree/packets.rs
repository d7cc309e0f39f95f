//! The kept features of a connection's first packets.

use super::model::{Feature, TreeFeature};
use crate::flow::{Direction, Protocol};
use crate::time::Duration;

/// Packets of a connection that are considered at most.
pub const PACKETS_MAX: usize = 8;

/// A connection's first packets, those that the policy was shown: of TCP the handshake's last and what follows, of UDP what
/// comes once the client has answered the backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FirstPackets {
    /// When each came, in microseconds after the connection began.
    at_us: [u32; PACKETS_MAX],
    /// Bytes of each, from the IP header on.
    lengths: [u16; PACKETS_MAX],
    /// A bit for each that came from the backend.
    from_backend: u8,
    /// How many there are.
    seen: u8,
}

impl FirstPackets {
    /// None yet.
    pub const NONE: FirstPackets =
        FirstPackets { at_us: [0; PACKETS_MAX], lengths: [0; PACKETS_MAX], from_backend: 0, seen: 0 };

    /// Adds a packet and its time since the connection began; `false`: there is no room for it. A super-packet counts
    /// once, with all of its bytes; those above 65,535 are not told apart.
    pub fn add(&mut self, length: u32, direction: Direction, after: Duration) -> bool {
        let place = usize::from(self.seen);
        let (Some(at), Some(bytes)) = (self.at_us.get_mut(place), self.lengths.get_mut(place)) else { return false };
        *at = u32::try_from(after.as_nanos() / 1000).unwrap_or(u32::MAX);
        *bytes = u16::try_from(length).unwrap_or(u16::MAX);
        self.from_backend |= u8::from(direction == Direction::FromBackend) << place;
        self.seen += 1;
        true
    }

    /// The values after that many packets.
    #[must_use]
    pub fn first(&self, count: u8) -> FirstPackets {
        FirstPackets { seen: self.seen.min(count), ..*self }
    }

    /// How many there are.
    pub fn seen(&self) -> u8 {
        self.seen
    }

    /// A feature of the connection that has them; `None` if the packet it takes has not come.
    pub fn value(&self, feature: Feature, protocol: Protocol, port: u16) -> Option<u32> {
        let (told, packet) = match feature {
            Feature::Udp => return Some(u32::from(protocol == Protocol::Udp)),
            Feature::Port => return Some(u32::from(port)),
            Feature::Of(told, packet) => (told, packet),
        };
        if packet == 0 || packet > self.seen {
            return None;
        }
        let (at, count) = (usize::from(packet) - 1, usize::from(packet));
        let backend = |place: usize| self.from_backend >> place & 1 == 1;
        let sum = |of: &dyn Fn(usize) -> bool| -> u32 {
            self.lengths
                .iter()
                .take(count)
                .enumerate()
                .filter(|(place, _)| of(*place))
                .map(|(_, &l)| u32::from(l))
                .sum()
        };
        Some(match told {
            TreeFeature::Length => u32::from(self.lengths[at]),
            TreeFeature::Gap => self.at_us[at].saturating_sub(self.at_us[at.checked_sub(1)?]),
            TreeFeature::Backend => u32::from(backend(at)),
            TreeFeature::Bytes => sum(&|_| true),
            TreeFeature::BackendPackets => (0..count).map(|place| u32::from(backend(place))).sum(),
            TreeFeature::BackendBytes => sum(&backend),
            TreeFeature::Elapsed => self.at_us[at],
        })
    }
}
