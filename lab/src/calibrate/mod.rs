//! The cost of a worker core's work on the running machine, as a [`CoreProfile`] for the testbed in virtual time.
//!
//! Packets of known flows and of the forwarder are measured on real packets over rings, in the very testbed of
//! [`crate::testbed`]: every iteration of the device's core is measured and goes to those of its size
//! ([`crate::testbed::meter`]), at full speed and at a lower rate, at which iterations are small, UDP and TCP alike. A line
//! through them ([`fit`]) says what an iteration costs and what each packet. It is the device's own time: a generator that
//! is slower than the device only makes iterations smaller, and a machine that others use too only leaves fewer iterations.
//!
//! The cost of a flow beside its packets (its SYN, its first acknowledgement and its FIN are more than others), its end by
//! silence, and a rule, is measured between frames in memory ([`memory`]), beside the
//! same work without. So is everything where there are no rings, and the profile says so; what receives and sends costs
//! nothing like rings there.
//!
//! [`check`] puts a profile to the test: it simulates what was measured, at other points.
//!
//! Each repetition measures everything in turn, every other one backwards. The profile has what is in the middle: of what
//! a packet takes by itself, and of what it takes among many, one by one, as a machine may change its pace between these.

pub mod check;
pub mod fit;
pub mod lines;
pub mod marks;
pub mod memory;
pub mod pairs;
#[cfg(feature = "dpdk")]
pub mod rings;
#[cfg(test)]
mod tests;

use crate::statistics::Summary;
use crate::testbed::meter::{CoreWork, Iterations};
use crate::testbed::table::TableChoice;
use crate::testbed::{Device, Measurement, Trial};
use anyhow::{Context, Result, bail, ensure};
use fit::FittedLine;
use hairpin_core::table::LookupMethod;
use hairpin_sim::testbed::cores::{CoreProfile, Cost, IterationCost, KnownFlowCost, MethodCost, New};
use std::time::Duration;

/// Packets of an iteration, in what is said of a packet.
pub const BURST: f64 = 32.0;
/// Flows whose ends and rules are measured.
const OF_ENDS: u32 = 100_000;
/// Flows beyond which new ones are not measured: the curve is flat by then, and filling the table takes its time.
const NEW_MAX: u32 = 1_000_000;
/// Packets of a measurement in memory.
const PACKETS: u32 = 2_000_000;

/// The arguments of a calibration.
#[derive(Clone, Debug, PartialEq)]
pub struct CalibrationOptions {
    /// The profile's name.
    pub name: String,
    /// Tables by name; the default one is measured in any case.
    pub tables: Vec<String>,
    /// Numbers of known flows, rising.
    pub flows: Vec<u32>,
    /// Measurements of everything; an odd number has ones in the middle.
    pub repetitions: usize,
    /// How long each takes at each rate.
    pub duration: Duration,
}

impl Default for CalibrationOptions {
    fn default() -> CalibrationOptions {
        CalibrationOptions {
            name: "this-machine".to_owned(),
            tables: ["cuckoo++", "concurrent", "stateless", "rte-hash"].map(str::to_owned).to_vec(),
            flows: vec![1_000, 10_000, 100_000, 1_000_000, 4_000_000],
            repetitions: 3,
            duration: Duration::from_millis(500),
        }
    }
}

impl CalibrationOptions {
    /// A quick run: the default table, three numbers of flows, once.
    pub fn quick() -> CalibrationOptions {
        CalibrationOptions {
            tables: vec![LookupMethod::DEFAULT.name().to_owned()],
            flows: vec![1_000, 100_000, 1_000_000],
            repetitions: 1,
            duration: Duration::from_millis(300),
            ..CalibrationOptions::default()
        }
    }

    fn check(&self) -> Result<()> {
        ensure!(!self.name.is_empty(), "a profile has a name");
        ensure!(self.repetitions > 0, "there is one repetition at least");
        ensure!(!self.flows.is_empty() && self.flows[0] > 0, "flows are 1 or more");
        ensure!(self.flows.windows(2).all(|pair| pair[0] < pair[1]), "the numbers of flows rise");
        self.tables.iter().try_for_each(|table| TableChoice::named(table).map(drop))
    }

    /// Everything whose iterations are measured.
    pub fn points(&self) -> Vec<DevicePoint> {
        let point = |device, table: &str, flows| DevicePoint { device, table: table.to_owned(), flows };
        let mut points = vec![point(Device::Wire, "", 1000), point(Device::Forwarder, "", 1000)];
        for table in self.tables() {
            points.extend(self.flows.iter().map(|&flows| point(Device::Balancer, &table, flows)));
        }
        points
    }

    /// The tables, the default one among them.
    fn tables(&self) -> Vec<String> {
        let default = LookupMethod::DEFAULT.name();
        let others = self.tables.iter().filter(|table| *table != default).cloned();
        [default.to_owned()].into_iter().chain(others).collect()
    }
}

/// A device, and flows that it knows.
#[derive(Clone, Debug, PartialEq)]
pub struct DevicePoint {
    /// Which device.
    pub device: Device,
    /// A balancer's table.
    pub table: String,
    /// Flows.
    pub flows: u32,
}

impl std::fmt::Display for DevicePoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.device {
            Device::Balancer => write!(f, "{} with {} flows", self.table, self.flows),
            device => device.fmt(f),
        }
    }
}

/// Connections a balancer has room for, for so many flows: two million at least, as the lab's trials have.
pub fn entries(flows: u32) -> u32 {
    flows.max(1 << 21).checked_next_power_of_two().unwrap_or(u32::MAX)
}

/// The measured cost of one kind of work.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundCost {
    /// What: "cuckoo++ with 1000 flows", "new flows of cuckoo++ at 1000", "end".
    pub what: String,
    /// Nanoseconds, of iterations in bursts of [`BURST`] packets.
    pub ns: f64,
    /// Half of what lies between the least and the most, as a part of it; of one repetition 0.
    pub spread: f64,
}

/// A machine's costs, and how sure they are.
#[derive(Clone, Debug)]
pub struct Calibrated {
    /// The profile.
    pub profile: CoreProfile,
    /// All that was measured, tables that no profile has among them.
    pub found: Vec<FoundCost>,
}

impl Calibrated {
    /// The profile as a file, with the spread of everything behind it.
    pub fn text(&self) -> String {
        let mut text = self.profile.text();
        text.push_str("\n# Nanoseconds of a packet in iterations of 32, and how far repetitions lie apart:\n");
        for found in &self.found {
            text.push_str(&format!("#   {:36} {:8.1}  +- {:.1} %\n", found.what, found.ns, found.spread * 100.0));
        }
        text
    }
}

/// The place where iterations are measured: over rings, or in memory.
pub trait Bench {
    /// Measures a point once.
    ///
    /// # Errors
    /// It could not be measured.
    fn work(&mut self, point: &DevicePoint, progress: &mut dyn FnMut(&str)) -> Result<CoreWork>;
    /// Has the machine do the like, before anything is measured.
    ///
    /// # Errors
    /// It could not be done.
    fn warm_up(&mut self) -> Result<()> {
        Ok(())
    }
    /// Measures a trial of real packets, with its iterations.
    ///
    /// # Errors
    /// It could not be measured; without rings always.
    fn trial(&mut self, _: &Trial) -> Result<Measurement> {
        bail!("there are no rings: build with --features dpdk")
    }
    /// Where, for people.
    fn place(&self) -> String;
}

/// Frames in memory, where there are no rings.
#[derive(Clone, Copy, Debug, Default)]
pub struct InMemory;

impl Bench for InMemory {
    fn work(&mut self, point: &DevicePoint, _: &mut dyn FnMut(&str)) -> Result<CoreWork> {
        let table = match point.device {
            Device::Balancer => Some(TableChoice::named(&point.table)?),
            Device::Forwarder | Device::Wire => None,
        };
        let each = memory::known(table, point.flows, PACKETS, point.device == Device::Forwarder)?;
        let count = u64::from(PACKETS) / BURST as u64;
        let iteration = |packets: usize, ns: f64| Iterations { packets, count, ns: ns * count as f64 };
        Ok(CoreWork { iterations: vec![iteration(BURST as usize, each * BURST)], ..CoreWork::default() })
    }

    fn place(&self) -> String {
        "between frames in memory: without rings, what receiving and sending costs is missing, and turns cost nothing \
         for themselves"
            .to_owned()
    }
}

/// Everything that was measured of a point: a line and idle iterations, of each repetition.
#[derive(Clone, Debug, Default)]
struct Sampled {
    lines: Vec<FittedLine>,
    polls: Vec<f64>,
}

impl Sampled {
    fn push(&mut self, work: &CoreWork) {
        self.lines.extend(FittedLine::of(work));
        self.polls.extend(work.poll_ns());
    }

    /// The line in the middle, and the spread of packets in iterations of [`BURST`].
    fn line(&self) -> Option<(FittedLine, f64)> {
        let of = |burst| Summary::of(&self.lines.iter().map(|line| line.each(burst)).collect::<Vec<f64>>());
        let (one, many) = (of(1.0)?, of(BURST)?);
        let spread = (many.most - many.least) / 2.0 / many.median;
        Some((FittedLine::through(one.median, (BURST, many.median)), spread))
    }
}

/// Measures all of it. `progress` hears what is going on.
///
/// # Errors
/// Something could not be measured.
pub fn calibrate(
    options: &CalibrationOptions,
    bench: &mut dyn Bench,
    progress: &mut dyn FnMut(&str),
) -> Result<Calibrated> {
    calibrate_beside(options, bench, &mut NothingBeside, progress)
}

/// A measurement beside all others.
pub trait SideMeasurement {
    /// These have been measured in this repetition (the first is 0), the last of them just now.
    ///
    /// # Errors
    /// Something could not be measured.
    fn after(&mut self, repetition: usize, points: &[&DevicePoint], bench: &mut dyn Bench) -> Result<()>;
    /// A repetition is over, and has found this profile by itself.
    fn found(&mut self, profile: &CoreProfile);
}

struct NothingBeside;

impl SideMeasurement for NothingBeside {
    fn after(&mut self, _: usize, _: &[&DevicePoint], _: &mut dyn Bench) -> Result<()> {
        Ok(())
    }
    fn found(&mut self, _: &CoreProfile) {}
}

/// [`calibrate`], with something else that is measured alternately.
///
/// # Errors
/// Something could not be measured.
pub fn calibrate_beside(
    options: &CalibrationOptions,
    bench: &mut dyn Bench,
    beside: &mut dyn SideMeasurement,
    progress: &mut dyn FnMut(&str),
) -> Result<Calibrated> {
    options.check()?;
    let points = options.points();
    let mut measured = MeasuredSamples::new(options);
    let once = CalibrationOptions { repetitions: 1, ..options.clone() };
    for repetition in 0..options.repetitions {
        let mut now = MeasuredSamples::new(options);
        let mut order: Vec<usize> = (0..points.len()).collect();
        if repetition % 2 == 1 {
            order.reverse();
        }
        bench.warm_up().context("warming up")?;
        let mut seen: Vec<&DevicePoint> = Vec::new();
        for at in order {
            let (point, all) = (&points[at], points.len());
            seen.push(point);
            let said = format!("[{}/{}] {}/{all} {point}", repetition + 1, options.repetitions, seen.len());
            progress(&said);
            let work = bench.work(point, &mut |what| progress(&format!("{said}: {what}")));
            now.points[at].push(&work.with_context(|| point.to_string())?);
            beside.after(repetition, &seen, bench)?;
        }
        now.others(options, progress)?;
        beside.found(&now.put_together(&once, &points, &bench.place())?.profile);
        measured.add(now);
    }
    measured.put_together(options, &points, &bench.place())
}

/// A table, flows that it has, and what new ones cost then, each and per iteration.
type NewFlows = (String, u32, Vec<(f64, f64)>);

/// Samples of everything.
struct MeasuredSamples {
    points: Vec<Sampled>,
    new: Vec<NewFlows>,
    end: Vec<f64>,
    rule: Vec<f64>,
}

impl MeasuredSamples {
    fn new(options: &CalibrationOptions) -> MeasuredSamples {
        let tracks = |table: &String| match TableChoice::named(table) {
            Ok(TableChoice::Own(method)) => method.tracks_connections(),
            _ => false,
        };
        let tables = options.tables().into_iter().filter(tracks);
        let flows = || options.flows.iter().filter(|flows| **flows <= NEW_MAX);
        let new = tables.flat_map(|table| flows().map(move |&flows| (table.clone(), flows, Vec::new())));
        let points = options.points().iter().map(|_| Sampled::default()).collect();
        MeasuredSamples { points, new: new.collect(), end: Vec::new(), rule: Vec::new() }
    }

    /// Adds the samples of another repetition.
    fn add(&mut self, other: MeasuredSamples) {
        for (own, new) in self.points.iter_mut().zip(other.points) {
            own.lines.extend(new.lines);
            own.polls.extend(new.polls);
        }
        for (own, new) in self.new.iter_mut().zip(other.new) {
            own.2.extend(new.2);
        }
        self.end.extend(other.end);
        self.rule.extend(other.rule);
    }

    /// Once, what is measured in memory.
    fn others(&mut self, options: &CalibrationOptions, progress: &mut dyn FnMut(&str)) -> Result<()> {
        for (table, flows, samples) in &mut self.new {
            progress(&format!("new flows of {table}, {flows} there"));
            samples.push(memory::new_flow(TableChoice::named(table)?, *flows)?);
        }
        let flows = OF_ENDS.min(options.flows.last().copied().unwrap_or(OF_ENDS));
        progress("ends of flows, rules");
        self.end.push(memory::end(flows)?);
        self.rule.push(memory::rule(flows)?);
        Ok(())
    }

    fn put_together(&self, options: &CalibrationOptions, points: &[DevicePoint], place: &str) -> Result<Calibrated> {
        let mut found = Vec::new();
        let source = match options.repetitions {
            1 => "measured once".to_owned(),
            times => format!("measured {times} times"),
        };
        let iteration = |line: FittedLine| IterationCost {
            burst_ns: line.burst_ns,
            packet_ns: line.packet_ns,
            source: source.clone(),
        };
        let mut lines = Vec::new();
        for (point, sampled) in points.iter().zip(&self.points) {
            let (line, spread) = sampled.line().with_context(|| format!("{point}: nothing was measured"))?;
            found.push(FoundCost { what: point.to_string(), ns: line.each(BURST), spread });
            lines.push(line);
        }
        let mut lines = lines.into_iter();
        let (io, forwarder) = (lines.next().context("io")?, lines.next().context("forwarder")?);
        let mut method = Vec::new();
        for table in options.tables() {
            let known: Vec<KnownFlowCost> = options
                .flows
                .iter()
                .zip(&mut lines)
                .map(|(&flows, line)| KnownFlowCost {
                    flows: flows.into(),
                    burst_ns: line.burst_ns,
                    packet_ns: line.packet_ns,
                })
                .collect();
            // rte_hash is there to be compared with: profiles have tables of the data plane.
            let Some(own) = LookupMethod::ALL.iter().copied().find(|method| method.name() == table) else { continue };
            let source = source.clone();
            method.push(MethodCost { table: own, source, known, new: self.new_of(&table, &mut found)? });
        }
        let polls: Vec<f64> = self.points.iter().flat_map(|point| point.polls.iter().copied()).collect();
        let poll = match Summary::of(&polls) {
            Some(summary) => Cost { ns: summary.median, source: source.clone() },
            None => Cost { ns: 20.0, source: "not measured: there is no polling between frames in memory".to_owned() },
        };
        let mut cost = |what: &str, samples: &[f64]| -> Result<Cost> {
            let ns = median(what, samples, &mut found)?;
            Ok(Cost { ns, source: format!("{source}, in memory, {OF_ENDS} flows at most") })
        };
        let (end, rule) = (cost("end of a flow", &self.end)?, cost("rule", &self.rule)?);
        let profile = CoreProfile {
            name: options.name.clone(),
            source: format!(
                "`hairpin-lab calibrate` on {}: packets of 64 bytes, {place}; new flows, ends and rules in memory.",
                machine()
            ),
            poll,
            io: iteration(io),
            forwarder: iteration(forwarder),
            method,
            end,
            rule,
            mark: None,
        };
        profile.check().map_err(anyhow::Error::msg)?;
        Ok(Calibrated { profile, found })
    }

    fn new_of(&self, table: &str, found: &mut Vec<FoundCost>) -> Result<Vec<New>> {
        let own = self.new.iter().filter(|(of, ..)| of == table);
        own.map(|(_, flows, samples)| {
            let (each, iteration): (Vec<f64>, Vec<f64>) = samples.iter().copied().unzip();
            let ns = median(&format!("new flow of {table}, {flows} there"), &each, found)?;
            let iteration_ns = median("  and a turn in which any begins", &iteration, found)?;
            Ok(New { flows: (*flows).into(), ns, iteration_ns })
        })
        .collect()
    }
}

/// The one in the middle, which is told.
fn median(what: &str, samples: &[f64], found: &mut Vec<FoundCost>) -> Result<f64> {
    let summary = Summary::of(samples).with_context(|| format!("{what}: nothing was measured"))?;
    let spread = if summary.median > 0.0 { (summary.most - summary.least) / 2.0 / summary.median } else { 0.0 };
    found.push(FoundCost { what: what.to_owned(), ns: summary.median, spread });
    Ok(summary.median)
}

/// The machine, and when, for people.
fn machine() -> String {
    let date = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
    let build = if cfg!(debug_assertions) { ", a build for finding mistakes, many times as slow" } else { "" };
    format!("{}, {}{build}", crate::report::machine().name, date.get(..10).unwrap_or_default())
}
