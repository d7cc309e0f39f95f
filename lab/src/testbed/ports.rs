//! The testbed's parts as processes of their own, over ports: generator and sink ([`generate`]), a sink alone ([`sink`]),
//! a device under test ([`forward`]).
//!
//! A port is any device that DPDK knows by name: a network card's address, `net_memif0,...` between two processes,
//! `net_af_xdp0,iface=...` and `net_af_packet0,iface=...` on the kernel's interfaces. Every core has a queue of each port.
//! Generator and sink are on one machine, since latency is told by its clock; they may be two processes, which have the
//! session of their packets from the same seed.
//!
//! A loss between the ports - in a device of another process, on the link - shows only as packets that do not come
//! (`on-the-way`); what the ports' drivers have counted is told by name. Frames are this process's own: when a port has
//! been closed all of its pool's are back.

mod collect;
mod serve;

pub use collect::{Collected, SinkSettings, sink};
pub use serve::forward;

use super::account::{Books, seen_otherwise};
use super::cores::{CoreWatch, pin};
use super::device::Handled;
use super::ends::{Inlet, Outlet};
use super::generator::{Generator, SentCounts};
use super::sources::sources;
use super::{Device, Measurement, Trial, TrialProgress};
use crate::clock;
use crate::sink::timeline::Timeline;
use crate::sink::{PacketSink, SinkOptions};
use crate::traffic::AnyTraffic;
use crate::traffic::template::LinkAddresses;
use anyhow::{Context, Result, anyhow, ensure};
use hairpin_core::flow::Steering;
use hairpin_core::frame::Batch;
use hairpin_dpdk::{Eal, Mbuf, MbufPool, PoolOptions, Port, PortOptions, PortQueue, PortStatistics, Rss};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a port's link may take to come up.
const LINK: Duration = Duration::from_secs(30);
/// Frames of a pool for each queue, beside its descriptors.
const IN_HAND: u32 = 2048;
/// Iterations of a thread between two checks of what others want.
const STEPS: u32 = 64;
/// Drivers that do not give back all they have when their port is closed: what that of DPDK 22.11 has put on the fill queue
/// for the kernel stays there.
const KEEPING: [&str; 1] = ["net_af_xdp"];

/// How a port is opened.
#[derive(Clone, Debug)]
pub struct PortSetup {
    /// The device by its EAL name, with arguments.
    pub device: String,
    /// Frames that each queue holds, either way.
    pub descriptors: u16,
    /// The processor of each queue's thread: there are as many queues.
    pub cpus: Vec<usize>,
    /// Bytes of the longest frame.
    pub longest: u16,
}

/// A port and its pool.
struct OpenedPort {
    port: Port,
    pool: MbufPool,
}

impl PortSetup {
    fn open(&self, eal: &Eal, stop: &AtomicBool) -> Result<OpenedPort> {
        let queues = self.cpus.len();
        ensure!((1..=256).contains(&queues), "{queues} queues: there can be 1 to 256");
        let pool = MbufPool::create(
            eal,
            PoolOptions {
                name: "lab".to_owned(),
                mbufs: queues as u32 * (2 * u32::from(self.descriptors) + IN_HAND) + 2047,
                // Packet sockets and XDP sockets take no smaller ones than the usual.
                data_room: self.longest.next_multiple_of(64).max(PoolOptions::default().data_room),
                cache: 128,
            },
        )?;
        let options = PortOptions {
            device: self.device.clone(),
            queues: queues as u16,
            rx_descriptors: self.descriptors,
            tx_descriptors: self.descriptors,
            mtu: if self.longest > 1514 { self.longest - 14 } else { 0 },
            promiscuous: true,
            rss: if queues > 1 { Rss::Device } else { Rss::None },
        };
        let opened = OpenedPort { port: Port::open(eal, &options, &pool)?, pool };
        // Its queues are there once its server has let it in.
        if opened.port.is_client() {
            opened.wait(stop)?;
        }
        Ok(opened)
    }
}

impl OpenedPort {
    /// Waits until the link is up; a client asks its server again and again.
    fn wait(&self, stop: &AtomicBool) -> Result<()> {
        let since = clock::now();
        while !self.port.seek() {
            ensure!(!stop.load(Ordering::Relaxed), "stopped before the link of {} was up", self.port.name());
            ensure!(
                clock::now().saturating_sub(since) < LINK.as_nanos() as u64,
                "the link of {} does not come up",
                self.port.name()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Closes the port; no thread has a queue of it any more.
    ///
    /// # Errors
    /// Frames are missing from its pool, and the driver is not one that keeps some.
    fn close(self) -> Result<()> {
        let OpenedPort { port, pool } = self;
        let (name, driver) = (port.name().to_owned(), port.driver().to_owned());
        drop(port);
        let missing = pool.in_use();
        ensure!(
            missing == 0 || KEEPING.contains(&driver.as_str()),
            "{missing} frames are missing from the pool of {name} ({driver}) after it was closed"
        );
        Ok(())
    }

    fn ends(&self, queue: u16) -> Result<QueueEnds> {
        let number = queue;
        let queue = self.port.queue(queue).with_context(|| format!("{} has no queue {number}", self.port.name()))?;
        Ok(QueueEnds { queue: Arc::new(Mutex::new(queue)), pool: self.pool.clone() })
    }
}

/// A queue, to send into and to receive from: by one thread, so that no thread ever waits for the lock.
#[derive(Clone)]
struct QueueEnds {
    queue: Arc<Mutex<PortQueue>>,
    pool: MbufPool,
}

impl QueueEnds {
    fn queue(&self) -> MutexGuard<'_, PortQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outlet for QueueEnds {
    type Frame = Mbuf;
    const FULL: &'static str = "transmit-queue-full";

    fn lend(&mut self, out: &mut Batch<Mbuf>, count: usize) {
        if self.pool.allocate_burst(out, count) == 0 {
            // Drivers give back what they have sent when they are called.
            self.queue().transmit(&mut Batch::new());
        }
    }
    fn send(&mut self, batch: &mut Batch<Mbuf>) {
        self.queue().transmit(batch);
    }
    fn has_room(&self, _: usize) -> bool {
        true
    }
    fn release(&mut self, batch: &mut Batch<Mbuf>) {
        Mbuf::free_burst(batch);
    }
}

impl Inlet for QueueEnds {
    type Frame = Mbuf;

    fn receive(&mut self, out: &mut Batch<Mbuf>) {
        self.queue().receive(out);
    }
    fn release(&mut self, batch: &mut Batch<Mbuf>) {
        Mbuf::free_burst(batch);
    }
}

/// The session of all packets that are made from `seed`: what tells a sink of another process which are meant.
fn session(seed: u64) -> u64 {
    fastrand::Rng::with_seed(seed ^ 0x6861_6972_7069_6e21).u64(..)
}

/// The port to which a generator's packets return.
#[derive(Clone, Debug)]
pub enum ReturnPath {
    /// At the port they are sent from.
    Same,
    /// At another.
    Port(PortSetup),
    /// To another process.
    Elsewhere,
}

/// The packets to generate.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// Source, rate, duration and the like; its device says whether destinations are backends when packets come back.
    pub trial: Trial,
    /// The port to send from.
    pub port: PortSetup,
    /// The port to which packets return.
    pub back: ReturnPath,
    /// The Ethernet address of the other end of the link.
    pub destination: [u8; 6],
    /// How long is waited for packets after the last one was sent.
    pub linger: Duration,
}

/// A thread's part.
struct QueueLane {
    generator: Generator<QueueEnds, AnyTraffic>,
    collector: Option<(QueueEnds, PacketSink)>,
}

/// Sends packets from a port and, unless they come back elsewhere, takes and judges them. `stop` ends it early.
///
/// If packets return elsewhere, only the port's counters tell about them: all that were not lost on the way out stand as
/// `elsewhere`, and `received` is 0.
///
/// # Errors
/// A port that cannot be opened, a source that makes no sense, accounts that are not right, frames that are missing from a
/// pool.
pub fn generate(
    eal: &Eal,
    options: &GenerateOptions,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(TrialProgress),
) -> Result<Measurement> {
    let trial = &options.trial;
    progress(TrialProgress::Preparing { what: "sources and ports".to_owned() });
    let out = options.port.open(eal, stop)?;
    let back = match &options.back {
        ReturnPath::Port(settings) => Some(settings.open(eal, stop)?),
        ReturnPath::Same | ReturnPath::Elsewhere => None,
    };
    let link = LinkAddresses { destination: options.destination, source: out.port.mac() };
    let session = session(trial.seed);
    let lanes = options.port.cpus.len() as u16;
    let steering = Steering::by_hash([session, !session], lanes);
    let made = sources(&Trial { run: 1, ..trial.clone() }, session, steering, link)?;
    let duration = trial.duration.as_nanos() as u64;
    let balanced = trial.device == Device::Balancer;
    let sink_options = SinkOptions { session, generators: lanes, flows: made.flows, balanced, duration };
    let mut threads = Vec::new();
    for ((queue, traffic), &cpu) in (0..lanes).zip(made.lanes).zip(&options.port.cpus) {
        let ends = out.ends(queue)?;
        let from = match (&options.back, &back) {
            (ReturnPath::Same, _) => Some(ends.clone()),
            (ReturnPath::Port(settings), Some(back)) if usize::from(queue) < settings.cpus.len() => {
                Some(back.ends(queue)?)
            }
            _ => None,
        };
        let collector = from.map(|from| (from, PacketSink::new(sink_options, 0)));
        threads.push((QueueLane { generator: Generator::new(ends, traffic, session), collector }, cpu));
    }
    out.wait(stop)?;
    if let Some(back) = &back {
        back.wait(stop)?;
    }
    let receiving = back.as_ref().unwrap_or(&out);
    let before = receiving.port.statistics();
    let before_out = out.port.statistics();
    let counts = [AtomicU64::new(0), AtomicU64::new(0)];
    progress(TrialProgress::Started { device: Vec::new() });
    let start = clock::now();
    let lanes = std::thread::scope(|scope| {
        let running: Vec<_> = threads
            .into_iter()
            .map(|(lane, cpu)| {
                let counts = &counts;
                scope.spawn(move || run(lane, cpu, eal, options, start, stop, counts))
            })
            .collect();
        while !running.iter().all(|thread| thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
            let elapsed = Duration::from_nanos(clock::now().saturating_sub(start)).min(trial.duration);
            let [sent, received] = [0, 1].map(|index: usize| counts[index].load(Ordering::Relaxed));
            progress(TrialProgress::Running { elapsed, sent, received });
        }
        let joined = running.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread has panicked"))?);
        joined.collect::<Result<Vec<QueueLane>>>()
    })?;
    // Stopped early, it was as long as it was.
    let duration = lanes.iter().map(|lane| lane.generator.ran()).max().unwrap_or(duration);
    let errors = out.port.statistics().transmit_errors - before_out.transmit_errors;
    let mut between = between(&before, &receiving.port.statistics());
    between.push(("transmit-errors".to_owned(), errors));
    let measured = close(lanes, sink_options, duration, between)?;
    [Some(out), back].into_iter().flatten().try_for_each(OpenedPort::close)?;
    Ok(measured)
}

/// The received packets that a port has lost, by its driver's counters.
fn between(before: &PortStatistics, after: &PortStatistics) -> Vec<(String, u64)> {
    [
        ("receive-queue-full", after.missed.saturating_sub(before.missed)),
        ("receive-errors", after.receive_errors.saturating_sub(before.receive_errors)),
        ("no-frame", after.no_mbuf.saturating_sub(before.no_mbuf)),
    ]
    .map(|(name, count)| (name.to_owned(), count))
    .to_vec()
}

fn run(
    mut lane: QueueLane,
    cpu: usize,
    eal: &Eal,
    options: &GenerateOptions,
    start: u64,
    stop: &AtomicBool,
    counts: &[AtomicU64; 2],
) -> Result<QueueLane> {
    pin(cpu)?;
    let _registered = eal.register_thread()?;
    let trial = &options.trial;
    let share = 1.0 / options.port.cpus.len() as f64;
    lane.generator.start(trial.rate, share, start, trial.duration.as_nanos() as u64);
    if let Some((_, sink)) = &mut lane.collector {
        sink.start(start);
    }
    let linger = options.linger.as_nanos() as u64;
    let (mut generating, mut last, mut told) = (true, clock::now(), (0, 0));
    let (mut batch, mut watch) = (Batch::new(), CoreWatch::default());
    loop {
        for _ in 0..STEPS {
            if generating {
                lane.generator.step();
            }
            if let Some((from, sink)) = &mut lane.collector {
                from.receive(&mut batch);
                watch.polled(generating || !batch.is_empty());
                if !batch.is_empty() {
                    last = clock::now();
                    sink.take(last, &batch);
                    Inlet::release(from, &mut batch);
                }
            }
        }
        let sent = lane.generator.sent().packets;
        let received = lane.collector.as_ref().map_or(0, |(_, sink)| sink.counts().received);
        counts[0].fetch_add(sent - told.0, Ordering::Relaxed);
        counts[1].fetch_add(received - told.1, Ordering::Relaxed);
        told = (sent, received);
        let overdue = clock::now() > start + trial.duration.as_nanos() as u64 + linger;
        if generating && (lane.generator.is_done() || overdue || stop.load(Ordering::Relaxed)) {
            generating = false;
            lane.generator.stop();
            last = clock::now();
        }
        if !generating {
            // Packets that the driver still holds go out when it is called.
            lane.generator.flush();
            let all = lane.collector.is_none() || received >= sent;
            if clock::now().saturating_sub(last) > if all { linger / 10 } else { linger } {
                return Ok(lane);
            }
        }
    }
}

/// The accounts over all lanes.
fn close(
    lanes: Vec<QueueLane>,
    options: SinkOptions,
    duration: u64,
    mut between: Vec<(String, u64)>,
) -> Result<Measurement> {
    let mut sink = PacketSink::new(SinkOptions { flows: 0, duration, ..options }, 0);
    let (mut sent, mut behind, mut collected) = (SentCounts::default(), 0, false);
    let mut timeline = Timeline::new(0, duration);
    for lane in &lanes {
        sent.add(lane.generator.sent());
        behind += lane.generator.behind();
        timeline.merge(lane.generator.timeline());
        if let Some((_, its)) = &lane.collector {
            collected = true;
            sink.merge(its);
        }
    }
    let counts = sink.counts();
    let seen: u64 = seen_otherwise(counts).iter().map(|(_, count)| count).sum();
    let mut missing = sent.packets.saturating_sub(counts.received + sent.refused + seen);
    between.iter_mut().for_each(|(_, count)| *count = take(&mut missing, *count));
    between.push((if collected { "on-the-way" } else { "elsewhere" }.to_owned(), missing));
    let handled = Handled::default();
    Books { sent, full: QueueEnds::FULL, behind, timeline, handled, between, sink: &sink, duration }.close()
}

/// As much of `count` as is missing, which it is then no more. Others' frames are counted too, by a driver as by a sink
/// that cannot read whose they are: no more of them can be ours than are missing.
fn take(missing: &mut u64, count: u64) -> u64 {
    let ours = count.min(*missing);
    *missing -= ours;
    ours
}

#[cfg(test)]
mod tests {
    use super::*;
    use hairpin_dpdk::EalOptions;

    /// The only one of this program's tests that starts DPDK, which can be done once.
    #[test]
    fn a_frame_that_does_not_come_back_is_an_error() {
        let eal = Eal::start(EalOptions { memory_mib: 64, ..EalOptions::default() }).unwrap();
        let settings =
            PortSetup { device: "net_null0,copy=1".to_owned(), descriptors: 64, cpus: vec![0], longest: 1514 };
        let run = |leaks: usize| {
            let opened = settings.open(&eal, &AtomicBool::new(false)).unwrap();
            let mut batch = Batch::new();
            let mut ends = opened.ends(0).unwrap();
            ends.receive(&mut batch);
            assert!(batch.len() > leaks);
            let leaked: Batch<Mbuf> = batch.drain(..leaks).collect();
            Inlet::release(&mut ends, &mut batch);
            drop(ends);
            let closed = opened.close();
            drop(leaked);
            closed
        };
        assert!(run(0).is_ok());
        let error = run(3).unwrap_err().to_string();
        assert_eq!(error, "3 frames are missing from the pool of net_null0 (net_null) after it was closed");
        assert!(run(0).is_ok());
    }
}
