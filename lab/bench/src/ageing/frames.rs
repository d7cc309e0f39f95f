//! The rest of a balancer around the table: frames that are read, and sent on with new ends.

use super::traffic::BURST;
use anyhow::{Result, bail};
use hairpin_core::flow::{Direction, FlowKey};
use hairpin_core::frame::Checksum;
use hairpin_core::l4::connection::Connection;
use hairpin_core::wire::checksum::Sum;
use hairpin_core::wire::{Parsed, Transport, parse};

/// Bytes of a frame.
const FRAME: usize = 64;
/// Where the IP header begins, and the TCP header.
const L3: usize = 14;
const L4: usize = 34;

/// The frames of a burst.
pub(super) struct BurstFrames {
    bytes: [[u8; FRAME]; BURST],
    at: Vec<Transport>,
}

impl BurstFrames {
    pub(super) fn new() -> BurstFrames {
        BurstFrames { bytes: [empty(); BURST], at: Vec::with_capacity(BURST) }
    }

    /// Frames of these flows arrive.
    pub(super) fn arrive(&mut self, keys: &[FlowKey; BURST]) {
        for (frame, key) in self.bytes.iter_mut().zip(keys) {
            frame[L3 + 8] = 64;
            frame[L3 + 10..L3 + 12].fill(0);
            frame[L3 + 12..L3 + 16].copy_from_slice(&key.source.address.ipv4_octets());
            frame[L3 + 16..L3 + 20].copy_from_slice(&key.destination.address.ipv4_octets());
            frame[L4..L4 + 2].copy_from_slice(&key.source.port.to_be_bytes());
            frame[L4 + 2..L4 + 4].copy_from_slice(&key.destination.port.to_be_bytes());
            let sum = Sum::of(&frame[L3..L4]).checksum();
            frame[L3 + 10..L3 + 12].copy_from_slice(&sum.to_be_bytes());
        }
    }

    /// Reads their headers: the flows that they are of.
    pub(super) fn read(&mut self, keys: &mut [FlowKey; BURST]) -> Result<()> {
        self.at.clear();
        for (frame, key) in self.bytes.iter().zip(keys) {
            let Ok(Parsed::Transport(at)) = parse(frame) else { bail!("a frame of our own is malformed") };
            *key = at.key;
            self.at.push(at);
        }
        Ok(())
    }

    /// Gives the `number`-th frame the ends with which it goes on.
    pub(super) fn forward(&mut self, number: usize, connection: &Connection, direction: Direction) {
        if let Some(at) = self.at.get(number) {
            connection.rewrite(direction).apply(&mut self.bytes[number], at, Checksum::Complete);
        }
    }
}

/// A TCP segment without data, its ends still missing.
fn empty() -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[L3..L3 + 4].copy_from_slice(&[0x45, 0, 0, (FRAME - L3) as u8]);
    frame[L3 + 9] = 6;
    frame[L4 + 12..L4 + 14].copy_from_slice(&[0x50, 0x10]);
    frame
}

#[cfg(test)]
mod tests {
    use super::super::traffic::{ends_of, key_of};
    use super::*;
    use hairpin_core::flow::Protocol;
    use hairpin_core::l4::connection::State;
    use hairpin_core::time::Time;

    #[test]
    fn frames_are_read_as_they_were_made_and_go_to_their_backend() {
        let mut frames = BurstFrames::new();
        let keys = std::array::from_fn(|flow| key_of(flow as u64, Direction::FromClient));
        frames.arrive(&keys);
        let mut read = [FlowKey::default(); BURST];
        frames.read(&mut read).unwrap();
        assert_eq!(read, keys);
        let [client, vip, backend] = ends_of(3);
        let ends = [client, vip, backend, client];
        let connection = Connection::new(Time::ZERO, Protocol::Tcp, State::Established, ends);
        frames.forward(3, &connection, Direction::FromClient);
        let Ok(Parsed::Transport(after)) = parse(&frames.bytes[3]) else { panic!("malformed") };
        assert_eq!((after.key.source, after.key.destination, after.ttl), (client, backend, 63));
    }
}
