//! `hairpin names`: what a shell offers where a service or a backend is to be named.

use super::print;
use super::target::InstanceTarget;
use crate::status::{ServiceStatus, Status};
use anyhow::Result;
use std::process::ExitCode;

/// The kind of word expected at a place of the command line.
#[derive(Debug, PartialEq)]
enum WordPlace {
    /// A service.
    Service,
    /// A service that has backends of its own.
    ServiceOfBackend,
    /// A backend of this service; of any.
    Backend(Option<String>),
}

/// Prints the names that fit behind `words`, one a line. Exit status 1: no service or backend is to be named there.
pub(super) fn names(words: &[String]) -> Result<ExitCode> {
    let (target, words) = without_target(words);
    let Some(place) = place(&words) else { return Ok(ExitCode::FAILURE) };
    // An instance that does not answer has no names: an error in the middle of a command line would only disturb.
    let status = target.connect().and_then(|mut client| client.status());
    let names = status.map(|status| fitting(&status, &place)).unwrap_or_default();
    print(&names.iter().map(|name| format!("{name}\n")).collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}

/// The instance that the words name, and the words without that.
fn without_target(words: &[String]) -> (InstanceTarget, Vec<&str>) {
    let (mut target, mut rest) = (InstanceTarget::default(), Vec::new());
    let mut words = words.iter().skip(1).map(String::as_str);
    while let Some(word) = words.next() {
        match word {
            "-i" | "--instance" => target.instance = words.next().map(str::to_string),
            "-c" | "--config" => target.config = words.next().map(Into::into),
            "--socket" => target.socket = words.next().map(Into::into),
            _ => rest.push(word),
        }
    }
    (target, rest)
}

/// Completions after `words`, the first of which is the command.
fn place(words: &[&str]) -> Option<WordPlace> {
    match words {
        ["connections" | "offload" | "capture", .., "--service"] => Some(WordPlace::Service),
        ["connections" | "offload" | "capture", before @ .., "--backend"] => {
            let service = before.windows(2).find(|pair| pair[0] == "--service");
            Some(WordPlace::Backend(service.map(|pair| pair[1].to_string())))
        }
        ["backend", "drain" | "enable" | "disable" | "weight" | "reset", named @ ..] => match named {
            [] => Some(WordPlace::ServiceOfBackend),
            [service] if !service.starts_with('-') => Some(WordPlace::Backend(Some((*service).to_string()))),
            _ => None,
        },
        _ => None,
    }
}

/// The names, each once. Names removed from the configuration are not offered.
fn fitting(status: &Status, place: &WordPlace) -> Vec<String> {
    let services = status.services.iter().filter(|service| service.state != "removed");
    let has_name =
        |service: &&ServiceStatus, name: &str| service.name == name || service.group_of.as_deref() == Some(name);
    let mut names: Vec<String> = match place {
        WordPlace::Service => services.map(|service| service.name.clone()).collect(),
        WordPlace::ServiceOfBackend => {
            services.filter(|service| !service.backends.is_empty()).map(|service| service.name.clone()).collect()
        }
        WordPlace::Backend(of) => {
            let services = services.filter(|service| of.as_deref().is_none_or(|name| has_name(service, name)));
            let backends = services.flat_map(|service| &service.backends);
            backends.filter(|backend| backend.state != "removed").map(|backend| backend.name.clone()).collect()
        }
    };
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::BackendStatus;

    #[test]
    fn services_and_backends_are_offered_where_they_belong() {
        let at = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_string).collect();
            let (target, words) = without_target(&words);
            (place(&words), target.instance)
        };
        let backend = |of: Option<&str>| Some(WordPlace::Backend(of.map(str::to_string)));
        assert_eq!(at("hairpin backend drain"), (Some(WordPlace::ServiceOfBackend), None));
        assert_eq!(at("hairpin backend drain -i edge"), (Some(WordPlace::ServiceOfBackend), Some("edge".into())));
        assert_eq!(at("hairpin backend weight web"), (backend(Some("web")), None));
        assert_eq!(at("hairpin backend drain web web-1").0, None);
        assert_eq!(at("hairpin backend").0, None);
        assert_eq!(at("hairpin connections --software --service").0, Some(WordPlace::Service));
        assert_eq!(at("hairpin connections --service web --backend").0, backend(Some("web")));
        assert_eq!(at("hairpin capture --backend").0, backend(None));
        assert_eq!(at("hairpin connections --service web").0, None);
        assert_eq!(at("hairpin run --service").0, None);
        assert_eq!(at("hairpin").0, None);
    }

    #[test]
    fn what_is_offered_is_what_there_is() {
        let backend =
            |name: &str, state: &str| BackendStatus { name: name.into(), state: state.into(), ..Default::default() };
        let service = |name: &str, backends| ServiceStatus { name: name.into(), backends, ..Default::default() };
        let group =
            ServiceStatus { group_of: Some("shop".into()), ..service("shop/a", vec![backend("a-1", "enabled")]) };
        let web =
            service("web", vec![backend("web-2", "drain"), backend("web-1", "enabled"), backend("old", "removed")]);
        let gone = ServiceStatus { state: "removed".into(), ..service("gone", vec![backend("x", "enabled")]) };
        let status = Status { services: vec![service("shop", vec![]), group, web, gone], ..Status::default() };
        assert_eq!(fitting(&status, &WordPlace::Service), ["shop", "shop/a", "web"]);
        assert_eq!(fitting(&status, &WordPlace::ServiceOfBackend), ["shop/a", "web"]);
        assert_eq!(fitting(&status, &WordPlace::Backend(Some("web".into()))), ["web-1", "web-2"]);
        assert_eq!(fitting(&status, &WordPlace::Backend(Some("shop".into()))), ["a-1"]);
        assert_eq!(fitting(&status, &WordPlace::Backend(None)), ["a-1", "web-1", "web-2"]);
    }
}
