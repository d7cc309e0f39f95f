//! `plane = "dpdk"`, `[dpdk]`, `[[dpdk.port]]`.

use super::{GOOD, warned};
#[cfg(feature = "dpdk")]
use super::{good, refuses};
#[cfg(feature = "dpdk")]
use hairpin::config::{IdleMode, Pages, PlaneChoice, PrefixedAddress, Probes};

/// Ports with these lines of their own (from line 4 on), and a service.
#[cfg(feature = "dpdk")]
fn with_port(top: &str, port: &str) -> String {
    format!(
        "plane = \"dpdk\"\n{top}\n[[dpdk.port]]\n{port}\n[[service]]\nlisten = \"192.0.2.1:80/tcp\"\nbackends = \
         [\"10.0.0.2:80\"]\n"
    )
}

#[cfg(feature = "dpdk")]
const PORT: &str = "device = \"net_af_packet0,iface=a\"\naddresses = [\"10.0.0.1/24\", \"fd00::1/64\"]";

#[test]
fn the_linux_plane_has_no_ports() {
    let text = GOOD.replace("[[service]]", "[dpdk]\nidle = \"poll\"\n[[service]]");
    assert_eq!(
        warned(&text),
        ["t.toml:2:1: warning: [dpdk] means nothing with `plane = \"linux\"`; write plane = \"dpdk\", or leave it out"]
    );
}

#[cfg(not(feature = "dpdk"))]
#[test]
fn a_program_without_dpdk_says_what_to_do() {
    let text = "plane = \"dpdk\"\n[[dpdk.port]]\ndevice = \"net_null0\"\naddresses = \"10.0.0.1/24\"\n[[service]]\n\
                listen = \"192.0.2.1:80/tcp\"\nbackends = [\"10.0.0.2:80\"]\n";
    super::refuses(
        text,
        "1:9: error: `plane` is \"dpdk\", which this Hairpin was built without; build it with DPDK (Debian: libdpdk-dev; \
         `cargo build --release -p hairpin --features dpdk`), or use plane = \"linux\"",
    );
}

#[cfg(feature = "dpdk")]
#[test]
fn a_port_gets_every_default() {
    let config = good(&with_port("", PORT));
    assert_eq!(config.warnings, []);
    let settings = &config.settings;
    assert_eq!((settings.plane, &*settings.interfaces), (PlaneChoice::Dpdk, &[][..]));
    assert_eq!(settings.devices(), ["net_af_packet0,iface=a"]);
    let dpdk = settings.dpdk.as_ref().unwrap();
    assert_eq!((dpdk.pages, dpdk.memory_mib, dpdk.mbufs), (Pages::Auto, 512, None));
    assert_eq!((dpdk.idle, dpdk.probes, &*dpdk.routes), (IdleMode::Sleep, Probes::None, &[][..]));
    let port = &dpdk.ports[0];
    let network = |address: &str, prefix| PrefixedAddress { address: address.parse().unwrap(), prefix };
    assert_eq!(port.addresses, [network("10.0.0.1", 24), network("fd00::1", 64)]);
    assert_eq!((port.mtu, port.queues, port.promiscuous, &*port.gateways), (1500, None, true, &[][..]));
    assert_eq!((port.rx_descriptors, port.tx_descriptors), (1024, 1024));
}

#[cfg(feature = "dpdk")]
#[test]
fn everything_arrives() {
    let text = with_port(
        "dpdk.memory = \"2 GiB\"\ndpdk.pages = \"none\"\ndpdk.idle = \"poll\"\ndpdk.mbufs = 4095\ndpdk.routes = \
         [\"10.9.0.0/16 via 10.0.0.254\", \"fd09::/16 via fd00::fe\"]",
        &format!("{PORT}\ngateway = [\"10.0.0.253\", \"fe80::1\"]\nmtu = 9000\nqueues = 2"),
    );
    let config = good(&text);
    let dpdk = config.settings.dpdk.unwrap();
    assert_eq!((dpdk.memory_mib, dpdk.mbufs, dpdk.pages, dpdk.idle), (2048, Some(4095), Pages::None, IdleMode::Poll));
    let routes: Vec<String> =
        dpdk.routes.iter().map(|route| format!("{} via {} on {}", route.network, route.gateway, route.port)).collect();
    assert_eq!(routes, ["10.9.0.0/16 via 10.0.0.254 on 0", "fd09::/16 via fd00::fe on 0"]);
    let port = &dpdk.ports[0];
    assert_eq!((port.mtu, port.queues, port.gateways.len()), (9000, Some(2), 2));
    for (address, reached) in [("10.9.1.1", true), ("8.8.8.8", true), ("2001:db8::1", true)] {
        assert_eq!(dpdk.reaches(address.parse().unwrap()), reached, "{address}");
    }
}

#[cfg(feature = "dpdk")]
#[test]
fn direct_services_need_a_neighbour_or_an_outer_header() {
    let direct = |port: &str, lines: &str| with_port("", port).replace(":8080", ":80") + "mode = \"dsr\"\n" + lines;
    good(&direct(PORT, ""));
    let routed = format!("{PORT}\ngateway = \"10.0.0.254\"");
    let far = |lines: &str| direct(&routed, lines).replace("10.0.0.2:", "10.9.0.2:");
    good(&far("encapsulation = \"gue\"\n"));
    refuses(
        &far(""),
        "9:13: error: backend 10.9.0.2 is behind a router, which would send the packets of dsr service \"192.0.2.1:80/tcp\" \
         back; give a [[dpdk.port]] an address of its network, or the service an `encapsulation`",
    );
}

#[cfg(feature = "dpdk")]
#[test]
fn mistakes_are_pointed_at() {
    let port = |line: &str| with_port("", line);
    let device = "device = \"net_null0\"\n";
    for (text, expected) in [
        (
            with_port("interfaces = [\"a\"]", PORT),
            "2:14: error: `interfaces` are the linux plane's; name ports, each in a [[dpdk.port]]",
        ),
        (
            with_port("dpdk.memory = \"2\"", PORT),
            "2:15: error: `memory` is \"2\"; write a number and its unit, such as \"512 MiB\" or \"2 GiB\"",
        ),
        (
            with_port("dpdk.memory = \"63 MiB\"", PORT),
            "2:15: error: `memory` is \"63 MiB\", out of range; use 64 MiB to 1024 GiB",
        ),
        (
            with_port("dpdk.routes = [\"10.9.0.0/16\"]", PORT),
            "2:16: error: route \"10.9.0.0/16\" names no gateway; write \"10.9.0.0/16 via 10.0.1.254\"",
        ),
        (
            with_port("dpdk.routes = [\"10.9.0.1/16 via 10.0.0.9\"]", PORT),
            "2:16: error: route \"10.9.0.1/16 via 10.0.0.9\" has bits behind its prefix; write 10.9.0.0/16",
        ),
        (
            with_port("dpdk.routes = [\"10.9.0.0/16 via 10.1.0.9\"]", PORT),
            "2:16: error: route \"10.9.0.0/16 via 10.1.0.9\" names a gateway that no port reaches; it must be a neighbour: name one in a network of a port's `addresses`",
        ),
        (
            port("device = \"eth1\"\naddresses = \"10.0.0.1/24\""),
            "4:10: error: `device` is \"eth1\"; an interface of the kernel's is \"net_af_packet0,iface=eth1\"; write a PCI address (\"0000:03:00.0\") or a virtual device (\"net_af_packet0,iface=eth1\")",
        ),
        (
            port(&format!("{device}addresses = \"10.0.0.1\"")),
            "5:13: error: port address \"10.0.0.1\" has no prefix; write \"10.0.0.1/24\" or \"fd00::1/64\"",
        ),
        (
            port(&format!("{device}addresses = \"10.0.0.0/24\"")),
            "5:13: error: port address \"10.0.0.0/24\" is the network's own or its broadcast address; name the port's",
        ),
        (
            port(&format!("{device}addresses = \"10.0.0.1/33\"")),
            "5:13: error: port address \"10.0.0.1/33\" has prefix 33; use 0 to 32",
        ),
        (
            port(&format!("{device}addresses = \"10.0.0.1/24\"\ngateway = \"10.0.1.1\"")),
            "6:11: error: gateway \"10.0.1.1\" is in no network of the port's `addresses`; it must be a neighbour: give the port an address of its network",
        ),
        (
            port(device.trim()),
            "3:1: error: `addresses` is missing in [[dpdk.port]]; add addresses = [\"10.0.0.1/24\", \"fd00::1/64\"]",
        ),
        (
            with_port(&format!("[[dpdk.port]]\n{PORT}"), "device = \"net_null0\"\naddresses = \"10.0.0.9/24\""),
            "7:13: error: the networks of 10.0.0.9/24 and 10.0.0.1/24, on two ports, overlap; give each port networks of its own",
        ),
        (
            with_port(
                &format!("[[dpdk.port]]\n{PORT}"),
                "device = \"net_af_packet0,iface=b\"\naddresses = \"10.1.0.9/24\"",
            ),
            "6:10: error: two ports are the device \"net_af_packet0\"; the other one is on line 2: name another (net_af_packet0, net_af_packet1, ...)",
        ),
        (
            port(&format!("{device}addresses = \"10.0.1.1/24\"")),
            "8:13: error: there is no way to backend 10.0.0.2:80; give a [[dpdk.port]] an address of its network or a `gateway`, or add one of `routes` in [dpdk]",
        ),
        (
            port(&format!("{device}addresses = \"10.0.0.2/24\"")),
            "8:13: error: backend 10.0.0.2:80 has a port's own address; name the server's",
        ),
    ] {
        refuses(&text, expected);
    }
    let none = "plane = \"dpdk\"\n[[service]]\nlisten = \"192.0.2.1:80/tcp\"\nbackends = [\"10.0.0.2:80\"]\n";
    refuses(none, "1:1: error: the dpdk plane has no port; add one: [[dpdk.port]] with `device` and `addresses`");
}

#[cfg(feature = "dpdk")]
#[test]
fn checks_need_a_way_past_the_ports() {
    let text = with_port("", PORT) + "health.check = \"tcp\"\n";
    let said = super::said(&text);
    assert_eq!(said.len(), 1);
    assert!(said[0].contains("service \"192.0.2.1:80/tcp\" checks its backends, which needs the kernel"), "{said:?}");
    assert!(said[0].contains("health = \"kernel\" in [dpdk]"), "{said:?}");
    assert_eq!(warned(&text.replace("\n\n[[dpdk", "\ndpdk.health = \"kernel\"\n[[dpdk")), [""; 0]);
    assert_eq!(warned(&(with_port("", PORT) + "health.passive = 3\n")), [""; 0]);
}

#[cfg(feature = "dpdk")]
#[test]
fn what_belongs_to_the_linux_plane_is_pointed_at() {
    let text = with_port("linux.tap_queue = 64\noffload.policy = \"always\"", PORT);
    let warned = warned(&text);
    assert_eq!(warned.len(), 1);
    assert!(warned[0].contains("[linux] means nothing with `plane = \"dpdk\"`"), "{warned:?}");
    assert_eq!(super::warned(&with_port("offload.policy = \"never\"", PORT)), [""; 0]);
}

#[cfg(feature = "dpdk")]
#[test]
fn https_services_need_the_kernels_sockets() {
    let text = with_port("", PORT).replace("80/tcp\"", "443/https\"\nname = \"shop\"\nhttps.certificates = \"/tls\"");
    refuses(
        &text,
        "7:10: error: service \"shop\" is https, whose connections end at the kernel's sockets, and the kernel does not own the \
         ports of the dpdk plane; write plane = \"linux\", or pass TLS through to the backends: protocol = \"tls\"",
    );
}
