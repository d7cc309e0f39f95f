//! `hairpin-lab trace`: traces made from published distributions, beside recordings.

use super::{Output, print};
use anyhow::{Context, Result, ensure};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use hairpin_lab::trace::capture::CaptureFile;
use hairpin_lab::trace::page::{self, ComparedTrace, MadeTrace, TracePage};
use hairpin_lab::trace::statistics::{SeenPacket, TraceStatistics};
use hairpin_lab::trace::{Bounds, Generator, TraceModel, built_in};
use hairpin_lab::virtual_time::verdicts::ValueVerdicts;
use hairpin_lab::virtual_time::{CaseContext, CaseStore, Gathered, ModelExperiment};
use std::path::{Path, PathBuf};

/// The axis of the experiment whose values are traces.
const AXIS: &str = "trace";

/// What is made, and beside what.
#[derive(Args, Debug)]
pub(crate) struct TraceArguments {
    /// Models: campus, internet, enterprise, web-search, data-mining, or files (*.toml); all of those names, unless given.
    #[arg(value_name = "MODEL")]
    models: Vec<String>,
    /// Write the packets to this capture file (pcap, headers only); one model.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Connections; as the model says, unless given.
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=67_108_864))]
    connections: Option<u32>,
    /// End after so many seconds of the trace, if that is earlier.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// The seed of everything drawn; the same seed makes the same file.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Recordings (*.pcap) to compare with; HAIRPIN_TRACES, unless given.
    #[arg(long, value_name = "DIRECTORY")]
    recordings: Option<PathBuf>,
    /// Also write the page (docs/evidence/traces.md) to this file.
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
    /// Put verdicts on KTH 2022's findings by trace on the page, from these results of `hairpin-lab reproduce --experiments
    /// lab/experiments/traces`: SCALE=DIRECTORY.
    #[arg(long, value_name = "SCALE=DIRECTORY", requires = "document", value_parser = super::reproduce::beside)]
    verdicts: Option<(f64, PathBuf)>,
    /// The experiment that those are results of.
    #[arg(long, value_name = "FILE", default_value = "lab/experiments/traces/traces.toml")]
    experiment: PathBuf,
    /// Profiles of cards and cores of that experiment.
    #[arg(long, value_name = "DIRECTORY", default_value = "lab/profiles")]
    profiles: PathBuf,
    /// The form of the comparison: tables, or JSON.
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    format: Output,
}

impl TraceArguments {
    /// Makes the traces, and compares them.
    pub(crate) fn perform(self) -> Result<()> {
        let names = match self.models.as_slice() {
            [] => built_in().map(str::to_owned).collect(),
            names => names.to_vec(),
        };
        ensure!(
            self.output.is_none() || names.len() == 1,
            "a capture file has the packets of one model: name one of {}, or a file",
            names.join(", ")
        );
        ensure!(self.seconds.is_none_or(|seconds| seconds > 0.0), "--seconds is above 0");
        let mut traces = Vec::new();
        let recordings = self.recordings.clone().or_else(|| std::env::var_os("HAIRPIN_TRACES").map(PathBuf::from));
        if let Some(directory) = &recordings {
            let (statistics, unread) = TraceStatistics::of_directory(directory)?;
            if unread > 0 {
                eprintln!("{unread} capture files in {} could not be read and are left out", directory.display());
            }
            traces.push(ComparedTrace { name: "recordings".to_owned(), statistics, made: None });
        }
        for name in &names {
            traces.push(self.made(&TraceModel::find(name)?)?);
        }
        if let Some(document) = &self.document {
            self.write_page(document, &traces)?;
        }
        match self.format {
            Output::Table => print(&tables(&traces)),
            Output::Json => print(&format!("{}\n", json(&traces))),
        }
    }

    /// Makes a trace, writes it if it is to be written, and counts it.
    fn made(&self, model: &TraceModel) -> Result<ComparedTrace> {
        let connections = self.connections.unwrap_or(model.connections);
        let seconds = self.seconds.unwrap_or(f64::INFINITY);
        let bounds = Bounds { seconds, ..Bounds::connections(connections) };
        let mut generator = Generator::new(model, bounds, self.seed);
        let mut file = self.output.as_deref().map(CaptureFile::create).transpose()?;
        let mut failed = None;
        let packets = generator.by_ref().map(|packet| {
            if let (Some(file), None) = (&mut file, &failed) {
                failed = file.write(&packet).err();
            }
            SeenPacket::from(&packet)
        });
        let statistics = TraceStatistics::of(packets);
        if let Some(error) = failed {
            return Err(error);
        }
        if let Some(file) = file {
            file.finish()?;
        }
        ensure!(statistics.packets() > 0, "the trace {} has no packet: it ends before the first one", model.name);
        let made = MadeTrace {
            title: model.title.clone(),
            source: model.source.clone(),
            notes: model.notes.clone(),
            published: model.published.clone(),
            drawn: generator.drawn(),
            connections: generator.connections(),
            open: generator.open(),
        };
        Ok(ComparedTrace { name: model.name.clone(), statistics, made: Some(made) })
    }

    fn write_page(&self, document: &Path, traces: &[ComparedTrace]) -> Result<()> {
        let date = humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string();
        let (verdicts, simulated) = match &self.verdicts {
            Some((scale, directory)) => {
                let (verdicts, simulated) = self.verdicts_of(*scale, directory)?;
                (Some(verdicts), simulated)
            }
            None => (None, String::new()),
        };
        let page = TracePage {
            command: &self.command(),
            date: date.get(..10).unwrap_or_default(),
            seed: self.seed,
            traces,
            verdicts,
            simulated: &simulated,
        };
        std::fs::write(document, page::document(&page))
            .with_context(|| format!("could not write {}", document.display()))
    }

    /// Verdicts by trace, and how they came about.
    fn verdicts_of(&self, scale: f64, directory: &Path) -> Result<(ValueVerdicts, String)> {
        let experiment = ModelExperiment::load(&self.experiment)?;
        let context = CaseContext::load(scale, &self.profiles, None)?;
        let store = CaseStore::open(directory)?;
        let gathered = Gathered::new(&experiment, &context, &store);
        let verdicts = ValueVerdicts::of(&gathered, AXIS).with_context(|| {
            format!("no results of {} with an axis `{AXIS}` in {}", self.experiment.display(), directory.display())
        })?;
        let (packets, seconds) = gathered.effort();
        let simulated = format!(
            "`hairpin-lab reproduce --experiments {} --scale {scale}`: {} cases, {} without a result, {:.0} million packets in {:.0} \
             minutes of processor time, in virtual time. {}",
            self.experiment.parent().unwrap_or(Path::new("")).display(),
            gathered.cases.len(),
            gathered.failures().len(),
            packets as f64 / 1e6,
            seconds / 60.0,
            experiment.notes.split_whitespace().collect::<Vec<_>>().join(" ")
        );
        Ok((verdicts, simulated))
    }

    /// As one would type it again.
    fn command(&self) -> String {
        let mut command = "hairpin-lab trace".to_owned();
        for model in &self.models {
            command.push_str(&format!(" {model}"));
        }
        if let Some(connections) = self.connections {
            command.push_str(&format!(" --connections {connections}"));
        }
        if let Some(seconds) = self.seconds {
            command.push_str(&format!(" --seconds {seconds}"));
        }
        if self.seed != 1 {
            command.push_str(&format!(" --seed {}", self.seed));
        }
        command
    }
}

/// Both tables.
fn tables(traces: &[ComparedTrace]) -> String {
    let head = page::head(traces);
    let mut text = table(&head, &page::rows(traces));
    let distances = page::distances(traces);
    if !distances.is_empty() {
        let head: Vec<String> = page::DISTANCES.iter().map(|column| (*column).to_owned()).collect();
        text.push_str("\nDistance of the sizes drawn from the published distribution (Kolmogorov-Smirnov):\n");
        text.push_str(&table(&head, &distances));
    }
    text
}

fn table(head: &[String], rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(head);
    rows.iter().for_each(|row| {
        table.add_row(row);
    });
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!("{table}\n")
}

fn json(traces: &[ComparedTrace]) -> serde_json::Value {
    let trace = |trace: &ComparedTrace| {
        let names = TraceStatistics::METRICS.iter().map(|(id, _)| (*id).to_owned());
        let rows = names.zip(trace.statistics.rows().map(serde_json::Value::String));
        let distances = trace.made.iter().flat_map(|made| &made.drawn).map(|drawn| {
            serde_json::json!({
                "connections": drawn.kind,
                "drawn": drawn.sizes.len(),
                "distance": drawn.distance,
                "allowed": drawn.distance_allowed(),
            })
        });
        let mut value = serde_json::Map::new();
        value.insert("name".to_owned(), trace.name.clone().into());
        value.insert("metrics".to_owned(), serde_json::Value::Object(rows.collect()));
        value.insert("distances".to_owned(), distances.collect());
        serde_json::Value::Object(value)
    };
    traces.iter().map(trace).collect()
}
