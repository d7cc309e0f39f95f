//! The command line.

use crate::config::{self, Config, Severity};
use crate::control::Client;
use crate::{render, run};
use anyhow::{Context, Result, bail};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// A layer-4 load balancer that hands established connections to the kernel's BPF hooks.
#[derive(Debug, Parser)]
#[command(name = "hairpin", version, arg_required_else_help = true, max_term_width = 100)]
#[command(after_help = "`hairpin config` prints every field of the configuration file with its default.")]
pub struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Balance connections, in the foreground, until stopped.
    ///
    /// SIGINT, SIGTERM and SIGHUP end it and remove every object it has made in the kernel.
    Run {
        /// The configuration file.
        #[arg(short, long, value_name = "FILE", default_value = config::DEFAULT_PATH)]
        config: PathBuf,
    },
    /// Check a configuration file and report every mistake in it.
    Validate {
        /// The configuration file.
        #[arg(short, long, value_name = "FILE", default_value = config::DEFAULT_PATH)]
        config: PathBuf,
    },
    /// Show what an instance is doing: services, backends, workers, offload, drops.
    Status {
        #[command(flatten)]
        target: Target,
        /// For people or for programs.
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: Output,
        /// Show it again every so many seconds (one, unless given), until interrupted.
        #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, require_equals = true)]
        #[arg(default_missing_value = "1")]
        #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
        watch: Option<u64>,
    },
    /// End an instance.
    ///
    /// Without --flush what it has made in the kernel stays: offloaded connections go on, and packets no rule takes are
    /// treated as `when_absent` in the configuration says.
    Stop {
        #[command(flatten)]
        target: Target,
        /// Remove every object the instance has made in the kernel, even if its process is dead.
        #[arg(long)]
        flush: bool,
    },
    /// Print a commented configuration file: every field with its default.
    Config {
        /// Print the reference as Markdown instead (docs/configuration.md).
        #[arg(long)]
        markdown: bool,
    },
    /// Print the manual page.
    Man {
        /// Write a page for each command into this directory instead.
        #[arg(long, value_name = "DIRECTORY")]
        directory: Option<PathBuf>,
    },
}

/// Which instance is meant.
#[derive(Args, Debug)]
struct Target {
    /// The instance's name; "default" unless given.
    #[arg(short, long, value_name = "NAME", conflicts_with_all = ["config", "socket"])]
    instance: Option<String>,
    /// The instance that this configuration file describes.
    #[arg(short, long, value_name = "FILE", conflicts_with = "socket")]
    config: Option<PathBuf>,
    /// The instance behind this control socket.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl Target {
    fn socket(&self) -> Result<PathBuf> {
        match (&self.socket, &self.config) {
            (Some(socket), _) => Ok(socket.clone()),
            (None, Some(file)) => Ok(config::load(file)?.settings.socket()),
            (None, None) => {
                let instance = self.instance.as_deref().unwrap_or("default");
                Ok(config::socket_path(Path::new("/run/hairpin"), instance))
            }
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    /// Tables.
    Table,
    /// JSON, one document.
    Json,
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let command = Command::parse();
    match command.action.perform() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the reader of our output has gone, as in `hairpin status | head`.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

impl Action {
    fn perform(self) -> Result<()> {
        match self {
            Action::Run { config } => {
                let config = config::load(&config)?;
                report_warnings(&config);
                run::run(config)
            }
            Action::Validate { config } => validate(&config),
            Action::Status { target, output, watch } => status(&target.socket()?, output, watch),
            Action::Stop { target, flush } => stop(&target.socket()?, flush),
            Action::Config { markdown } => print(&if markdown { config::markdown() } else { config::template() }),
            Action::Man { directory } => manual(directory.as_deref()),
        }
    }
}

fn print(text: &str) -> Result<()> {
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}

fn report_warnings(config: &Config) {
    for warning in &config.warnings {
        debug_assert_eq!(warning.severity, Severity::Warning);
        eprintln!("{warning}");
    }
    if let Some(warning) = run::port_range_warning(&config.snapshot.pool) {
        eprintln!("warning: {warning}");
    }
}

fn validate(file: &Path) -> Result<()> {
    let config = config::load(file)?;
    report_warnings(&config);
    let services = config.snapshot.services.len();
    let backends = config.snapshot.backends();
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    print(&format!(
        "{}: right: {services} service{}, {backends} backend{}\n",
        file.display(),
        plural(services),
        plural(backends as usize)
    ))
}

fn connect(socket: &Path) -> Result<Client> {
    match Client::connect(socket)? {
        Some(client) => Ok(client),
        None => bail!(
            "no instance answers at {}; start one with `hairpin run`, or name the right one with --instance, --config \
             or --socket",
            socket.display()
        ),
    }
}

fn status(socket: &Path, output: Output, watch: Option<u64>) -> Result<()> {
    let mut client = connect(socket)?;
    let clear = watch.is_some() && std::io::stdout().is_terminal();
    loop {
        let status = client.status()?;
        let text = match output {
            Output::Table => render::status(&status),
            Output::Json => serde_json::to_string(&status)? + "\n",
        };
        // Home and clear to the end: less flicker than clearing all.
        print(&if clear { format!("\x1b[H\x1b[J{text}") } else { text })?;
        let Some(seconds) = watch else { return Ok(()) };
        std::io::stdout().flush()?;
        std::thread::sleep(Duration::from_secs(seconds));
    }
}

fn stop(socket: &Path, flush: bool) -> Result<()> {
    match Client::connect(socket)? {
        Some(client) => client.stop(flush)?,
        None if flush => {}
        None => bail!("no instance answers at {}; --flush removes what a dead one has left", socket.display()),
    }
    if flush {
        // The process has done it already, unless it was dead or had trouble: once more, from the record.
        run::flush_dead(socket)?;
    }
    Ok(())
}

fn manual(directory: Option<&Path>) -> Result<()> {
    match directory {
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Command::command()).render(&mut page)?;
            std::io::stdout().lock().write_all(&page)?;
            Ok(())
        }
        Some(directory) => clap_mangen::generate_to(Command::command(), directory)
            .with_context(|| format!("cannot write manual pages into {}", directory.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Command::command().debug_assert();
    }

    #[test]
    fn an_instance_is_found_by_socket_file_or_name() {
        let socket = |arguments: &[&str]| {
            let line = ["hairpin", "status"].iter().chain(arguments);
            match Command::try_parse_from(line).unwrap().action {
                Action::Status { target, .. } => target.socket().unwrap(),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(socket(&[]), Path::new("/run/hairpin/default.sock"));
        assert_eq!(socket(&["-i", "edge"]), Path::new("/run/hairpin/edge.sock"));
        assert_eq!(socket(&["--socket", "/x"]), Path::new("/x"));
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/full.toml");
        assert_eq!(socket(&["-c", example]), Path::new("/run/hairpin/edge.sock"));
    }
}
