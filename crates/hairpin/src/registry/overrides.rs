//! Backends overridden at run time.

use super::Registry;
use super::entry::{BackendEntry, Configured, Identity, Override};
use crate::config::words::Worded;
use crate::config::{Config, SettingWord, nearest};
use crate::control::{BackendAction, BackendChange};
use anyhow::{Context, Result, anyhow};
use hairpin_core::config::{Algorithm, Backend, BackendState, Service};

/// Names that an error lists at most.
const LISTED_MAX: usize = 10;

impl Registry {
    /// Overrides a backend, from the next [`Registry::merge`] on; a sentence for the operator.
    ///
    /// # Errors
    /// There is no such service or backend: the nearest is named.
    pub fn set(&mut self, change: &BackendChange, config: &Config) -> Result<String> {
        let (service, backend) = named(change, config)?;
        let entry = self.entry_mut(service, backend).with_context(|| {
            format!("backend {} of service {} has no number yet; reload first", backend.name, service.name)
        })?;
        let before = (entry.state.0, entry.weight);
        let had = entry.overridden.take();
        let was = Configured::of(backend);
        let mut state = had.as_ref().and_then(|had| had.state);
        let mut weight = had.as_ref().and_then(|had| had.weight);
        match change.action {
            BackendAction::Enable => state = Some(Worded(BackendState::Enabled)),
            BackendAction::Drain => state = Some(Worded(BackendState::Draining)),
            BackendAction::Disable => state = Some(Worded(BackendState::Disabled)),
            BackendAction::Weight(new) => weight = Some(new),
            BackendAction::Reset => (state, weight) = (None, None),
        }
        // A value that the configuration has as well needs no override.
        let state = state.filter(|state| *state != was.state);
        let weight = weight.filter(|weight| *weight != was.weight);
        entry.overridden = (state.is_some() || weight.is_some()).then_some(Override { state, weight, was });
        let now = (state.map_or(backend.state, |state| state.0), weight.unwrap_or(backend.weight));
        Ok(sentence(change.action, (service, backend), before, now, entry.overridden.is_some()))
    }

    /// Whether state or weight of the backend with this number are overridden.
    pub fn overridden(&self, backend: u16) -> bool {
        self.backends.get(&backend).is_some_and(|entry| entry.overridden.is_some())
    }

    fn entry_mut(&mut self, service: &Service, backend: &Backend) -> Option<&mut BackendEntry> {
        let identity = Identity::of(service);
        let (number, _) = self.services.iter().find(|(_, entry)| entry.identity() == identity)?;
        let number = *number;
        self.backends.values_mut().find(|entry| entry.service == number && entry.address == backend.endpoint)
    }
}

/// The service and backend that are meant.
fn named<'c>(change: &BackendChange, config: &'c Config) -> Result<(&'c Service, &'c Backend)> {
    let services = &config.snapshot.services;
    let service = services.iter().find(|service| *service.name == *change.service).ok_or_else(|| {
        let names: Vec<&str> = services.iter().map(|service| &*service.name).collect();
        // A group's name has its service's before it.
        let of = |name: &&&str| name.rsplit_once('/').is_some_and(|(_, group)| group == &*change.service);
        let remedy = match names.iter().find(of) {
            Some(group) => format!("did you mean {group}?"),
            None => remedy(&change.service, &names),
        };
        anyhow!("there is no service {:?}; {remedy}", change.service)
    })?;
    let by_name = service.backends.iter().find(|backend| *backend.name == *change.backend);
    let address = change.backend.parse().ok().map(|address: std::net::SocketAddr| address.to_string());
    let by_address = || service.backends.iter().find(|backend| Some(backend.endpoint.to_string()) == address);
    let backend = by_name.or_else(by_address).ok_or_else(|| {
        let names: Vec<&str> = service.backends.iter().map(|backend| &*backend.name).collect();
        let remedy = remedy(&change.backend, &names);
        anyhow!("service {} has no backend {:?}; {remedy}", service.name, change.backend)
    })?;
    Ok((service, backend))
}

fn remedy(name: &str, names: &[&str]) -> String {
    if let Some(near) = nearest(name, names) {
        return format!("did you mean {near}?");
    }
    let more = if names.len() > LISTED_MAX { ", ..." } else { "" };
    format!("there are: {}{more}", names[..names.len().min(LISTED_MAX)].join(", "))
}

fn sentence(
    action: BackendAction,
    (service, backend): (&Service, &Backend),
    before: (BackendState, u16),
    now: (BackendState, u16),
    overridden: bool,
) -> String {
    let who = format!("service {}: backend {}", service.name, backend.name);
    let standing = standing(now.0, now.1);
    if action == BackendAction::Reset {
        let already = if before == now { "already" } else { "again" };
        return format!("{who} is as the configuration says {already}: {standing}");
    }
    if before == now {
        return format!("{who} is so already: {standing}");
    }
    let mut text = format!("{who}: {} -> {standing}", self::standing(before.0, before.1));
    match action {
        BackendAction::Drain if service.drain_limit.is_zero() => text += "; its connections go on until they end",
        BackendAction::Drain => {
            text += &format!("; its connections go on for up to {}", humantime::format_duration(service.drain_limit));
        }
        BackendAction::Disable => text += "; its connections are ended",
        BackendAction::Weight(_) if service.algorithm == Algorithm::RoundRobin => {
            text += "; round-robin ignores weights"
        }
        _ => {}
    }
    let until = "; this holds until it is reset, or the configuration says something else about it";
    text + if overridden { until } else { "; that is what the configuration says" }
}

/// State and weight in words.
pub(super) fn standing(state: BackendState, weight: u16) -> String {
    format!("{}, weight {weight}", state.word())
}
