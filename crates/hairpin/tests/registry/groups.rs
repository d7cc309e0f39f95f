//! Groups of backends: numbers by name, never taken for what clients connect to.

use super::{Place, change, merged};
use hairpin::config::{self, Config};
use hairpin::control::BackendAction;
use hairpin::registry::{KEPT_S, Registry};
use hairpin_core::config::{BackendState, ServiceState};
use hairpin_core::l7::config::{Action, Kind};

/// A service with these groups, and a route to each.
fn config(name: &str, listen: &str, groups: &[&str]) -> Config {
    let mut text = format!(
        "interfaces = [\"a\"]\npool.addresses = [\"10.0.9.1\"]\n[[service]]\nname = \"first\"\nlisten = \
         \"192.0.2.9:1/tcp\"\nbackends = [\"10.0.0.9:1\"]\n[[service]]\nname = \"{name}\"\nlisten = \"{listen}\"\nbackends = \
         [\"10.0.0.1:80\"]\n"
    );
    if listen.ends_with("/https") {
        text += "https.certificates = \"/tls\"\n";
    }
    for group in groups {
        text += &format!("[[service.group]]\nname = \"{group}\"\nbackends = [\"10.0.0.2:80\"]\n");
        text += &format!("[[service.route]]\nhost = \"{group}\"\ngroup = \"{group}\"\n");
    }
    config::parse("t.toml", &text).unwrap_or_else(|problems| panic!("{problems}\n{text}"))
}

/// The targets of the routes of service `number`.
fn routes(merged: &hairpin::registry::Merged, number: usize) -> Vec<u16> {
    let Some(http) = merged.snapshot.services[number].kind.http() else { panic!("{:?}", merged.snapshot.services) };
    let to = |action: &Action| match action {
        Action::Forward { groups, .. } => groups[0].0,
        other => panic!("{other:?}"),
    };
    http.routes.iter().map(|route| to(&route.action)).collect()
}

const WEB: &str = "192.0.2.1:80/http";

#[test]
fn routes_lead_to_the_numbers_that_groups_have() {
    let mut registry = Registry::default();
    let one = merged(&mut registry, &config("web", WEB, &["a", "b"]), 0);
    let names: Vec<&str> = one.snapshot.services.iter().map(|service| &*service.name).collect();
    assert_eq!(names, ["first", "web", "web/a", "web/b"]);
    assert_eq!(routes(&one, 1), [2, 3, 1]);
    let backends: Vec<u16> = one.snapshot.services.iter().map(|service| service.backends[0].number).collect();
    // In another order, with another one: each has the number that it had.
    let two = merged(&mut registry, &config("web", WEB, &["c", "b", "a"]), 1);
    assert_eq!(routes(&two, 1), [4, 3, 2, 1]);
    assert_eq!(&*two.snapshot.services[4].name, "web/c");
    let again: Vec<u16> = two.snapshot.services[..4].iter().map(|service| service.backends[0].number).collect();
    assert_eq!(backends, again);
    assert!(two.fresh_services.is_empty() && two.fresh_backends.is_empty());
}

#[test]
fn failure_statuses_reach_the_workers() {
    let text = |status: &str| {
        format!(
            "interfaces = [\"a\"]\npool.addresses = [\"10.0.9.1\"]\n[[service]]\nname = \"web\"\nlisten = \"{WEB}\"\n\
             backends = [\"10.0.0.1:80\"]\n[service.health]\npassive = 1\npassive_status = \"{status}\"\n\
             [[service.group]]\nname = \"a\"\nbackends = [\"10.0.0.2:80\"]\n[[service.route]]\ngroup = \"a\"\n"
        )
    };
    let mut registry = Registry::default();
    for (status, expected) in [("500", [true, false]), ("502", [false, true])] {
        let config = config::parse("t.toml", &text(status)).unwrap_or_else(|problems| panic!("{problems}"));
        let merged = merged(&mut registry, &config, 0);
        for service in &merged.snapshot.services {
            assert_eq!([500, 502].map(|status| service.faulty.contains(status)), expected, "{}", service.name);
        }
    }
}

#[test]
fn removed_group_stays_until_backends_are_free() {
    let place = Place::new("groups");
    let mut registry = Registry::default();
    let one = merged(&mut registry, &config("web", WEB, &["a", "b"]), 0);
    let backend = one.snapshot.services[2].backends[0].number;
    let busy = |number: u16| u64::from(number == backend);
    let two = registry.merge(&config("web", WEB, &["b"]), &busy, 1).unwrap();
    let group = &two.snapshot.services[2];
    assert!(group.kind.is_group() && group.state == ServiceState::Removed, "{group:?}");
    assert_eq!(group.backends[0].state, BackendState::Removed);
    assert_eq!(routes(&two, 1), [3, 1]);
    // Also for the next process.
    registry.save(&place.file()).unwrap();
    let mut registry = Registry::load(&place.file()).unwrap();
    let three = registry.merge(&config("web", WEB, &["b"]), &busy, 2 + KEPT_S).unwrap();
    assert!(three.snapshot.services[2].kind.is_group());
    let four = merged(&mut registry, &config("web", WEB, &["b"]), 3 + KEPT_S);
    assert_eq!(four.freed_services, [2]);
    assert_eq!(four.snapshot.services[2].state, ServiceState::Vacant);
    assert_eq!(routes(&four, 1), [3, 1]);
}

#[test]
fn removed_spliced_service_stays_spliced() {
    let mut registry = Registry::default();
    merged(&mut registry, &config("web", WEB, &["a"]), 0);
    let other = merged(&mut registry, &config("web", "192.0.2.2:80/http", &["a"]), 1);
    // The group of the service at the other address is another one, although its name is the same.
    let states: Vec<_> = other.snapshot.services.iter().map(|service| (&*service.name, service.state)).collect();
    let (active, removed) = (ServiceState::Active, ServiceState::Removed);
    assert_eq!(states, [("first", active), ("web", removed), ("web/a", removed), ("web", active), ("web/a", active)]);
    assert!(matches!(other.snapshot.services[1].kind, Kind::Forward));
    assert_eq!(routes(&other, 3), [4, 3]);
}

#[test]
fn what_speaks_another_protocol_keeps_its_number() {
    let mut registry = Registry::default();
    merged(&mut registry, &config("web", "192.0.2.1:80/tcp", &[]), 0);
    let http = merged(&mut registry, &config("web", WEB, &["a"]), 1);
    assert!(matches!(http.snapshot.services[1].kind, Kind::Http(_)));
    let tcp = merged(&mut registry, &config("web", "192.0.2.1:80/tcp", &[]), 2);
    assert!(matches!(tcp.snapshot.services[1].kind, Kind::Forward));
    assert!(tcp.snapshot.services[2].kind.is_group() && tcp.snapshot.services[2].state == ServiceState::Removed);
}

#[test]
fn terminated_service_keeps_its_numbers() {
    let place = Place::new("terminated");
    let https = "192.0.2.1:80/https";
    let mut registry = Registry::default();
    merged(&mut registry, &config("web", WEB, &["a", "b"]), 0);
    let one = merged(&mut registry, &config("web", https, &["b", "a"]), 1);
    assert_eq!(routes(&one, 1), [3, 2, 1]);
    assert!(one.snapshot.services[1].kind.is_terminated());
    assert!(one.settings[1].as_ref().is_some_and(|settings| settings.https.is_some()));
    assert!(one.fresh_services.is_empty() && one.fresh_backends.is_empty());
    // When it is removed, workers must not take what its sockets have for theirs: also in the next process.
    let backend = one.snapshot.services[1].backends[0].number;
    let busy = |number: u16| u64::from(number == backend);
    let none = config("other", "192.0.2.7:80/tcp", &[]);
    registry.merge(&none, &busy, 2).unwrap();
    registry.save(&place.file()).unwrap();
    let mut registry = Registry::load(&place.file()).unwrap();
    let two = registry.merge(&none, &busy, 3 + KEPT_S).unwrap();
    let gone = &two.snapshot.services[1];
    assert!(gone.kind.is_terminated() && gone.state == ServiceState::Removed, "{gone:?}");
    assert!(gone.kind.http().is_some_and(|http| http.routes.is_empty()) && two.settings[1].is_none());
}

#[test]
fn backends_of_groups_are_overridden_like_others() {
    let mut registry = Registry::default();
    let config = config("web", WEB, &["a"]);
    merged(&mut registry, &config, 0);
    let said = registry.set(&change("web/a", "10.0.0.2:80", BackendAction::Drain), &config).unwrap();
    assert!(said.starts_with("service web/a: backend 10.0.0.2:80: enabled, weight 1 -> drain, weight 1"), "{said}");
    let alone = registry.set(&change("a", "10.0.0.2:80", BackendAction::Drain), &config).unwrap_err().to_string();
    assert_eq!(alone, "there is no service \"a\"; did you mean web/a?");
    let after = merged(&mut registry, &config, 1);
    assert_eq!(after.snapshot.services[2].backends[0].state, BackendState::Draining);
    assert_eq!(after.snapshot.services[1].backends[0].state, BackendState::Enabled);
}
