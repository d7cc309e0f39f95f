//! `hairpin status --ready`.

use super::target::InstanceTarget;
use super::{Output, print};
use crate::config::nearest;
use crate::json;
use crate::status::{ServiceStatus, Status};
use anyhow::{Result, bail};
use serde::Serialize;
use std::process::ExitCode;

/// Says which services are not ready: of all services, or of the named one.
pub(super) fn ready(target: &InstanceTarget, service: Option<&str>, output: Output) -> Result<ExitCode> {
    let status = target.connect()?.status()?;
    let not_ready = not_ready(&status, service)?;
    print(&match output {
        Output::Table => text(&not_ready),
        Output::Json => json(&not_ready)?,
    })?;
    Ok(ExitCode::from(u8::from(!not_ready.is_empty())))
}

type NotReady<'a> = Vec<(&'a ServiceStatus, &'a str)>;

fn not_ready<'a>(status: &'a Status, named: Option<&str>) -> Result<NotReady<'a>> {
    let Some(name) = named else {
        // A problem of a group counts where its service has no other backend: then that is named.
        return Ok(status.not_ready().filter(|(service, _)| service.group_of.is_none()).collect());
    };
    let there = || status.services.iter().filter(|service| service.state != "removed").map(|service| &*service.name);
    if !there().any(|other| other == name) {
        let names: Vec<&str> = there().collect();
        let hint = match nearest(name, &names) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("there are {}", names.join(", ")),
        };
        bail!("instance {} has no service {name}; {hint}", status.instance);
    }
    Ok(status.not_ready().filter(|(service, _)| service.name == name).collect())
}

fn text(not_ready: &NotReady<'_>) -> String {
    let lines = not_ready.iter().map(|(service, why)| format!("not ready: service {}: {why}\n", service.name));
    if not_ready.is_empty() { "ready\n".to_string() } else { lines.collect() }
}

/// The type `Readiness` of docs/reference/json.md.
#[derive(Serialize)]
struct Readiness<'a> {
    ready: bool,
    not_ready: Vec<Unready<'a>>,
}

#[derive(Serialize)]
struct Unready<'a> {
    service: &'a str,
    why: &'a str,
}

fn json(not_ready: &NotReady<'_>) -> Result<String> {
    let services = not_ready.iter().map(|&(service, why)| Unready { service: &service.name, why });
    Ok(json::line(&Readiness { ready: not_ready.is_empty(), not_ready: services.collect() })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str, group_of: Option<&str>, not_ready: &str) -> ServiceStatus {
        ServiceStatus {
            name: name.into(),
            group_of: group_of.map(str::to_string),
            ready: not_ready.is_empty(),
            not_ready: not_ready.into(),
            ..ServiceStatus::default()
        }
    }

    #[test]
    fn services_that_are_not_ready_are_named_with_the_reason() {
        let services = vec![
            service("web", None, ""),
            service("web/static", Some("web"), "its backend is down"),
            service("dns", None, "all 2 backends are down"),
        ];
        let status = Status { services, ..Status::default() };
        let said = |name| text(&not_ready(&status, name).unwrap());
        assert_eq!(said(None), "not ready: service dns: all 2 backends are down\n");
        assert_eq!(said(Some("web")), "ready\n");
        assert_eq!(said(Some("web/static")), "not ready: service web/static: its backend is down\n");
        let json = json(&not_ready(&status, None).unwrap()).unwrap();
        let service = r#"{"service":"dns","why":"all 2 backends are down"}"#;
        assert_eq!(json, format!("{{\"schema_version\":1,\"ready\":false,\"not_ready\":[{service}]}}\n"));
        let unknown = not_ready(&status, Some("wep")).unwrap_err().to_string();
        assert!(unknown.ends_with("has no service wep; did you mean web?"), "{unknown}");
    }
}
