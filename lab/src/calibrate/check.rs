//! Whether a profile is right: the very same runs simulated ([`hairpin_sim::testbed`]) and measured on real packets, at
//! points other than those that the profile was made from.
//!
//! The compared quantity is packets for each second that the device's core is busy: at full speed that is its throughput, at
//! half load what share of the core is taken. For runs at full speed what came through by the wall clock stands beside it;
//! where the generator, and not the device, was the limit that says nothing, and [`RunOutcome::idle`] shows it.

use super::entries;
use crate::testbed::meter::CoreWork;
use crate::testbed::{Arrivals, Device, Measurement, PacketSource, SendRate, TransportProtocol, Trial};
use crate::traffic::flows::{Rounds, client, endpoint};
use anyhow::{Result, ensure};
use fastrand::Rng;
use hairpin_core::config::Timeouts;
use hairpin_core::flow::{Direction, FlowKey, Protocol};
use hairpin_core::table::LookupMethod;
use hairpin_core::time::{Duration, Time};
use hairpin_sim::testbed as bed;
use hairpin_sim::testbed::cores::CoreProfile;
use std::path::Path;

/// How far simulated and measured may be apart, as a part of what was measured.
pub const BOUND: f64 = 0.15;
/// A core that is idle for more than this part of the time was not the limit.
pub const IDLE_MAX: f64 = 0.03;
/// Packets of a simulated run that is worth something.
pub const PACKETS: u64 = 2_000_000;
/// Packets that a generator sends at a time.
const GENERATOR: u32 = 32;
/// The sizes of flows that come and go, in bytes of payload, ten to a packet: between these, log-uniform.
const SIZES: (f64, f64) = (500.0, 1500.0);
/// Bytes of payload of a packet of theirs.
const PAYLOAD: f64 = 10.0;
/// Bytes of a frame.
const FRAME: u16 = 64;

/// How fast packets come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckLoad {
    /// More than the device takes.
    Full,
    /// Half of what it takes. Polling finds small iterations then, so it is busy nearly all of the time all the same.
    Half,
    /// A tenth of what it takes: a packet an iteration, and time to spare.
    Tenth,
}

impl CheckLoad {
    /// The offered part of the rate that the device takes; `None`: more than all of it.
    pub fn part(self) -> Option<f64> {
        match self {
            CheckLoad::Full => None,
            CheckLoad::Half => Some(0.5),
            CheckLoad::Tenth => Some(0.1),
        }
    }
}

/// One run.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckCase {
    /// The device.
    pub device: Device,
    /// A balancer's table.
    pub table: LookupMethod,
    /// Flows that the device knows; of flows that come and go, how many are open.
    pub flows: u32,
    /// UDP or TCP.
    pub transport: TransportProtocol,
    /// One packet in a hundred, about, begins a new TCP flow, and another ends one.
    pub moving: bool,
    /// How fast.
    pub load: CheckLoad,
}

impl CheckCase {
    /// The runs that are compared: none at a number of flows that profiles are made from.
    pub fn all() -> Vec<CheckCase> {
        let known = |flows, load| CheckCase {
            device: Device::Balancer,
            table: LookupMethod::DEFAULT,
            flows,
            transport: TransportProtocol::Tcp,
            moving: false,
            load,
        };
        let forwarder = |load| CheckCase { device: Device::Forwarder, ..known(3_000, load) };
        let mut cases = [CheckLoad::Full, CheckLoad::Half, CheckLoad::Tenth].map(forwarder).to_vec();
        cases.extend([3_000, 30_000, 300_000, 2_000_000].map(|flows| known(flows, CheckLoad::Full)));
        for load in [CheckLoad::Half, CheckLoad::Tenth] {
            cases.extend([30_000, 2_000_000].map(|flows| known(flows, load)));
        }
        cases.push(CheckCase { transport: TransportProtocol::Udp, ..known(30_000, CheckLoad::Full) });
        cases.extend([3_000, 30_000].map(|flows| CheckCase { moving: true, ..known(flows, CheckLoad::Full) }));
        cases.extend(
            [30_000, 2_000_000]
                .map(|flows| CheckCase { table: LookupMethod::Concurrent, ..known(flows, CheckLoad::Full) }),
        );
        cases.push(CheckCase { table: LookupMethod::Stateless, ..known(30_000, CheckLoad::Full) });
        cases
    }

    /// As a trial of real packets at this rate; flows that come and go are as large as the file of [`write_sizes`] says.
    pub fn trial(&self, rate: SendRate, duration: std::time::Duration, sizes: &Path, seed: u64) -> Trial {
        let (arrivals, sizes) = match self.moving {
            true => (Arrivals::Closed, Some(sizes.to_owned())),
            false => (Arrivals::Fixed, None),
        };
        Trial {
            device: self.device,
            table: self.table.name().to_owned(),
            table_entries: entries(self.flows),
            flows: self.flows,
            rate,
            duration,
            source: PacketSource::Synthetic { transport: self.transport, arrivals, sizes, ipv6: false },
            run: if self.device == Device::Balancer && !self.moving { 2 } else { 1 },
            seed,
            ..Trial::default()
        }
    }
}

impl std::fmt::Display for CheckCase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.device {
            Device::Balancer => write!(f, "{}, {} flows", self.table, self.flows)?,
            device => device.fmt(f)?,
        }
        if self.transport == TransportProtocol::Udp {
            f.write_str(", udp")?;
        }
        if self.moving {
            f.write_str(", 1 in 100 new")?;
        }
        f.write_str(match self.load {
            CheckLoad::Full => ", full speed",
            CheckLoad::Half => ", half load",
            CheckLoad::Tenth => ", a tenth of it",
        })
    }
}

/// The outcome of a run, measured or simulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunOutcome {
    /// Packets for each second that the core was busy.
    pub busy_pps: f64,
    /// Packets that came back in each second.
    pub pps: f64,
    /// The share of time in which the core was idle.
    pub idle: f64,
}

impl RunOutcome {
    /// From a measurement with its iterations; `None` if there was no packet.
    pub fn measured(measured: &Measurement) -> Option<RunOutcome> {
        let work: &CoreWork = measured.work.as_ref()?;
        let idle_ns = work
            .iterations
            .first()
            .filter(|iterations| iterations.packets == 0)
            .map_or(0.0, |iterations| iterations.ns);
        let (busy_ns, packets) = (work.busy_ns(), work.packets() as f64);
        (packets > 0.0 && busy_ns > 0.0).then(|| RunOutcome {
            busy_pps: packets * 1e9 / busy_ns,
            pps: measured.rx_pps,
            idle: idle_ns / (busy_ns + idle_ns),
        })
    }
}

/// Packets for each second that a core of this profile is busy with iterations such as were measured: what it says of the
/// work alone, however packets came.
pub fn of_iterations(profile: &CoreProfile, case: &CheckCase, work: &CoreWork) -> f64 {
    let iterations = work.iterations.iter().filter(|iterations| iterations.packets > 0);
    let busy: f64 =
        iterations.map(|iterations| iterations.count as f64 * iteration_ns(profile, case, iterations.packets)).sum();
    work.packets() as f64 * 1e9 / busy
}

/// Nanoseconds of an iteration of known packets, by a profile.
fn iteration_ns(profile: &CoreProfile, case: &CheckCase, packets: usize) -> f64 {
    let each = match case.device {
        Device::Balancer => profile.known_ns(case.table, f64::from(case.flows), packets),
        Device::Forwarder | Device::Wire => profile.forward_ns(packets),
    };
    packets as f64 * each
}

/// The cost of packets in iterations of one, of two and three, of four to seven and so on, measured and by the profile,
/// with how many of all packets were in such iterations: for people.
pub fn by_size(profile: &CoreProfile, case: &CheckCase, work: &CoreWork) -> String {
    let all = work.packets().max(1) as f64;
    let classes = (0..8).filter_map(|class| {
        let of_class = work.iterations.iter().filter(|iterations| iterations.packets.checked_ilog2() == Some(class));
        let (mut packets, mut measured, mut said) = (0.0, 0.0, 0.0);
        for iterations in of_class {
            packets += iterations.count as f64 * iterations.packets as f64;
            measured += iterations.ns;
            said += iterations.count as f64 * iteration_ns(profile, case, iterations.packets);
        }
        (packets > 0.0).then(|| {
            let part = 100.0 * packets / all;
            format!("{}+: {:.0} ns, profile {:.0} ({part:.0} %)", 1 << class, measured / packets, said / packets)
        })
    });
    classes.collect::<Vec<_>>().join(", ")
}

/// Simulated over measured, by packets of a busy second, and whether it is within [`BOUND`] of 1; no number never is.
pub fn compare(simulated: &RunOutcome, measured: &RunOutcome) -> (f64, bool) {
    let ratio = simulated.busy_pps / measured.busy_pps;
    (ratio, (ratio - 1.0).abs() <= BOUND)
}

/// Writes the file of sizes of flows that come and go.
///
/// # Errors
/// It cannot be written.
pub fn write_sizes(path: &Path) -> Result<()> {
    Ok(std::fs::write(path, format!("{},0\n{},1\n", SIZES.0, SIZES.1))?)
}

/// Packets per second that a core of this profile takes of such a case, in full iterations.
pub fn capacity(profile: &CoreProfile, case: &CheckCase) -> f64 {
    let burst = GENERATOR as usize;
    1e9 / match case.device {
        Device::Balancer => profile.known_ns(case.table, f64::from(case.flows), burst),
        Device::Forwarder | Device::Wire => profile.forward_ns(burst),
    }
}

/// When packets come.
#[derive(Clone, Copy, Debug)]
pub enum OfferedTimes<'a> {
    /// So many per second, so many at a time.
    Evenly(f64, u32),
    /// As a generator of real packets handed them over ([`Measurement::handed`]), again and again.
    Recorded(&'a [(u64, u32)]),
}

impl OfferedTimes<'_> {
    /// As many per second, in full bursts: what a generator sends that fills bursts before it sends them.
    pub fn in_bursts(pps: f64) -> OfferedTimes<'static> {
        OfferedTimes::Evenly(pps, GENERATOR)
    }
}

/// Simulates a case on one core: as many packets as there are flows, or `packets` if that is more.
///
/// # Errors
/// The testbed refuses it, or finds itself wrong.
pub fn simulate(
    profile: &CoreProfile,
    case: &CheckCase,
    offered: OfferedTimes<'_>,
    packets: u64,
) -> Result<RunOutcome> {
    const SEED: u64 = 1;
    let device = match case.device {
        Device::Balancer => bed::ModelDevice::Balancer(bed::BalancerSettings {
            table: case.table,
            entries: entries(case.flows),
            backends: 4,
            timeouts: Timeouts::default(),
            offload: None,
        }),
        Device::Forwarder | Device::Wire => bed::ModelDevice::Forwarder,
    };
    let options = bed::TestbedOptions {
        scale: 1.0,
        cores: 1,
        core: profile.clone(),
        // Rings have no rate, and no length to speak of.
        port: bed::ModelPort { gbit_s: 10_000.0, queue: 1024, latency: Duration::ZERO },
        device,
        seed: SEED,
        interval: Duration::from_millis(100),
    };
    let mut testbed = bed::ModelTestbed::new(options).map_err(anyhow::Error::msg)?;
    if case.device == Device::Balancer && !case.moving {
        // At any time on the way there, whatever noise there is in the profile.
        let cost = |flows: u32| {
            let flows = f64::from(flows);
            let (new, iteration) = profile.new_ns(case.table, flows);
            profile.known_ns(case.table, flows, 1) + new + iteration
        };
        let slowly = 0.5e9 / (0..=case.flows.ilog2()).map(|bits| cost(case.flows >> bits)).fold(0.0, f64::max);
        let mut first = Steady::new(case, u64::from(case.flows), OfferedTimes::Evenly(slowly, 1), SEED);
        let results = testbed.run(&mut first, &mut |_, _| ());
        ensure!(results.lost.is_empty(), "{case}: {:?} were lost before the beginning", results.lost);
    }
    let packets = packets.max(u64::from(case.flows));
    let results = testbed.run(&mut Steady::new(case, packets, offered, SEED), &mut |_, _| ());
    ensure!(results.failures.is_empty(), "{case}: {:?}", results.failures);
    let seconds = results.duration.as_secs_f64();
    let busy: f64 = results.busy.iter().map(|busy| busy.as_secs_f64()).sum();
    ensure!(busy > 0.0 && seconds > 0.0, "{case}: nothing was simulated");
    let received = results.received as f64;
    Ok(RunOutcome { busy_pps: received / busy, pps: received / seconds, idle: (1.0 - busy / seconds).max(0.0) })
}

/// The packets of a real generator, in virtual time: flows in turn, in rounds.
struct Steady<'a> {
    left: u64,
    times: PacketTimes<'a>,
    protocol: Protocol,
    population: CheckPopulation,
}

/// When its packets come.
struct PacketTimes<'a> {
    offered: OfferedTimes<'a>,
    /// Bursts that have come, and packets in them.
    bursts: u64,
    packets: u64,
    /// Packets of the one at hand that are still to come, and when it comes.
    left: u32,
    at: u64,
}

impl<'a> PacketTimes<'a> {
    fn new(offered: OfferedTimes<'a>) -> PacketTimes<'a> {
        PacketTimes { offered, bursts: 0, packets: 0, left: 0, at: 0 }
    }

    /// When the next packet comes.
    fn next(&mut self) -> Time {
        if self.left == 0 {
            (self.at, self.left) = self.burst();
            self.bursts += 1;
            self.packets += u64::from(self.left);
        }
        self.left -= 1;
        Time::from_nanos(self.at)
    }

    fn burst(&self) -> (u64, u32) {
        match self.offered {
            OfferedTimes::Evenly(pps, burst) => ((self.packets as f64 * 1e9 / pps) as u64, burst.max(1)),
            OfferedTimes::Recorded(handed) => {
                let count = handed.len().max(1) as u64;
                let Some(&(at, packets)) = handed.get((self.bursts % count) as usize) else { return (self.at + 1, 1) };
                // From the last of a round to the first of the next it is as long as between two on average.
                let last = handed.last().map_or(0, |&(at, _)| at);
                (self.bursts / count * (last + last / count + 1) + at, packets.max(1))
            }
        }
    }
}

enum CheckPopulation {
    /// They are there all the time.
    Known(Rounds, u32),
    /// They come and go: number, packets left, whether it has begun. And how many there were, and will be at most.
    Moving { open: Vec<(u32, u32, bool)>, at: usize, next: u32, most: u32, random: Rng },
}

/// Packets of data of a new flow.
fn size(random: &mut Rng) -> u32 {
    (SIZES.0 * (SIZES.1 / SIZES.0).powf(random.f64()) / PAYLOAD).ceil() as u32
}

impl<'a> Steady<'a> {
    fn new(case: &CheckCase, packets: u64, offered: OfferedTimes<'a>, seed: u64) -> Steady<'a> {
        let mut random = Rng::with_seed(seed);
        let population = match case.moving {
            true => {
                // Each has so many packets at least.
                let most = u64::from(case.flows) + packets / (SIZES.0 / PAYLOAD) as u64 + 1;
                let open = (0..case.flows).map(|number| (number, size(&mut random), false)).collect();
                let most = u32::try_from(most).unwrap_or(u32::MAX);
                CheckPopulation::Moving { open, at: 0, next: case.flows, most, random }
            }
            false => CheckPopulation::Known(Rounds::new(case.flows as usize, random), case.flows),
        };
        let protocol = match case.transport {
            TransportProtocol::Tcp => Protocol::Tcp,
            TransportProtocol::Udp => Protocol::Udp,
        };
        Steady { left: packets, times: PacketTimes::new(offered), protocol, population }
    }
}

impl bed::ModelTraffic for Steady<'_> {
    fn next(&mut self) -> Option<bed::OfferedPacket> {
        self.left = self.left.checked_sub(1)?;
        let at = self.times.next();
        let (flow, part) = match &mut self.population {
            CheckPopulation::Known(rounds, _) => (rounds.step() as u32, bed::FlowPart::Middle),
            CheckPopulation::Moving { open, at, next, random, .. } => {
                if *at >= open.len() {
                    *at = 0;
                }
                let this = open.get_mut(*at)?;
                let flow = this.0;
                let part = match *this {
                    (_, _, false) => {
                        this.2 = true;
                        bed::FlowPart::First
                    }
                    (_, 0, true) => {
                        *this = (*next, size(random), false);
                        *next += 1;
                        bed::FlowPart::Last
                    }
                    (_, left, true) => {
                        this.1 = left - 1;
                        bed::FlowPart::Middle
                    }
                };
                *at += 1;
                (flow, part)
            }
        };
        Some(bed::OfferedPacket { at, flow, length: FRAME, direction: Direction::FromClient, part })
    }

    fn key(&self, flow: u32) -> FlowKey {
        let ends = client(flow);
        let source = endpoint(ends.source, ends.source_port, false);
        FlowKey { source, destination: bed::service(), protocol: self.protocol }
    }

    fn flows(&self) -> u32 {
        match &self.population {
            CheckPopulation::Known(_, flows) => *flows,
            CheckPopulation::Moving { most, .. } => *most,
        }
    }
}

#[cfg(test)]
mod tests;
