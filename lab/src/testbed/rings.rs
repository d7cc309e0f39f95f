//! Generator, device under test and sink in one process, each lane over a pair of DPDK's rings: runs anywhere.
//!
//! A lane's generator, device core and sink are threads of their own, pinned, where there are processors for all of them;
//! else generator and sink share one. What the device cannot take waits in the ring, as in a NIC's queue: an open loop's
//! packets that find it full are lost (`ring-full`), and a generator without a limit waits.

use super::account::Books;
use super::balancer::{BACKENDS_MAX, Balancer, BalancerOptions, workers};
use super::cores::{Plan, allowed, pin};
use super::device::{Core, Handled, Serving};
use super::ends::{Inlet, Outlet};
use super::generator::{Generator, Sent};
use super::sources::{longest, sources};
use super::table::Choice;
use super::{Device, Measurement, Progress, Testbed, Trial};
use crate::clock;
use crate::forward::Forwarder;
use crate::sink::timeline::Timeline;
use crate::sink::{Sink, SinkOptions};
use crate::traffic::AnyTraffic;
use crate::traffic::template::Link;
use anyhow::{Context, Result, anyhow, bail, ensure};
use hairpin_core::flow::Steering;
use hairpin_core::frame::{Batch, FrameIo};
use hairpin_dpdk::{Eal, Mbuf, Pool, PoolOptions, Ring, RingKind, RingReceiver, RingSender};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

/// Frames that wait for a device's core, or for a sink, at most: as many as a NIC's queue has descriptors.
const RING: u32 = 1024;
/// Frames that are in nobody's ring: in bursts, and in the caches of lcores.
const IN_HAND: u32 = 1024;
/// How long a generator whose time is over tries to get rid of what it has, in nanoseconds.
const PATIENCE: u64 = 1_000_000_000;
/// How long flows that become connections may be under way before something is taken to be stuck, in nanoseconds.
const STUCK: u64 = 10_000_000_000;
/// Steps of a thread between two looks at what others want.
const STEPS: u32 = 64;

/// Rings in this process.
pub struct RingTestbed {
    eal: Eal,
}

impl RingTestbed {
    /// With DPDK, which has been started.
    pub fn new(eal: Eal) -> RingTestbed {
        RingTestbed { eal }
    }
}

/// A generator's end of a lane.
struct Out {
    ring: RingSender,
    pool: Pool,
}

impl Outlet for Out {
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
struct In(RingReceiver);

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
struct Both {
    from: RingReceiver,
    to: RingSender,
    pool: Pool,
}

impl FrameIo for Both {
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

/// What the threads of a trial have in common.
#[derive(Default)]
struct Stage {
    /// What comes from now on is measured.
    measuring: AtomicBool,
    /// Cores of the device that do not know that yet.
    unaware: AtomicU32,
    /// When the clock starts, in nanoseconds; 0: not yet.
    start: AtomicU64,
    /// Generators that are not done.
    generating: AtomicU32,
    /// They are: the device is to finish what it has.
    device_stops: AtomicBool,
    /// Cores of the device that are not done.
    serving: AtomicU32,
    /// What each core of the device had received and sent when it last had nothing to do, before the clock starts.
    idle: Vec<(AtomicU64, AtomicU64)>,
    /// Something went wrong, or will: all are to leave.
    leave: AtomicBool,
    sent: AtomicU64,
    received: AtomicU64,
}

type LaneGenerator = Generator<Out, AnyTraffic>;

/// A sink and where its frames come from.
struct Collector {
    from: In,
    sink: Sink,
    batch: Batch<Mbuf>,
}

impl Collector {
    /// Whether anything had come.
    fn step(&mut self) -> bool {
        self.from.receive(&mut self.batch);
        if self.batch.is_empty() {
            return false;
        }
        self.sink.take(clock::now(), &self.batch);
        self.from.release(&mut self.batch);
        true
    }

    /// Takes frames that are not measured; how many.
    fn discard(&mut self) -> u64 {
        self.from.receive(&mut self.batch);
        let count = self.batch.len() as u64;
        self.from.release(&mut self.batch);
        count
    }
}

impl Testbed for RingTestbed {
    fn obstacle(&self, trial: &Trial) -> Option<String> {
        let cpus = match allowed() {
            Ok(cpus) => cpus,
            Err(error) => return Some(format!("{error:#}")),
        };
        obstacle(trial, &cpus)
    }

    fn measure(&mut self, trial: &Trial, progress: &mut dyn FnMut(Progress)) -> Result<Measurement> {
        let cpus = allowed()?;
        if let Some(obstacle) = obstacle(trial, &cpus) {
            bail!("{obstacle}");
        }
        let plan = Plan::new(&cpus, usize::from(trial.cores)).context("too few processors")?;
        progress(Progress::Preparing { what: "sources, tables and rings".to_owned() });
        let lanes = u32::from(trial.cores);
        let pool = Pool::create(
            &self.eal,
            PoolOptions {
                name: "lab".to_owned(),
                mbufs: lanes * (2 * RING + IN_HAND) + 1023,
                data_room: longest(trial.packet_size).max(512).next_multiple_of(64),
                cache: 128,
            },
        )?;
        let before = pool.in_use();
        let measured = self.trial(trial, &plan, &pool, progress);
        let after = pool.in_use();
        ensure!(
            after == before,
            "{} frames are missing from the pool: {after} in use, {before} before",
            after - before
        );
        measured
    }
}

/// Why `trial` cannot be done on `cpus`.
fn obstacle(trial: &Trial, cpus: &[usize]) -> Option<String> {
    if trial.device == Device::Balancer {
        match Choice::named(&trial.table) {
            Err(error) => return Some(error.to_string()),
            Ok(choice) if choice.is_unsafe_shared() && trial.cores > 1 => {
                return Some(format!("{} does not protect {} cores from each other", trial.table, trial.cores));
            }
            Ok(_) => {}
        }
    }
    if !(1..=BACKENDS_MAX).contains(&trial.backends) {
        return Some(format!("{} backends: there can be 1 to {BACKENDS_MAX}", trial.backends));
    }
    if trial.duration < Duration::from_millis(1) || trial.duration > Duration::from_secs(86_400) {
        return Some("a trial takes a millisecond to a day".to_owned());
    }
    if Plan::new(cpus, usize::from(trial.cores)).is_none() {
        let needed = usize::from(trial.cores) + 1;
        let there = cpus.len();
        return Some(format!("{} cores for the device need {needed} processors; there are {there}", trial.cores));
    }
    None
}

impl RingTestbed {
    fn trial(
        &self,
        trial: &Trial,
        plan: &Plan,
        pool: &Pool,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Measurement> {
        let mut random = fastrand::Rng::with_seed(trial.seed);
        let seeds = [(); 4].map(|()| random.u64(..));
        let steering = Steering { key: [seeds[0], seeds[1]], workers: trial.cores };
        let session = random.u64(..) ^ clock::now();
        let made = sources(trial, session, steering, Link::default())?;
        let cores = device_cores(trial, steering, seeds, &self.eal)?;
        let duration = trial.duration.as_nanos() as u64;
        let (lanes, balanced) = (trial.cores, trial.device == Device::Balancer);
        let flows = made.flows.div_ceil(usize::from(lanes)) * if lanes > 1 { 2 } else { 1 };
        let options = SinkOptions { session, generators: lanes, flows, balanced, duration };
        let (mut generators, mut collectors, mut devices) = (Vec::new(), Vec::new(), Vec::new());
        for (traffic, core) in made.lanes.into_iter().zip(cores) {
            let (ring, from) = Ring::create(&self.eal, RING, RingKind::OneToOne)?;
            let (to, back) = Ring::create(&self.eal, RING, RingKind::OneToOne)?;
            generators.push(Generator::new(Out { ring, pool: pool.clone() }, traffic, session));
            devices.push(Serving::new(core, Both { from, to, pool: pool.clone() }));
            collectors.push(Collector { from: In(back), sink: Sink::new(options, 0), batch: Batch::new() });
        }
        let count = || AtomicU32::new(u32::from(lanes));
        let idle = (0..lanes).map(|_| Default::default()).collect();
        let stage = Stage { unaware: count(), generating: count(), serving: count(), idle, ..Stage::default() };
        let done = std::thread::scope(|scope| {
            self.perform(scope, &stage, trial, plan, (generators, collectors, devices), progress)
        });
        let Done { generators, collectors, handled } = done?;
        close(trial, &generators, collectors, handled)
    }

    /// Runs all threads, the calling one among them until the clock starts.
    fn perform<'scope, 'env>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        stage: &'env Stage,
        trial: &'env Trial,
        plan: &'env Plan,
        parts: (Vec<LaneGenerator>, Vec<Collector>, Vec<Serving<Both>>),
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Done> {
        // Whatever happens here, the threads are told to leave: the scope waits for them.
        let _leave = Leave(stage);
        let (mut generators, mut collectors, devices) = parts;
        let (threads, told) = std::sync::mpsc::channel();
        let serving: Vec<_> = devices
            .into_iter()
            .zip(&plan.device)
            .enumerate()
            .map(|(lane, (device, &cpu))| {
                let (threads, eal) = (threads.clone(), &self.eal);
                scope.spawn(move || serve(device, lane, cpu, eal, stage, threads))
            })
            .collect();
        drop(threads);
        let device = told.iter().take(serving.len()).collect();
        self.introduce(stage, trial, plan, (&mut generators, &mut collectors), progress)?;
        let mut testing: Vec<ScopedJoinHandle<'_, Result<Tested>>> = Vec::new();
        let mut by_cpu: std::collections::BTreeMap<usize, Tasks> = std::collections::BTreeMap::new();
        for (generator, &cpu) in generators.into_iter().zip(&plan.generators) {
            by_cpu.entry(cpu).or_default().generators.push(generator);
        }
        for (collector, &cpu) in collectors.into_iter().zip(&plan.sinks) {
            by_cpu.entry(cpu).or_default().collectors.push(collector);
        }
        for (cpu, tasks) in by_cpu {
            let eal = &self.eal;
            testing.push(scope.spawn(move || test(tasks, trial, cpu, eal, stage)));
        }
        stage.measuring.store(true, Ordering::Release);
        while stage.unaware.load(Ordering::Acquire) > 0 {
            // A core that could not begin is not aware of anything; it will say why.
            if stage.serving.load(Ordering::Acquire) < u32::from(trial.cores) {
                break;
            }
            std::thread::yield_now();
        }
        progress(Progress::Started { device });
        let start = clock::now();
        stage.start.store(start, Ordering::Release);
        watch(stage, trial, start, &testing, progress);
        let mut done = Done::default();
        for tester in testing {
            let tested = tester.join().map_err(|_| anyhow!("the generator's or sink's thread has panicked"))??;
            done.generators.extend(tested.generators);
            done.collectors.extend(tested.collectors);
        }
        for device in serving {
            let (device, before) = device.join().map_err(|_| anyhow!("the device's thread has panicked"))??;
            done.handled.push(device.handled().since(&before));
        }
        Ok(done)
    }

    /// Makes the flows known to the device, if the trial wants that: lane by lane, on the first generator's processor.
    fn introduce(
        &self,
        stage: &Stage,
        trial: &Trial,
        plan: &Plan,
        lanes: (&mut [LaneGenerator], &mut [Collector]),
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        if trial.run < 2 {
            return Ok(());
        }
        progress(Progress::Preparing { what: format!("{} flows become connections", trial.flows) });
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| -> Result<()> {
                pin(plan.generators[0])?;
                let _registered = self.eal.register_thread()?;
                let lanes = lanes.0.iter_mut().zip(lanes.1).zip(&stage.idle);
                for ((generator, collector), idle) in lanes {
                    introduce(generator, collector, idle)?;
                }
                Ok(())
            });
            thread.join().map_err(|_| anyhow!("the introducing thread has panicked"))?
        })
    }
}

/// Makes a lane's flows known, and waits until nothing of it is under way.
fn introduce(generator: &mut LaneGenerator, collector: &mut Collector, idle: &(AtomicU64, AtomicU64)) -> Result<()> {
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

/// Tells everybody to leave when it is dropped.
struct Leave<'a>(&'a Stage);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.leave.store(true, Ordering::Relaxed);
        self.0.device_stops.store(true, Ordering::Release);
    }
}

/// What is left when all threads are done.
#[derive(Default)]
struct Done {
    generators: Vec<LaneGenerator>,
    collectors: Vec<Collector>,
    handled: Vec<Handled>,
}

/// The generators and sinks of one processor.
#[derive(Default)]
struct Tasks {
    generators: Vec<LaneGenerator>,
    collectors: Vec<Collector>,
}

type Tested = Tasks;

/// The device's cores.
fn device_cores(trial: &Trial, steering: Steering, seeds: [u64; 4], eal: &Eal) -> Result<Vec<Core>> {
    let lanes = usize::from(trial.cores);
    Ok(match trial.device {
        Device::Wire => (0..lanes).map(|_| Core::Wire).collect(),
        Device::Forwarder => (0..lanes).map(|_| Core::Forwarder(Forwarder::default())).collect(),
        Device::Balancer => {
            let choice = Choice::named(&trial.table)?;
            let options = BalancerOptions {
                backends: trial.backends,
                connections_each: (trial.table_entries as usize).div_ceil(lanes),
                method: choice.method(),
                steering,
                seeds,
            };
            let tables = choice.tables(lanes, options.connections(), seeds, &Some(*eal))?;
            let boxed = |balancer: Balancer| Core::Balancer(Box::new(balancer));
            workers(&options, tables).into_iter().map(boxed).collect()
        }
    })
}

/// The device's thread: what it had done when the clock started is given back with it.
fn serve(
    mut device: Serving<Both>,
    lane: usize,
    cpu: usize,
    eal: &Eal,
    stage: &Stage,
    threads: std::sync::mpsc::Sender<u32>,
) -> Result<(Serving<Both>, Handled)> {
    // Also where it cannot begin: the sinks wait for it.
    let _done = Count(&stage.serving);
    pin(cpu)?;
    let _registered = eal.register_thread()?;
    let _ = threads.send(rustix::thread::gettid().as_raw_nonzero().get() as u32);
    drop(threads);
    while !stage.measuring.load(Ordering::Acquire) && !stage.leave.load(Ordering::Relaxed) {
        if device.turn() {
            continue;
        }
        let (received, sent) = device.carried();
        if let Some(idle) = stage.idle.get(lane) {
            idle.0.store(received, Ordering::Release);
            idle.1.store(sent, Ordering::Release);
        }
    }
    let before = device.handled();
    stage.unaware.fetch_sub(1, Ordering::AcqRel);
    device.serve(&stage.device_stops);
    Ok((device, before))
}

/// One less when it is dropped.
struct Count<'a>(&'a AtomicU32);

impl Drop for Count<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// A generator's and sink's thread.
fn test(mut tasks: Tasks, trial: &Trial, cpu: usize, eal: &Eal, stage: &Stage) -> Result<Tested> {
    pin(cpu)?;
    let _registered = eal.register_thread()?;
    let start = loop {
        match stage.start.load(Ordering::Acquire) {
            0 if stage.leave.load(Ordering::Relaxed) => return Ok(tasks),
            0 => std::hint::spin_loop(),
            start => break start,
        }
    };
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
        stage.sent.fetch_add(sent - told.0, Ordering::Relaxed);
        stage.received.fetch_add(received - told.1, Ordering::Relaxed);
        told = (sent, received);
        if generating && (tasks.generators.iter().all(Generator::is_done) || is_overdue(start + duration)) {
            generating = false;
            tasks.generators.iter_mut().for_each(Generator::stop);
            let count = tasks.generators.len() as u32;
            if count > 0 && stage.generating.fetch_sub(count, Ordering::AcqRel) == count {
                stage.device_stops.store(true, Ordering::Release);
            }
        }
        // The device finishes what it has, and then nothing is sent into the rings any more.
        if !generating && stage.serving.load(Ordering::Acquire) == 0 {
            while tasks.collectors.iter_mut().any(Collector::step) {}
            return Ok(tasks);
        }
    }
}

/// Whether a generator whose time was over at `end` has tried long enough to get rid of what it has.
fn is_overdue(end: u64) -> bool {
    clock::now() > end + PATIENCE
}

/// Tells how it goes until all testers are done.
fn watch(
    stage: &Stage,
    trial: &Trial,
    start: u64,
    testing: &[ScopedJoinHandle<'_, Result<Tested>>],
    progress: &mut dyn FnMut(Progress),
) {
    while !testing.iter().all(ScopedJoinHandle::is_finished) {
        std::thread::sleep(Duration::from_millis(20));
        let elapsed = Duration::from_nanos(clock::now().saturating_sub(start)).min(trial.duration);
        let sent = stage.sent.load(Ordering::Relaxed);
        progress(Progress::Running { elapsed, sent, received: stage.received.load(Ordering::Relaxed) });
    }
}

/// The accounts over all lanes.
fn close(
    trial: &Trial,
    generators: &[LaneGenerator],
    collectors: Vec<Collector>,
    handled: Vec<Handled>,
) -> Result<Measurement> {
    let duration = trial.duration.as_nanos() as u64;
    let mut sinks = collectors.into_iter().map(|collector| collector.sink);
    let mut sink = sinks.next().context("there is no sink")?;
    sinks.for_each(|other| sink.merge(&other));
    let mut timeline = generators.first().map_or(Timeline::new(0, duration), |first| first.timeline().clone());
    generators.iter().skip(1).for_each(|generator| timeline.merge(generator.timeline()));
    let mut sent = Sent::default();
    for generator in generators {
        let one = generator.sent();
        sent.packets += one.packets;
        sent.bytes += one.bytes;
        sent.refused += one.refused;
        sent.no_frame += one.no_frame;
    }
    let mut all = Handled::default();
    for one in handled {
        all.received += one.received;
        all.sent += one.sent;
        for (reason, count) in one.dropped {
            match all.dropped.iter_mut().find(|(name, _)| *name == reason) {
                Some((_, sum)) => *sum += count,
                None => all.dropped.push((reason, count)),
            }
        }
    }
    let offered = sent.packets - sent.refused;
    ensure!(all.received == offered, "{offered} frames went into the rings, and {} came out", all.received);
    let came = sink.counts().frames;
    ensure!(all.sent == came, "the device sent {} frames, and {came} came", all.sent);
    let behind = generators.iter().map(Generator::behind).sum();
    let (full, between) = (Out::FULL, Vec::new());
    Books { sent, full, behind, timeline, handled: all, between, sink: &sink, duration }.close()
}
