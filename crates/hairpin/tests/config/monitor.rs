//! `[[monitor]]`: what it may say, and what goes with it.

use super::{GOOD, good, said, with};
use hairpin::monitor::{CollectorEnd, MonitorField, MonitorSettings};
use std::time::Duration;

/// A file with a monitor on eth0 and these lines in it, from line 4 on.
fn monitor(lines: &str) -> String {
    with(&format!("[[monitor]]\nname = \"edge\"\n{lines}"))
}

fn read(lines: &str) -> MonitorSettings {
    let all = good(&monitor(&format!("{lines}\ninterfaces = [\"eth0\"]"))).settings.monitors;
    let [settings] = &all[..] else { panic!("{all:?}") };
    settings.clone()
}

/// Asserts that this line is refused so.
#[track_caller]
fn refuses(line: &str, expected: &str) {
    let said = said(&monitor(&format!("{line}\ninterfaces = [\"eth0\"]")));
    assert!(said.len() == 1 && said[0].starts_with("t.toml:4:") && said[0].contains(expected), "{said:#?}");
}

#[test]
fn name_and_interfaces_are_enough() {
    assert!(good(GOOD).settings.monitors.is_empty());
    let settings = read("");
    assert_eq!((&*settings.name, &settings.interfaces[..]), ("edge", &["eth0".to_string()][..]));
    assert_eq!((settings.active_timeout, settings.idle_timeout), (Duration::from_secs(60), Duration::from_secs(15)));
    assert_eq!((settings.flows_max, settings.observation_domain, settings.top), (65_536, 1, 20));
    assert_eq!(settings.fields, [MonitorField::Flags, MonitorField::RoundTrip, MonitorField::Resent]);
    assert!(settings.filter.handshake && settings.filter.resent);
    assert!(
        settings.filter.networks.is_empty() && settings.filter.ports.is_empty() && settings.filter.protocols.is_empty()
    );
    assert!(settings.collector.is_none() && settings.file.is_none());
    for missing in ["name = \"edge\"", "interfaces = [\"eth0\"]"] {
        let said = said(&with(&format!("[[monitor]]\n{missing}")));
        assert!(said.len() == 1 && said[0].contains("is missing in [[monitor]]"), "{said:?}");
    }
}

#[test]
fn everything_can_be_said() {
    let settings = read(
        "networks = [\"10.0.0.0/8\", \"2001:db8::1\"]\nports = [\"443\", \"8000-8999\"]\nprotocols = [\"tcp\", \"47\"]\n\
         fields = [\"flags\"]\nactive_timeout = \"5m\"\nflows_max = 16\ncollector = \"tcp:[2001:db8::5]:4739\"\n\
         file = \"stdout\"\ntop = 0\nobservation_domain = 4294967295",
    );
    let filter = &settings.filter;
    assert_eq!(filter.networks.iter().map(|network| network.prefix).collect::<Vec<_>>(), [104, 128]);
    assert_eq!((&filter.ports[..], &filter.protocols[..]), (&[443..=443, 8000..=8999][..], &[6, 47][..]));
    assert!(!filter.handshake && !filter.resent, "what is not reported is not looked at");
    assert_eq!(settings.collector, Some(CollectorEnd::Tcp("[2001:db8::5]:4739".parse().unwrap())));
    assert_eq!((settings.top, settings.observation_domain), (0, u32::MAX));
}

#[test]
fn mistakes_are_told() {
    refuses("networks = [\"10.0.0.1/8\"]", "`networks` has \"10.0.0.1/8\"");
    refuses("ports = [\"9-8\"]", "`ports` has \"9-8\"");
    refuses("ports = \"http\"", "`ports` has \"http\"");
    refuses("protocols = [\"sctp\"]", "`protocols` has \"sctp\"");
    refuses("fields = [\"flag\"]", "did you mean \"flags\"?");
    refuses("fields = [\"flags\", \"flags\"]", "twice");
    refuses("collector = \"10.0.0.5:4739\"", "`collector`");
    refuses("file = \"syslog\"", "`file` is \"syslog\"");
    refuses("flows_max = 15", "flows_max");
    refuses("idle_timeout = \"10ms\"", "idle_timeout");
    let two = |first: &str, second: &str| said(&with(&format!("[[monitor]]\n{first}\n[[monitor]]\n{second}")));
    let said = two("name = \"a\"\ninterfaces = [\"eth0\"]", "name = \"a\"\ninterfaces = [\"eth0\"]");
    assert!(
        said.len() == 2 && said[0].contains("two monitors are called \"a\"") && said[1].contains("named twice"),
        "{said:?}"
    );
}

#[test]
fn monitor_goes_without_services_and_not_with_xdp() {
    let alone = "[[monitor]]\nname = \"edge\"\ninterfaces = [\"eth0\"]\n";
    let config = good(alone);
    assert!(config.settings.interfaces.is_empty() && config.snapshot.services.is_empty());
    assert!(said("").iter().any(|said| said.contains("there is no service")));
    let said = said(&format!("{alone}[linux]\nattach = \"xdp\""));
    assert!(said.len() == 1 && said[0].contains("XDP"), "{said:?}");
}
