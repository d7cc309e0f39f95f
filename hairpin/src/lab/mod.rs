//! `hairpin lab`: the testbed.

mod bed;
mod calibrate;
mod forward;
mod generate;
// Without DPDK there are no ports; what they would be told is checked all the same.
#[cfg_attr(not(feature = "dpdk"), allow(dead_code))]
mod ports;
mod progress;
mod rate;
mod reproduce;
mod run;
mod sink;
#[cfg_attr(not(feature = "dpdk"), allow(dead_code))]
mod source;
mod train;

use anyhow::{Context, Result};
use clap::Subcommand;
use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Measure what the work of a worker's core costs on this machine, as a profile for the testbed in virtual time.
    ///
    /// Packets of known flows over rings, by connection table and number of flows; new flows, their ends and rules in
    /// memory. Without DPDK everything is measured in memory, and the profile says so. About ten minutes.
    #[command(after_help = "Example: hairpin lab calibrate -o profiles/cores/this-machine.toml")]
    Calibrate(Box<calibrate::CalibrateArguments>),
    /// Search the highest rate that a device carries with no more loss than allowed.
    ///
    /// Loads are judged by the majority of several trials (MLRsearch's way; --rfc2544 for one of 60 seconds each). The
    /// search is repeated, and the mean comes with its 95 % confidence interval.
    #[command(after_help = "Example: hairpin lab rate --table cuckoo++ --flows 1000000 --loss 0,0.005")]
    Rate(Box<rate::RateArguments>),
    /// Measure a whole experiment, from a file: tables, figures, a page.
    ///
    /// What is there already is not measured again: a run that was ended goes on. What the machine has too few cores for
    /// is left out, and said.
    #[command(
        after_help = "Example: hairpin lab run scenarios/papers003.toml\nExit status: 0 measured, 1 something failed"
    )]
    Run(Box<run::RunArguments>),
    /// papers/001's experiments in virtual time: tables, figures, and whether its findings are so.
    ///
    /// Everything of experiments/*.toml, with the workers, tables and policies of the data plane on modelled cores and a
    /// modelled card. What is there already is not done again: a run that was ended goes on. A case that fails is reported,
    /// and the others go on.
    #[command(
        after_help = "Example: hairpin lab reproduce --scale 0.1 --only matrix,policies\nExit status: 0 all cases came, 1 some did not"
    )]
    Reproduce(Box<reproduce::ReproduceArguments>),
    /// Send packets from a port, and judge what comes back.
    ///
    /// Recorded or made-up packets, in an open loop at a set rate or as fast as they are taken. Each carries a number, its
    /// flow and its time, so that loss, reordering, duplicates, corruption and latency are told packet by packet. Clients
    /// are 10.0.0.0/8, the service is port 80 of 192.0.2.1 (2001:db8::c000:201).
    #[command(
        after_help = "Example: hairpin lab generate --port net_memif0,socket=/run/m.sock --rate 1Mpps --duration 5s"
    )]
    Generate(Box<generate::GenerateArguments>),
    /// Receive from a port what a generator of another process sends, and judge it.
    ///
    /// Both have to be on one machine, whose clock tells latencies, and be given the same seed. It ends when nothing comes
    /// any more.
    #[command(after_help = "Example: hairpin lab sink --port net_af_packet0,iface=veth1 --seed 7 -o json")]
    Sink(Box<sink::SinkArguments>),
    /// Be the device under test: send what comes in at a port back out of it.
    ///
    /// The basic forwarder checks the IP header and exchanges Ethernet and IP addresses. A balancer is Hairpin's worker
    /// with nothing offloaded; it answers no ARP here, and sends to where packets came from. It ends when told to.
    #[command(
        after_help = "Example: hairpin lab forward --port net_memif0,role=server,socket=/run/m.sock --device balancer"
    )]
    Forward(Box<forward::ForwardArguments>),
    /// Make a model for the policy decision-tree, and say how good it is.
    ///
    /// It learns from capture files, and from made-up connections of given sizes, which of them will be long by their first
    /// packets. It is judged on what it was not made from: a fifth of the connections at a time, and one file at a time.
    #[command(after_help = "Examples:\n  hairpin lab train --traces captures/ --without port --model edge.tree\n  \
                            hairpin lab train --sizes web-search.csv --more 100 -o json")]
    Train(Box<train::TrainArguments>),
}

impl LabCommand {
    /// Does it.
    pub(crate) fn perform(self) -> Result<ExitCode> {
        match self {
            LabCommand::Calibrate(arguments) => arguments.perform().map(|()| ExitCode::SUCCESS),
            LabCommand::Rate(arguments) => arguments.perform().map(|()| ExitCode::SUCCESS),
            LabCommand::Run(arguments) => arguments.perform(),
            LabCommand::Reproduce(arguments) => arguments.perform(),
            LabCommand::Generate(arguments) => arguments.perform().map(|()| ExitCode::SUCCESS),
            LabCommand::Sink(arguments) => arguments.perform().map(|()| ExitCode::SUCCESS),
            LabCommand::Forward(arguments) => arguments.perform().map(|()| ExitCode::SUCCESS),
            LabCommand::Train(arguments) => arguments.perform().map(|()| ExitCode::SUCCESS),
        }
    }
}

/// Takes away a file of results, if there is one, to begin anew.
fn remove_results(file: &Path) -> Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("could not remove {}", file.display()))
        }
        _ => Ok(()),
    }
}
