//! Drawn sequences of packets, silences, engine moods and crashes: wherever a process ends, the next one carries on, and
//! in the end nothing is left. (`crates/core/tests/worker_crash.rs` kills real processes in the middle of what they do.)

use super::adoption::snapshot;
use super::many_workers::{ManyWorkers, Restart};
use super::one_worker::{Packet, Way, client, packet};
use crate::config::{BackendState, Forwarding, Service, Snapshot};
use crate::flow::Endpoint;
use crate::frame::Frame;
use crate::l4::connection::{Connection, Volume};
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, RST, SYN};
use alloc::sync::Arc;
use alloc::vec::Vec;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// Client `who` sends to service `which`; the engine may take it.
    Client { who: u8, which: u8, flags: u8, engine: bool },
    /// Backend `whose` answers what it last got, or speaks unasked to client `who`.
    Backend { whose: u8, who: u8, flags: u8, engine: bool },
    /// A worker's requests reach the engine.
    Flush(u8),
    /// The engine answers so many of a worker's requests.
    Answer(u8, u8),
    /// Room in the engine.
    Room(u8),
    /// So many milliseconds pass, the engine answering all.
    Wait(u32),
    /// The process is killed, and another one starts.
    Crash(Crash),
}

#[derive(Clone, Debug)]
struct Crash {
    workers: Option<u16>,
    roomier: bool,
    /// Rules that the engine has lost meanwhile, by position.
    lost: Vec<u8>,
    /// The engine has lost everything.
    empty: bool,
    change: Change,
    away_ms: u32,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Nothing,
    /// The second service is there no more.
    Service,
    /// The first service's first two backends are there no more.
    Backends,
}

fn flags() -> impl Strategy<Value = u8> {
    prop_oneof![3 => Just(SYN), 4 => Just(SYN | ACK), 6 => Just(ACK), 2 => Just(FIN | ACK), 1 => Just(RST)]
}

fn crash() -> impl Strategy<Value = Crash> {
    let change = prop_oneof![6 => Just(Change::Nothing), 1 => Just(Change::Service), 1 => Just(Change::Backends)];
    let away = prop_oneof![4 => 0..2000u32, 1 => 0..200_000u32];
    let workers = prop_oneof![2 => Just(None), 1 => (1..5u16).prop_map(Some)];
    let lost = prop::collection::vec(any::<u8>(), 0..3);
    (workers, prop::bool::weighted(0.1), lost, prop::bool::weighted(0.1), change, away).prop_map(
        |(workers, roomier, lost, empty, change, away_ms)| Crash { workers, roomier, lost, empty, change, away_ms },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..8u8, 0..3u8, flags(), any::<bool>())
            .prop_map(|(who, which, flags, engine)| Step::Client { who, which, flags, engine }),
        8 => (0..4u8, 0..8u8, flags(), any::<bool>())
            .prop_map(|(whose, who, flags, engine)| Step::Backend { whose, who, flags, engine }),
        4 => (0..4u8).prop_map(Step::Flush),
        4 => (0..4u8, 0..4u8).prop_map(|(worker, count)| Step::Answer(worker, count)),
        1 => (0..20u8).prop_map(Step::Room),
        2 => (1..40_000u32).prop_map(Step::Wait),
        2 => crash().prop_map(Step::Crash),
    ]
}

struct DrawnRun {
    fixture: ManyWorkers,
    ipv6: bool,
    /// Whether the number of workers may change. A connection that then only the engine can carry is in trouble while
    /// the engine refuses it, so it does not.
    moving: bool,
    /// The source from which each backend last got a packet.
    last: [Option<Endpoint>; 4],
}

impl DrawnRun {
    fn throw(&mut self, packet: Packet, engine: bool) {
        for frame in self.fixture.packet(packet, engine) {
            if let Ok(crate::wire::Parsed::Transport(at)) = crate::wire::parse(frame.bytes()) {
                let backends = self.fixture.snapshot.services.iter().flat_map(|service| &service.backends);
                let place = backends.map(|backend| backend.endpoint).position(|end| end == at.key.destination);
                if let Some(n) = place {
                    self.last[n % 4] = Some(at.key.source);
                }
            }
        }
    }

    fn play(&mut self, step: Step, original: &Arc<Snapshot>) {
        let count = self.fixture.workers.len();
        match step {
            Step::Client { who, which, flags, engine } => {
                let service = &original.services[usize::from(which)];
                let way = if which == 2 { Way::Udp(20) } else { Way::Tcp(flags) };
                self.throw(packet(client(self.ipv6, who, 5000), service.endpoint, way), engine);
            }
            Step::Backend { whose, who, flags, engine } => {
                let to = self.last[usize::from(whose)].unwrap_or(client(self.ipv6, who, 5000));
                let way = if flags == RST { Way::Udp(9) } else { Way::Tcp(flags) };
                let from = original.services[0].backends[usize::from(whose)].endpoint;
                self.throw(packet(from, to, way), engine);
            }
            Step::Flush(worker) => self.fixture.flush(usize::from(worker) % count),
            Step::Answer(worker, n) => (0..n).for_each(|_| self.fixture.answer_one(usize::from(worker) % count)),
            Step::Room(room) if !self.moving => self.fixture.room = usize::from(room),
            Step::Room(_) => {}
            Step::Wait(ms) => self.fixture.wait(Duration::from_millis(u64::from(ms))),
            Step::Crash(crash) => self.crash(crash, original),
        }
    }

    fn crash(&mut self, crash: Crash, original: &Arc<Snapshot>) {
        let before = self.fixture.live();
        for lost in &crash.lost {
            let keys = self.fixture.engine.keys().copied();
            let key = keys.cycle().nth(usize::from(*lost) % self.fixture.engine.len().max(1));
            key.and_then(|key| self.fixture.engine.remove(&key));
        }
        if crash.empty {
            self.fixture.engine.clear();
        }
        let now = self.fixture.as_before();
        let restart = Restart {
            workers: crash.workers.filter(|_| self.moving).unwrap_or(now.workers),
            capacity: now.capacity + usize::from(crash.roomier),
            snapshot: changed(original, crash.change),
            away: Duration::from_millis(u64::from(crash.away_ms)),
        };
        let same_workers = restart.workers == now.workers;
        let adopted = self.fixture.adopt(restart);
        assert_eq!(adopted.invalid, 0);
        let live = adopted.kept + adopted.without_service + adopted.misplaced + adopted.duplicates;
        assert_eq!(live, before.len() as u64, "{adopted:?}");
        assert!(self.moving || adopted.misplaced == 0 && adopted.duplicates == 0, "{adopted:?}");
        assert!(!same_workers || adopted.duplicates == 0, "{adopted:?}");
        assert!(adopted.without_service == 0 || !matches!(crash.change, Change::Nothing));
        for after in &self.fixture.live() {
            let same = |c: &&Connection| facts(c) == facts(after);
            assert!(before.iter().any(|c| same(&c)), "a connection has become another: {after:?} of {before:?}");
        }
        self.fixture.settle();
    }
}

/// The state that no restart may change: the ends, their TCP states, and their counts.
fn facts(c: &Connection) -> impl PartialEq + use<> {
    let total = |way: usize| {
        let mut sum: Volume = c.forwarded[way];
        sum.add(c.offloaded[way].packets, c.offloaded[way].bytes);
        (sum.packets, sum.bytes)
    };
    let times = [c.created, c.changed, c.last_seen];
    ((c.client, c.vip, c.backend, c.source), c.protocol, c.state, times, total(0), total(1))
}

fn changed(original: &Arc<Snapshot>, change: Change) -> Arc<Snapshot> {
    let mut services: Vec<Service> = original.services.to_vec();
    match change {
        Change::Nothing => return original.clone(),
        Change::Service => services[1] = Service::vacant(),
        Change::Backends => {
            let backends = services[0].backends.iter().cloned();
            services[0].backends = backends.skip(2).collect();
            services[0].backends[0].state = BackendState::Draining;
        }
    }
    Arc::new(Snapshot::new(services.into(), original.pool.clone()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, max_shrink_iters: 20_000, ..ProptestConfig::default() })]
    #[test]
    fn wherever_it_ends_the_next_one_carries_on(
        ipv6 in any::<bool>(),
        full_nat in any::<bool>(),
        moving in any::<bool>(),
        workers in 1..4u16,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let forwarding = if full_nat { Forwarding::FullNat } else { Forwarding::Nat };
        let original = snapshot(ipv6, |service| service.forwarding = forwarding);
        let fixture = ManyWorkers::new(original.clone(), workers, 64);
        let mut run = DrawnRun { fixture, ipv6, moving, last: [None; 4] };
        let original = Arc::new(original);
        for step in steps {
            run.play(step, &original);
        }
        run.fixture.settle();
        run.fixture.check();
        run.fixture.outlive();
    }
}
