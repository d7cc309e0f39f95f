//! The packets: full churn, the same for every mechanism.
//!
//! Flows begin at a constant share of the packets and are active for a while; then they are silent until their timeout.
//! So the table holds the active ones and those that wait for their end, and all of it but the few that never end is
//! exchanged within one timeout. Time is virtual: a packet takes a constant time, so that what there is to do per packet
//! does not depend on how fast the machine happens to be.

use hairpin_core::flow::{Address, Direction, Endpoint, FlowKey, Protocol};
use hairpin_core::time::{Duration, Time};

/// Packets in a burst.
pub(super) const BURST: usize = 32;
/// One packet in so many begins a flow: 99 % of all find one.
const NEW_EVERY: u64 = 100;
/// Flows that never end have numbers below. One packet in ten is theirs.
pub(super) const ETERNAL: u64 = 1 << 16;

/// How long a flow is active, given the timeout of established ones.
pub(super) fn active(established: Duration) -> Duration {
    established / 5
}

/// How a flow ends, which decides how long its silence is borne.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowEnd {
    /// Not at all.
    Eternal,
    /// It falls silent (7 in 10).
    Silent,
    /// Both ends close it (2 in 10).
    Closed,
    /// It has one packet only (1 in 10).
    HalfOpen,
}

impl FlowEnd {
    pub(super) fn of(flow: u64) -> FlowEnd {
        match flow % 10 {
            _ if flow < ETERNAL => FlowEnd::Eternal,
            0..7 => FlowEnd::Silent,
            7 | 8 => FlowEnd::Closed,
            _ => FlowEnd::HalfOpen,
        }
    }

    /// From its first packet to when its last silence has been borne for long enough; `None`: it never ends.
    pub(super) fn life(self, established: Duration) -> Option<Duration> {
        match self {
            FlowEnd::Eternal => None,
            FlowEnd::Silent | FlowEnd::Closed => Some(active(established) + self.timeout(established)),
            FlowEnd::HalfOpen => Some(self.timeout(established)),
        }
    }

    /// How long its last silence is borne, given the timeout of established ones.
    pub(super) fn timeout(self, established: Duration) -> Duration {
        match self {
            FlowEnd::Eternal | FlowEnd::Silent => established,
            FlowEnd::Closed => established / 5,
            FlowEnd::HalfOpen => established / 2,
        }
    }
}

/// The purpose of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketPurpose {
    /// Its flow has begun.
    Goes,
    /// It begins a flow.
    Begins,
    /// It ends one.
    Closes,
}

/// A packet: its key is beside it.
#[derive(Clone, Copy, Debug)]
pub(super) struct AgeingPacket {
    pub(super) flow: u64,
    pub(super) purpose: PacketPurpose,
}

/// The source of packets.
pub(super) struct AgeingTraffic {
    random: fastrand::Rng,
    packet: Duration,
    packets: u64,
    /// The next flow.
    head: u64,
    /// Flows that are active at a time.
    active: u64,
    /// Flows that never end.
    eternal: u64,
    /// The last packet of one that leaves, if it is to be sent in its iteration.
    last: Option<AgeingPacket>,
    /// Whether all packets but the first and the last of each flow are left out.
    brief: bool,
}

impl AgeingTraffic {
    /// A packet takes `packet`; silence of established flows is borne for `established`; `eternal` flows never end (1 to
    /// [`ETERNAL`]).
    pub(super) fn new(packet: Duration, established: Duration, eternal: u64) -> AgeingTraffic {
        let active = active(established).as_nanos() as u64 / packet.as_nanos() as u64 / NEW_EVERY;
        let random = fastrand::Rng::with_seed(4);
        AgeingTraffic { random, packet, packets: 0, head: ETERNAL, active, eternal, last: None, brief: false }
    }

    /// Flows that begin in `time`.
    pub(super) fn begun_in(&self, time: Duration) -> usize {
        (time.as_nanos() / self.packet.as_nanos()) as usize / NEW_EVERY as usize
    }

    /// Flows that never end.
    pub(super) fn eternal(&self) -> u64 {
        self.eternal
    }

    /// Bursts in `time`.
    pub(super) fn bursts_in(&self, time: Duration) -> usize {
        (time.as_nanos() / self.packet.as_nanos()) as usize / BURST
    }

    pub(super) fn now(&self) -> Time {
        Time::from_nanos(self.packets * self.packet.as_nanos() as u64)
    }

    /// Leaves all packets but the first and the last of each flow out, or stops that: to fill tables fast, which are
    /// then as if all had been there.
    pub(super) fn set_brief(&mut self, brief: bool) {
        self.brief = brief;
    }

    /// The next packets, which arrive now. No flow is used in the burst in which it begins.
    pub(super) fn burst(&mut self, keys: &mut [FlowKey; BURST], packets: &mut [AgeingPacket; BURST]) -> Time {
        let begun = self.head;
        for (key, packet) in keys.iter_mut().zip(packets) {
            *packet = self.packet(begun);
            let backwards = packet.purpose != PacketPurpose::Begins && self.random.bool();
            *key = key_of(packet.flow, if backwards { Direction::FromBackend } else { Direction::FromClient });
        }
        self.now()
    }

    fn packet(&mut self, begun: u64) -> AgeingPacket {
        self.packets += 1;
        if let Some(last) = self.last.take() {
            return last;
        }
        if self.brief {
            self.packets = self.packets.next_multiple_of(NEW_EVERY);
        }
        if self.packets.is_multiple_of(NEW_EVERY) {
            let flow = self.head;
            self.head += 1;
            self.last = self.last_of(flow.saturating_sub(self.active));
            return AgeingPacket { flow, purpose: PacketPurpose::Begins };
        }
        // Those that leave within the burst are left out.
        let oldest = (begun + 4).saturating_sub(self.active).max(ETERNAL);
        let flow = if oldest + 1 >= begun || self.random.u8(..) < 26 {
            self.random.u64(..self.eternal)
        } else {
            let flow = self.random.u64(oldest + 1..begun);
            if FlowEnd::of(flow) == FlowEnd::HalfOpen { flow - 1 } else { flow }
        };
        AgeingPacket { flow, purpose: PacketPurpose::Goes }
    }

    /// The last packet of a flow that leaves, if it is told apart from others.
    fn last_of(&self, flow: u64) -> Option<AgeingPacket> {
        match FlowEnd::of(flow) {
            FlowEnd::Closed => Some(AgeingPacket { flow, purpose: PacketPurpose::Closes }),
            FlowEnd::Silent if self.brief => Some(AgeingPacket { flow, purpose: PacketPurpose::Goes }),
            _ => None,
        }
    }
}

/// The key of a flow: clients' addresses and ports are scattered, and all differ.
pub(super) fn key_of(flow: u64, direction: Direction) -> FlowKey {
    let [client, vip, backend] = ends_of(flow);
    let (source, destination) = match direction {
        Direction::FromClient => (client, vip),
        Direction::FromBackend => (backend, client),
    };
    FlowKey { source, destination, protocol: Protocol::Tcp }
}

/// Client, service and backend of a flow.
pub(super) fn ends_of(flow: u64) -> [Endpoint; 3] {
    // An odd factor permutes numbers of 40 bits. Clients are in 10.0.0.0/8: not every address is one that a host may have.
    let scattered = flow.wrapping_mul(0x9e37_79b9_7f4b) & ((1 << 40) - 1);
    let [_, _, _, b, c, d, e, f] = scattered.to_be_bytes();
    let address = |octets| Address::from_ipv4(octets);
    let client = Endpoint { address: address([10, b, c, d]), port: u16::from_be_bytes([e, f]) };
    let vip = Endpoint { address: address([192, 0, 2, 1]), port: 443 };
    let backend = Endpoint { address: address([198, 51, 100, (flow % 16) as u8]), port: 8443 };
    [client, vip, backend]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, BTreeSet};

    const TIMEOUT: Duration = Duration::from_secs(10);

    #[test]
    fn flows_begin_go_on_and_end() {
        let mut traffic = AgeingTraffic::new(Duration::from_micros(20), TIMEOUT, ETERNAL);
        let mut keys = [FlowKey::default(); BURST];
        let mut packets = [AgeingPacket { flow: 0, purpose: PacketPurpose::Goes }; BURST];
        let (mut last, mut closed) = (BTreeMap::new(), BTreeSet::new());
        let (mut new, mut now) = (0, Time::ZERO);
        for _ in 0..traffic.bursts_in(Duration::from_secs(10)) {
            now = traffic.burst(&mut keys, &mut packets);
            let known: BTreeSet<u64> = last.keys().copied().collect();
            for AgeingPacket { flow, purpose } in packets {
                match purpose {
                    PacketPurpose::Begins => new += 1,
                    _ => assert!(flow < ETERNAL || known.contains(&flow), "{flow} has not begun"),
                }
                assert!(!closed.contains(&flow), "{flow} goes on after its end");
                if purpose == PacketPurpose::Closes {
                    assert_eq!(FlowEnd::of(flow), FlowEnd::Closed);
                    closed.insert(flow);
                }
                last.insert(flow, now);
            }
        }
        assert_eq!(now, Time::ZERO + Duration::from_secs(10));
        assert_eq!(new, traffic.begun_in(Duration::from_secs(10)));
        let ended = last.iter().filter(|(flow, _)| FlowEnd::of(**flow) == FlowEnd::Closed).count();
        assert!(closed.len() * 10 > ended * 7, "{} of {ended}", closed.len());
        let silent = last.iter().filter(|(flow, _)| **flow > ETERNAL && **flow < ETERNAL + 1000);
        assert!(silent.map(|(_, last)| now.since(*last)).all(|silence| silence > Duration::from_secs(4)));
    }

    /// The last packets of flows are as late in brief traffic.
    #[test]
    fn brief_traffic_leaves_out_the_middle() {
        let mut traffic = AgeingTraffic::new(Duration::from_micros(20), TIMEOUT, ETERNAL);
        traffic.set_brief(true);
        let mut keys = [FlowKey::default(); BURST];
        let mut packets = [AgeingPacket { flow: 0, purpose: PacketPurpose::Goes }; BURST];
        let mut seen: BTreeMap<u64, Vec<Time>> = BTreeMap::new();
        while traffic.now() < Time::ZERO + Duration::from_secs(10) {
            let now = traffic.burst(&mut keys, &mut packets);
            packets.iter().for_each(|packet| seen.entry(packet.flow).or_default().push(now));
        }
        assert!(seen.len().abs_diff(traffic.begun_in(Duration::from_secs(10))) < BURST);
        let left = seen.iter().filter(|(flow, times)| FlowEnd::of(**flow) != FlowEnd::HalfOpen && times.len() == 2);
        let spans: Vec<Duration> = left.map(|(_, times)| times[1].since(times[0])).collect();
        assert!(spans.len() * 10 > seen.len() * 6, "{} of {}", spans.len(), seen.len());
        assert!(spans.iter().all(|span| span.abs_diff(active(TIMEOUT)) < Duration::from_millis(100)));
    }

    #[test]
    fn keys_differ() {
        let keys: BTreeSet<FlowKey> = (0..10_000)
            .flat_map(|flow| [Direction::FromClient, Direction::FromBackend].map(|direction| key_of(flow, direction)))
            .collect();
        assert_eq!(keys.len(), 20_000);
    }
}
