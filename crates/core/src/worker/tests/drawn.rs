//! Drawn sequences of packets, silences, engine moods and changes of the configuration: whatever happens, a connection keeps
//! its backend, counters are right, offload state equals engine in the end, a removal never hits another connection's rule, every
//! frame is accounted for, and when all is silent nothing is left.

use super::one_worker::{OneWorker, Packet, Way, client, end, packet};
use super::services::{self, DrawnServices, Edit};
use crate::config::Forwarding;
use crate::flow::{Direction, Endpoint};
use crate::frame::Frame;
use crate::l4::connection::{Connection, Flags, State};
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, RST, SYN};
use crate::worker::Which;
use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// Client `who` sends to service `which`.
    Client { who: u8, which: u8, flags: u8 },
    /// Client `who` opens a connection to service `which`, or begins it anew; and all packets arrive.
    Open { who: u8, which: u8 },
    /// Both ends of that connection close it.
    Close { who: u8, which: u8 },
    /// Backend `whose` answers what it last got from anywhere, or speaks unasked to client `who`.
    Backend { whose: u8, who: u8, flags: u8 },
    /// A frame of rubbish.
    Rubbish(Vec<u8>),
    /// A real frame with a byte changed.
    Bent { who: u8, at: u8, to: u8 },
    /// Requests reach the engine.
    Flush,
    /// The engine answers so many requests.
    Answer(u8),
    /// Room in the engine.
    Room(u8),
    /// So many milliseconds pass, the engine answering all.
    Wait(u32),
    /// The configuration changes.
    Change(Edit),
    /// A backend has this share of its weight: it goes down, comes up, starts slowly.
    Share { number: u16, share: u16 },
    /// Ends connections of a backend.
    End { number: u16, which: Which },
}

fn flags() -> impl Strategy<Value = u8> {
    prop_oneof![
        3 => Just(SYN),
        3 => Just(SYN | ACK),
        6 => Just(ACK),
        2 => Just(FIN | ACK),
        1 => Just(RST),
        1 => any::<u8>(),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..6u8, 0..3u8, flags()).prop_map(|(who, which, flags)| Step::Client { who, which, flags }),
        6 => (0..24u8, 0..6u8, flags()).prop_map(|(whose, who, flags)| Step::Backend { whose, who, flags }),
        4 => (0..6u8, 0..2u8).prop_map(|(who, which)| Step::Open { who, which }),
        2 => (0..6u8, 0..2u8).prop_map(|(who, which)| Step::Close { who, which }),
        1 => prop::collection::vec(any::<u8>(), 0..120).prop_map(Step::Rubbish),
        1 => (0..6u8, any::<u8>(), any::<u8>()).prop_map(|(who, at, to)| Step::Bent { who, at, to }),
        4 => Just(Step::Flush),
        4 => (0..4u8).prop_map(Step::Answer),
        1 => (0..20u8).prop_map(Step::Room),
        2 => (1..40_000u32).prop_map(Step::Wait),
        3 => services::edit().prop_map(Step::Change),
        2 => (0..16u16, prop_oneof![Just(0u16), Just(16), Just(256)])
            .prop_map(|(number, share)| Step::Share { number, share }),
        1 => (0..16u16, prop_oneof![Just(Which::All), Just(Which::Datagrams)])
            .prop_map(|(number, which)| Step::End { number, which }),
    ]
}

struct DrawnRun {
    fixture: OneWorker,
    ipv6: bool,
    services: DrawnServices,
    /// The source from which each backend last got a packet.
    last: BTreeMap<Endpoint, Endpoint>,
    given: u64,
    seen: u64,
}

impl DrawnRun {
    fn throw(&mut self, frame: Packet) {
        let known = self.known(&frame);
        let outcome = self.fixture.batch(vec![frame]);
        self.given += 1;
        for frame in &outcome.frames {
            self.seen += 1;
            if let Ok(crate::wire::Parsed::Transport(at)) = crate::wire::parse(frame.bytes()) {
                if let Some(connection) = known.filter(|known| known.source == at.key.source) {
                    assert_eq!(at.key.destination, connection.backend, "a packet has gone to another backend");
                }
                self.last.insert(at.key.destination, at.key.source);
            }
        }
    }

    /// The living connection that a packet from a client belongs to.
    fn known(&self, frame: &Packet) -> Option<Connection> {
        let Ok(crate::wire::Parsed::Transport(at)) = crate::wire::parse(frame.bytes()) else { return None };
        let mut connections = self.fixture.worker().connections();
        let is_it = |c: &&Connection| c.key(Direction::FromClient) == at.key && !c.flags.has(Flags::PENDING_REMOVAL);
        connections.find(|c| c.state != State::Pass && !c.state.is_over() && is_it(c)).copied()
    }

    /// The ends of all backends there are, in no particular order.
    fn ends(&self) -> Vec<Endpoint> {
        let services = self.fixture.snapshot().services.iter();
        services.flat_map(|service| service.backends.iter().map(|backend| backend.endpoint)).collect()
    }

    fn play(&mut self, step: Step) {
        let vips = [self.fixture.vip(), self.fixture.second_vip(), end(self.ipv6, 1, 53)];
        match step {
            Step::Client { who, which, flags } => {
                let way = if which == 2 { Way::Udp(20) } else { Way::Tcp(flags) };
                self.throw(packet(client(self.ipv6, who, 5000), vips[usize::from(which)], way));
            }
            Step::Open { who, which } => {
                let (client, vip) = (client(self.ipv6, who, 5000), vips[usize::from(which)]);
                self.throw(packet(client, vip, Way::Tcp(SYN)));
                if let Some(known) = self.known(&packet(client, vip, Way::Tcp(ACK))) {
                    self.throw(packet(known.backend, known.source, Way::Tcp(SYN | ACK)));
                    self.throw(packet(client, vip, Way::Tcp(ACK)));
                }
            }
            Step::Close { who, which } => {
                let (client, vip) = (client(self.ipv6, who, 5000), vips[usize::from(which)]);
                if let Some(known) = self.known(&packet(client, vip, Way::Tcp(ACK))) {
                    self.throw(packet(client, vip, Way::Tcp(FIN | ACK)));
                    self.throw(packet(known.backend, known.source, Way::Tcp(FIN | ACK)));
                }
            }
            Step::Backend { whose, who, flags } => {
                let ends = self.ends();
                let from = ends[usize::from(whose) % ends.len()];
                let to = self.last.get(&from).copied().unwrap_or(client(self.ipv6, who, 5000));
                let way = if flags == RST { Way::Udp(9) } else { Way::Tcp(flags) };
                self.throw(packet(from, to, way));
            }
            Step::Rubbish(bytes) => self.throw(Packet::new(&bytes)),
            Step::Bent { who, at, to } => {
                let mut frame = packet(client(self.ipv6, who, 5000), vips[0], Way::Tcp(SYN));
                let at = usize::from(at) % frame.data.len();
                frame.data[at] = to;
                self.throw(frame);
            }
            Step::Flush => self.fixture.flush(),
            Step::Answer(n) => (0..n).for_each(|_| self.fixture.answer_one()),
            Step::Room(room) => self.fixture.engine.room = usize::from(room),
            Step::Wait(ms) => {
                self.fixture.wait(Duration::from_millis(u64::from(ms)));
                if ms > 1000 {
                    self.services.check_settled(&self.fixture);
                }
            }
            Step::Change(edit) => self.services.change(&mut self.fixture, self.ipv6, &edit),
            Step::Share { number, share } => self.fixture.effective_weights.set(number, share),
            Step::End { number, which } => self.fixture.end_backend(number, which),
        }
        self.services.check(&self.fixture);
        // so that what is created in a step can be told from what was before
        self.fixture.now = self.fixture.now + Duration::from_nanos(1);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, max_shrink_iters: 20_000, ..ProptestConfig::default() })]
    #[test]
    fn nothing_is_lost_and_nothing_is_left(
        ipv6 in any::<bool>(),
        full_nat in any::<bool>(),
        capacity in prop_oneof![Just(4usize), Just(64)],
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let fixture = OneWorker::with_capacity(ipv6, capacity, |s| {
            s.forwarding = if full_nat { Forwarding::FullNat } else { Forwarding::Nat };
        });
        let mut run = DrawnRun { fixture, ipv6, services: DrawnServices::default(), last: BTreeMap::new(), given: 0, seen: 0 };
        for step in steps {
            run.play(step);
        }
        run.fixture.settle();
        prop_assert_eq!(run.fixture.rules_known(), run.fixture.engine_keys());
        let statistics = run.fixture.worker().statistics();
        let dropped = statistics.drops.iter().sum::<u64>() + statistics.malformed.iter().sum::<u64>();
        prop_assert_eq!(statistics.frames, run.given);
        prop_assert!(run.seen + dropped >= run.given, "a frame vanished");
        // a day of silence
        for _ in 0..24 {
            run.fixture.wait(Duration::from_secs(3600));
        }
        run.services.check(&run.fixture);
        prop_assert_eq!(run.fixture.worker().connections().count(), 0);
        prop_assert!(run.fixture.engine_keys().is_empty());
        prop_assert_eq!(run.fixture.loads(), 0);
        prop_assert_eq!(run.fixture.worker().statistics().connections_now, 0);
        prop_assert_eq!(run.fixture.worker().statistics().passes_now, 0);
        prop_assert_eq!(run.fixture.worker().statistics().offload.rules, 0);
    }
}
