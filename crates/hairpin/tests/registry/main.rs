//! Numbers that stay.

use hairpin::config::{self, Config};
use hairpin::control::{BackendAction, BackendChange};
use hairpin::registry::{KEPT_S, Merged, Registry};
use hairpin_core::config::{BackendState, ServiceState, Snapshot};
use std::collections::BTreeMap;
use std::path::PathBuf;

mod file;
mod groups;
mod life;
mod overrides;

/// Services by port, each with its backends by port and what else is said about them.
type Plan = BTreeMap<u16, BTreeMap<u16, &'static str>>;

fn plan(services: &[(u16, &[u16])]) -> Plan {
    services.iter().map(|(port, backends)| (*port, backends.iter().map(|backend| (*backend, "")).collect())).collect()
}

fn config(plan: &Plan) -> Config {
    let mut text = "interfaces = [\"a\"]\n".to_string();
    for (port, backends) in plan {
        text += &format!("[[service]]\nname = \"s{port}\"\nlisten = \"192.0.2.1:{port}/tcp\"\n");
        for (backend, more) in backends {
            text += &format!("[[service.backend]]\naddress = \"10.0.0.1:{backend}\"\nname = \"b{backend}\"\n{more}\n");
        }
    }
    config::parse("t.toml", &text).unwrap_or_else(|problems| panic!("{problems}\n{text}"))
}

fn no_connections(_: u16) -> u64 {
    0
}

fn merged(registry: &mut Registry, config: &Config, now_unix_s: u64) -> Merged {
    registry.merge(config, &no_connections, now_unix_s).unwrap()
}

/// Every backend's service, end and number.
fn numbers(snapshot: &Snapshot) -> BTreeMap<(u16, u16), (u16, u16)> {
    let mut numbers = BTreeMap::new();
    for (position, service) in snapshot.services.iter().enumerate() {
        for backend in &service.backends {
            let number = (position as u16, backend.number);
            assert_eq!(numbers.insert((service.endpoint.port, backend.endpoint.port), number), None);
        }
    }
    numbers
}

fn state(merged: &Merged, number: u16) -> Option<(BackendState, u16)> {
    merged.snapshot.backend(number).map(|(_, backend)| (backend.state, backend.weight))
}

fn change(service: &str, backend: &str, action: BackendAction) -> BackendChange {
    BackendChange { service: service.to_string(), backend: backend.to_string(), action }
}

/// A place for a file, removed in the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("hairpin-registry-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Place(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("default.numbers")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn numbers_stay_with_services_and_backends() {
    let mut registry = Registry::default();
    let first = merged(&mut registry, &config(&plan(&[(80, &[1, 2]), (81, &[1])])), 0);
    let expected = BTreeMap::from([((80, 1), (0, 0)), ((80, 2), (0, 1)), ((81, 1), (1, 2))]);
    assert_eq!(numbers(&first.snapshot), expected);
    assert_eq!(first.settings.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true]);
    // A service and a backend in front of the others.
    let second = merged(&mut registry, &config(&plan(&[(70, &[9]), (80, &[0x100, 1, 2]), (81, &[1])])), 0);
    let mut expected = expected;
    expected.extend([((70, 9), (2, 3)), ((80, 0x100), (0, 4))]);
    assert_eq!(numbers(&second.snapshot), expected);
    assert_eq!((second.fresh_services, second.fresh_backends, second.notes), (vec![], vec![], Vec::<String>::new()));
    assert_eq!(second.snapshot.place(4), Some((0, 2)));
    // Another name, weight or mode is the same service and backend.
    let text = "interfaces = [\"a\"]\n[pool]\naddresses = [\"10.0.9.1\"]\n[[service]]\nname = \"x\"\n\
                mode = \"full-nat\"\n\
                listen = \"192.0.2.1:80/tcp\"\n[[service.backend]]\naddress = \"10.0.0.1:2\"\nname = \"y\"\n\
                weight = 9\n";
    let third = merged(&mut registry, &config::parse("t", text).unwrap(), 0);
    let (service, backend) = third.snapshot.backend(1).unwrap();
    assert_eq!((&*service.name, &*backend.name, backend.weight), ("x", "y", 9));
    assert_eq!((backend.state, service.state), (BackendState::Enabled, ServiceState::Active));
}

#[test]
fn what_is_removed_stays_for_its_connections() {
    let mut registry = Registry::default();
    let text = "interfaces = [\"a\"]\n[pool]\naddresses = [\"10.0.9.1\"]\n[[service]]\nname = \"old\"\n\
                mode = \"full-nat\"\nbalance = \"maglev\"\nunknown = \"reset\"\nall_down = \"use-all\"\n\
                drain_limit = \"7m\"\ntimeouts.tcp_closed = \"9s\"\nlisten = \"192.0.2.1:80/tcp\"\n\
                [[service.backend]]\naddress = \"10.0.0.1:1\"\nname = \"b\"\nweight = 5\n";
    let old = config::parse("t", text).unwrap();
    let new = config(&plan(&[(81, &[1])]));
    let before = merged(&mut registry, &old, 100);
    let one = |number: u16| u64::from(number == 0);
    let after = registry.merge(&new, &one, 200).unwrap();
    let service = |merged: &Merged| {
        let mut service = merged.snapshot.services[0].clone();
        assert_eq!(service.backends.len(), 1);
        (service.state, service.backends[0].state) = (ServiceState::Active, BackendState::Enabled);
        format!("{service:?}")
    };
    // All but the states is as it was, through the file as well.
    assert_eq!(service(&after), service(&before));
    let place = Place::new("removed");
    registry.save(&place.file()).unwrap();
    let mut loaded = Registry::load(&place.file()).unwrap();
    assert_eq!(service(&loaded.merge(&new, &one, 200).unwrap()), service(&before));
    assert_eq!(after.snapshot.services[0].state, ServiceState::Removed);
    assert_eq!(state(&after, 0), Some((BackendState::Removed, 5)));
    assert!(after.settings[0].is_none() && after.settings[1].is_some() && after.settings_of(0).is_none());
    assert_eq!((registry.draining_since(0), registry.draining_since(1)), (Some(200), None));
    // With connections it stays as long as they do.
    let later = registry.merge(&new, &one, 1_000_000).unwrap();
    assert_eq!((state(&later, 0), registry.draining_since(0)), (Some((BackendState::Removed, 5)), Some(200)));
    assert!(!registry.frees_now(&one, 1_000_000) && registry.frees_now(&no_connections, 1_000_000));
    let gone = merged(&mut registry, &new, 1_000_000);
    let gone_state = state(&gone, 0);
    assert_eq!(gone.snapshot.services[0].state, ServiceState::Vacant);
    assert_eq!((gone.freed_services, gone.freed_backends, gone_state), (vec![0], vec![0], None));
    assert!(!registry.frees_now(&no_connections, 2_000_000));
}

/// Bare packets of its connections would go to a router, which would send them back.
#[test]
fn removed_service_keeps_its_encapsulation() {
    let mut registry = Registry::default();
    let text = "interfaces = [\"a\"]\n[[service]]\nlisten = \"192.0.2.1:80/tcp\"\nmode = \"dsr\"\nencapsulation = \"gue\"\n\
                encapsulation_port = 99\nencapsulation_source = \"10.0.9.1\"\nbackends = [\"10.0.0.1:80\"]\n";
    let before = merged(&mut registry, &config::parse("t", text).unwrap(), 100).snapshot.services[0].outer;
    assert_eq!((before.port, before.source.is_some()), (99, true));
    let new = config(&plan(&[(81, &[1])]));
    registry.merge(&new, &|_| 1, 200).unwrap();
    let place = Place::new("encapsulated");
    registry.save(&place.file()).unwrap();
    let after = Registry::load(&place.file()).unwrap().merge(&new, &|_| 1, 200).unwrap();
    assert_eq!((after.snapshot.services[0].state, after.snapshot.services[0].outer), (ServiceState::Removed, before));
}

#[test]
fn counts_are_not_trusted_at_once() {
    let mut registry = Registry::default();
    merged(&mut registry, &config(&plan(&[(80, &[1, 2])])), 1000);
    let without = config(&plan(&[(80, &[1])]));
    for now in [1000, 1000 + KEPT_S - 1, 500] {
        // The clock may go back as well.
        assert!(!registry.frees_now(&no_connections, now));
        assert_eq!(state(&merged(&mut registry, &without, now), 1), Some((BackendState::Removed, 1)), "{now}");
    }
    assert!(registry.frees_now(&no_connections, 1000 + KEPT_S));
    assert_eq!(state(&merged(&mut registry, &without, 1000 + KEPT_S), 1), None);
}

#[test]
fn what_comes_back_has_its_old_number() {
    let mut registry = Registry::default();
    let both = config(&plan(&[(80, &[1, 2]), (81, &[1])]));
    let before = numbers(&merged(&mut registry, &both, 0).snapshot);
    merged(&mut registry, &config(&plan(&[(80, &[1])])), 10);
    // Long after, without connections, and without a merge in between.
    let back = merged(&mut registry, &both, 10_000);
    assert_eq!(numbers(&back.snapshot), before);
    assert_eq!((back.freed_backends.len(), back.fresh_backends.len()), (0, 0));
    assert!(back.snapshot.services.iter().all(|service| service.state == ServiceState::Active));
    assert_eq!((state(&back, 1), registry.draining_since(1)), (Some((BackendState::Enabled, 1)), None));
    // Removed long enough and freed, it gets a new one.
    merged(&mut registry, &config(&plan(&[(80, &[1])])), 20_000);
    merged(&mut registry, &config(&plan(&[(80, &[1])])), 30_000);
    let anew = merged(&mut registry, &both, 30_000);
    assert_eq!(numbers(&anew.snapshot), BTreeMap::from([((80, 1), (0, 0)), ((80, 2), (0, 3)), ((81, 1), (2, 4))]));
    assert_eq!(anew.snapshot.services[1].state, ServiceState::Vacant);
}

#[test]
fn drains_are_timed_from_their_beginning() {
    let mut registry = Registry::default();
    let with = |text: &'static str| config(&Plan::from([(80, BTreeMap::from([(1, ""), (2, text)]))]));
    let one = |number: u16| u64::from(number == 1);
    let mut merge = |text, now| {
        registry.merge(&with(text), &one, now).unwrap();
        registry.draining_since(1)
    };
    assert_eq!(merge("", 10), None);
    assert_eq!(merge("state = \"drain\"", 20), Some(20));
    assert_eq!(merge("state = \"drain\"\nweight = 2", 30), Some(20));
    assert_eq!(merge("", 40), None);
    assert_eq!(merge("state = \"drain\"", 50), Some(50));
    // Removed while it drains: no new connection has come since.
    registry.merge(&config(&plan(&[(80, &[1])])), &one, 60).unwrap();
    assert_eq!(registry.draining_since(1), Some(50));
}

#[test]
fn numbers_run_out_late_and_are_taken_up_again() {
    let mut registry = Registry::default();
    let services =
        |ports: std::ops::Range<u16>| config(&ports.map(|port| (port, BTreeMap::from([(port, "")]))).collect::<Plan>());
    merged(&mut registry, &services(1..601), 0);
    // The first 600 have no connections any more: their numbers are free, but others are given first.
    merged(&mut registry, &services(601..1001), 0);
    let third = merged(&mut registry, &services(1001..1025), 100);
    assert_eq!((third.freed_services.len(), third.fresh_services.len()), (600, 0));
    assert_eq!(numbers(&third.snapshot)[&(1024, 1024)], (1023, 1023));
    // Backends have numbers left, services have not.
    let fourth = merged(&mut registry, &services(1023..1027), 100);
    assert_eq!((fourth.fresh_services, fourth.fresh_backends), (vec![0, 1], vec![]));
    let found = numbers(&fourth.snapshot);
    assert_eq!((found[&(1025, 1025)], found[&(1026, 1026)]), ((0, 1024), (1, 1025)));
    assert_eq!(fourth.settings.iter().filter(|settings| settings.is_some()).count(), 4);
}

#[test]
fn too_few_numbers_refuse_the_configuration() {
    let mut registry = Registry::default();
    let services =
        |ports: std::ops::Range<u16>| config(&ports.map(|port| (port, BTreeMap::from([(port, "")]))).collect::<Plan>());
    merged(&mut registry, &services(1..1001), 0);
    let before = format!("{registry:?}");
    let one = |_: u16| 1;
    let error = registry.merge(&services(1001..1026), &one, 1000).unwrap_err().to_string();
    assert_eq!(
        error,
        "there are numbers for 1024 services, and those that were removed and still have connections use some of them; \
         reload again when these have ended, which `drain_limit` bounds, or configure fewer services"
    );
    assert_eq!(format!("{registry:?}"), before);
    registry.merge(&services(1001..1025), &one, 1000).unwrap();
    let backends = |ports: std::ops::Range<u16>| config(&Plan::from([(80, ports.map(|port| (port, "")).collect())]));
    let mut registry = Registry::default();
    merged(&mut registry, &backends(1..16_001), 0);
    let error = registry.merge(&backends(16_001..17_001), &one, 1000).unwrap_err().to_string();
    assert!(error.starts_with("there are numbers for 16384 backends, and those"), "{error}");
    let error = registry.merge(&backends(20_001..20_002), &no_connections, 1000);
    assert_eq!(numbers(&error.unwrap().snapshot)[&(80, 20_001)], (0, 16_000));
    // Now those before are long gone.
    let reused = merged(&mut registry, &backends(20_001..21_001), 2000);
    assert_eq!(reused.fresh_backends.len(), 1000 - 384);
}

#[test]
fn what_is_new_is_not_where_something_was_removed() {
    let old = config(&plan(&[(80, &[1]), (81, &[2])]));
    let one = |_: u16| 1;
    let refused = |new: &str| {
        let text = format!("interfaces = [\"a\"]\n{new}");
        let mut registry = Registry::default();
        merged(&mut registry, &old, 0);
        let new = config::parse("t", &text).unwrap_or_else(|problems| panic!("{problems}"));
        let error = registry.merge(&new, &one, 1000).unwrap_err().to_string();
        // Without connections there is nothing in the way.
        let neutral = "interfaces = [\"a\"]\n[[service]]\nlisten = \"10.0.4.1:9/tcp\"\nbackends = [\"10.0.4.2:80\"]\n";
        merged(&mut registry, &config::parse("t", neutral).unwrap(), 1000);
        merged(&mut registry, &new, 2000);
        error
    };
    let still = "connections of then may still be there; try again when they have ended, which `drain_limit` bounds";
    assert_eq!(
        refused("[[service]]\nname = \"x\"\nlisten = \"10.0.0.1:2/tcp\"\nbackends = [\"10.0.0.1:9\"]\n"),
        format!("service x listens where backend b2 was, which has been removed from service s81, and {still}")
    );
    assert_eq!(
        refused("[[service]]\nname = \"x\"\nlisten = \"10.0.0.1:9/tcp\"\nbackends = [\"192.0.2.1:80\"]\n"),
        format!("backend 192.0.2.1:80 of service x is where service s80 listened until it was removed, and {still}")
    );
    let service = "[[service]]\nlisten = \"10.0.3.1:9/tcp\"\nbackends = [\"10.0.3.2:80\"]\n";
    assert_eq!(
        refused(&format!("[pool]\naddresses = [\"10.0.0.1\"]\n{service}")),
        format!("pool address 10.0.0.1 is where backend b1 was, which has been removed from service s80, and {still}")
    );
    let mut registry = Registry::default();
    let high = config(&plan(&[(20_000, &[1])]));
    merged(&mut registry, &high, 0);
    let text = format!("interfaces = [\"a\"]\n[pool]\naddresses = [\"192.0.2.1\"]\n{service}");
    let error = registry.merge(&config::parse("t", &text).unwrap(), &one, 1000).unwrap_err().to_string();
    assert_eq!(error, format!("the pool has 192.0.2.1:20000, where service s20000 listened, and {still}"));
}

#[test]
fn only_enabled_backends_with_checks_are_checked() {
    let text = "interfaces = [\"a\"]\n[[service]]\nlisten = \"192.0.2.1:80/tcp\"\nhealth.check = \"tcp\"\n\
                backends = [\"10.0.0.1:1\"]\n[[service.backend]]\naddress = \"10.0.0.1:2\"\nstate = \"disabled\"\n\
                [[service]]\nlisten = \"192.0.2.1:81/tcp\"\nbackends = [\"10.0.0.1:1\"]\n\
                [[service]]\nlisten = \"192.0.2.1:82/tcp\"\nbackends = [\"10.0.0.1:1\"]\nhealth.passive = 3\n";
    let found = merged(&mut Registry::default(), &config::parse("t", text).unwrap(), 0);
    let checked: Vec<bool> = (0..5).map(|number| found.is_checked(number)).collect();
    assert_eq!(checked, [true, false, false, true, false]);
}
