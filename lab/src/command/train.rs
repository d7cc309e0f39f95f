//! `hairpin-lab train`: a model for the policy `decision-tree`, and how good it is.

use super::{Output, print};
use anyhow::{Context, Result, ensure};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use hairpin_core::offload::Costs;
use hairpin_core::offload::tree::Tree;
use hairpin_lab::train::grow::TreeBounds;
use hairpin_lab::train::{self, Origin, Trained, TrainingOptions, text, trace};
use std::path::PathBuf;

/// The input and the criterion of training.
#[derive(Args, Debug)]
pub(crate) struct TrainArguments {
    /// Learn from this capture file (pcap or pcapng), or from all in this folder.
    #[arg(long, value_name = "PATH", num_args = 1.., help_heading = "Connections")]
    traces: Vec<PathBuf>,
    /// Learn from made-up connections with sizes from this file of `bytes,cumulative probability`.
    #[arg(long, value_name = "FILE", num_args = 1.., help_heading = "Connections")]
    sizes: Vec<PathBuf>,
    /// Connections made up for each of those.
    #[arg(long, value_name = "N", default_value_t = 1000, help_heading = "Connections")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    flows: u32,
    /// How many of a connection's first packets the tree may consider.
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "Tree")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=8))]
    packets: u8,
    /// A long connection has so many packets after those; "auto": what a pair of rules costs.
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = more, help_heading = "Tree")]
    more: More,
    /// The cost of a pair of rules, in packets that a worker forwards; `auto` measures it, the kernel's is about this.
    #[arg(long, value_name = "PACKETS", default_value_t = cost(), help_heading = "Tree")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    cost: u32,
    /// Splits above a leaf at most.
    #[arg(long, value_name = "N", default_value_t = 4, help_heading = "Tree")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=16))]
    depth: u8,
    /// Nodes at most.
    #[arg(long, value_name = "N", default_value_t = 31, help_heading = "Tree")]
    #[arg(value_parser = clap::value_parser!(u8).range(1..))]
    nodes: u8,
    /// Connections that each side of a split has at least.
    #[arg(long, value_name = "N", default_value_t = 40, help_heading = "Tree")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    leaf: u32,
    /// From which share of long connections on a leaf says "long": below a half, since a long one that is missed costs
    /// more than rules that were not needed.
    #[arg(long, value_name = "SHARE", default_value_t = 0.35, value_parser = share, help_heading = "Tree")]
    threshold: f64,
    /// Features not to use, such as port, elapsed, gap or gap-2.
    #[arg(long, value_name = "FEATURE", value_delimiter = ',', help_heading = "Tree")]
    without: Vec<String>,
    /// The file for the model; without it, only the evaluation is printed.
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// The seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The output format: a table, or JSON.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Output,
}

/// From how many packets more on a connection is long.
#[derive(Clone, Copy, Debug)]
enum More {
    Auto,
    Packets(u32),
}

fn more(text: &str) -> Result<More, String> {
    match text.parse::<u32>() {
        Ok(packets) if packets > 0 => Ok(More::Packets(packets)),
        _ if text == "auto" => Ok(More::Auto),
        _ => Err("write a number of packets, 1 or more, or \"auto\"".to_string()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "write a share, from 0 to 1".to_string())
}

/// About the cost in the kernel engine.
fn cost() -> u32 {
    let costs = Costs::default();
    (costs.pair_ns / costs.packet_ns.max(1)).max(1)
}

impl TrainArguments {
    /// Learns, judges, writes and prints.
    pub(crate) fn perform(self) -> Result<()> {
        let origins = self.origins()?;
        let options = self.options()?;
        let trained = train::train(&origins, &options)?;
        if let Some(path) = &self.model {
            let command: Vec<String> = std::env::args().skip(1).collect();
            let text = text::text(&trained, &origins, &options, &format!("hairpin-lab {}", command.join(" ")));
            Tree::parse(&text).context("the model that was made cannot be read again")?;
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        match self.output {
            Output::Json => self.print_json(&trained, &origins, &options),
            Output::Table => self.print_table(&trained, &origins, &options),
        }
    }

    fn origins(&self) -> Result<Vec<Origin>> {
        ensure!(
            !self.traces.is_empty() || !self.sizes.is_empty(),
            "nothing to learn from: name capture files with --traces, files of flow sizes with --sizes, or both"
        );
        let traces = trace::files(&self.traces)?;
        let traces = traces.iter().map(|path| Origin::trace(path));
        let mixes = self.sizes.iter().map(|path| Origin::mix(path, self.flows, self.seed));
        traces.chain(mixes).collect()
    }

    fn options(&self) -> Result<TrainingOptions> {
        let more = match self.more {
            More::Auto => self.cost,
            More::Packets(packets) => packets,
        };
        let bounds = TreeBounds {
            packets: self.packets,
            more,
            depth: usize::from(self.depth),
            nodes: usize::from(self.nodes),
            leaf: self.leaf as usize,
            threshold: self.threshold,
            features: train::features(self.packets, &self.without)?,
        };
        Ok(TrainingOptions { bounds, cost: f64::from(self.cost), seed: self.seed })
    }

    fn print_json(&self, trained: &Trained, origins: &[Origin], options: &TrainingOptions) -> Result<()> {
        let held_out: Vec<_> = text::parts(trained)
            .map(|(name, score)| serde_json::json!({ "held_out": name, "figures": score.figures(options.cost) }))
            .collect();
        let origins: Vec<_> = (origins.iter())
            .map(|origin| {
                let long = origin.flows.iter().filter(|flow| flow.is_long(&options.bounds)).count();
                serde_json::json!({
                    "name": origin.name,
                    "flows": origin.flows.len(),
                    "long": long,
                    "left_out": origin.left_out,
                })
            })
            .collect();
        let all = serde_json::json!({
            "tree": trained.tree.to_string(),
            "nodes": trained.tree.nodes().len(),
            "packets": options.bounds.packets,
            "more": options.bounds.more,
            "cost": options.cost,
            "seed": options.seed,
            "origins": origins,
            "evaluation": held_out,
            "model": self.model,
        });
        print(&format!("{all}\n"))
    }

    fn print_table(&self, trained: &Trained, origins: &[Origin], options: &TrainingOptions) -> Result<()> {
        let mut read = plain(&["FROM", "CONNECTIONS", "LONG", "LEFT OUT"]);
        for origin in origins {
            let long = origin.flows.iter().filter(|flow| flow.is_long(&options.bounds)).count();
            let left_out = origin.left_out.iter().filter(|(_, count)| **count > 0);
            let left_out: Vec<String> = left_out.map(|(reason, count)| format!("{count} {reason}")).collect();
            let numbers = [origin.flows.len().to_string(), long.to_string()];
            read.add_row([&origin.name, &numbers[0], &numbers[1], &left_out.join(", ")]);
        }
        let head =
            ["HELD OUT", "CONNECTIONS", "LONG", "PRECISION", "RECALL", "ACCURACY", "MAJORITY", "SAVED % (PAIRS)"];
        let mut held = plain(&[&head[..], &["ALWAYS", "HEAVY-HITTER", "ORACLE"]].concat());
        for (name, score) in text::parts(trained) {
            let figures = score.figures(options.cost);
            let shares = [figures.precision, figures.recall, figures.accuracy, figures.majority];
            let shares = shares.map(|share| format!("{share:.3}")).into_iter();
            let [tree, always, heavy] = figures.of_oracle;
            let saved = [(tree, score.tree), (always, score.always), (heavy, score.heavy_hitter), (1.0, score.oracle)];
            let saved = saved.map(|(share, handed)| format!("{:.1} ({})", 100.0 * share, handed.pairs)).into_iter();
            let counts = [name, figures.flows.to_string(), figures.long.to_string()].into_iter();
            held.add_row(counts.chain(shares).chain(saved));
        }
        for (table, first, last) in [(&mut read, 1, 2), (&mut held, 1, 10)] {
            for column in table.column_iter_mut().skip(first).take(last) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let more = options.bounds.more;
        let told = format!(
            "Long: {more} packets or more after the first {}. Saved: packets that rules forward, less {} for each pair, as a \
             share of what an oracle saves.",
            options.bounds.packets, options.cost
        );
        let written = self.model.as_ref().map_or_else(String::new, |path| format!("\nwritten to {}\n", path.display()));
        print(&format!("{read}\n\n{held}\n\n{told}\n\n{}{written}", trained.tree))
    }
}

/// A table of columns without lines.
fn plain(heads: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(heads.iter().copied());
    table
}
