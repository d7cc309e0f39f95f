//! The measurements, in rounds, and their bars.

use super::device::MeasuredWork;
use super::traffic::{self, Sort};
use super::{Pages, testpmd};
use crate::suite::report::{Bar, ReportRow, metric};
use crate::suite::samples::RepeatedValues;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Packets of the replay, at least: far more than any cache holds, so that the source costs the same however many flows
/// there are, and what it hands over is as cold as what a card brings.
const REPLAY: usize = 1 << 20;
/// Modes of testpmd.
const MODES: [&str; 3] = ["io", "macswap", "5tswap"];
/// The measurements of a source, in the order of a round: compared ones are close together.
const ORDER: [&str; 9] = ["io", "nothing", "forward", "macswap", "stateless", "5tswap", "nat", "full-nat", "maglev"];
/// Connections of the flooded table, and the known flows among them.
const FLOOD: (usize, usize) = (1_000_000, 1_000);
/// New flows a second that are to be.
const NEW_PER_S: f64 = 1.5e6;

/// How, and for how long.
pub(super) struct L4Plan {
    pub(super) seconds: f64,
    pub(super) repetitions: usize,
    pub(super) pages: Pages,
    /// Processors: testpmd's console and ours, and those of workers.
    pub(super) cores: Vec<usize>,
    /// The directory of replays.
    pub(super) directory: PathBuf,
}

/// One source.
#[derive(Clone, Copy, Debug)]
pub(super) struct BenchSource {
    pub(super) sort: Sort,
    pub(super) flows: usize,
    /// The replay is one packet of each flow, so that few flows stay in the cache: packets, too.
    pub(super) hot: bool,
}

impl BenchSource {
    pub(super) const fn new(sort: Sort, flows: usize) -> BenchSource {
        BenchSource { sort, flows, hot: false }
    }

    pub(super) fn name(&self) -> String {
        let flows = match self.flows {
            flows if flows >= 1_000_000 => format!("{} M", flows / 1_000_000),
            flows => format!("{} k", flows / 1000),
        };
        format!("{} {flows} flows{}", self.sort.name(), if self.hot { ", packets in the cache" } else { "" })
    }

    /// Packets of the replay: each flow has as many.
    pub(super) fn packets(&self) -> usize {
        if self.hot { self.flows } else { self.flows * REPLAY.div_ceil(self.flows) }
    }

    fn write(&self, path: &Path) -> Result<()> {
        let once = traffic::packets(self.sort, 0, self.flows);
        traffic::write_pcap(path, &once, self.packets() / self.flows)
    }
}

/// A packet rate by processor time: on a machine that others use, what the thread would have done alone.
fn rate(measured: &MeasuredWork) -> f64 {
    measured.sent as f64 / measured.running_s
}

/// A measurement with lost packets has no rate.
fn whole(measured: &MeasuredWork) -> Result<()> {
    ensure!(measured.sent == measured.received, "{} of {} were sent on", measured.sent, measured.received);
    Ok(())
}

fn tell(what: &str, measured: &MeasuredWork) {
    let share = 100.0 * measured.running_s / measured.elapsed_s;
    let each = 1e9 / rate(measured);
    println!(
        "  {what:12} {:>8}packet/s  {each:6.1} ns each, on the processor {share:.0} % of the time",
        metric(rate(measured))
    );
}

impl L4Plan {
    /// Ours, in a process of its own.
    fn ours(
        &self,
        work: &str,
        sort: Sort,
        replays: &[(&Path, usize)],
        shape: (usize, usize, &[usize]),
    ) -> Result<Vec<MeasuredWork>> {
        let (flows, connections, cores) = shape;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["l4", "device", "--work", work, "--sort", sort.name()]);
        replays.iter().for_each(|(path, _)| _ = command.arg("--pcap").arg(path));
        let cores: Vec<String> = cores.iter().map(usize::to_string).collect();
        command.args(["--packets", &replays.iter().map(|(_, packets)| packets).sum::<usize>().to_string()]);
        command.args(["--flows", &flows.to_string(), "--connections", &connections.to_string()]);
        command.args([
            "--cores",
            &cores.join(","),
            "--seconds",
            &self.seconds.to_string(),
            "--pages",
            self.pages.name(),
        ]);
        let output = command.stderr(Stdio::piped()).output().context("could not start the device")?;
        if !output.status.success() {
            bail!("{work}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        lines.lines().map(|line| serde_json::from_str(line).with_context(|| format!("{work}: {line}"))).collect()
    }

    /// One source, everything over it, in rounds.
    pub(super) fn source(&self, source: BenchSource) -> Result<Vec<ReportRow>> {
        let path = self.directory.join("replay.pcap");
        source.write(&path)?;
        let packets = source.packets();
        println!("{}, a replay of {packets} packets", source.name());
        let mut samples: BTreeMap<&str, RepeatedValues> = BTreeMap::new();
        // Full NAT picks no connections up.
        let works = ORDER.iter().filter(|work| source.sort != Sort::Tcp || **work != "full-nat");
        let mut order: Vec<&str> = works.copied().collect();
        for _ in 0..self.repetitions {
            for &what in &order {
                let measured = if MODES.contains(&what) {
                    let cores = (self.cores[0], *self.cores.last().context("a processor")?);
                    testpmd::measure(what, (&path, packets), cores, self.seconds, self.pages)?
                } else {
                    let cores = self.cores.last().copied().into_iter().collect::<Vec<_>>();
                    let shape = (source.flows, source.flows.max(1024), &*cores);
                    self.ours(what, source.sort, &[(&path, packets)], shape)?.pop().context("nothing measured")?
                };
                whole(&measured).with_context(|| what.to_owned())?;
                tell(what, &measured);
                samples.entry(what).or_default().push(rate(&measured));
            }
            order.reverse();
        }
        let _ = std::fs::remove_file(&path);
        Ok(rows(source, &samples))
    }

    /// A table that fills up, and the connections that were there before.
    pub(super) fn flood(&self, sort: Sort) -> Result<Vec<ReportRow>> {
        let (connections, flows) = FLOOD;
        let (known, flood) = (self.directory.join("known.pcap"), self.directory.join("flood.pcap"));
        let established = if sort == Sort::Syn { Sort::Tcp } else { sort };
        traffic::write_pcap(&known, &traffic::packets(established, 0, flows), REPLAY / flows)?;
        traffic::write_pcap(&flood, &traffic::packets(sort, flows, 2 * connections), 1)?;
        println!("{} flows of one packet each, {connections} connections", sort.name());
        let (mut new, mut after, mut before) =
            (RepeatedValues::default(), RepeatedValues::default(), RepeatedValues::default());
        for _ in 0..self.repetitions {
            let replays = [(&*known, REPLAY / flows * flows), (&*flood, 2 * connections)];
            let cores = [*self.cores.last().context("a processor")?];
            let all = self.ours("flood", sort, &replays, (flows, connections, &cores))?;
            let of = |what: &str| all.iter().find(|measured| measured.what == what).context("a part of the flood");
            for measured in &all {
                if measured.running_s > 0.0 {
                    tell(&measured.what, measured);
                }
            }
            let begun = of("new")?;
            whole(begun).context("new flows")?;
            ensure!(begun.created == begun.sent, "{} connections of {} packets", begun.created, begun.sent);
            for what in ["known, beside", "known, after"] {
                whole(of(what)?).context(what)?;
                ensure!(of(what)?.created == 0, "{what}: connections that were there had to begin anew");
            }
            new.push(rate(begun));
            before.push(rate(of("known, before")?));
            after.push(rate(of("known, after")?));
        }
        let _ = (std::fs::remove_file(&known), std::fs::remove_file(&flood));
        let title = format!("{}: new flows until {connections} connections are there", sort.name());
        Ok(vec![
            ReportRow::against_value(title, "flow/s", &new, "1.5 M/s", NEW_PER_S, Bar::AtLeast(1.0)),
            ReportRow::alternating(
                format!("{}: known flows when the table is full", sort.name()),
                "packet/s",
                &after,
                ("before", &before),
                BTreeMap::new(),
                Bar::AtLeast(0.95),
            ),
        ])
    }

    /// Two workers beside one.
    pub(super) fn workers(&self) -> Result<Vec<ReportRow>> {
        let [first, second] = [0, 1].map(|at| self.cores.iter().rev().nth(at).copied());
        let (Some(first), Some(second)) = (first, second) else { return Ok(Vec::new()) };
        let source = BenchSource::new(Sort::Udp, 100_000);
        let paths = [0, 1].map(|number| self.directory.join(format!("replay-{number}.pcap")));
        paths.iter().try_for_each(|path| source.write(path))?;
        let replays = [0, 1].map(|number| (&*paths[number], source.packets()));
        println!("two workers, {}", source.name());
        let (mut one, mut two) = (RepeatedValues::default(), RepeatedValues::default());
        for _ in 0..self.repetitions {
            for workers in [1, 2] {
                let cores = &[first, second][..workers];
                let all = self.ours("nat", source.sort, &replays[..workers], (source.flows, source.flows, cores))?;
                for measured in &all {
                    whole(measured)?;
                    tell(&format!("{workers} worker(s)"), measured);
                }
                let sum = all.iter().map(rate).sum();
                if workers == 1 {
                    one.push(sum)
                } else {
                    two.push(sum)
                };
            }
        }
        paths.iter().for_each(|path| drop(std::fs::remove_file(path)));
        let (case, one) = ("two workers, udp 100 k flows", ("one worker", &one));
        Ok(vec![ReportRow::alternating(case, "packet/s", &two, one, BTreeMap::new(), Bar::AtLeast(1.8))])
    }
}

/// The report of a source.
fn rows(source: BenchSource, samples: &BTreeMap<&str, RepeatedValues>) -> Vec<ReportRow> {
    let mut beside: BTreeMap<String, f64> =
        MODES.iter().filter_map(|mode| Some(((*mode).to_owned(), samples.get(mode)?.median()))).collect();
    if let Some(nothing) = samples.get("nothing") {
        beside.insert("own io".to_owned(), nothing.median());
    }
    let stateful = if source.hot || source.flows >= 1_000_000 { 0.55 } else { 0.65 };
    let bars = [
        ("forward", "macswap", 0.95),
        ("stateless", "5tswap", 0.8),
        ("maglev", "5tswap", 0.75),
        ("nat", "5tswap", stateful),
        ("full-nat", "5tswap", stateful),
    ];
    let row = |(work, against, bar): (&str, &str, f64)| {
        let title = format!("{}: {work}", source.name());
        let (ours, others) = (samples.get(work)?, samples.get(against)?);
        Some(ReportRow::alternating(title, "packet/s", ours, (against, others), beside.clone(), Bar::AtLeast(bar)))
    };
    bars.into_iter().filter_map(row).collect()
}
