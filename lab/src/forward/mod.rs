//! The basic forwarder of KTH 2022 (section 3.3): IP packets only, MAC addresses swapped, IP header checked, IP addresses
//! swapped, sent back. What lies behind the IP header stays as it is, checksums too: a sum of both addresses is the same
//! either way round.

use crate::traffic::flows::BACKEND_PORT;
use hairpin_core::frame::{Batch, Frame};
use hairpin_core::link::{LinkDrop, header};
use hairpin_core::wire::{Parsed, ethernet, ipv4, parse};

/// The counts of a forwarder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardSummary {
    /// Frames sent back.
    pub packets: u64,
    /// Frames dropped, by [`LinkDrop`].
    pub drops: [u64; LinkDrop::ALL.len()],
}

impl ForwardSummary {
    /// The dropped packets, by reason.
    pub fn dropped(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let drops = LinkDrop::ALL.iter().map(|&reason| (reason.name(), self.drops[reason as usize]));
        drops.filter(|&(_, count)| count > 0)
    }
}

/// The forwarder.
#[derive(Clone, Debug, Default)]
pub struct Forwarder {
    counts: ForwardSummary,
}

impl Forwarder {
    /// Frames that are best taken at a time: it does so little to each that having all of them in the first cache is worth
    /// more than longer bursts (`dpdk-testpmd` takes as many).
    pub const BURST: usize = 32;

    /// The counts so far.
    pub fn counts(&self) -> &ForwardSummary {
        &self.counts
    }

    /// Takes all frames of `rx`; those to send are in `tx` afterwards, which has room for all.
    pub fn handle_batch<F: Frame>(&mut self, rx: &mut Batch<F>, tx: &mut Batch<F>) {
        // Nearly always all of a burst are usual, and stay where they are.
        let odd = rx.iter_mut().position(|frame| !turn_usual(frame.bytes_mut()));
        let turned = odd.unwrap_or(rx.len());
        self.counts.packets += turned as u64;
        if turned == rx.len() && tx.is_empty() {
            *tx = core::mem::take(rx);
            return;
        }
        for (i, mut frame) in rx.drain(..).enumerate() {
            match if i < turned { Ok(()) } else { turn(frame.bytes_mut()) } {
                Ok(()) => {
                    self.counts.packets += u64::from(i >= turned);
                    // There is room: the caller's promise. A frame without is dropped, and missed in the accounts.
                    let _ = tx.try_push(frame);
                }
                Err(reason) => self.counts.drops[reason as usize] += 1,
            }
        }
    }
}

/// Swaps the addresses of what nearly all packets are, at places that are known beforehand; `false`, and nothing done, of
/// any other.
#[inline(always)]
fn turn_usual(frame: &mut [u8]) -> bool {
    let Some((head, behind)) = frame.split_first_chunk_mut::<{ ethernet::HEADER + ipv4::HEADER }>() else {
        return false;
    };
    let Some(header) = head.last_chunk() else { return false };
    let ethertype = u16::from_be_bytes([head[12], head[13]]);
    if ethertype != ethernet::IPV4 || !header::is_usual_ipv4(header, behind.len()) {
        return false;
    }
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, ..] = *head;
    if let Some(ethernet) = head.first_chunk_mut() {
        *ethernet = [s0, s1, s2, s3, s4, s5, d0, d1, d2, d3, d4, d5];
    }
    if let Some(addresses) = head.last_chunk_mut() {
        *addresses = u64::from_ne_bytes(*addresses).rotate_left(32).to_ne_bytes();
    }
    true
}

/// Swaps addresses, if it is a sound IP packet.
#[inline]
fn turn(frame: &mut [u8]) -> Result<(), LinkDrop> {
    if turn_usual(frame) {
        return Ok(());
    }
    let (ethertype, l3) = ethernet::network_layer(frame)?;
    let (at, length) = match ethertype {
        ethernet::IPV4 => (header::check_ipv4(frame, l3)?.l3 + 12, 4),
        ethernet::IPV6 => (header::check_ipv6(frame, l3)?.l3 + 8, 16),
        _ => return Err(LinkDrop::NotIp),
    };
    swap(frame, 0, 6);
    swap(frame, at, length);
    Ok(())
}

/// Exchanges the ends of a packet that is for a backend, as the backend would send it back; `false`, and nothing done, of any
/// other. Sums stay right: what is exchanged is added up in any order.
pub fn turn_at_backend(frame: &mut [u8]) -> bool {
    let Ok(Parsed::Transport(at)) = parse(frame) else { return false };
    if at.key.destination.port != BACKEND_PORT {
        return false;
    }
    let (addresses, length) = if at.key.source.address.is_ipv4() { (at.l3 + 12, 4) } else { (at.l3 + 8, 16) };
    swap(frame, 0, 6);
    swap(frame, addresses, length);
    swap(frame, at.l4, 2);
    true
}

/// Swaps the `length` bytes at `at` with those behind them.
#[inline]
fn swap(frame: &mut [u8], at: usize, length: usize) {
    if let Some(both) = frame.get_mut(at..at + 2 * length) {
        let (one, other) = both.split_at_mut(length);
        one.swap_with_slice(other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::template::{LinkAddresses, PacketEnds, PacketKind, PacketTemplate};
    use hairpin_core::flow::Protocol;
    use hairpin_core::frame::VecFrame;

    fn packet(ipv6: bool) -> VecFrame {
        packet_to(ipv6, 6)
    }

    fn packet_to(ipv6: bool, destination_port: u16) -> VecFrame {
        let kind = PacketKind { protocol: Protocol::Udp, ipv6, tcp_flags: 0 };
        let mut store = Vec::new();
        let template = PacketTemplate::new(&mut store, kind, &LinkAddresses::default(), &[], 100);
        let mut frame = VecFrame::new(&[0; 100]);
        let ends = PacketEnds { source: 0x0a00_0001, destination: 0xc000_0201, source_port: 5, destination_port };
        template.make(&store, &mut frame.data, &ends, &[3; 18]);
        frame
    }

    #[test]
    fn addresses_are_swapped_and_nothing_else() {
        for ipv6 in [false, true] {
            let before = packet(ipv6);
            let (mut rx, mut tx) = (Batch::new(), Batch::new());
            rx.push(before.clone());
            Forwarder::default().handle_batch(&mut rx, &mut tx);
            let after = &tx[0].data;
            let (Ok(Parsed::Transport(one)), Ok(Parsed::Transport(other))) = (parse(&before.data), parse(after)) else {
                panic!()
            };
            assert_eq!(
                (one.key.source.address, one.key.source.port),
                (other.key.destination.address, other.key.source.port)
            );
            assert_eq!(one.key.destination.address, other.key.source.address);
            assert_eq!((&before.data[..6], &before.data[6..12]), (&after[6..12], &after[..6]));
            assert_eq!(before.data[one.l4..], after[one.l4..]);
            let field = other.checksum_offset();
            assert_eq!(other.transport_checksum(after), Some(u16::from_be_bytes([after[field], after[field + 1]])));
        }
    }

    #[test]
    fn backends_send_back_what_is_theirs() {
        for ipv6 in [false, true] {
            let mut other = packet(ipv6);
            let before = other.data.clone();
            assert!(!turn_at_backend(&mut other.data) && other.data == before, "it is for port 6");
            let mut frame = packet_to(ipv6, BACKEND_PORT);
            let Ok(Parsed::Transport(there)) = parse(&frame.data) else { panic!() };
            assert!(turn_at_backend(&mut frame.data));
            let Ok(Parsed::Transport(back)) = parse(&frame.data) else { panic!() };
            assert_eq!((there.key.source, there.key.destination), (back.key.destination, back.key.source));
            let field = back.checksum_offset();
            let sum = u16::from_be_bytes([frame.data[field], frame.data[field + 1]]);
            assert_eq!(back.transport_checksum(&frame.data), Some(sum));
        }
    }

    #[test]
    fn what_is_unsound_is_dropped_and_counted() {
        let mut forwarder = Forwarder::default();
        let (mut rx, mut tx) = (Batch::new(), Batch::new());
        let mut wrong = packet(false);
        wrong.data[24] ^= 1;
        rx.push(wrong);
        rx.push(VecFrame::new(&[0xff; 60]));
        rx.push(VecFrame::new(&[0; 3]));
        rx.push(packet(false));
        forwarder.handle_batch(&mut rx, &mut tx);
        assert_eq!((tx.len(), forwarder.counts().packets), (1, 1));
        let dropped: Vec<_> = forwarder.counts().dropped().collect();
        assert_eq!(dropped, [("truncated", 1), ("ip-header-checksum", 1), ("not-ip", 1)]);
    }
}
