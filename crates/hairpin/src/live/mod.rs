//! Whether this machine, in this network namespace, can serve what a file says: `hairpin validate --live`, and the warnings
//! of a start. Facts are gathered first, and judged by a function that reads nothing else.

mod facts;
mod judge;

use crate::config::{Config, PlaneChoice};
use crate::run::{self, CertificateConcern};
use anyhow::Result;
use facts::HostFacts;
use serde::Serialize;
use std::fmt;

/// Findings a start says at most: with a route missing there may be one for each backend.
const SAID_MAX: usize = 20;

/// The consequence of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FindingSeverity {
    /// A service or one of its backends cannot serve.
    Error,
    /// It can, but something is probably not as it was meant.
    Warning,
}

/// Something on this machine that is not as the file needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct HostFinding {
    pub(crate) severity: FindingSeverity,
    /// Its subject: an interface, a VIP, a pool address, a backend, a service.
    pub(crate) subject: String,
    /// The problem.
    pub(crate) what: String,
    /// The remedy.
    pub(crate) remedy: String,
}

impl fmt::Display for HostFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.subject, self.what, self.remedy)
    }
}

/// An address of services, and the host that has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Vip {
    address: String,
    /// The interface of this host that has it, if one does.
    interface: Option<String>,
}

/// The findings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct HostReport {
    vips: Vec<Vip>,
    pub(crate) findings: Vec<HostFinding>,
}

impl HostReport {
    /// Whether something keeps a service or a backend from serving.
    pub(crate) fn has_errors(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == FindingSeverity::Error)
    }
}

impl fmt::Display for HostReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for vip in &self.vips {
            match &vip.interface {
                Some(interface) => writeln!(f, "VIP {}: on {interface}", vip.address)?,
                None => writeln!(f, "VIP {}: on no interface of this host", vip.address)?,
            }
        }
        for finding in &self.findings {
            let severity = if finding.severity == FindingSeverity::Error { "error" } else { "warning" };
            writeln!(f, "{severity}: {finding}")?;
        }
        if self.findings.is_empty() { writeln!(f, "nothing found on this machine") } else { Ok(()) }
    }
}

/// Looks at this machine, and at the other instances that run on it.
///
/// # Errors
/// The kernel did not tell.
pub(crate) fn report(config: &Config) -> Result<HostReport> {
    let mut report = machine(config)?;
    report.findings.extend(run::rival(config).map(|rival| HostFinding {
        severity: FindingSeverity::Error,
        subject: format!("instance {}", rival.instance),
        what: format!("process {} serves {} on {}, and only one instance can", rival.pid, rival.end, rival.device),
        remedy: rival.remedy(),
    }));
    report.findings.extend(certificates(config));
    Ok(report)
}

/// Files of certificates and keys that a start would refuse, or certificates that are not valid now, or soon not.
fn certificates(config: &Config) -> Vec<HostFinding> {
    let finding = |severity, subject: Option<String>, what, remedy: &str| HostFinding {
        severity,
        subject: subject.map_or_else(|| "certificates".to_string(), |service| format!("service {service}")),
        what,
        remedy: remedy.to_string(),
    };
    let concerns = match run::certificate_concerns(config) {
        Ok(concerns) => concerns,
        Err(error) => {
            let refused = "a start, and a reload, would be refused";
            return vec![finding(FindingSeverity::Error, None, format!("{error:#}"), refused)];
        }
    };
    let remedy = "clients will not trust it";
    let of = |concern: CertificateConcern| finding(FindingSeverity::Warning, concern.service, concern.what, remedy);
    concerns.into_iter().map(of).collect()
}

/// Says as warnings what a start finds on this machine, with `log`. Other instances are refused elsewhere.
pub(crate) fn warn(config: &Config, log: impl Fn(&str)) {
    let findings = match machine(config) {
        Ok(report) => report.findings,
        Err(error) => return log(&format!("warning: this machine was not checked: {error:#}")),
    };
    for finding in findings.iter().take(SAID_MAX) {
        log(&format!("warning: {finding}"));
    }
    if let Some(more) = findings.len().checked_sub(SAID_MAX).filter(|more| *more > 0) {
        log(&format!("warning: {more} more findings: `hairpin validate --live` says all of them"));
    }
}

/// The ports of the dpdk plane, with their addresses and routes, are not the kernel's: there it finds nothing.
fn machine(config: &Config) -> Result<HostReport> {
    if config.settings.plane != PlaneChoice::Linux {
        return Ok(HostReport::default());
    }
    let facts = HostFacts::gather(config)?;
    let services = judge::Services::of(&config.snapshot);
    let vips = services.vips.keys().map(|vip| Vip { address: vip.to_string(), interface: facts.owner(*vip) });
    Ok(HostReport { vips: vips.collect(), findings: judge::judge(&config.settings.interfaces, &services, &facts) })
}
