//! A flood of unsolicited frames: random sources, no known connection, much of it malformed.

use crate::namespace::Namespace;
use crate::servers::{ECHO_PORT, HTTP_PORT, IPERF_PORTS};
use crate::tool::blast::{BlastPace, Sending};
use crate::tool::frames::{self, ACK, LinkEnds, RST, SYN};
use crate::topology::{Family, server_address, vip};
use fastrand::Rng;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// Different frames of a flood; after that many they come again, from other ports.
const FRAMES: usize = 65_536;

/// What a flood's frames are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloodKind {
    /// TCP without SYN, SYNs, UDP and broken frames, a third each of the first two.
    Mixed,
    /// TCP without SYN, SYNs and broken frames of TCP: nothing that a backend answers before its client has answered it.
    Tcp,
}

/// Floods `targets` (services and backends) from `interface` of `namespace` with one thread on each core of `cpus`.
/// The same seed gives the same frames, and no flow comes twice. Each thread sends at most `per_second`, or as many as it can.
pub fn start(
    (namespace, interface): (&Namespace, &'static str),
    link: LinkEnds,
    (kind, targets): (FloodKind, &[SocketAddr]),
    seed: u64,
    cpus: &[usize],
    per_second: Option<u32>,
) -> Sending {
    let frames = Arc::new(frames_of(link, (kind, targets), seed));
    let pace = BlastPace { per_second, fresh: true };
    Sending::start(namespace, interface, cpus.iter().map(|&cpu| (cpu, frames.clone())).collect(), pace)
}

/// A flood of SYNs alone, from `sources` different addresses, to `targets`; each thread sends at most `per_second`.
pub fn syns(
    namespace: &Namespace,
    interface: &'static str,
    link: LinkEnds,
    targets: &[SocketAddr],
    sources: usize,
    cpus: &[usize],
    per_second: u32,
) -> Sending {
    let pace = BlastPace { per_second: Some(per_second), fresh: true };
    let each = sources / cpus.len();
    let shares =
        cpus.iter().enumerate().map(|(i, &cpu)| (cpu, Arc::new(syns_of(link, targets, i * each..(i + 1) * each))));
    Sending::start(namespace, interface, shares.collect(), pace)
}

fn syns_of(link: LinkEnds, targets: &[SocketAddr], sources: std::ops::Range<usize>) -> Vec<Vec<u8>> {
    let one = |source: usize| {
        let target = targets[source % targets.len()];
        let number = (source as u32).wrapping_mul(0x9e37_79b9);
        let address: IpAddr = match target.ip() {
            // 11.0.0.0/8 and 2001:db8::/32, which no host here has.
            IpAddr::V4(_) => Ipv4Addr::from(0x0b00_0000 | source as u32).into(),
            IpAddr::V6(_) => Ipv6Addr::from((0x2001_0db8_u128 << 96) | source as u128).into(),
        };
        frames::tcp(link, SocketAddr::new(address, number as u16 | 1024), target, SYN, (number, 0), &[])
    };
    sources.map(one).collect()
}

/// The default targets of a flood: services of both families, a port that is none, a backend.
pub fn usual_targets() -> Vec<SocketAddr> {
    let others = [(vip(Family::V4), 9999), (server_address(Family::V4, 2), HTTP_PORT)];
    let others = others.map(|(address, port)| SocketAddr::new(address, port));
    services().into_iter().chain(others).collect()
}

/// Services of TCP alone.
pub fn tcp_services() -> Vec<SocketAddr> {
    services().into_iter().filter(|target| target.port() != ECHO_PORT).collect()
}

/// Services of both families alone: what goes to other ends is the kernel's to answer or to forward.
pub fn services() -> Vec<SocketAddr> {
    let ends = [
        (vip(Family::V4), HTTP_PORT),
        (vip(Family::V4), IPERF_PORTS[0]),
        (vip(Family::V4), ECHO_PORT),
        (vip(Family::V6), HTTP_PORT),
    ];
    ends.map(|(address, port)| SocketAddr::new(address, port)).to_vec()
}

/// The frames of a flood.
pub fn frames_of(link: LinkEnds, (kind, targets): (FloodKind, &[SocketAddr]), seed: u64) -> Vec<Vec<u8>> {
    let mut random = Rng::with_seed(seed);
    (0..FRAMES).map(|_| frame(link, (kind, targets), &mut random)).collect()
}

fn frame(link: LinkEnds, (kind, targets): (FloodKind, &[SocketAddr]), random: &mut Rng) -> Vec<u8> {
    const MIXED: [u8; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
    const TCP: [u8; 9] = [0, 1, 2, 3, 4, 5, 6, 9, 10];
    let target = targets[random.usize(..targets.len())];
    let source = spoofed(target, random);
    let numbers = (random.u32(..), random.u32(..));
    let shapes: &[u8] = if kind == FloodKind::Mixed { &MIXED } else { &TCP };
    match shapes[random.usize(..shapes.len())] {
        0..3 => frames::tcp(link, source, target, ACK, numbers, &[0; 6]),
        3 => frames::tcp(link, source, target, RST, numbers, &[]),
        4..7 => frames::tcp(link, source, target, SYN, (numbers.0, 0), &[]),
        7..9 => frames::udp(link, source, target, &[0; 18]),
        9 => truncated(frames::tcp(link, source, target, ACK, numbers, &[0; 6]), random),
        10 => corrupt(frames::tcp(link, source, target, ACK, numbers, &[0; 6]), random),
        _ => fragment(frames::udp(link, source, target, &[0; 18]), random),
    }
}

/// A random source; sometimes one that is the target itself (a loop), loopback or broadcast.
fn spoofed(target: SocketAddr, random: &mut Rng) -> SocketAddr {
    let address = match (target.ip(), random.u8(0..32)) {
        (own, 0) => own,
        (IpAddr::V4(_), 1) => Ipv4Addr::new(127, 0, 0, 1).into(),
        (IpAddr::V4(_), 2) => Ipv4Addr::BROADCAST.into(),
        (IpAddr::V4(_), _) => Ipv4Addr::from(0x0b00_0000 | random.u32(..1 << 24)).into(),
        (IpAddr::V6(_), 1) => Ipv6Addr::LOCALHOST.into(),
        (IpAddr::V6(_), _) => Ipv6Addr::from((0x2001_0db8_u128 << 96) | u128::from(random.u64(..))).into(),
    };
    SocketAddr::new(address, random.u16(..))
}

/// Cut anywhere behind the Ethernet header (a shorter frame no driver sends).
fn truncated(mut frame: Vec<u8>, random: &mut Rng) -> Vec<u8> {
    frame.truncate(random.usize(15..frame.len()));
    frame
}

/// Up to four bytes of the headers above Ethernet are others.
fn corrupt(mut frame: Vec<u8>, random: &mut Rng) -> Vec<u8> {
    for _ in 0..random.u8(1..5) {
        let position = random.usize(14..frame.len());
        frame[position] = random.u8(..);
    }
    frame
}

/// An IPv4 packet marked as a fragment; an IPv6 one with a fragment header for its next header.
fn fragment(mut frame: Vec<u8>, random: &mut Rng) -> Vec<u8> {
    if frame[12..14] == [0x08, 0x00] {
        let offset = random.u16(..8192) | 0x2000;
        frame[20..22].copy_from_slice(&offset.to_be_bytes());
        // Kept right, so that the fragment is judged as one: RFC 1624's update is not worth it here, sum anew.
        frame[24..26].fill(0);
        let words = frame[14..34].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
        let sum: u32 = words.sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        frame[20] = 44;
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syns_have_as_many_sources_as_asked_for() {
        let link = LinkEnds { to: [2; 6], from: [4; 6] };
        let targets = ["10.0.100.1:80".parse().unwrap(), "[fd00:100::1]:80".parse().unwrap()];
        let frames = syns_of(link, &targets, 0..10_000);
        let source = |frame: &Vec<u8>| if frame[12] == 0x08 { frame[26..30].to_vec() } else { frame[22..38].to_vec() };
        let sources: std::collections::BTreeSet<Vec<u8>> = frames.iter().map(source).collect();
        assert_eq!(sources.len(), 10_000);
    }

    #[test]
    fn a_seed_gives_the_same_flood_and_every_kind() {
        let link = LinkEnds { to: [2; 6], from: [4; 6] };
        let targets = ["10.0.100.1:80".parse().unwrap(), "[fd00:100::1]:80".parse().unwrap()];
        let frames = frames_of(link, (FloodKind::Mixed, &targets), 1);
        assert_eq!(frames, frames_of(link, (FloodKind::Mixed, &targets), 1));
        assert_ne!(frames, frames_of(link, (FloodKind::Mixed, &targets), 2));
        let has = |what: &dyn Fn(&Vec<u8>) -> bool| assert!(frames.iter().filter(|frame| what(frame)).count() > 100);
        has(&|frame| frame.len() < 34);
        has(&|frame| frame[12..14] == [0x86, 0xdd]);
        has(&|frame| frame.len() >= 34 && frame[12..14] == [0x08, 0x00] && frame[20] & 0x20 != 0);
        has(&|frame| frame[12..14] == [0x08, 0x00] && frame.len() == 54 && frame[47] == SYN);
    }
}
