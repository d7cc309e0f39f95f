//! `hairpin route`.

use super::target::InstanceTarget;
use super::{Output, print};
use crate::control::{ControlAnswer, ControlClient, ControlRequest, RouteAnswer, RouteQuery, RouteView, unexpected};
use crate::status::Status;
use crate::{config, explain, json, render, terminal};
use anyhow::{Result, anyhow};
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// The request that is asked about.
#[derive(Args, Debug)]
pub(super) struct RouteArgs {
    /// The request's method, such as GET.
    #[arg(value_name = "METHOD")]
    method: String,
    /// Its URL, with scheme and host.
    #[arg(value_name = "URL")]
    url: String,
    /// A field of its head; may be given several times.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// The client's address; without this option, 127.0.0.1.
    #[arg(long, value_name = "ADDRESS")]
    client: Option<String>,
    /// The service that it reaches, unless the URL's port tells it.
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Decide by this configuration file, and ask no instance.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["instance", "config", "socket"])]
    file: Option<PathBuf>,
}

impl RouteArgs {
    fn query(&self) -> RouteQuery {
        RouteQuery {
            method: self.method.clone(),
            url: self.url.clone(),
            headers: self.headers.clone(),
            client: self.client.clone(),
            service: self.service.clone(),
        }
    }
}

/// Prints what would become of the request. 1: each service refuses it.
pub(super) fn route(args: &RouteArgs, target: &InstanceTarget, output: Output) -> Result<ExitCode> {
    let answer = match &args.file {
        Some(file) => explain::explain(&config::load(file)?, &args.query()).map_err(|error| anyhow!(error))?,
        None => asked(&mut target.connect()?, args.query())?,
    };
    print(&match output {
        Output::Table => render::routes(&answer, terminal::width()),
        Output::Json => json::line(&answer)?,
    })?;
    Ok(if answer.services.iter().all(|view| view.outcome == "refuse") { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The instance's answer, with the backends as they are now.
fn asked(client: &mut ControlClient, query: RouteQuery) -> Result<RouteAnswer> {
    let mut answer = match client.request(&ControlRequest::Route(query))? {
        ControlAnswer::Route(answer) => answer,
        other => return unexpected(other),
    };
    match client.request(&ControlRequest::Status)? {
        ControlAnswer::Status(status) => answer.services.iter_mut().for_each(|view| tell_health(view, &status)),
        other => return unexpected(other),
    }
    Ok(answer)
}

fn tell_health(view: &mut RouteView, status: &Status) {
    for group in &mut view.groups {
        let Some(known) = status.services.iter().find(|service| service.name == group.name) else { continue };
        for backend in &mut group.backends {
            if let Some(now) = known.backends.iter().find(|known| known.address == backend.address) {
                backend.weight = now.weight;
                backend.state.clone_from(&now.state);
                backend.health.clone_from(&now.health.state);
            }
        }
    }
}
