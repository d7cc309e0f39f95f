//! Numbers that stay, and what was changed by hand.

use hairpin::config::{self, Config};
use hairpin::control::{BackendAction, BackendChange};
use hairpin::registry::{KEPT_S, Merged, Registry};
use hairpin_core::config::{BackendState, ServiceState, Snapshot};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

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

fn nobody(_: u16) -> u64 {
    0
}

fn merged(registry: &mut Registry, config: &Config, now_unix_s: u64) -> Merged {
    registry.merge(config, &nobody, now_unix_s).unwrap()
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
    let text = "interfaces = [\"a\"]\n[pool]\naddresses = [\"10.0.9.1\"]\n[[service]]\nname = \"x\"\nmode = \"full-nat\"\n\
                listen = \"192.0.2.1:80/tcp\"\n[[service.backend]]\naddress = \"10.0.0.1:2\"\nname = \"y\"\nweight = 9\n";
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
    assert!(!registry.frees_now(&one, 1_000_000) && registry.frees_now(&nobody, 1_000_000));
    let gone = merged(&mut registry, &new, 1_000_000);
    let gone_state = state(&gone, 0);
    assert_eq!(gone.snapshot.services[0].state, ServiceState::Vacant);
    assert_eq!((gone.freed_services, gone.freed_backends, gone_state), (vec![0], vec![0], None));
    assert!(!registry.frees_now(&nobody, 2_000_000));
}

#[test]
fn counts_are_not_trusted_at_once() {
    let mut registry = Registry::default();
    merged(&mut registry, &config(&plan(&[(80, &[1, 2])])), 1000);
    let without = config(&plan(&[(80, &[1])]));
    for now in [1000, 1000 + KEPT_S - 1, 500] {
        // The clock may go back as well.
        assert!(!registry.frees_now(&nobody, now));
        assert_eq!(state(&merged(&mut registry, &without, now), 1), Some((BackendState::Removed, 1)), "{now}");
    }
    assert!(registry.frees_now(&nobody, 1000 + KEPT_S));
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
fn too_few_numbers_refuse_the_configuration_and_change_nothing() {
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
    let error = registry.merge(&backends(20_001..20_002), &nobody, 1000);
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
fn a_change_by_hand_holds_until_it_is_taken_back() {
    let mut registry = Registry::default();
    let file = config(&plan(&[(80, &[1, 2])]));
    merged(&mut registry, &file, 0);
    let set = |registry: &mut Registry, backend: &str, action| {
        registry.set(&change("s80", backend, action), &file).unwrap_or_else(|error| format!("error: {error:#}"))
    };
    let until = "this holds until it is reset, or the configuration says something else about it";
    assert_eq!(
        set(&mut registry, "b2", BackendAction::Drain),
        format!(
            "service s80: backend b2: enabled, weight 1 -> drain, weight 1; its connections go on for up to 1h; {until}"
        )
    );
    assert!(registry.by_hand(1) && !registry.by_hand(0) && !registry.by_hand(9));
    let place = Place::new("by-hand");
    registry.save(&place.file()).unwrap();
    let mut registry = Registry::load(&place.file()).unwrap();
    assert_eq!(state(&merged(&mut registry, &file, 7), 1), Some((BackendState::Draining, 1)));
    assert_eq!(registry.draining_since(1), Some(7));
    assert_eq!(
        set(&mut registry, "b2", BackendAction::Drain),
        "service s80: backend b2 is so already: drain, weight 1"
    );
    assert_eq!(
        set(&mut registry, "10.0.0.1:2", BackendAction::Weight(4)),
        format!("service s80: backend b2: drain, weight 1 -> drain, weight 4; round-robin ignores weights; {until}")
    );
    assert_eq!(state(&merged(&mut registry, &file, 8), 1), Some((BackendState::Draining, 4)));
    assert_eq!(
        set(&mut registry, "b2", BackendAction::Disable),
        format!("service s80: backend b2: drain, weight 4 -> disabled, weight 4; its connections are ended; {until}")
    );
    assert_eq!(state(&merged(&mut registry, &file, 9), 1), Some((BackendState::Disabled, 4)));
    assert_eq!(registry.draining_since(1), None);
    // The configuration says the same again: only the weight is by hand now.
    assert_eq!(
        set(&mut registry, "b2", BackendAction::Enable),
        format!("service s80: backend b2: disabled, weight 4 -> enabled, weight 4; {until}")
    );
    assert!(registry.by_hand(1));
    merged(&mut registry, &file, 10);
    assert_eq!(
        set(&mut registry, "b2", BackendAction::Weight(1)),
        "service s80: backend b2: enabled, weight 4 -> enabled, weight 1; round-robin ignores weights; that is what \
         the configuration says"
    );
    assert!(!registry.by_hand(1));
    merged(&mut registry, &file, 11);
    set(&mut registry, "b1", BackendAction::Disable);
    merged(&mut registry, &file, 12);
    assert_eq!(
        set(&mut registry, "b1", BackendAction::Reset),
        "service s80: backend b1 is as the configuration says again: enabled, weight 1"
    );
    assert_eq!(state(&merged(&mut registry, &file, 13), 0), Some((BackendState::Enabled, 1)));
    assert_eq!(
        set(&mut registry, "b1", BackendAction::Reset),
        "service s80: backend b1 is as the configuration says already: enabled, weight 1"
    );
}

#[test]
fn a_change_by_hand_ends_when_the_configuration_says_something_else() {
    let with = |text: &'static str| config(&Plan::from([(80, BTreeMap::from([(1, text), (2, "")]))]));
    let mut registry = Registry::default();
    merged(&mut registry, &with("weight = 2"), 0);
    registry.set(&change("s80", "b1", BackendAction::Drain), &with("weight = 2")).unwrap();
    // Something else about another backend does not end it.
    let other = config(&plan(&[(80, &[1, 2, 3])]));
    let mut elsewhere = registry.clone();
    assert!(merged(&mut registry, &with("weight = 2"), 1).notes.is_empty());
    assert!(registry.by_hand(0));
    let ended = merged(&mut elsewhere, &other, 1);
    assert_eq!(state(&ended, 0), Some((BackendState::Enabled, 1)));
    assert_eq!(
        ended.notes,
        [
            "service s80: backend b1 is as the configuration says again (enabled, weight 1); what was changed by hand is \
          over"
        ]
    );
    assert!(!elsewhere.by_hand(0));
    // Nor does it outlive a removal.
    merged(&mut registry, &config(&plan(&[(80, &[2])])), 2);
    assert!(!registry.by_hand(0));
    assert_eq!(state(&merged(&mut registry, &with("weight = 2"), 3), 0), Some((BackendState::Enabled, 2)));
}

#[test]
fn unknown_names_name_the_nearest() {
    let mut registry = Registry::default();
    let file = config(&plan(&[(80, &[1, 2]), (8080, &[3])]));
    let mut said = |service: &str, backend: &str| {
        registry.set(&change(service, backend, BackendAction::Drain), &file).unwrap_err().to_string()
    };
    assert_eq!(said("s8008", "b1"), "there is no service \"s8008\"; did you mean s8080?");
    assert_eq!(said("mail", "b1"), "there is no service \"mail\"; there are: s80, s8080");
    assert_eq!(said("s80", "c1"), "service s80 has no backend \"c1\"; did you mean b1?");
    assert_eq!(said("s80", "10.0.0.1:3"), "service s80 has no backend \"10.0.0.1:3\"; there are: b1, b2");
    assert_eq!(said("s80", "b1"), "backend b1 of service s80 has no number yet; reload first");
}

#[test]
fn whose_health_is_looked_after() {
    let text = "interfaces = [\"a\"]\n[[service]]\nlisten = \"192.0.2.1:80/tcp\"\nhealth.check = \"tcp\"\n\
                backends = [\"10.0.0.1:1\"]\n[[service.backend]]\naddress = \"10.0.0.1:2\"\nstate = \"disabled\"\n\
                [[service]]\nlisten = \"192.0.2.1:81/tcp\"\nbackends = [\"10.0.0.1:1\"]\n\
                [[service]]\nlisten = \"192.0.2.1:82/tcp\"\nbackends = [\"10.0.0.1:1\"]\nhealth.passive = 3\n";
    let found = merged(&mut Registry::default(), &config::parse("t", text).unwrap(), 0);
    let checked: Vec<bool> = (0..5).map(|number| found.is_checked(number)).collect();
    assert_eq!(checked, [true, false, false, true, false]);
}

#[test]
fn the_file_is_whole_and_for_root_only() {
    let place = Place::new("file");
    assert_eq!(format!("{:?}", Registry::load(&place.file()).unwrap()), format!("{:?}", Registry::default()));
    let mut registry = Registry::default();
    merged(&mut registry, &config(&plan(&[(80, &[1])])), 0);
    // What a process that died while it wrote has left is no hindrance.
    std::fs::write(place.0.join("default.numbers.new"), "{").unwrap();
    registry.save(&place.file()).unwrap();
    let mode = std::fs::metadata(place.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    assert_eq!(std::fs::read_dir(&place.0).unwrap().count(), 1);
    registry.set(&change("s80", "b1", BackendAction::Drain), &config(&plan(&[(80, &[1])]))).unwrap();
    registry.save(&place.file()).unwrap();
    assert!(Registry::load(&place.file()).unwrap().by_hand(0));
    let nowhere = place.0.join("none/x.numbers");
    assert!(format!("{:#}", registry.save(&nowhere).unwrap_err()).starts_with("cannot write "));
}

#[test]
fn a_file_that_is_not_right_is_refused() {
    let place = Place::new("nonsense");
    let mut registry = Registry::default();
    merged(&mut registry, &config(&plan(&[(80, &[1, 2]), (81, &[1])])), 0);
    registry.save(&place.file()).unwrap();
    let good = std::fs::read_to_string(place.file()).unwrap();
    let refused = |text: &str| {
        assert_ne!(text, good);
        std::fs::write(place.file(), text).unwrap();
        let error = format!("{:#}", Registry::load(&place.file()).unwrap_err());
        let remedy = format!(
            "cannot use {}, which says to what service and backend connections belong; run the version of Hairpin that \
             has written it, or give those connections up: hairpin run --discard: ",
            place.file().display()
        );
        error.strip_prefix(&remedy).unwrap_or_else(|| panic!("{error}")).to_string()
    };
    refused("");
    refused(&good[..good.len() / 2]);
    assert_eq!(refused("{\"version\":2}"), "it has form 2, this version of Hairpin knows form 1");
    assert!(refused(&good.replace("\"tcp\"", "\"sctp\"")).starts_with("\"sctp\" is none of the words for this"));
    assert!(refused(&good.replace("10.0.0.1:2", "10.0.0.1:x")).starts_with("invalid socket address syntax"));
    assert_eq!(refused(&good.replace("10.0.0.1:2", "10.0.0.1:1")), "backend 1 (b2) is in service s80 twice");
    assert_eq!(
        refused(&good.replace("10.0.0.1:2", "[fd00::1]:2")),
        "backend 1 (b2) is of another address family than its service"
    );
    assert_eq!(refused(&good.replace("192.0.2.1:81", "192.0.2.1:80")), "service 1 (s81) is in it twice");
    assert_eq!(
        refused(&good.replace("{\"service\":1", "{\"service\":7")),
        "backend 2 (b1) belongs to service 7, which it lacks"
    );
    assert_eq!(
        refused(&good.replace("\"backends_used\":3", "\"backends_used\":2")),
        "it has numbers beyond those it counts"
    );
    assert_eq!(
        refused(&good.replace("\"services_used\":2", "\"services_used\":1025")),
        "it counts more numbers than there are"
    );
    assert_eq!(refused(&format!("{good}{}", " ".repeat(16 << 20))), "it has more than 16777216 bytes");
}

/// What a drawn life does next.
#[derive(Clone, Debug)]
enum Step {
    /// Services (80 to 83) and backends (1 to 4) of a configuration, as bits, four for each service.
    Configure(u16),
    /// Backends that have connections from now on, as bits like above; those of backends that take none only end.
    Connect(u16),
    /// Seconds pass.
    Wait(u64),
    /// The process is restarted.
    Restart,
    /// A backend is changed by hand, named like a bit.
    ByHand(u8, BackendAction),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let action = prop_oneof![
        Just(BackendAction::Enable),
        Just(BackendAction::Drain),
        Just(BackendAction::Disable),
        (0..3u16).prop_map(BackendAction::Weight),
        Just(BackendAction::Reset),
    ];
    let step = prop_oneof![
        4 => any::<u16>().prop_map(Step::Configure),
        3 => any::<u16>().prop_map(Step::Connect),
        2 => (0..100u64).prop_map(Step::Wait),
        1 => Just(Step::Restart),
        2 => (0..16u8, action).prop_map(|(bit, action)| Step::ByHand(bit, action)),
    ];
    proptest::collection::vec(step, 1..60)
}

/// A service's and a backend's port.
fn ends(bit: u16) -> (u16, u16) {
    (80 + bit / 4, 1 + bit % 4)
}

fn of_bits(bits: u16) -> Option<Plan> {
    let mut plan = Plan::new();
    for (service, backend) in (0..16).filter(|bit| bits & (1 << bit) != 0).map(ends) {
        plan.entry(service).or_default().insert(backend, "");
    }
    (!plan.is_empty()).then_some(plan)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Over any life: numbers are unique, stay as long as they are needed, are never somebody else's before they are
    /// freed, and nothing stays that nobody needs.
    #[test]
    fn numbers_are_kept_over_any_life(steps in steps()) {
        let place = Place::new("life");
        let mut registry = Registry::default();
        let mut file = config(&plan(&[(80, &[1])]));
        let mut wanted = plan(&[(80, &[1])]);
        let mut connected: BTreeSet<(u16, u16)> = BTreeSet::new();
        let mut known: BTreeMap<(u16, u16), (u16, u16)> = BTreeMap::new();
        let mut had: BTreeSet<u16> = BTreeSet::new();
        let mut now = 1_000;
        for step in steps {
            match step {
                Step::Configure(bits) => if let Some(plan) = of_bits(bits) {
                    file = config(&plan);
                    wanted = plan;
                },
                Step::Connect(bits) => {
                    let chosen: BTreeSet<_> = (0..16).filter(|bit| bits & (1 << bit) != 0).map(ends).collect();
                    connected = known.keys().copied().filter(|end| chosen.contains(end)).collect();
                }
                Step::Wait(seconds) => now += seconds,
                Step::Restart => {
                    registry.save(&place.file()).unwrap();
                    let loaded = Registry::load(&place.file()).unwrap();
                    prop_assert_eq!(format!("{loaded:?}"), format!("{registry:?}"));
                    registry = loaded;
                }
                Step::ByHand(bit, action) => {
                    let (service, backend) = ends(bit.into());
                    let change = change(&format!("s{service}"), &format!("b{backend}"), action);
                    let is_known = known.contains_key(&(service, backend));
                    let is_there = wanted.get(&service).is_some_and(|backends| backends.contains_key(&backend));
                    prop_assert_eq!(registry.set(&change, &file).is_ok(), is_known && is_there);
                }
            }
            let busy: BTreeSet<u16> = connected.iter().map(|end| known[end].1).collect();
            let counts = |number: u16| u64::from(busy.contains(&number));
            let merged = registry.merge(&file, &counts, now).unwrap();
            let found = numbers(&merged.snapshot);
            let unique: BTreeSet<u16> = found.values().map(|(_, number)| *number).collect();
            prop_assert_eq!(unique.len(), found.len());
            for (end, number) in &found {
                // As before, or new and nobody's before.
                match known.get(end) {
                    Some(before) if !merged.freed_backends.contains(&before.1) => prop_assert_eq!(before, number),
                    _ => prop_assert!(!had.contains(&number.1)),
                }
                let (service, backend) = merged.snapshot.backend(number.1).unwrap();
                let configured = wanted.get(&end.0).is_some_and(|backends| backends.contains_key(&end.1));
                prop_assert_eq!(configured, backend.state != BackendState::Removed);
                prop_assert_eq!(wanted.contains_key(&end.0), service.state == ServiceState::Active);
                prop_assert_eq!(wanted.contains_key(&end.0), merged.settings[usize::from(number.0)].is_some());
            }
            let lost = |end: &(u16, u16)| !found.contains_key(end);
            prop_assert!(!connected.iter().any(lost), "a backend with connections has lost its number");
            let configured = || wanted.iter().flat_map(|(s, backends)| backends.keys().map(move |b| (*s, *b)));
            prop_assert!(!configured().any(|end| lost(&end)));
            for end in known.keys().filter(|end| lost(end)) {
                prop_assert!(merged.freed_backends.contains(&known[end].1));
            }
            had.extend(unique);
            known = found;
        }
        // In the end nothing is left but what is configured.
        registry.merge(&file, &nobody, now + KEPT_S).unwrap();
        let last = registry.merge(&file, &nobody, now + KEPT_S).unwrap();
        let left: BTreeSet<(u16, u16)> = numbers(&last.snapshot).into_keys().collect();
        let configured = wanted.iter().flat_map(|(s, backends)| backends.keys().map(move |b| (*s, *b)));
        prop_assert_eq!(left, configured.collect());
        prop_assert!(!registry.frees_now(&nobody, u64::MAX));
    }
}
