//! `hairpin-lab rate`: the highest rate with no more loss than allowed.

use super::bed;
use super::progress::ProgressOutput;
use super::{Output, print};
use anyhow::{Result, bail};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use hairpin_lab::rate::{Repeated, SearchOptions, SearchResult, SearchStage, TestbedProbe, repeat};
use hairpin_lab::testbed::{Device, FrameSize, PacketSource, TransportProtocol, Trial};
use std::path::PathBuf;
use std::time::Duration;

/// The device and load of a search.
#[derive(Args, Debug)]
pub(crate) struct RateArguments {
    /// The device under test: wire, forwarder or balancer.
    #[arg(long, value_name = "DEVICE", default_value = "balancer")]
    device: Device,
    /// The balancer's connection table.
    #[arg(long, value_name = "TABLE", default_value = "cuckoo++")]
    table: String,
    /// Cores of the device.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    cores: u16,
    /// Connections the balancer has room for.
    #[arg(long, value_name = "N", default_value_t = 1 << 21)]
    entries: u32,
    /// Flows.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    flows: u32,
    /// Backends behind the balancer.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    backends: u16,
    /// Bytes of a frame, or "natural".
    #[arg(long, value_name = "BYTES", default_value = "64")]
    size: FrameSize,
    /// Send TCP instead of UDP.
    #[arg(long, conflicts_with = "replay")]
    tcp: bool,
    /// Replay this capture file instead of made-up flows.
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Start from empty tables: every flow is a new connection at first. Without it all are known before.
    #[arg(long)]
    cold: bool,
    /// Loss ratios allowed, each searched for; 0 is no-drop.
    #[arg(long, value_name = "RATIO,...", value_delimiter = ',', default_values_t = [0.0, 0.001, 0.005])]
    loss: Vec<f64>,
    /// Searches of each, for the confidence interval.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// How long the trials that decide take.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// The search ends when the bounds are as close as this part of the rate.
    #[arg(long, value_name = "RATIO", default_value_t = 0.01)]
    resolution: f64,
    /// Trials of each load; the majority decides.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=99))]
    trials: u16,
    /// As RFC 2544 has it: one trial of 60 seconds for each load (--duration for less), and any loss too much counts.
    #[arg(long, conflicts_with = "trials")]
    rfc2544: bool,
    /// Packets per second above which nothing is tried.
    #[arg(long, value_name = "PPS")]
    highest: Option<f64>,
    /// The seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Say nothing until the end.
    #[arg(short, long)]
    quiet: bool,
    /// The output format: a table, or JSON.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

impl RateArguments {
    /// Searches and prints what was found.
    pub(crate) fn perform(self) -> Result<()> {
        let trial = self.trial();
        let options = self.options();
        let mut bed = bed::start()?;
        if let Some(obstacle) = bed.obstacle(&trial) {
            bail!("{obstacle}");
        }
        let mut progress = ProgressOutput::new(self.quiet);
        let mut ignored = |_| ();
        let mut probe = TestbedProbe::new(&mut *bed, &trial, &mut ignored);
        let found = repeat(&mut probe, &self.loss, self.repetitions, &options, &mut |repetition, step| {
            progress.state(|| {
                let stage = match step.stage {
                    SearchStage::Most => "full speed",
                    SearchStage::Coarse => "short trials",
                    SearchStage::Final => "deciding",
                };
                let bound = |rate: Option<f64>| rate.map_or("?".to_owned(), |rate| format!("{:.3}", rate / 1e6));
                format!(
                    "[{}/{}] {} % loss allowed, {stage}, trial {}: {:.3} Mpps, {:.4} % lost; between {} and {} Mpps",
                    repetition + 1,
                    self.repetitions,
                    step.goal * 100.0,
                    step.trials,
                    step.observed.offered / 1e6,
                    step.observed.loss_ratio() * 100.0,
                    bound(step.bounds.0),
                    bound(step.bounds.1)
                )
            });
        })?;
        drop(progress);
        self.print(&trial, &found)
    }

    fn trial(&self) -> Trial {
        let source = match &self.replay {
            Some(file) => PacketSource::Replay { file: file.clone(), masks: None, payload: false },
            None => {
                let mut source = PacketSource::default();
                if let PacketSource::Synthetic { transport, .. } = &mut source
                    && self.tcp
                {
                    *transport = TransportProtocol::Tcp;
                }
                source
            }
        };
        Trial {
            device: self.device,
            table: if self.device == Device::Balancer { self.table.clone() } else { String::new() },
            cores: self.cores,
            table_entries: self.entries,
            flows: self.flows,
            backends: self.backends,
            packet_size: self.size,
            source,
            run: if self.cold { 1 } else { 2 },
            seed: self.seed,
            ..Trial::default()
        }
    }

    fn options(&self) -> SearchOptions {
        let (resolution, highest) = (self.resolution, self.highest);
        if self.rfc2544 {
            // A second is the default, which RFC 2544 is not about.
            let own = SearchOptions::rfc2544();
            let last = if self.duration == Duration::from_secs(1) { own.last } else { self.duration };
            return SearchOptions { resolution, highest, last, first: own.first.min(last), ..own };
        }
        let default = SearchOptions::default();
        let first = default.first.min(self.duration);
        SearchOptions { resolution, highest, first, last: self.duration, trials: self.trials, ..default }
    }

    fn print(&self, trial: &Trial, found: &[Repeated]) -> Result<()> {
        if self.output == Output::Json {
            return print(&format!("{}\n", serde_json::json!({ "trial": trial, "found": found })));
        }
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["LOSS ALLOWED %", "Mpps", "± (95 %)", "SEARCHES", "FOUND"]);
        for repeated in found {
            let (rate, half) = match repeated.rate {
                Some(rate) => {
                    let half = rate.half_width.map_or("-".to_owned(), |half| format!("{:.3}", half / 1e6));
                    (format!("{:.3}", rate.mean / 1e6), half)
                }
                None => ("-".to_owned(), "-".to_owned()),
            };
            let searches = repeated.outcomes.len().to_string();
            table.add_row([(repeated.goal * 100.0).to_string(), rate, half, searches, said(repeated)]);
        }
        for column in table.column_iter_mut().take(4) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        print(&format!("{table}\n"))
    }
}

/// The results of the searches, for people.
fn said(repeated: &Repeated) -> String {
    let of = |is: &dyn Fn(&SearchResult) -> bool| repeated.outcomes.iter().filter(|outcome| is(&outcome.found)).count();
    let kinds = [
        (of(&|found| matches!(found, SearchResult::Between { .. })), "between bounds"),
        (of(&|found| matches!(found, SearchResult::AtLeast(_))), "at least: the source is the limit"),
        (of(&|found| matches!(found, SearchResult::Below(_))), "below the lowest rate tried"),
        (repeated.outcomes.iter().filter(|outcome| !outcome.settled).count(), "not settled: too few trials"),
        (
            repeated.outcomes.iter().map(|outcome| outcome.starved as usize).sum(),
            "trials made again: a thread was kept from its processor",
        ),
    ];
    let there = kinds.iter().filter(|(count, _)| *count > 0);
    there.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
}
