//! The command line of `hairpin-lab`.

mod bed;
mod calibrate;
mod classify;
mod evidence;
mod forward;
mod generate;
// Without DPDK there are no ports; what they would be told is checked all the same.
#[cfg_attr(not(feature = "dpdk"), allow(dead_code))]
mod ports;
mod progress;
mod rate;
mod reproduce;
mod reproduce_laconic;
mod reproduce_papers;
mod run;
mod sink;
#[cfg_attr(not(feature = "dpdk"), allow(dead_code))]
mod source;
mod trace;
mod train;

use anyhow::{Context, Result};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Hairpin's laboratory: a generator, a device under test and a sink on real packets, and modelled ones in virtual time.
#[derive(Debug, Parser)]
#[command(name = "hairpin-lab", version, arg_required_else_help = true, max_term_width = 100)]
#[command(after_help = "Example: hairpin-lab run lab/scenarios/smoke.toml")]
struct CommandLine {
    #[command(subcommand)]
    action: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Measure what the work of a worker's core costs on this machine, as a profile for the testbed in virtual time.
    ///
    /// Packets of known flows over rings, by connection table and number of flows; new flows, their ends and rules in
    /// memory. Without DPDK everything is measured in memory, and the profile says so. About ten minutes.
    #[command(after_help = "Example: hairpin-lab calibrate -o lab/profiles/cores/this-machine.toml")]
    Calibrate(Box<calibrate::CalibrateArguments>),
    /// KTH 2020's methods of flow classification on 1 to 8 cores that share a table, in virtual time.
    ///
    /// Locks, the cache lines that they lie in and cores that wait are simulated step by step, with costs from profiles. Writes
    /// results and the page of verdicts and figures. It is the same on every machine.
    #[command(after_help = "Example: hairpin-lab classify --report")]
    Classify(Box<classify::ClassifyArguments>),
    /// Search the highest rate that a device forwards with no more loss than allowed.
    ///
    /// Loads are judged by the majority of several trials (as in MLRsearch; --rfc2544 for one of 60 seconds each). The
    /// search is repeated, and the mean comes with its 95 % confidence interval.
    #[command(after_help = "Example: hairpin-lab rate --table cuckoo++ --flows 1000000 --loss 0,0.005")]
    Rate(Box<rate::RateArguments>),
    /// Measure a whole experiment, from a file: tables, figures, a page.
    ///
    /// Existing results are not measured again: an interrupted run continues. Cases for which the machine has too few cores
    /// are left out and listed.
    #[command(
        after_help = "Example: hairpin-lab run lab/scenarios/kth-2020.toml\nExit status: 0 measured, 1 something failed"
    )]
    Run(Box<run::RunArguments>),
    /// KTH 2022's experiments in virtual time: tables, figures, and whether its findings hold.
    ///
    /// Everything of lab/experiments/*.toml, with the workers, tables and policies of the data plane on modelled cores and
    /// a modelled card. What is there already is not done again: a run that was ended goes on. A case that fails is
    /// reported, and the others go on.
    #[command(
        after_help = "Example: hairpin-lab reproduce --scale 0.1 --only matrix,policies\nExit status: 0 all cases came, 1 some did not"
    )]
    Reproduce(Box<reproduce::ReproduceArguments>),
    /// Laconic's evaluation on its own cards in virtual time, and whether its findings hold.
    ///
    /// Everything of lab/laconic/cards.toml, with the worker, the splice and the offload rules of the data plane on the modelled
    /// cores and the modelled flow engine of a SmartNIC. What is there already is not done again. About a quarter of an hour.
    #[command(
        after_help = "Example: hairpin-lab reproduce-laconic --only 'bluefield-2, 1 port(s), 1 core(s)'\nExit status: 0 all cases came, 1 some did not"
    )]
    ReproduceLaconic(Box<reproduce_laconic::ReproduceLaconicArguments>),
    /// The four papers at a tenth of their scale: what can be done on this machine, one part after the other.
    ///
    /// First measurements on real packets, which need root and an idle machine, then what is simulated; then the pages of
    /// docs/evidence and their index are written. What is left out is said. What is there already is not done again. Less than an hour
    /// and a half on two cores, in the repository's root.
    #[command(
        after_help = "Example: hairpin-lab reproduce-papers --plan\nExit status: 0 all parts came, 1 some did not"
    )]
    ReproducePapers(reproduce_papers::ReproducePapersArguments),
    /// Write the index of the evidence: every finding of the papers with its verdicts, every figure with its drawing.
    ///
    /// From docs/evidence/findings.toml and the results in lab/results.
    #[command(after_help = "Example: hairpin-lab evidence --root .")]
    Evidence(evidence::EvidenceArguments),
    /// Send packets from a port, and judge what comes back.
    ///
    /// Recorded or made-up packets, in an open loop at a set rate or as fast as they are taken. Each carries a number, its
    /// flow and its time, so that loss, reordering, duplicates, corruption and latency are told packet by packet. Clients
    /// are 10.0.0.0/8, the service is port 80 of 192.0.2.1 (2001:db8::c000:201).
    #[command(
        after_help = "Example: hairpin-lab generate --port net_memif0,socket=/run/m.sock --rate 1Mpps --duration 5s"
    )]
    Generate(Box<generate::GenerateArguments>),
    /// Receive from a port what a generator of another process sends, and judge it.
    ///
    /// Both have to be on one machine, whose clock tells latencies, and be given the same seed. It ends when nothing comes
    /// any more.
    #[command(after_help = "Example: hairpin-lab sink --port net_af_packet0,iface=veth1 --seed 7 -o json")]
    Sink(Box<sink::SinkArguments>),
    /// Be the device under test: send what comes in at a port back out of it.
    ///
    /// The basic forwarder checks the IP header and exchanges Ethernet and IP addresses. A balancer is Hairpin's worker
    /// with nothing offloaded; it answers no ARP here, and sends to where packets came from. It ends when told to.
    #[command(
        after_help = "Example: hairpin-lab forward --port net_memif0,role=server,socket=/run/m.sock --device balancer"
    )]
    Forward(Box<forward::ForwardArguments>),
    /// Make a model for the policy decision-tree, and say how good it is.
    ///
    /// It learns from capture files, and from made-up connections of given sizes, which of them will be long by their first
    /// packets. It is judged on what it was not made from: a fifth of the connections at a time, and one file at a time.
    #[command(after_help = "Examples:\n  hairpin-lab train --traces captures/ --without port --model edge.tree\n  \
                            hairpin-lab train --sizes web-search.csv --more 100 -o json")]
    Train(Box<train::TrainArguments>),
    /// Make traces from published distributions, and say how they compare with recordings and with what was published.
    ///
    /// Connections come, carry and end as a model says, whose numbers each have a source (lab/traces/*.toml). The capture file
    /// has both directions, with the headers of every packet; the same model and seed make the same bytes. `generate --replay
    /// MODEL.toml` sends a trace on real packets, an experiment's `recording = "campus"` has it in virtual time.
    #[command(after_help = "Examples:\n  hairpin-lab trace campus --connections 20000 -o campus.pcap\n  \
                            hairpin-lab trace --recordings captures/")]
    Trace(Box<trace::TraceArguments>),
    /// Print the manual page.
    #[command(after_help = "Example: hairpin-lab man --directory /usr/local/share/man/man1")]
    Man {
        /// Write a page for each command into this directory instead.
        #[arg(long, value_name = "DIRECTORY")]
        directory: Option<PathBuf>,
    },
    /// Print what a shell needs to complete commands and options.
    #[command(
        after_help = "Example: hairpin-lab completions bash > /usr/share/bash-completion/completions/hairpin-lab"
    )]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// The reader of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Tables.
    Table,
    /// JSON.
    Json,
}

/// Runs the command line of this process.
pub(crate) fn main() -> ExitCode {
    let matches = CommandLine::command().long_version(version()).get_matches();
    let command = CommandLine::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match command.action.perform() {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The long version: with the features that the program was built with.
fn version() -> &'static str {
    if cfg!(feature = "dpdk") {
        concat!(env!("CARGO_PKG_VERSION"), "\nfeatures: dpdk")
    } else {
        concat!(env!("CARGO_PKG_VERSION"), "\nfeatures: none")
    }
}

/// Whether the reader of standard output has gone, as in `hairpin-lab rate | head`.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// Prints to standard output at once.
fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    // Standard output keeps an unfinished line, and reports no error when the process ends.
    out.flush()?;
    Ok(())
}

/// Prints the manual page, or writes one for each command into `directory`.
fn manual(directory: Option<&Path>) -> Result<()> {
    let Some(directory) = directory else {
        let mut page = Vec::new();
        // The pages that are written into a directory do not list `help` either.
        clap_mangen::Man::new(CommandLine::command().disable_help_subcommand(true)).render(&mut page)?;
        return print(&String::from_utf8(page).context("a manual page is text")?);
    };
    clap_mangen::generate_to(CommandLine::command(), directory)
        .with_context(|| format!("cannot write manual pages into {}", directory.display()))
}

/// Prints the completions of `shell`.
fn completions(shell: clap_complete::Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut CommandLine::command(), "hairpin-lab", &mut script);
    print(&String::from_utf8(script).context("a completion script is text")?)
}

impl CliCommand {
    fn perform(self) -> Result<ExitCode> {
        match self {
            CliCommand::Calibrate(arguments) => arguments.perform().map(|()| ExitCode::SUCCESS),
            CliCommand::Classify(arguments) => arguments.perform().map(|()| ExitCode::SUCCESS),
            CliCommand::Rate(arguments) => arguments.perform().map(|()| ExitCode::SUCCESS),
            CliCommand::Run(arguments) => arguments.perform(),
            CliCommand::Reproduce(arguments) => arguments.perform(),
            CliCommand::ReproduceLaconic(arguments) => arguments.perform(),
            CliCommand::ReproducePapers(arguments) => arguments.perform(),
            CliCommand::Evidence(arguments) => arguments.perform().map(|()| ExitCode::SUCCESS),
            CliCommand::Generate(arguments) => arguments.perform().map(|()| ExitCode::SUCCESS),
            CliCommand::Sink(arguments) => arguments.perform().map(|()| ExitCode::SUCCESS),
            CliCommand::Forward(arguments) => arguments.perform().map(|()| ExitCode::SUCCESS),
            CliCommand::Train(arguments) => arguments.perform().map(|()| ExitCode::SUCCESS),
            CliCommand::Trace(arguments) => arguments.perform().map(|()| ExitCode::SUCCESS),
            CliCommand::Man { directory } => manual(directory.as_deref()).map(|()| ExitCode::SUCCESS),
            CliCommand::Completions { shell } => completions(shell).map(|()| ExitCode::SUCCESS),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        CommandLine::command().debug_assert();
    }

    #[test]
    fn every_command_shows_an_example() {
        for command in CommandLine::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "{}", command.get_name());
        }
    }
}
