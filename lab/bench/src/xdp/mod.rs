//! Forwarding in XDP beside tc ingress and the kernel's routing: `make bench-xdp`.
//!
//! Frames of 64 bytes are made in the kernel (live frames of `BPF_PROG_TEST_RUN`) and sent into a veth pair. At its other end they
//! are forwarded into a second pair, at whose end a program drops them: by Hairpin in XDP, by Hairpin at tc ingress, or by the
//! kernel's routing. All of it runs on one CPU. The cost of making frames and dropping them at the end of the first pair is measured
//! in the same round and subtracted. What is left is forwarding and the second pair.
//!
//! The cost of the program alone, by repeated runs on one packet, stands beside that.

mod network;

use crate::suite::report::{self, Bar, ReportRow};
use crate::suite::samples::RepeatedValues;
use anyhow::Result;
use hairpin_linux::cost;
use network::{ForwardingMethod, XdpNetwork};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The arguments of the benchmark.
#[derive(Clone, Debug, clap::Args)]
pub struct XdpArgs {
    /// A quick run: fewer frames, once.
    #[arg(long)]
    quick: bool,
    /// Measurements of each.
    #[arg(long, default_value_t = 5)]
    repetitions: usize,
    /// The directory for `xdp.json`.
    #[arg(long, default_value = "target/bench")]
    directory: PathBuf,
}

/// Flows that are forwarded.
const FORWARDED: [u32; 2] = [1_000, 1_000_000];
/// Rules of the program's own cost.
const RULES: [usize; 4] = [1, 1_000, 131_072, 1_000_000];

/// Packets a second of Katran on one core, in XDP, on an Intel Xeon E5-1650 v4 with a 100 Gbit/s card: Høiland-Jørgensen et
/// al., The eXpress Data Path, CoNEXT 2018, section 4.3.3. Its driver's share is in it.
const KATRAN_PPS: f64 = 5_200_000.0;

/// Measures, prints as it goes and a table at the end, and writes `xdp.json`. A missed bar is no failure.
///
/// # Errors
/// If there are no rights, no network can be made, or frames are lost on their way.
pub fn run(arguments: &XdpArgs) -> Result<()> {
    let (frames, repetitions) = if arguments.quick { (200_000, 1) } else { (2_000_000, arguments.repetitions.max(1)) };
    let mut figures = XdpFigures { forwarding: Vec::new(), program: Vec::new(), katran_ns: 1e9 / KATRAN_PPS };
    for flows in FORWARDED {
        let network = XdpNetwork::create()?;
        let net = network.measure(flows, frames, repetitions)?;
        figures.forwarding.extend(forwarding_rows(flows, &net));
        report::write(&arguments.directory, "xdp", &figures)?;
    }
    for flows in RULES {
        let ours = RepeatedValues::from(cost::measure_xdp(flows, repetitions)?);
        figures.program.push(ProgramCost { flows, ns: ours.median(), range_ns: ours.range() });
    }
    report::write(&arguments.directory, "xdp", &figures)?;
    figures.print();
    Ok(())
}

/// What is measured.
#[derive(Serialize)]
struct XdpFigures {
    forwarding: Vec<ReportRow>,
    program: Vec<ProgramCost>,
    /// Nanoseconds a packet at [`KATRAN_PPS`].
    katran_ns: f64,
}

/// The cost of the XDP program alone.
#[derive(Serialize)]
struct ProgramCost {
    flows: usize,
    /// Nanoseconds a packet: the median.
    ns: f64,
    /// The least and the most.
    range_ns: (f64, f64),
}

impl XdpFigures {
    fn print(&self) {
        println!("\n{}\nThe XDP program alone:", report::table(&self.forwarding));
        for ProgramCost { flows, ns, range_ns: (least, most) } in &self.program {
            println!("{flows:>9} flows {ns:7.1} ns a packet ({least:.1} to {most:.1})");
        }
        println!(
            "Katran, published: {:.0} ns a packet, {:.1} M packets/s on one core of another machine, its driver's share included \
             (The eXpress Data Path, CoNEXT 2018, 4.3.3)",
            self.katran_ns,
            KATRAN_PPS / 1e6
        );
        let held = self.forwarding.iter().filter(|row| row.held).count();
        println!("{held} of {} bars held", self.forwarding.len());
    }
}

/// XDP against both others, by what each costs beyond making and dropping frames.
fn forwarding_rows(flows: u32, net: &BTreeMap<ForwardingMethod, RepeatedValues>) -> Vec<ReportRow> {
    let beside: BTreeMap<String, f64> =
        net.iter().map(|(method, costs)| (method.name().to_owned(), costs.median())).collect();
    let ours = &net[&ForwardingMethod::Xdp];
    let row = |against: ForwardingMethod, bar: f64| {
        let others = (against.name(), &net[&against]);
        let case = format!("forwarding in XDP, {flows} flows");
        ReportRow::alternating(case, "ns", ours, others, beside.clone(), Bar::AtMost(bar))
    };
    match flows {
        1_000 => vec![row(ForwardingMethod::Tc, 0.5), row(ForwardingMethod::Routed, 1.0 / 3.0)],
        _ => vec![row(ForwardingMethod::Routed, 0.5)],
    }
}
