//! The threads of a trial over rings, and what they have in common.

use super::presence::Presence;
use crate::clock;
use crate::sink::PacketSink;
use crate::testbed::cores::pin;
use crate::testbed::device::{Handled, ServingCore};
use crate::testbed::ends::{Inlet, Outlet};
use crate::testbed::generator::Generator;
use crate::testbed::{Trial, TrialProgress};
use crate::traffic::AnyTraffic;
use anyhow::{Result, ensure};
use hairpin_core::frame::{Batch, FrameIo};
use hairpin_dpdk::{Eal, Mbuf, MbufPool, RingReceiver, RingSender};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

/// How long a generator whose time is over tries to get rid of what it has, in nanoseconds.
const PATIENCE: u64 = 1_000_000_000;
/// How long flows that become connections may be under way before something is taken to be stuck, in nanoseconds.
const STUCK: u64 = 10_000_000_000;
/// Steps of a thread between two checks of what others want.
const STEPS: u32 = 64;

/// A generator's end of a lane.
pub(super) struct GeneratorEnd {
    pub(super) ring: RingSender,
    pub(super) pool: MbufPool,
}

impl Outlet for GeneratorEnd {
    type Frame = Mbuf;
    const FULL: &'static str = "ring-full";

    fn lend(&mut self, out: &mut Batch<Mbuf>, count: usize) {
        self.pool.allocate_burst(out, count);
    }
    fn send(&mut self, batch: &mut Batch<Mbuf>) {
        self.ring.send(batch);
    }
    fn has_room(&self, count: usize) -> bool {
        self.ring.len() + count <= self.ring.size()
    }
    fn release(&mut self, batch: &mut Batch<Mbuf>) {
        Mbuf::free_burst(batch);
    }
}

/// A sink's end.
pub(super) struct In(pub(super) RingReceiver);

impl Inlet for In {
    type Frame = Mbuf;

    fn receive(&mut self, out: &mut Batch<Mbuf>) {
        self.0.receive(out);
    }
    fn release(&mut self, batch: &mut Batch<Mbuf>) {
        Mbuf::free_burst(batch);
    }
}

/// The device's ends.
pub(super) struct DeviceEnds {
    pub(super) from: RingReceiver,
    pub(super) to: RingSender,
    pub(super) pool: MbufPool,
}

impl FrameIo for DeviceEnds {
    type Frame = Mbuf;

    fn receive(&mut self, out: &mut Batch<Mbuf>) {
        self.from.receive(out);
    }
    fn transmit(&mut self, batch: &mut Batch<Mbuf>) {
        if !batch.is_empty() {
            self.to.send(batch);
        }
    }
    fn allocate(&mut self) -> Option<Mbuf> {
        self.pool.allocate()
    }
    fn room(&self) -> usize {
        usize::from(self.pool.options().data_room)
    }
}

/// The common state of the threads of a trial.
#[derive(Default)]
pub(super) struct TrialState {
    /// Packets from now on are measured.
    pub(super) measuring: AtomicBool,
    /// Cores of the device that do not know that yet.
    pub(super) unaware: AtomicU32,
    /// When the clock starts, in nanoseconds; 0: not yet.
    pub(super) start: AtomicU64,
    /// Generators that are not done.
    pub(super) generating: AtomicU32,
    /// They are: the device is to finish what it has.
    pub(super) device_stops: AtomicBool,
    /// Cores of the device that are not done.
    pub(super) serving: AtomicU32,
    /// The counts of each core of the device when it last had nothing to do, before the clock starts.
    pub(super) idle: Vec<(AtomicU64, AtomicU64)>,
    /// Something went wrong, or will: all are to leave.
    pub(super) leave: AtomicBool,
    pub(super) sent: AtomicU64,
    pub(super) received: AtomicU64,
}

pub(super) type LaneGenerator = Generator<GeneratorEnd, AnyTraffic>;

/// A sink and where its frames come from.
pub(super) struct Collector {
    pub(super) from: In,
    pub(super) sink: PacketSink,
    pub(super) batch: Batch<Mbuf>,
}

impl Collector {
    /// Whether anything had come.
    pub(super) fn step(&mut self) -> bool {
        self.from.receive(&mut self.batch);
        if self.batch.is_empty() {
            return false;
        }
        self.sink.take(clock::now(), &self.batch);
        self.from.release(&mut self.batch);
        true
    }

    /// Takes frames that are not measured; how many.
    pub(super) fn discard(&mut self) -> u64 {
        self.from.receive(&mut self.batch);
        let count = self.batch.len() as u64;
        self.from.release(&mut self.batch);
        count
    }
}

/// Makes a lane's flows known, and waits until nothing of it is under way.
pub(super) fn introduce(
    generator: &mut LaneGenerator,
    collector: &mut Collector,
    idle: &(AtomicU64, AtomicU64),
) -> Result<()> {
    let mut back = 0;
    while generator.introduce() {
        back += collector.discard();
    }
    let since = clock::now();
    loop {
        back += collector.discard();
        let (received, sent) = (idle.0.load(Ordering::Acquire), idle.1.load(Ordering::Acquire));
        if received == generator.introduced() && sent == back {
            return Ok(());
        }
        let all = generator.introduced();
        ensure!(
            clock::now().saturating_sub(since) < STUCK,
            "of {all} packets that make flows known the device has taken {received} and sent {sent}, of which {back} came"
        );
    }
}

/// Tells all threads to leave when it is dropped.
pub(super) struct Leave<'a>(pub(super) &'a TrialState);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.leave.store(true, Ordering::Relaxed);
        self.0.device_stops.store(true, Ordering::Release);
    }
}

/// The generators and sinks of one processor.
#[derive(Default)]
pub(super) struct Tasks {
    pub(super) generators: Vec<LaneGenerator>,
    pub(super) collectors: Vec<Collector>,
    /// The thread's share of its processor.
    pub(super) ran: f64,
}

/// The result of a device's thread.
pub(super) struct DeviceThreadResult {
    pub(super) device: ServingCore<DeviceEnds>,
    /// Its counts when the clock started.
    pub(super) before: Handled,
    /// The thread's share of its processor since then.
    pub(super) ran: f64,
}

/// The device's thread.
pub(super) fn serve(
    mut device: ServingCore<DeviceEnds>,
    lane: usize,
    (cpu, metered): (usize, bool),
    eal: &Eal,
    state: &TrialState,
    threads: std::sync::mpsc::Sender<u32>,
) -> Result<DeviceThreadResult> {
    // Also where it cannot begin: the sinks wait for it.
    let _done = CountGuard(&state.serving);
    pin(cpu)?;
    let _registered = eal.register_thread()?;
    let _ = threads.send(rustix::thread::gettid().as_raw_nonzero().get() as u32);
    drop(threads);
    while !state.measuring.load(Ordering::Acquire) && !state.leave.load(Ordering::Relaxed) {
        if device.iterate() {
            continue;
        }
        let (received, sent) = device.received_and_sent();
        if let Some(idle) = state.idle.get(lane) {
            idle.0.store(received, Ordering::Release);
            idle.1.store(sent, Ordering::Release);
        }
    }
    let before = device.handled();
    if metered {
        device.meter();
    }
    state.unaware.fetch_sub(1, Ordering::AcqRel);
    let presence = Presence::begin();
    let slept = device.serve(&state.device_stops);
    Ok(DeviceThreadResult { device, before, ran: presence.share(slept) })
}

/// One less when it is dropped.
struct CountGuard<'a>(&'a AtomicU32);

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// A generator's and sink's thread.
pub(super) fn test(mut tasks: Tasks, trial: &Trial, cpu: usize, eal: &Eal, state: &TrialState) -> Result<Tasks> {
    pin(cpu)?;
    let _registered = eal.register_thread()?;
    let start = loop {
        match state.start.load(Ordering::Acquire) {
            0 if state.leave.load(Ordering::Relaxed) => return Ok(tasks),
            0 => std::hint::spin_loop(),
            start => break start,
        }
    };
    let presence = Presence::begin();
    let duration = trial.duration.as_nanos() as u64;
    let share = 1.0 / f64::from(trial.cores);
    tasks.generators.iter_mut().for_each(|generator| generator.start(trial.rate, share, start, duration));
    tasks.collectors.iter_mut().for_each(|collector| collector.sink.start(start));
    let mut generating = true;
    let mut told = (0, 0);
    loop {
        for _ in 0..STEPS {
            tasks.generators.iter_mut().for_each(Generator::step);
            tasks.collectors.iter_mut().for_each(|collector| {
                collector.step();
            });
        }
        let sent: u64 = tasks.generators.iter().map(|generator| generator.sent().packets).sum();
        let received: u64 = tasks.collectors.iter().map(|collector| collector.sink.counts().received).sum();
        state.sent.fetch_add(sent - told.0, Ordering::Relaxed);
        state.received.fetch_add(received - told.1, Ordering::Relaxed);
        told = (sent, received);
        if generating && (tasks.generators.iter().all(Generator::is_done) || is_overdue(start + duration)) {
            generating = false;
            tasks.generators.iter_mut().for_each(Generator::stop);
            let count = tasks.generators.len() as u32;
            if count > 0 && state.generating.fetch_sub(count, Ordering::AcqRel) == count {
                state.device_stops.store(true, Ordering::Release);
            }
        }
        // The device finishes what it has, and then nothing is sent into the rings any more.
        if !generating && state.serving.load(Ordering::Acquire) == 0 {
            while tasks.collectors.iter_mut().any(Collector::step) {}
            tasks.ran = presence.share(Duration::ZERO);
            return Ok(tasks);
        }
    }
}

/// Whether a generator whose time was over at `end` has tried long enough to get rid of what it has.
fn is_overdue(end: u64) -> bool {
    clock::now() > end + PATIENCE
}

/// Tells how it goes until all testers are done.
pub(super) fn watch(
    state: &TrialState,
    trial: &Trial,
    start: u64,
    testing: &[ScopedJoinHandle<'_, Result<Tasks>>],
    progress: &mut dyn FnMut(TrialProgress),
) {
    while !testing.iter().all(ScopedJoinHandle::is_finished) {
        std::thread::sleep(Duration::from_millis(20));
        let elapsed = Duration::from_nanos(clock::now().saturating_sub(start)).min(trial.duration);
        let sent = state.sent.load(Ordering::Relaxed);
        progress(TrialProgress::Running { elapsed, sent, received: state.received.load(Ordering::Relaxed) });
    }
}
