use super::super::facts::{HostAddress, Socket};
use super::*;
use crate::config;

const TEXT: &str = r#"
interfaces = ["eth0", "eth1"]
[pool]
addresses = ["10.0.1.9", "fd00:1::9"]
[[service]]
name = "web"
listen = "192.0.2.1:80/tcp"
mode = "full-nat"
backends = ["10.0.1.2:8080"]
[[service]]
name = "web6"
listen = "[fd00::5]:80/tcp"
mode = "full-nat"
backends = ["[fd00:1::2]:8080"]
[[service]]
name = "dns"
listen = "192.0.2.1:53/udp"
[[service.backend]]
name = "one"
address = "10.0.3.2:53"
[[service.backend]]
name = "off"
address = "10.0.4.2:53"
state = "disabled"
"#;

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn held(interface: &str, text: &str) -> HostAddress {
    let (own, prefix) = text.split_once('/').unwrap();
    HostAddress { interface: interface.into(), address: address(own), prefix: prefix.parse().unwrap() }
}

fn out(interface: &str, gateway: Option<&str>) -> LocalRoute {
    LocalRoute::Out { interface: interface.into(), gateway: gateway.map(address) }
}

/// A machine on which all is as it should be.
fn good() -> HostFacts {
    let routes = [
        ("192.0.2.1", LocalRoute::Local),
        ("fd00::5", LocalRoute::Local),
        ("10.0.1.2", out("eth1", None)),
        ("fd00:1::2", out("eth1", None)),
        ("10.0.3.2", out("eth1", Some("10.0.1.254"))),
    ];
    HostFacts {
        links: ["eth0", "eth1"].map(|name| (name.to_string(), ConfiguredLink::Good)).into(),
        held: vec![
            held("eth0", "192.0.2.254/24"),
            held("eth0", "192.0.2.1/32"),
            held("eth0", "fd00::1/64"),
            held("eth0", "fd00::5/128"),
            held("eth1", "10.0.1.1/24"),
            held("eth1", "10.0.1.9/32"),
            held("eth1", "fd00:1::1/64"),
            held("eth1", "fd00:1::9/128"),
        ],
        routes: routes.into_iter().map(|(to, route)| (address(to), route)).collect(),
        ..HostFacts::default()
    }
}

/// Findings on a machine that differs from the good one.
fn found(change: impl FnOnce(&mut HostFacts)) -> Vec<String> {
    let config = config::parse("test", TEXT).unwrap();
    let mut facts = good();
    change(&mut facts);
    let findings = judge(&config.settings.interfaces, &Services::of(&config.snapshot), &facts);
    findings.iter().map(|finding| format!("{:?}: {finding}", finding.severity)).collect()
}

fn moved(facts: &mut HostFacts, what: &str, to: &str) {
    facts.held.iter_mut().filter(|held| held.address == address(what)).for_each(|held| held.interface = to.into());
}

/// The only finding, which has all of these words.
#[track_caller]
fn assert_one(found: &[String], words: &[&str]) {
    assert_eq!(found.len(), 1, "{found:#?}");
    for word in words {
        assert!(found[0].contains(word), "no {word:?} in {}", found[0]);
    }
}

#[test]
fn nothing_is_found_where_all_is_well() {
    assert_eq!(found(|_| {}), [""; 0]);
}

#[test]
fn sockets_reach_backends_by_any_route() {
    let text = |protocol: &str| {
        format!(
            "interfaces = [\"eth0\"]\npool.addresses = [\"10.0.9.9\"]\n[[service]]\nname = \"s\"\nlisten = \
             \"192.0.2.1:443/{protocol}\"\n{}[[service.group]]\nname = \"g\"\nbackends = [\"10.0.1.2:80\", \
             \"10.0.3.2:80\"]\n[[service.route]]\ngroup = \"g\"\n",
            if protocol == "https" { "https.certificates = \"/c\"\n" } else { "" }
        )
    };
    let found = |protocol: &str, route: LocalRoute| {
        let config = config::parse("test", &text(protocol)).unwrap();
        let mut facts = good();
        facts.routes.insert(address("10.0.1.2"), LocalRoute::Local);
        facts.routes.insert(address("10.0.3.2"), route);
        facts.sockets.push(Socket {
            is_udp: false,
            address: address("0.0.0.0"),
            port: 443,
            takes_ipv4: true,
            interface: None,
            process: "process 7 (nginx)".into(),
        });
        judge(&config.settings.interfaces, &Services::of(&config.snapshot), &facts).len()
    };
    assert_eq!(found("http", out("eth1", None)), 3, "two backends, and the socket");
    assert_eq!(found("https", out("eth1", None)), 0);
    assert_eq!(found("https", LocalRoute::None("unreachable".into())), 1);
}

#[test]
fn interfaces_must_be_there_and_have_a_link() {
    for (link, words) in [
        (ConfiguredLink::Missing("there is no interface eth1; there are eth0".into()), "there is no interface eth1"),
        (ConfiguredLink::NotEthernet, "not Ethernet"),
        (ConfiguredLink::Down, "ip link set dev eth1 up"),
        (ConfiguredLink::Unlinked, "no link"),
    ] {
        assert_one(&found(|facts| facts.links[1].1 = link), &["Error: interface eth1: ", words]);
    }
}

#[test]
fn vip_without_owner_is_reported_with_its_place() {
    let none = |vip: &str, facts: &mut HostFacts| {
        facts.held.retain(|held| held.address != address(vip));
        facts.routes.insert(address(vip), out("eth0", None));
    };
    let near = found(|facts| none("192.0.2.1", facts));
    assert_one(&near, &["Warning: VIP 192.0.2.1 (services web, dns): no interface", "ARP", "192.0.2.1/32 dev eth0"]);
    let far = found(|facts| {
        none("192.0.2.1", facts);
        moved(facts, "192.0.2.254", "eth9");
    });
    assert_one(&far, &["Warning: VIP 192.0.2.1", "by a route of another machine"]);
    let proxied = found(|facts| {
        none("fd00::5", facts);
        facts.proxies.push(("eth0".into(), address("fd00::5")));
    });
    assert_eq!(proxied, [""; 0]);
}

#[test]
fn a_vip_on_loopback_is_not_found_by_ipv6_neighbours() {
    assert_one(
        &found(|facts| moved(facts, "fd00::5", "lo")),
        &["Warning: VIP fd00::5 (service web6): it is on lo", "eth0's own", "ip -6 neigh add proxy fd00::5 dev eth0"],
    );
    assert_eq!(found(|facts| moved(facts, "192.0.2.1", "lo")), [""; 0], "the kernel answers ARP for it");
    let words = ["arp_ignore", "192.0.2.1/32 dev eth0"];
    let silent = found(|facts| {
        moved(facts, "192.0.2.1", "lo");
        facts.arp_own.insert("eth0".into());
    });
    assert_one(&silent, &words);
}

#[test]
fn a_pool_address_is_answered_for_at_the_backends() {
    let lo = |facts: &mut HostFacts| moved(facts, "fd00:1::9", "lo");
    let words = [
        "Error: pool address fd00:1::9: it is on lo: backend fd00:1::2 on the network of eth1",
        "IPv6 neighbour solicitation",
        "full NAT times out",
        "ip address add fd00:1::9/128 dev eth1",
        "ip -6 neigh add proxy fd00:1::9 dev eth1",
    ];
    assert_one(&found(lo), &words);
    let proxied = |name: &str| {
        found(|facts| {
            lo(facts);
            facts.proxies.push((name.into(), address("fd00:1::9")));
        })
    };
    assert_eq!(proxied("eth1"), [""; 0]);
    assert_one(&proxied("eth0"), &["pool address"]);
    let by_router = |router: &str| {
        found(|facts| {
            lo(facts);
            facts.routes.insert(address("fd00:1::2"), out("eth1", Some(router)));
        })
    };
    assert_one(&by_router("fe80::7"), &["router fe80::7 (to backend fd00:1::2)"]);
    assert_eq!(by_router("fd00:8::7"), [""; 0], "the router is on another network of this interface");
    assert_eq!(found(|facts| moved(facts, "10.0.1.9", "lo")), [""; 0], "the kernel answers ARP for it");
    let nowhere = found(|facts| facts.held.retain(|held| held.address != address("10.0.1.9")));
    assert_one(&nowhere, &["Error: pool address 10.0.1.9: no interface of this host has it"]);
    let off_link = found(|facts| {
        lo(facts);
        moved(facts, "fd00:1::1", "eth9");
    });
    assert_eq!(off_link, [""; 0], "backends send it to a router");
}

#[test]
fn a_backend_is_reached_by_one_of_the_interfaces() {
    for (route, words) in [
        (out("eth9", None), "add \"eth9\" to `interfaces`"),
        (LocalRoute::Local, "an address of this host"),
        (LocalRoute::None("Network is unreachable (os error 101)".into()), "no route to it (Network is unreachable"),
    ] {
        let found = found(|facts| drop(facts.routes.insert(address("10.0.3.2"), route)));
        assert_one(&found, &["Error: backend 10.0.3.2 (dns/one): ", words]);
    }
}

#[test]
fn sockets_where_a_service_listens_are_named() {
    let socket = |is_udp, end: &str, takes_ipv4| {
        let end: SocketAddr = end.parse().unwrap();
        let (interface, process) = (None, "process 7 (nginx)".to_string());
        Socket { is_udp, address: end.ip(), port: end.port(), takes_ipv4, interface, process }
    };
    for (is_udp, end, takes_ipv4, service) in [
        (false, "192.0.2.1:80", true, "web"),
        (false, "[fd00::5]:80", false, "web6"),
        (false, "[::]:80", false, "web6"),
        (false, "0.0.0.0:80", true, "web"),
        (true, "[::]:53", true, "dns"),
    ] {
        // Of each process of a program one.
        let found = found(|facts| facts.sockets = vec![socket(is_udp, end, takes_ipv4); 2]);
        assert_one(&found, &[&format!("Warning: service {service}: process 7 (nginx) listens on {end}/")]);
    }
    assert_eq!(found(|facts| facts.sockets = vec![socket(false, "[::]:80", true)]).len(), 2, "of both families");
    for (is_udp, end) in [(true, "0.0.0.0:80"), (false, "192.0.2.1:81"), (false, "192.0.2.2:80"), (true, "[::]:53")] {
        assert_eq!(found(|facts| facts.sockets = vec![socket(is_udp, end, false)]), [""; 0], "{end}");
    }
    let elsewhere = |facts: &mut HostFacts| {
        let bound = Socket { interface: Some("eth9".into()), ..socket(false, "0.0.0.0:80", true) };
        facts.sockets = vec![bound];
    };
    assert_eq!(found(elsewhere), [""; 0]);
}

#[test]
fn prefixes_are_compared_by_their_bits() {
    let within = |one, other, prefix| is_within(address(one), address(other), prefix);
    assert!(within("10.0.1.255", "10.0.1.1", 24) && !within("10.0.2.1", "10.0.1.1", 24));
    assert!(within("10.0.1.1", "10.0.1.1", 32) && !within("10.0.1.0", "10.0.1.1", 32));
    assert!(within("9.9.9.9", "10.0.1.1", 0) && within("fd00::", "2001:db8::", 0));
    assert!(within("fd00:1::9", "fd00:1::1", 64) && !within("fd00:2::9", "fd00:1::1", 64));
    assert!(!within("10.0.1.1", "::ffff:10.0.1.1", 0));
}
