//! Workers that are killed in the middle of whatever they do, and what the next one makes of it.
//!
//! A child process runs a worker on a file in shared memory, in which an engine's rules lie as well, and lets packets,
//! requests, answers and time come at random until SIGKILL hits it. The parent adopts a copy of what it left and checks
//! it, to the end of all connections; the next child adopts the original and continues, so that crashes add up.
//!
//! `HAIRPIN_CRASHES` says how many there are, `HAIRPIN_CRASH_SEED` from what they are drawn.
#![cfg(all(target_os = "linux", not(miri)))]
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "what kills processes is not sans-IO")]

use etherparse::PacketBuilder;
use hairpin_core::balance::Loads;
use hairpin_core::config::{Backend, BackendState, Forwarding, Pool, Service, Snapshot};
use hairpin_core::engine::{Completion, Counters, EngineCaps, RuleOp};
use hairpin_core::flow::{Address, Endpoint, FlowKey, Protocol, Steering};
use hairpin_core::frame::{Batch, FrameIo, VecFrame};
use hairpin_core::l4::connection::{Connection, Flags, State};
use hairpin_core::l7::config::Kind;
use hairpin_core::offload::Always;
use hairpin_core::table::slab::{Slot, slots_at};
use hairpin_core::table::{AnyTable, Hasher};
use hairpin_core::time::{Duration, Time};
use hairpin_core::wire::tcp::{ACK, FIN, RST, SYN};
use hairpin_core::wire::{Parsed, parse};
use hairpin_core::worker::{Adopted, Drop, Worker, WorkerOptions};
use std::collections::{BTreeSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const CONNECTIONS: usize = 320;
const RULES: usize = 1024;
const CLIENTS: u64 = 120;
/// Source ports of the pool, with the one backend of its services.
const PORTS: u16 = 340;

/// The state that outlives a process: its connections, and the engine.
#[repr(C)]
struct Lasting {
    /// The time, in nanoseconds.
    now: AtomicU64,
    /// How much work has been done since the first process began.
    work: AtomicU64,
    /// The engine: whether there is a rule, and its key.
    rules: [(AtomicU64, [AtomicU64; 5]); RULES],
    slots: [Slot<Connection>; CONNECTIONS],
}

/// Maps a file, or fresh memory, until the process ends.
fn map(file: Option<&File>) -> *mut Lasting {
    let (flags, file) = match file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, of whole pages, which replaces no other.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Lasting>(), protection, flags, file, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    memory.cast()
}

fn words(key: &FlowKey) -> [u64; 5] {
    let word = |address: &Address, from: usize| u64::from_le_bytes(address.0[from..from + 8].try_into().unwrap());
    let (a, b) = (&key.source.address, &key.destination.address);
    let rest = u64::from(key.source.port) | u64::from(key.destination.port) << 16 | (key.protocol as u64) << 32;
    [word(a, 0), word(a, 8), word(b, 0), word(b, 8), rest]
}

/// The engine. Its rules change one by one, each at once; it never loses any.
#[derive(Clone, Copy)]
struct Engine(&'static [(AtomicU64, [AtomicU64; 5]); RULES]);

impl Engine {
    fn place(&self, key: &[u64; 5]) -> Option<usize> {
        let is = |rule: &[AtomicU64; 5]| rule.iter().zip(key).all(|(word, key)| word.load(Ordering::Relaxed) == *key);
        self.0.iter().position(|(there, rule)| there.load(Ordering::Acquire) == 1 && is(rule))
    }

    fn holds(&self, key: &FlowKey) -> bool {
        self.place(&words(key)).is_some()
    }

    fn execute(&self, op: &RuleOp) -> Completion {
        match op {
            RuleOp::Install(rule) => {
                let key = words(&rule.key);
                assert!(self.place(&key).is_none(), "a rule was put over another");
                let (there, words) = self.0.iter().find(|(there, _)| there.load(Ordering::Relaxed) == 0).unwrap();
                words.iter().zip(key).for_each(|(word, key)| word.store(key, Ordering::Relaxed));
                there.store(1, Ordering::Release);
                Completion::Installed(rule.id)
            }
            RuleOp::Remove { id, key } => {
                let place = self.place(&words(key));
                place.iter().for_each(|&place| self.0[place].0.store(0, Ordering::Release));
                Completion::Removed(*id, place.map(|_| Counters::default()))
            }
        }
    }

    fn keys(&self) -> BTreeSet<[u64; 5]> {
        let held = self.0.iter().filter(|(there, _)| there.load(Ordering::Acquire) == 1);
        held.map(|(_, rule)| rule.each_ref().map(|word| word.load(Ordering::Relaxed))).collect()
    }

    /// Takes away what is not among these.
    fn keep(&self, keys: &BTreeSet<[u64; 5]>) {
        for key in self.keys().difference(keys) {
            self.0[self.place(key).unwrap()].0.store(0, Ordering::Release);
        }
    }
}

struct NoPort;

impl FrameIo for NoPort {
    type Frame = VecFrame;
    fn receive(&mut self, _: &mut Batch<VecFrame>) {}
    fn transmit(&mut self, _: &mut Batch<VecFrame>) {}
    fn allocate(&mut self) -> Option<VecFrame> {
        None
    }
}

fn end(host: u8, port: u16) -> Endpoint {
    Endpoint { address: Address::from_ipv4([10, 0, 0, host]), port }
}

fn client(number: u64) -> Endpoint {
    end(100 + (number % 60) as u8, 5000 + (number / 60) as u16)
}

fn snapshot() -> Arc<Snapshot> {
    let service = |number: u16, protocol, forwarding| Service {
        state: Default::default(),
        name: format!("{number}").into(),
        endpoint: end(1, 80 + number),
        protocol,
        kind: Kind::Forward,
        forwarding,
        algorithm: Default::default(),
        unknown: Default::default(),
        timeouts: Default::default(),
        access: None,
        limits: Default::default(),
        drain_limit: Duration::ZERO,
        all_down: Default::default(),
        backends: [Backend {
            number,
            name: "b".into(),
            endpoint: end(2, 8000),
            weight: 1,
            state: BackendState::Enabled,
            is_backup: false,
            connections_max: 0,
        }]
        .into(),
        ..Service::vacant()
    };
    let services = [
        service(0, Protocol::Tcp, Forwarding::FullNat),
        service(1, Protocol::Udp, Forwarding::FullNat),
        service(2, Protocol::Tcp, Forwarding::Nat),
    ];
    let pool = Pool {
        addresses: [end(50, 0).address].into(),
        port_first: 20_000,
        port_last: 20_000 + PORTS - 1,
        time_wait: Duration::from_secs(60),
    };
    Arc::new(Snapshot::new(services.into(), pool))
}

/// SplitMix64.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ (x >> 31)) % bound
    }
}

/// A process: a worker on what lasts.
struct Process {
    worker: Worker<Always>,
    engine: Engine,
    answers: VecDeque<Completion>,
    lasting: &'static Lasting,
    snapshot: Arc<Snapshot>,
    now: Time,
}

impl Process {
    /// Adopts what the last one has left, and does what a process has to do then.
    ///
    /// # Safety
    /// `memory` is a mapping that nothing else in this process uses.
    unsafe fn start(memory: *mut Lasting) -> (Process, Adopted) {
        // SAFETY: the slots are in the mapping, which lasts; only they are ever written to but by atomic stores.
        let (lasting, slots) = unsafe { (&*memory, slots_at((&raw mut (*memory).slots).cast(), CONNECTIONS)) };
        let engine = Engine(&lasting.rules);
        let now = Time::from_nanos(lasting.now.load(Ordering::Relaxed).max(1_000_000_000));
        let snapshot = snapshot();
        let seeds = [now.as_nanos(), 2, 3, 4];
        let table = AnyTable::new(2 * CONNECTIONS, Hasher::new(seeds));
        let options = WorkerOptions {
            steering: Steering::by_hash([1, 2], 1),
            loads: Loads::new(snapshot.backends()),
            caps: EngineCaps::full(RULES as u32),
            cookies: hairpin_core::l7::cookie::Cookies::new([[1, 2], [3, 4]]),
            ..WorkerOptions::new(snapshot.clone(), slots, table, Always, seeds)
        };
        let (worker, adopted) = Worker::adopt(options, now, &|key| engine.holds(key));
        engine.keep(&worker.rules_known().map(|key| words(&key)).collect());
        (Process { worker, engine, answers: VecDeque::new(), lasting, snapshot, now }, adopted)
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.lasting.now.store(self.now.as_nanos(), Ordering::Relaxed);
    }

    /// Gives the worker a packet; where what it sent goes.
    fn packet(&mut self, from: Endpoint, to: Endpoint, protocol: Protocol, flags: u8) -> Option<(Endpoint, Endpoint)> {
        let ip = |end: &Endpoint| end.address.ipv4_octets();
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4(ip(&from), ip(&to), 64);
        let mut bytes = Vec::new();
        match protocol {
            Protocol::Udp => builder.udp(from.port, to.port).write(&mut bytes, b"hello").unwrap(),
            Protocol::Tcp => {
                let mut tcp = builder.tcp(from.port, to.port, 7, 1000);
                tcp = if flags & SYN != 0 { tcp.syn() } else { tcp };
                tcp = if flags & FIN != 0 { tcp.fin() } else { tcp };
                tcp = if flags & RST != 0 { tcp.rst() } else { tcp };
                // Both ends begin at 7.
                tcp = if flags & ACK != 0 { tcp.ack(8) } else { tcp };
                tcp.write(&mut bytes, b"").unwrap();
            }
        }
        let mut rx: Batch<VecFrame> = std::iter::once(VecFrame::new(&bytes)).collect();
        let mut tx = Batch::new();
        self.worker.handle_batch(self.now, &mut NoPort, &mut rx, &mut tx);
        match parse(&tx.first()?.data) {
            Ok(Parsed::Transport(at)) => Some((at.key.source, at.key.destination)),
            _ => None,
        }
    }

    /// Something, at random.
    fn work(&mut self, draw: &mut Draw, last: &mut [Endpoint]) {
        self.pass(Duration::from_micros(draw.below(2000)));
        match draw.below(100) {
            0..70 => {
                let number = draw.below(CLIENTS);
                let service = &self.snapshot.services[draw.below(3) as usize];
                let (vip, backend, protocol) = (service.endpoint, service.backends[0].endpoint, service.protocol);
                let flags = [SYN, SYN, SYN | ACK, SYN | ACK, ACK, ACK, ACK, FIN | ACK, RST][draw.below(9) as usize];
                let (me, seen) = (client(number), &mut last[number as usize]);
                if draw.below(2) == 0 {
                    let known = *seen;
                    self.packet(backend, known, protocol, flags);
                } else if let Some((source, to)) = self.packet(me, vip, protocol, flags)
                    && to == backend
                {
                    last[number as usize] = source;
                }
            }
            70..82 => self.flush(),
            82..95 => {
                for _ in 0..draw.below(6) {
                    self.answer_one();
                }
            }
            95..99 => self.judge(),
            _ => self.pass(Duration::from_millis(draw.below(8000))),
        }
        self.lasting.work.fetch_add(1, Ordering::Relaxed);
    }

    fn flush(&mut self) {
        while let Some(op) = self.worker.poll_op() {
            let answer = self.engine.execute(&op);
            self.answers.push_back(answer);
        }
    }

    fn answer_one(&mut self) {
        if let Some(answer) = self.answers.pop_front() {
            self.worker.handle_completion(self.now, &answer);
        }
    }

    fn judge(&mut self) {
        self.worker.handle_timeout(self.now);
        let mut asked = Default::default();
        self.worker.poll_samples(&mut asked);
        // No packet has used a rule.
        let samples = asked.iter().map(|(_, key)| self.engine.holds(key).then(Counters::default)).collect();
        self.worker.handle_samples(self.now, &asked, &samples);
    }

    fn settle(&mut self) {
        for _ in 0..1000 {
            self.flush();
            if self.answers.is_empty() {
                return;
            }
            while !self.answers.is_empty() {
                self.answer_one();
            }
        }
        panic!("worker and engine never come to an end");
    }

    fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            let next = self.worker.poll_timeout(self.now).unwrap_or(end);
            self.now = next.max(self.now + Duration::from_millis(50)).min(end);
            self.judge();
            self.settle();
        }
    }

    fn check_offload_state(&self) {
        let offload_state: Vec<_> = self.worker.rules_known().map(|key| words(&key)).collect();
        assert_eq!(
            offload_state.iter().copied().collect::<BTreeSet<_>>(),
            self.engine.keys(),
            "offload state and engine"
        );
        assert_eq!(offload_state.len(), self.engine.keys().len(), "a rule is in the offload state twice");
    }

    fn live(&self) -> Vec<Connection> {
        let live = |c: &&Connection| c.state != State::Pass && !c.flags.has(Flags::PENDING_REMOVAL);
        self.worker.connections().filter(live).copied().collect()
    }

    /// Everything that has to be true of what a killed process left.
    fn check(mut self) {
        self.check_offload_state();
        let (live, mut sources) = (self.live(), BTreeSet::new());
        for connection in live.iter().filter(|connection| connection.flags.has(Flags::FULL_NAT)) {
            assert!(sources.insert((connection.protocol, connection.source)), "a port of the pool is used twice");
        }
        self.settle();
        self.check_offload_state();
        // The index is complete: packets of both flows find their connection, and go where they always went.
        for c in &live {
            assert_eq!(self.packet(c.client, c.vip, c.protocol, ACK), Some((c.source, c.backend)), "{c:?}");
            assert_eq!(self.packet(c.backend, c.source, c.protocol, ACK), Some((c.vip, c.client)), "{c:?}");
        }
        self.settle();
        assert_eq!(self.live().len(), live.len());
        for _ in 0..24 {
            self.wait(Duration::from_secs(3600));
        }
        assert_eq!(self.worker.connections().count(), 0, "something stays for ever");
        assert_eq!(self.engine.keys().len(), 0, "a rule stays for ever");
        let statistics = self.worker.statistics();
        let now =
            (statistics.connections_now, statistics.passes_now, statistics.half_open_now, statistics.offload.rules);
        assert_eq!(now, (0, 0, 0, 0));
        self.check_ports();
    }

    /// All of the pool's ports can be had, so none has leaked: more connections than the table holds, one after another,
    /// each with a port that is not in use.
    fn check_ports(mut self) {
        let service = &self.snapshot.services[0];
        let (vip, backend) = (service.endpoint, service.backends[0].endpoint);
        let mut seen = BTreeSet::new();
        for n in 0..u64::from(PORTS) {
            let me = end(3, 1000 + n as u16);
            let (source, to) = self.packet(me, vip, Protocol::Tcp, SYN).expect("a port of the pool has leaked");
            assert_eq!(to, backend, "a port of the pool has leaked");
            seen.insert(source);
            // The backend is not there, and the port need not rest.
            self.packet(backend, source, Protocol::Tcp, RST | ACK);
            self.wait(Duration::from_secs(11));
        }
        assert_eq!(self.worker.statistics().drops[Drop::PoolExhausted as usize], 0);
        assert_eq!(seen.len(), usize::from(PORTS), "a port of the pool is never given out");
    }
}

/// The process that is killed. Not a test, but the only way for a test to be another process.
#[test]
#[ignore = "it is started by the test of this file"]
fn child() {
    let Some(path) = std::env::var_os("HAIRPIN_CRASH_FILE") else { return };
    let seed = std::env::var("HAIRPIN_CRASH_SEED").unwrap().parse().unwrap();
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    // SAFETY: a mapping of its own.
    let (mut process, _) = unsafe { Process::start(map(Some(&file))) };
    let mut last: Vec<Endpoint> = (0..CLIENTS).map(client).collect();
    for connection in process.live() {
        if let Some(number) = (0..CLIENTS).find(|&number| client(number) == connection.client) {
            last[number as usize] = connection.source;
        }
    }
    let mut draw = Draw(seed);
    loop {
        process.work(&mut draw, &mut last);
    }
}

/// The file, which goes with the test.
struct Memory(PathBuf);

impl Memory {
    fn new() -> Memory {
        let directory = if Path::new("/dev/shm").is_dir() { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
        let path = directory.join(format!("hairpin-adopt-crash-{}", std::process::id()));
        let file = OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
        file.set_len(size_of::<Lasting>() as u64).unwrap();
        Memory(path)
    }
}

impl std::ops::Drop for Memory {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}: not a number: {text}")))
}

#[test]
fn successor_of_a_killed_process_continues() {
    let (crashes, seed) = (variable("HAIRPIN_CRASHES", 30), variable("HAIRPIN_CRASH_SEED", 1));
    let memory = Memory::new();
    let file = OpenOptions::new().read(true).write(true).open(&memory.0).unwrap();
    let left = map(Some(&file));
    let copy = map(None);
    let mut draw = Draw(seed);
    let (mut kept, mut offloaded, mut pending_removal) = (0, 0, 0);
    for crash in 0..crashes {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env("HAIRPIN_CRASH_FILE", &memory.0).env("HAIRPIN_CRASH_SEED", draw.below(u64::MAX).to_string());
        let mut child = command.stdout(Stdio::null()).spawn().unwrap();
        // SAFETY: an atomic in the mapping.
        let work = unsafe { &(*left).work };
        // Most are killed at work, some while they adopt or even before.
        let wanted = work.load(Ordering::Relaxed) + if draw.below(8) == 0 { 0 } else { draw.below(4000) };
        while work.load(Ordering::Relaxed) < wanted && child.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        std::thread::sleep(std::time::Duration::from_micros(draw.below(3000)));
        let _ = child.kill();
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "crash {crash}: the child ended by itself (see above)");

        // SAFETY: both are as large, and no process uses either now.
        unsafe { std::ptr::copy_nonoverlapping(left.cast::<u8>(), copy.cast::<u8>(), size_of::<Lasting>()) };
        // SAFETY: the process that used the copy before is gone: it was dropped at the end of the last round.
        let (process, adopted) = unsafe { Process::start(copy) };
        let strange = (adopted.invalid, adopted.without_service, adopted.misplaced, adopted.duplicates);
        assert_eq!(strange, (0, 0, 0, 0), "crash {crash}: {adopted:?}");
        assert_eq!(process.live().len() as u64, adopted.kept);
        (kept, offloaded, pending_removal) =
            (kept + adopted.kept, offloaded + adopted.offloaded, pending_removal + adopted.pending_removal);
        process.check();
    }
    println!(
        "{crashes} crashes left {kept} connections, {offloaded} of them offloaded, and {pending_removal} on their way out"
    );
    assert!(kept > crashes && offloaded > crashes, "nothing happened: {kept} connections, {offloaded} offloaded");
}
