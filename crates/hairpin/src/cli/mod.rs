//! The command line: commands, and what performs them.

mod backend;
mod events;
mod filter;
mod import;
mod listing;
mod monitor;
mod names;
#[cfg(test)]
mod page;
mod pages;
mod process;
mod ready;
mod route;
mod stdout;
mod target;
#[cfg(test)]
mod tests;

use crate::capture::CaptureArgs;
use crate::config;
use crate::decapsulate::DecapsulateArgs;
use crate::limits;
use crate::probe;
use crate::terminal;
use crate::top::TopArgs;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use filter::FilterArgs;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
pub(crate) use stdout::stdout;
use target::InstanceTarget;
pub(crate) use target::connect;

/// A load balancer for layers 4 and 7 that hands established connections to the kernel's BPF programs.
#[derive(Debug, Parser)]
#[command(name = "hairpin", version, arg_required_else_help = true, max_term_width = 100)]
#[command(after_help = "`hairpin config` prints every field of the configuration file with its default.")]
pub struct CommandLine {
    #[command(subcommand)]
    action: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Balance connections, in the foreground, until stopped.
    ///
    /// SIGHUP reads the configuration file again, like `hairpin reload`. SIGUSR1 opens the file of the access log again.
    /// SIGTERM ends the process and leaves everything
    /// it has made in the kernel, like `hairpin stop`: offloaded connections go on, and the next `run` adopts all
    /// connections, those of HTTP and TLS services too.
    /// SIGINT (Ctrl-C) ends it and removes everything, like `hairpin stop --flush`.
    #[command(after_help = "Example: hairpin run -c /etc/hairpin/hairpin.toml")]
    Run {
        /// The configuration file.
        #[arg(short, long, value_name = "FILE", default_value = config::DEFAULT_PATH)]
        config: PathBuf,
        /// Remove what an earlier process has left, connections included, instead of adopting it.
        #[arg(long)]
        discard: bool,
        /// Take over from the process that started this one. (`hairpin upgrade` does this.)
        #[arg(long, hide = true)]
        take_over: bool,
        /// Start this program, to take over, as an orphan process, and end. (`hairpin upgrade` does this.)
        #[arg(long, hide = true, value_name = "PROGRAM", requires = "take_over")]
        as_orphan: Option<PathBuf>,
        /// Give up connections of HTTP and TLS services. (`hairpin upgrade --reset-http` does this.)
        #[arg(long, hide = true, requires = "take_over")]
        reset_http: bool,
    },
    /// Check a configuration file and report every mistake in it.
    ///
    /// With --live it also checks this machine, in this network namespace: whether the interfaces exist, are up and have a
    /// link; which hosts have the VIPs; whether the route to each backend leads out by one of the interfaces; whether pool
    /// addresses are answered for on the backends' network; which local sockets listen where services do; and whether
    /// another instance has the same interfaces and services. An error keeps a service or one of its backends from serving,
    /// a warning does not. `hairpin run` logs all of them as warnings. Run it as root: others do not see other instances.
    #[command(after_help = "Examples: hairpin validate -c new.toml\n          hairpin validate --live -o json\n\
                            Exit status: 0 the file is right, and --live found nothing or only warnings; \
                            1 mistakes in the file, or errors found by --live")]
    Validate {
        /// The configuration file.
        #[arg(short, long, value_name = "FILE", default_value = config::DEFAULT_PATH)]
        config: PathBuf,
        /// Check this machine, too.
        #[arg(long)]
        live: bool,
        /// The output format: a table, or JSON.
        #[arg(short, long, value_name = "FORMAT", default_value = "table", requires = "live")]
        output: Output,
    },
    /// Show what an instance is doing: services, backends, health, workers, offload, drops.
    ///
    /// With --ready: only whether it is ready. A service is ready when the first checks of its backends have finished and
    /// one of them is up; a group of backends is named SERVICE/GROUP.
    ///
    /// CONNS are connections that are not over: a connection counts from its first packet, at an HTTP or TLS service from
    /// the client's first data, until both ends have closed it, one has reset it, or its timeout is over. ENTRIES has those
    /// in time-wait, too. `hairpin top` and the metrics count connections the same way.
    #[command(after_help = "Examples: hairpin status --watch=5\n          hairpin status --ready web\n\
                            Exit status with --ready: 0 ready, 1 not ready, 2 trouble")]
    Status {
        #[command(flatten)]
        target: InstanceTarget,
        /// Whether this service, or every service, is ready: by the exit status, with a message for each that is not.
        #[arg(long, value_name = "SERVICE", num_args = 0..=1, conflicts_with = "watch")]
        ready: Option<Option<String>>,
        /// The output format: a table, or JSON.
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: Output,
        /// Show it again at this interval, in seconds (default: 1), until interrupted.
        #[arg(short, long, value_name = "SECONDS", num_args = 0..=1)]
        #[arg(default_missing_value = "1")]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
        watch: Option<u64>,
    },
    /// Watch an instance live: rates, connections, requests and how long they take, workers, services and backends.
    ///
    /// Connections are counted as in `hairpin status`: not those in time-wait. REQ/s, 5xx/s (responses of backends), P50 and P99
    /// (of the whole time of requests) are those of the interval since the last refresh, and are there where an instance has HTTP
    /// or TLS services. On a narrow terminal columns are left out, those that matter least first.
    ///
    /// Keys: up and down, or k and j, choose a line, Page Up, Page Down, Home and End go further; Enter shows the service in
    /// detail, with its groups, backends, their health, and who forwards its connections; Esc leads back; s and S sort by the next
    /// column and the one before, r turns the order round; / filters by name or address; p pauses; ? shows the keys; q ends. When
    /// the instance goes away the last figures stay, and the view goes on when it is back.
    ///
    /// Where standard output is no terminal, or one with TERM=dumb, --batch must be given. NO_COLOR turns colours off.
    #[command(after_help = "Examples: hairpin top -i edge\n          hairpin top --sort p99 --filter shop\n          \
                            hairpin top --batch --count 3 | cat")]
    Top {
        #[command(flatten)]
        target: InstanceTarget,
        #[command(flatten)]
        args: TopArgs,
    },
    /// Show an instance's monitors: what they have reported, and top talkers.
    ///
    /// Top talkers are the far ends of flows, from which packets come in to the monitored interface, by the bytes of both directions
    /// in reports so far. They are counted in bounded memory: a count is never too low, and the table says by how much it may
    /// be too high.
    #[command(after_help = "Examples: hairpin monitor\n          hairpin monitor edge -o json")]
    Monitor {
        #[command(flatten)]
        target: InstanceTarget,
        /// Only the monitor of this name.
        #[arg(value_name = "NAME")]
        name: Option<String>,
        /// The output format: a table, or JSON, an object a line.
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: Output,
    },
    /// List connections.
    ///
    /// Listing reads the connection table a page at a time and does not hold up packets; workers tell the connections of
    /// HTTP and TLS services between packets, some at a time. A connection that lives through the whole listing is listed
    /// once. Those that are over and kept for a while (closed, reset, time-wait, resetting, pending-removal) are listed,
    /// too; `hairpin status` does not count them.
    #[command(after_help = "Examples: hairpin connections --service web --software\n          \
                            hairpin connections --client 203.0.113.0/24 --all -o json")]
    Connections {
        #[command(flatten)]
        target: InstanceTarget,
        #[command(flatten)]
        filter: FilterArgs,
        /// The output format; JSON gives one object a line.
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: Output,
        /// Connections at most.
        #[arg(long, value_name = "N", default_value_t = 100)]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
        limit: u64,
        /// Every connection that matches, without a limit.
        #[arg(long, conflicts_with_all = ["limit", "count"])]
        all: bool,
        /// Only say how many there are.
        #[arg(long, conflicts_with_all = ["limit", "cursor"])]
        count: bool,
        /// Go on where an earlier listing ended, as its last line said.
        #[arg(long, value_name = "CURSOR")]
        cursor: Option<u64>,
    },
    /// Show what the flow engine holds, and why connections are or are not offloaded.
    ///
    /// With any of the filters: the connections that fit, one by one, each with its reason.
    #[command(after_help = "Examples: hairpin offload\n          hairpin offload --client 203.0.113.7:40112")]
    Offload {
        #[command(flatten)]
        target: InstanceTarget,
        #[command(flatten)]
        filter: FilterArgs,
        /// The output format: a table, or JSON.
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: Output,
    },
    /// Say which way a request would take: the access rule, the route, the groups and their backends, and why.
    ///
    /// The running instance is asked, which tells the backends' health, too; with --file that file is read instead, and nothing
    /// needs to run. The same code decides as for clients' requests. Nothing is sent to a backend.
    #[command(
        after_help = "Examples: hairpin route GET https://shop.example/cart -H \"Cookie: a=b\" --client 203.0.113.7\n          \
                            hairpin route POST http://192.0.2.10/api --file new.toml -o json\n\
                            Exit status: 0 forwarded, redirected or answered, 1 refused, 2 trouble"
    )]
    Route {
        #[command(flatten)]
        args: route::RouteArgs,
        #[command(flatten)]
        target: InstanceTarget,
        /// The output format: text, or JSON.
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: Output,
    },
    /// Say what has happened to an instance: starts, reloads, health, upgrades, refusals, limits, certificates.
    ///
    /// Events are what the log says, each with its time and kind. They are in files beside the control socket, 1 MiB at most, and
    /// outlive the process: no instance needs to run. The oldest come first.
    #[command(after_help = "Examples: hairpin events --since 1h --warnings\n          \
                            hairpin events --kind health --kind reload --follow -o json")]
    Events {
        #[command(flatten)]
        args: events::EventsArgs,
        #[command(flatten)]
        target: InstanceTarget,
        /// The output format: text, or JSON, an object a line.
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: Output,
    },
    /// Change a backend at run time: drain, enable or disable it, or give it another weight.
    ///
    /// An override holds across reloads, restarts and upgrades, until `reset` or until the configuration says
    /// something else about this backend than it did.
    #[command(after_help = "Example: hairpin backend drain web 10.0.2.11:8080")]
    Backend {
        #[command(subcommand)]
        command: backend::BackendCommand,
    },
    /// Write packets of chosen connections to a pcapng file, before and after translation, in software and offloaded.
    ///
    /// It must run where the interfaces are: in the network namespace of the instance. Without filters, all packets to and
    /// from the services and their backends are written. Packets appear up to a second after they were seen.
    #[command(
        after_help = "Examples: hairpin capture --client 203.0.113.7 -w client.pcapng --duration 30s\n          \
                            hairpin capture --service web -w - | tshark -r -"
    )]
    Capture {
        #[command(flatten)]
        target: InstanceTarget,
        #[command(flatten)]
        filter: FilterArgs,
        #[command(flatten)]
        args: CaptureArgs,
    },
    /// Take the outer headers off packets that a balancer has wrapped, on a backend whose kernel has no tunnels.
    ///
    /// For backends of `mode = "dsr"` services with `encapsulation = "ipip"` or `"gue"`. The program is in the kernel while this
    /// process runs, in the foreground; SIGTERM or SIGINT ends it. Only packets for one of the VIPs are unwrapped, so that no
    /// one can send others past a firewall. Counts are printed at the end.
    #[command(after_help = "Example: hairpin decapsulate --interface eth0 --vip 192.0.2.10 --from 10.0.0.0/24")]
    Decapsulate {
        #[command(flatten)]
        args: DecapsulateArgs,
    },
    /// Find out what a network card can do for a flow engine by DPDK's rte_flow, and which services it would offload.
    ///
    /// Each match and action is tried by itself, then complete rules; for each that fails, the report has the driver's
    /// message and the consequence. The device is opened for the probe, and closed again.
    #[command(after_help = "Example: hairpin probe 0000:03:00.0 --create")]
    Probe {
        #[command(flatten)]
        args: probe::ProbeArgs,
        /// The output format: a table, or JSON.
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: Output,
    },
    /// Read the configuration file again and apply it, without touching connections.
    ///
    /// A file with a mistake changes nothing. Prints what changed. `hairpin diff` shows it beforehand. It is always the
    /// file that the instance was started with: -c with another one is refused.
    ///
    /// What the API changed is not undone unseen: while the file lacks it, a reload is refused without --discard.
    #[command(after_help = "Example: hairpin reload -i edge\nExit status: 0 applied, 1 refused")]
    Reload {
        #[command(flatten)]
        target: InstanceTarget,
        /// Give up what the API changed and the file lacks.
        #[arg(long)]
        discard: bool,
        /// The output format: a table, or JSON.
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: Output,
    },
    /// Show what a configuration file would change in a running instance.
    #[command(after_help = "Example: hairpin diff new.toml\nExit status: 0 no change, 1 changes, 2 trouble")]
    Diff {
        /// The configuration file to compare with what runs.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        target: InstanceTarget,
        /// The output format: a table, or JSON.
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: Output,
    },
    /// Hand over to a new process, without losing a packet, for example to another version of the program.
    ///
    /// The new process reads the configuration file, takes over connections, rules and devices, and then the old one ends.
    /// If the new one cannot, the old one goes on.
    #[command(after_help = "Example: hairpin upgrade --program /usr/local/bin/hairpin")]
    Upgrade {
        #[command(flatten)]
        target: InstanceTarget,
        /// The program to start; the file the running process was started from, unless given.
        #[arg(long, value_name = "PATH")]
        program: Option<PathBuf>,
        /// Reset connections of HTTP and TLS services, and keep TCP and UDP connections: for a program that stores the former
        /// in another way. Without this option such an upgrade is refused.
        #[arg(long)]
        reset_http: bool,
    },
    /// End an instance.
    ///
    /// Without --flush its objects stay: offloaded connections go on, and the next `hairpin run` adopts them and all
    /// others, those of HTTP and TLS services too. Until then `when_absent` in the configuration decides about packets that no rule takes.
    #[command(after_help = "Example: hairpin stop --flush")]
    Stop {
        #[command(flatten)]
        target: InstanceTarget,
        /// Remove every object the instance has made in the kernel, and its connections, even if its process is dead.
        #[arg(long)]
        flush: bool,
    },
    /// Say where the laboratory is: a program of its own, `hairpin-lab`.
    #[command(hide = true, disable_help_flag = true, after_help = "Example: hairpin lab")]
    Lab {
        /// The words that `hairpin-lab` takes.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Print a commented configuration file: every field with its default.
    ///
    /// With --running: the configuration in force, with what the API changed, as a file that takes the place of the one that the
    /// instance was started with. What that includes is a part of it, and variables of the environment keep their names.
    #[command(
        after_help = "Examples: hairpin config > /etc/hairpin/hairpin.toml\n          hairpin config --running -i edge"
    )]
    Config {
        #[command(flatten)]
        target: InstanceTarget,
        /// Print the configuration that is in force.
        #[arg(long, conflicts_with_all = ["markdown", "schema"])]
        running: bool,
        /// Print the reference as Markdown instead (docs/reference/configuration.md).
        #[arg(long)]
        markdown: bool,
        /// Print a JSON Schema instead, by which editors complete and check the file (docs/reference/hairpin.schema.json).
        #[arg(long, conflicts_with = "markdown")]
        schema: bool,
    },
    /// Write a configuration that does what another program's does.
    #[command(after_help = "Example: hairpin import nginx /etc/nginx/nginx.conf > hairpin.toml")]
    Import {
        #[command(subcommand)]
        command: import::ImportCommand,
    },
    /// List every limit: how far it goes, its option, the counter that shows that it was reached, and what happens then.
    ///
    /// Where an option of the configuration sets a limit, its default is shown. Nothing is asked of an instance.
    #[command(after_help = "Example: hairpin limits -o json")]
    Limits {
        /// The output format: text, or JSON.
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: Output,
        /// Print the page of the documentation instead (docs/reference/limits.md).
        #[arg(long, conflicts_with = "output")]
        markdown: bool,
    },
    /// Print the manual page.
    #[command(after_help = "Example: hairpin man --directory /usr/local/share/man/man1")]
    Man {
        /// Write a page for each command into this directory instead.
        #[arg(long, value_name = "DIRECTORY")]
        directory: Option<PathBuf>,
    },
    /// Print what a shell needs to complete commands and options.
    ///
    /// In bash, zsh and fish the names of services and backends are completed, too: the script asks the instance for them.
    #[command(after_help = "Example: hairpin completions bash > /usr/share/bash-completion/completions/hairpin")]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the services or backends that fit behind the words of a command line. (Completion scripts ask this.)
    #[command(hide = true, after_help = "Example: hairpin names -- hairpin backend drain web")]
    Names {
        /// The words before the one that is completed, `hairpin` first.
        #[arg(last = true)]
        words: Vec<String>,
    },
}

/// The reader of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Tables.
    Table,
    /// JSON.
    Json,
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let matches = CommandLine::command().long_version(pages::version()).get_matches();
    let command = CommandLine::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let trouble = command.action.trouble();
    match command.action.perform() {
        Ok(code) => code,
        Err(error) if stdout::is_reader_gone(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            trouble
        }
    }
}

impl CliCommand {
    /// How it exits when it fails. `hairpin diff` keeps to diff(1), where 1 says that there are differences; so do
    /// `status --ready` and `route`, where 1 is an answer as well.
    fn trouble(&self) -> ExitCode {
        let says_with_one = matches!(
            self,
            CliCommand::Diff { .. } | CliCommand::Route { .. } | CliCommand::Status { ready: Some(_), .. }
        );
        ExitCode::from(if says_with_one { 2 } else { 1 })
    }

    fn perform(self) -> anyhow::Result<ExitCode> {
        match self {
            CliCommand::Run { config, as_orphan: Some(program), reset_http, .. } => {
                crate::run::start_orphan(&program, &config, reset_http)
            }
            CliCommand::Run { config: file, discard, take_over, reset_http, .. } => {
                process::run(crate::run::RunOptions { file, discard, take_over, reset_http })
            }
            CliCommand::Validate { config, live: true, output } => return process::validate_live(&config, output),
            CliCommand::Validate { config, .. } => process::validate(&config),
            CliCommand::Status { target, ready: Some(service), output, .. } => {
                return ready::ready(&target, service.as_deref(), output);
            }
            CliCommand::Status { target, output, watch, .. } => listing::status(&target, output, watch),
            CliCommand::Top { target, args } => crate::top::run(&target.socket()?, &args),
            CliCommand::Monitor { target, name, output } => monitor::monitor(&target, name.as_deref(), output),
            CliCommand::Connections { target, filter, output, limit, all, count, cursor } => {
                let extent = match (count, all) {
                    (true, _) => listing::Extent::Count,
                    (false, true) => listing::Extent::All,
                    (false, false) => listing::Extent::Limit(limit),
                };
                listing::connections(&target, &filter, output, extent, cursor)
            }
            CliCommand::Offload { target, filter, output } => listing::offload(&target, &filter, output),
            CliCommand::Route { args, target, output } => return route::route(&args, &target, output),
            CliCommand::Events { args, target, output } => events::events(&target, &args, output),
            CliCommand::Backend { command } => command.perform(),
            CliCommand::Capture { target, filter, args } => {
                filter.check()?;
                crate::capture::run(&target.socket()?, &filter.query(), &args)
            }
            CliCommand::Decapsulate { args } => crate::decapsulate::run(&args),
            CliCommand::Probe { args, output } => print(&probe::run(&args, matches!(output, Output::Json))?),
            CliCommand::Reload { target, discard, output } => return process::reload(&target, discard, output),
            CliCommand::Diff { file, target, output } => return process::diff(&file, &target, output),
            CliCommand::Upgrade { target, program, reset_http } => {
                process::upgrade(&target, crate::control::Upgrade { program, reset_http })
            }
            CliCommand::Stop { target, flush } => process::stop(&target, flush),
            CliCommand::Lab { words } => {
                eprintln!("the laboratory is a program of its own: run `{}`", laboratory(&words));
                return Ok(ExitCode::from(2));
            }
            CliCommand::Config { target, running: true, .. } => process::running(&target),
            CliCommand::Config { schema: true, .. } => print(&config::schema()),
            CliCommand::Config { markdown: true, .. } => print(&config::markdown()),
            CliCommand::Config { .. } => print(&config::template()),
            CliCommand::Import { command } => command.perform(),
            CliCommand::Limits { markdown: true, .. } => print(&limits::markdown()),
            CliCommand::Limits { output: Output::Table, .. } => print(&limits::table(terminal::width())),
            CliCommand::Limits { output: Output::Json, .. } => print(&limits::json()?),
            CliCommand::Man { directory } => pages::manual(directory.as_deref()),
            CliCommand::Names { words } => return names::names(&words),
            CliCommand::Completions { shell } => pages::completions(shell),
        }
        .map(|()| ExitCode::SUCCESS)
    }
}

/// The command that takes the place of `hairpin lab` with these words.
fn laboratory(words: &[String]) -> String {
    ["hairpin-lab"].into_iter().chain(words.iter().map(String::as_str)).collect::<Vec<_>>().join(" ")
}

pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = stdout();
    out.write_all(text.as_bytes())?;
    // Standard output keeps an unfinished line to itself, and says nothing when it cannot get rid of it at the end.
    out.flush()?;
    Ok(())
}
