//! Commands about a process: run, validate, reload, diff, upgrade, stop.

use super::target::{InstanceTarget, connect};
use super::{Output, print};
use crate::config::{self, Config, Severity};
use crate::control::{Changes, ControlAnswer, ControlClient, ControlRequest, Upgrade, unexpected};
use crate::{json, live, render, run, terminal};
use anyhow::{Context, Result, bail};
use hairpin_core::config::{Encapsulation, Forwarding, Service};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// `hairpin run`.
pub(super) fn run(options: run::RunOptions) -> Result<()> {
    let config = config::load(&options.file)?;
    report_warnings(&config);
    run::run(config, options)
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

/// `hairpin validate`.
pub(super) fn validate(file: &Path) -> Result<()> {
    let config = config::load(file)?;
    report_warnings(&config);
    print(&render::within(summary(file, &config), terminal::width()))
}

/// `hairpin validate --live`.
pub(super) fn validate_live(file: &Path, output: Output) -> Result<ExitCode> {
    let config = config::load(file)?;
    report_warnings(&config);
    let report = live::report(&config)?;
    print(&match output {
        Output::Table => render::within(format!("{}{report}", summary(file, &config)), terminal::width()),
        Output::Json => json::line(&report)?,
    })?;
    Ok(if report.has_errors() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn summary(file: &Path, config: &Config) -> String {
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let all = config.snapshot.services.len();
    let groups = config.snapshot.services.iter().filter(|service| service.kind.is_group()).count();
    let services = all - groups;
    let of_groups = if groups == 0 { String::new() } else { format!("{groups} group{}, ", plural(groups)) };
    let backends = config.snapshot.backends();
    let right = format!(
        "{}: right: {services} service{}, {of_groups}{backends} backend{}\n",
        file.display(),
        plural(services),
        plural(backends as usize)
    );
    right + &config.snapshot.services.iter().filter_map(direct_needs).collect::<String>()
}

/// What the backends of a service of direct server return need, beside a server that listens.
fn direct_needs(service: &Service) -> Option<String> {
    let vip = IpAddr::from(service.endpoint.address);
    let (bits, silent) = match vip {
        IpAddr::V4(_) => (32, "sysctl net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2; "),
        IpAddr::V6(_) => (128, ""),
    };
    let reached = match service.outer.encapsulation {
        Encapsulation::None => "be on a link of this host",
        Encapsulation::Ipip => "take off outer IP headers (ipip, ip6tnl, or hairpin decapsulate)",
        Encapsulation::Gue => "take off outer GUE headers (fou, or hairpin decapsulate)",
    };
    (service.forwarding == Forwarding::Direct).then(|| {
        format!(
            "service {} is dsr: each backend must {reached} and have the VIP ({silent}ip addr add {vip}/{bits} dev lo)\n",
            service.name
        )
    })
}

/// `hairpin reload`. Programs get JSON in any case.
pub(super) fn reload(target: &InstanceTarget, discard: bool, output: Output) -> Result<ExitCode> {
    match (reloaded(target, discard), output) {
        (Ok(changes), _) => {
            print(&shown(&changes, output, "reloaded: nothing has changed")?)?;
            Ok(ExitCode::SUCCESS)
        }
        (Err(error), Output::Json) => {
            print(&json::line(&serde_json::json!({ "error": format!("{error:#}") }))?)?;
            Ok(ExitCode::FAILURE)
        }
        (Err(error), Output::Table) => Err(error),
    }
}

fn reloaded(target: &InstanceTarget, discard: bool) -> Result<Changes> {
    // The instance's own working directory is another one.
    let absolute = |file: &Path| file.canonicalize().with_context(|| format!("cannot use the file {}", file.display()));
    let file = target.file().map(absolute).transpose()?;
    match target.connect()?.request(&ControlRequest::Reload { file, discard })? {
        ControlAnswer::Changes(changes) => Ok(changes),
        other => unexpected(other),
    }
}

/// `hairpin diff`.
pub(super) fn diff(file: &Path, target: &InstanceTarget, output: Output) -> Result<ExitCode> {
    let text = config::joined(file)?;
    let request = ControlRequest::Diff { text, file: file.display().to_string() };
    match connect(&target.socket_or_of(file)?)?.request(&request)? {
        ControlAnswer::Changes(changes) => {
            print(&shown(&changes, output, "no change")?)?;
            let differs = !changes.changes.is_empty() || !changes.later.is_empty();
            Ok(ExitCode::from(u8::from(differs)))
        }
        other => unexpected(other),
    }
}

fn shown(changes: &Changes, output: Output, none: &str) -> Result<String> {
    Ok(match output {
        Output::Table => render::within(render::changes(changes, none), terminal::width()),
        Output::Json => json::line(changes)?,
    })
}

/// `hairpin config --running`.
pub(super) fn running(target: &InstanceTarget) -> Result<()> {
    match target.connect()?.request(&ControlRequest::Configuration)? {
        ControlAnswer::Configuration(configuration) => print(&configuration.text),
        other => unexpected(other),
    }
}

/// `hairpin upgrade`.
pub(super) fn upgrade(target: &InstanceTarget, how: Upgrade) -> Result<()> {
    // The instance's own working directory is another one.
    let absolute =
        |path: PathBuf| path.canonicalize().with_context(|| format!("cannot use the program {}", path.display()));
    let program = how.program.map(absolute).transpose()?;
    let pid = target.connect()?.upgrade(Upgrade { program, ..how })?;
    print(&format!("process {pid} has taken over\n"))
}

/// `hairpin stop`.
pub(super) fn stop(target: &InstanceTarget, flush: bool) -> Result<()> {
    let socket = target.socket()?;
    match ControlClient::connect(&socket)? {
        Some(client) => client.stop(flush)?,
        None if flush => {}
        None => bail!("no instance answers at {}; --flush removes what a dead one has left", socket.display()),
    }
    if flush {
        // The process has done it already, unless it was dead or had trouble: once more, from the record.
        run::flush_dead(&socket)?;
    }
    Ok(())
}
