//! A table that is full: who goes, who stays, who is refused.

use super::one_worker::{OneWorker, Way, client, end, packet, with_tcp};
use crate::flow::Endpoint;
use crate::l4::connection::State;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, PSH, RST, SYN};
use crate::worker::Drop;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// A forged SYN from one of many sources.
    Syn(u16),
    /// A forged SYN whose forger goes on blindly after the backend's answer, with these flags.
    Blind(u16, u8),
    /// A forged datagram.
    Datagram(u16),
    /// A real client comes.
    Open(u8),
    /// A real client goes on.
    Talk(u8),
    /// A real client goes away.
    Close(u8),
    /// So many milliseconds pass.
    Wait(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let blind = prop_oneof![Just(ACK), Just(FIN | ACK), Just(ACK | PSH), Just(RST)];
    prop_oneof![
        8 => any::<u16>().prop_map(Step::Syn),
        4 => (any::<u16>(), blind).prop_map(|(who, flags)| Step::Blind(who, flags)),
        4 => any::<u16>().prop_map(Step::Datagram),
        3 => any::<u8>().prop_map(Step::Open),
        3 => any::<u8>().prop_map(Step::Talk),
        1 => any::<u8>().prop_map(Step::Close),
        1 => any::<u16>().prop_map(Step::Wait),
    ]
}

fn forger(who: u16) -> Endpoint {
    Endpoint { port: 1 + (who & 0xff), ..client(false, (who >> 8) as u8, 0) }
}

fn real(who: u8) -> Endpoint {
    let mut end = client(false, who, 50_000);
    end.address.0[13] = 77;
    end
}

struct Siege {
    fixture: OneWorker,
    /// Real clients' connections, and their backends.
    open: BTreeMap<u8, Endpoint>,
}

impl Siege {
    /// Whether nothing in the table has to give way.
    fn is_held(&self) -> bool {
        let statistics = self.fixture.worker().statistics();
        statistics.half_open_now == 0 && statistics.connections_now == statistics.connections_max
    }

    fn play(&mut self, step: Step) {
        let vip = self.fixture.vip();
        match step {
            Step::Syn(who) => drop(self.fixture.send(packet(forger(who), vip, Way::Tcp(SYN)))),
            Step::Datagram(who) => drop(self.fixture.send(packet(forger(who), end(false, 1, 53), Way::Udp(9)))),
            Step::Blind(who, flags) => {
                let Some(sent) = self.fixture.client_tries(forger(who), SYN).filter(|sent| sent.flags & RST == 0)
                else {
                    return;
                };
                self.fixture.send(packet(sent.destination, sent.source, Way::Tcp(SYN | ACK)));
                let guess = packet(forger(who), vip, Way::Tcp(flags));
                self.fixture.send(with_tcp(guess, |tcp| tcp[8..12].copy_from_slice(&0x1234_5678u32.to_be_bytes())));
            }
            Step::Open(who) if !self.open.contains_key(&who) => {
                let held = self.is_held();
                let before = self.fixture.drops(Drop::TableFull);
                match self.fixture.client_tries(real(who), SYN) {
                    Some(sent) => {
                        self.fixture.send(packet(sent.destination, sent.source, Way::Tcp(SYN | ACK)));
                        assert_eq!(self.fixture.client_sends(real(who), ACK).destination, sent.destination);
                        self.open.insert(who, sent.destination);
                    }
                    None => {
                        assert!(held, "refused although a rule could have been evicted");
                        assert_eq!(self.fixture.drops(Drop::TableFull), before + 1);
                    }
                }
            }
            Step::Open(who) | Step::Talk(who) => {
                if let Some(&backend) = self.open.get(&who) {
                    assert_eq!(self.fixture.client_sends(real(who), ACK | PSH).destination, backend);
                }
            }
            Step::Close(who) => {
                if let Some(backend) = self.open.remove(&who) {
                    self.fixture.client_sends(real(who), FIN | ACK);
                    self.fixture.send(packet(backend, real(who), Way::Tcp(FIN | ACK)));
                    self.fixture.wait(Duration::from_secs(6));
                }
            }
            Step::Wait(ms) => self.fixture.wait(Duration::from_millis(u64::from(ms))),
        }
        self.check();
    }

    fn check(&self) {
        let statistics = self.fixture.worker().statistics();
        let connections: Vec<_> = self.fixture.worker().connections().collect();
        assert!(connections.len() as u64 <= statistics.connections_max);
        assert_eq!(statistics.connections_now, connections.len() as u64);
        assert!(statistics.connections_peak >= statistics.connections_now);
        for (&who, &backend) in &self.open {
            let held = connections.iter().find(|connection| connection.client == real(who));
            assert!(held.is_some_and(|held| held.backend == backend && held.state == State::Established), "{who} lost");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn floods_evict_only_themselves(
        capacity in prop_oneof![Just(4usize), Just(16), Just(32)],
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let mut siege = Siege { fixture: OneWorker::with_capacity(false, capacity, |_| {}), open: BTreeMap::new() };
        for step in steps {
            siege.play(step);
        }
    }
}

#[test]
fn ten_times_as_many_sources_as_there_is_room_for() {
    let mut siege = Siege { fixture: OneWorker::with_capacity(false, 1000, |_| {}), open: BTreeMap::new() };
    (0..200).for_each(|who| siege.play(Step::Open(who)));
    for who in 0..10_000 {
        siege.fixture.send(packet(forger(who), siege.fixture.vip(), Way::Tcp(SYN)));
        if who % 100 == 0 {
            siege.play(Step::Talk((who / 100) as u8));
        }
    }
    (200..220).for_each(|who| siege.play(Step::Open(who)));
    assert_eq!(siege.open.len(), 220, "real clients come in during the flood");
    let statistics = siege.fixture.worker().statistics();
    assert_eq!((statistics.connections_now, statistics.connections_peak), (1000, 1000));
    assert_eq!(statistics.half_open_now, 780);
    assert_eq!(siege.fixture.drops(Drop::TableFull), 0);
}

#[test]
fn a_restarted_connection_gives_way_like_a_new_one() {
    let mut fixture = OneWorker::with_capacity(false, 1, |_| {});
    let first = client(false, 1, 1);
    fixture.open(first);
    fixture.client_sends(first, RST);
    fixture.client_sends(first, SYN);
    assert_eq!(fixture.worker().statistics().half_open_now, 1);
    // its rules have to go first, so the one that makes it go comes too early
    assert!(fixture.client_tries(client(false, 2, 1), SYN).is_none());
    fixture.open(client(false, 2, 1));
    assert_eq!((fixture.worker().statistics().evicted, fixture.worker().statistics().half_open_now), (1, 0));
}
