//! `hairpin-bench l4 device`: the device under test, a process of its own as `dpdk-testpmd` is, over the same ports.

use super::Pages;
use super::subject::{self, BenchWorker, PacketWork};
use super::traffic::Sort;
use anyhow::{Context, Result, ensure};
use hairpin_core::engine::NoEngine;
use hairpin_core::event_loop::EventLoop;
use hairpin_core::frame::{BATCH_MAX, Batch, FrameIo};
use hairpin_core::time::{Duration as CoreDuration, Time};
use hairpin_dpdk::{Eal, EalOptions, EalPages, Mbuf, MbufPool, PoolOptions, Port, PortIo, PortOptions};
use hairpin_lab::clock;
use hairpin_lab::forward::Forwarder;
use hairpin_lab::testbed::card::DevicePort;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Mbufs beside those that hold the replay: in flight and in the threads' caches.
pub(super) const MBUFS_SPARE: usize = 16_384;
/// Bytes of a frame's room, as testpmd gets it.
pub(super) const DATA_ROOM: u16 = 256;
/// Mbufs in a thread's cache, as testpmd gets it.
pub(super) const CACHE: u16 = 512;
/// Packets of each flow before measuring: with eight an unanswered UDP flow counts as established.
const WARM_UP: usize = 10;

/// The work of the device.
#[derive(Debug, clap::Args)]
pub(super) struct DeviceArgs {
    /// A replay for each worker; of a flood: the known flows, then the new ones.
    #[arg(long, required = true)]
    pub(super) pcap: Vec<PathBuf>,
    /// Packets of all replays.
    #[arg(long)]
    pub(super) packets: usize,
    /// nothing, forward, stateless, maglev, nat, full-nat, flood.
    #[arg(long)]
    pub(super) work: String,
    /// udp, tcp, syn.
    #[arg(long, default_value = "udp")]
    pub(super) sort: String,
    /// Flows of each replay.
    #[arg(long)]
    pub(super) flows: usize,
    /// Connections there can be, for each worker.
    #[arg(long)]
    pub(super) connections: usize,
    /// Processors of the workers.
    #[arg(long, value_delimiter = ',')]
    pub(super) cores: Vec<usize>,
    /// How long.
    #[arg(long)]
    pub(super) seconds: f64,
    /// The kind of pages that DPDK's memory is on.
    #[arg(long)]
    pub(super) pages: Pages,
}

/// The work of a worker in some time.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct MeasuredWork {
    pub(super) what: String,
    pub(super) received: u64,
    pub(super) sent: u64,
    /// Connections created meanwhile.
    pub(super) created: u64,
    /// Time on the processor.
    pub(super) running_s: f64,
    pub(super) elapsed_s: f64,
}

/// The work on the packets, and the port that they come from and go to.
enum BenchDevice {
    Nothing(DevicePort<PortIo>),
    Forward(Box<Forwarder>, DevicePort<PortIo>),
    /// The worker in the event loop that every plane has.
    Worker(Box<EventLoop<DevicePort<PortIo>, NoEngine, BenchWorker>>),
}

/// The time of a worker: nanoseconds since the machine was started.
fn now() -> Time {
    Time::from_nanos(clock::now())
}

impl BenchDevice {
    fn new(worker: BenchWorker, io: PortIo) -> BenchDevice {
        let event_loop = EventLoop::new(worker, DevicePort::bare(io), NoEngine::default(), now, || CoreDuration::ZERO);
        BenchDevice::Worker(Box::new(event_loop))
    }

    fn io(&mut self) -> &mut DevicePort<PortIo> {
        match self {
            BenchDevice::Nothing(io) | BenchDevice::Forward(_, io) => io,
            BenchDevice::Worker(event_loop) => &mut event_loop.io,
        }
    }

    /// Receives, works and sends for so long, or for so many packets.
    fn run(&mut self, what: &str, packets: u64, time: Duration) -> Result<MeasuredWork> {
        let (mut rx, mut tx): (Batch<Mbuf>, Batch<Mbuf>) = (Batch::new(), Batch::new());
        let mut measured = MeasuredWork { what: what.to_owned(), ..MeasuredWork::default() };
        let (created, before) = (self.created(), self.io().counts());
        let (running, begin) = (clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?, Instant::now());
        // The worker's event loop needs the time in every iteration; the others only look when to end.
        let patience = if matches!(self, BenchDevice::Worker(_)) { 1 } else { 64 };
        let mut end = false;
        for iteration in 0_u64.. {
            if iteration % patience == 0 {
                end = begin.elapsed() >= time;
            }
            if end || self.io().counts().received - before.received >= packets {
                break;
            }
            match self {
                BenchDevice::Nothing(io) => {
                    io.receive(&mut rx);
                    io.transmit(&mut rx);
                    rx.clear();
                }
                BenchDevice::Forward(forwarder, io) => {
                    io.receive(&mut rx);
                    forwarder.handle_batch(&mut rx, &mut tx);
                    io.transmit(&mut tx);
                    tx.clear();
                }
                BenchDevice::Worker(event_loop) => {
                    event_loop.iterate(now(), |_| {});
                    event_loop.discard();
                }
            }
            self.io().forget_waiting();
        }
        measured.elapsed_s = begin.elapsed().as_secs_f64();
        let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
        measured.running_s = Duration::from(now - running).as_secs_f64();
        measured.created = self.created() - created;
        let counts = self.io().counts();
        (measured.received, measured.sent) = (counts.received - before.received, counts.sent - before.sent);
        Ok(measured)
    }

    fn created(&self) -> u64 {
        match self {
            BenchDevice::Worker(event_loop) => {
                event_loop.worker.statistics().services.iter().map(|service| service.created).sum()
            }
            BenchDevice::Nothing(_) | BenchDevice::Forward(..) => 0,
        }
    }
}

/// Runs and prints what was measured, a line of JSON for each worker and part.
pub(super) fn run(arguments: &DeviceArgs) -> Result<()> {
    let sort = Sort::ALL.into_iter().find(|sort| sort.name() == arguments.sort).context("no such packets")?;
    let memory_mib = (((arguments.packets + MBUFS_SPARE) * 1024) >> 20) as u32 + 512;
    let pages = match arguments.pages {
        Pages::Huge => EalPages::Huge,
        Pages::Ordinary => EalPages::None,
    };
    let eal = Eal::start(EalOptions { memory_mib, pages, pci: false }).context("DPDK")?;
    let mbufs = (arguments.packets + MBUFS_SPARE * arguments.pcap.len()) as u32;
    let name = "frames".to_owned();
    let pool =
        MbufPool::create(&eal, PoolOptions { name, mbufs, data_room: DATA_ROOM, cache: CACHE }).context("a pool")?;
    let replays: Vec<String> = arguments.pcap.iter().map(|pcap| format!("rx_pcap={}", pcap.display())).collect();
    let device = format!("net_pcap0,{},infinite_rx=1", replays.join(","));
    let queues = arguments.pcap.len() as u16;
    let port =
        Port::open(&eal, &PortOptions { device, queues, ..PortOptions::default() }, &pool).context("the port")?;
    let mut io = Vec::new();
    for index in 0..queues {
        let queue = port.queue(index).context("the port has no such queue")?;
        let burst = if arguments.work == "forward" { Forwarder::BURST } else { BATCH_MAX };
        io.push(PortIo::new(vec![queue], pool.clone()).in_bursts_of(burst));
    }
    ensure!(!arguments.cores.is_empty(), "--cores");
    if arguments.work == "flood" {
        let [known, flood] = <[PortIo; 2]>::try_from(io).map_err(|_| anyhow::anyhow!("a flood takes two replays"))?;
        hairpin_linux::cpu::pin(arguments.cores[0])?;
        let _registration = eal.register_thread()?;
        let worker = subject::workers(PacketWork::Nat(Default::default()), sort, arguments.connections, 1).pop();
        let device = BenchDevice::new(worker.context("a worker")?, known);
        return report(&self::flood(arguments, device, DevicePort::bare(flood))?);
    }
    let work = PacketWork::ALL.into_iter().find(|work| work.name() == arguments.work);
    let devices: Vec<BenchDevice> = match (arguments.work.as_str(), work) {
        ("forward", _) => io.into_iter().map(|io| BenchDevice::Forward(Box::default(), DevicePort::bare(io))).collect(),
        (_, Some(PacketWork::Nothing)) => io.into_iter().map(|io| BenchDevice::Nothing(DevicePort::bare(io))).collect(),
        (_, Some(work)) => {
            let workers = subject::workers(work, sort, arguments.connections, queues);
            workers.into_iter().zip(io).map(|(worker, io)| BenchDevice::new(worker, io)).collect()
        }
        (name, None) => anyhow::bail!("no such work: {name}"),
    };
    let together = Barrier::new(devices.len());
    let measured: Vec<Result<MeasuredWork>> = std::thread::scope(|scope| {
        let cores = arguments.cores.iter().cycle();
        let parts = devices.into_iter().zip(cores);
        let threads = parts.map(|(mut device, &core)| {
            let (eal, together) = (&eal, &together);
            scope.spawn(move || {
                let pinned = hairpin_linux::cpu::pin(core);
                let registration = eal.register_thread();
                let warm = device.run("warm", (WARM_UP * arguments.flows.max(BATCH_MAX * 1000)) as u64, Duration::MAX);
                together.wait();
                let (_registration, _) = (pinned.and(Ok(registration?))?, warm?);
                device.run(&arguments.work, u64::MAX, Duration::from_secs_f64(arguments.seconds))
            })
        });
        let threads: Vec<_> = threads.collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a worker panicked"))))
            .collect()
    });
    report(&measured.into_iter().collect::<Result<Vec<_>>>()?)
}

/// Known flows; then new ones, one packet each, until the table is full; then both; then the known ones again.
fn flood(arguments: &DeviceArgs, mut device: BenchDevice, other: DevicePort<PortIo>) -> Result<Vec<MeasuredWork>> {
    let time = Duration::from_secs_f64(arguments.seconds);
    let room = (arguments.connections - arguments.flows) as u64;
    device.run("warm", (WARM_UP * arguments.flows) as u64, Duration::MAX)?;
    let before = device.run("known, before", u64::MAX, time)?;
    let known = std::mem::replace(device.io(), other);
    let new = device.run("new", room, Duration::MAX)?;
    let mut over = device.run("new, beyond", room / 2, Duration::MAX)?;
    // The known ones among them: they must not give way.
    let flood = std::mem::replace(device.io(), known);
    let mut beside = MeasuredWork { what: "known, beside".to_owned(), ..MeasuredWork::default() };
    let mut ios = [flood];
    for round in 0..2 * (room / 4 / BATCH_MAX as u64) {
        let part = device.run("", BATCH_MAX as u64, Duration::MAX)?;
        let sum = if round % 2 == 0 { &mut beside } else { &mut over };
        sum.received += part.received;
        sum.sent += part.sent;
        sum.created += part.created;
        std::mem::swap(device.io(), &mut ios[0]);
    }
    let after = device.run("known, after", u64::MAX, time)?;
    Ok(vec![before, new, over, beside, after])
}

fn report(all: &[MeasuredWork]) -> Result<()> {
    for measured in all {
        println!("{}", serde_json::to_string(measured)?);
    }
    Ok(())
}
