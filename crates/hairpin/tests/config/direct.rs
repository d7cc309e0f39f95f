//! `mode = "dsr"`: backends answer clients themselves.

use super::{GOOD, good, refuses, said, with};
use hairpin_core::config::{Encapsulation, Forwarding, Outer};
use hairpin_core::flow::Address;

/// The service with these lines.
fn direct(lines: &str) -> String {
    GOOD.to_string() + "mode = \"dsr\"\n" + lines
}

#[test]
fn direct_services_check_by_the_vip() {
    let config = good(&direct("[service.health]\ncheck = \"http\"\npath = \"/\"\nport = 8080\n"));
    let service = &config.snapshot.services[0];
    assert_eq!(service.forwarding, Forwarding::Direct);
    assert_eq!(config.warnings, []);
    let health = &config.services[0].health;
    assert!(health.target(service, &service.backends[0]).direct);
    let other = good(GOOD);
    assert!(!health.target(&other.snapshot.services[0], &other.snapshot.services[0].backends[0]).direct);
}

#[test]
fn direct_backends_have_the_services_port() {
    refuses(
        &direct("").replace("10.0.0.1:80", "10.0.0.1:8080"),
        "4:13: error: backend 10.0.0.1:8080 has another port than service \"192.0.2.1:80/tcp\", which is dsr: packets \
         reach it with the service's; have it listen on port 80",
    );
}

#[test]
fn direct_services_see_no_failing_connections() {
    refuses(
        &direct("[service.health]\npassive = 3\n"),
        "7:11: error: service \"192.0.2.1:80/tcp\" counts clients' connections that fail, but it is dsr, and what backends \
         answer does not pass here; leave `passive` out, and use `check`",
    );
}

#[test]
fn direct_services_need_tracked_connections() {
    let head = "connection_table = \"stateless\"\n[offload]\npolicy = \"never\"";
    refuses(
        &(with(head) + "mode = \"dsr\"\n"),
        "8:8: error: service \"192.0.2.1:80/tcp\" is dsr, but `connection_table = \"stateless\"` tracks no connections; use \
         mode = \"nat\", or a table that tracks connections",
    );
}

#[test]
fn direct_services_are_of_layer_4() {
    for listen in ["192.0.2.1:80/http", "192.0.2.1:80/tls", "192.0.2.1:80/https"] {
        let text = direct("").replace("192.0.2.1:80/tcp", listen);
        let found = said(&text);
        assert!(found.iter().any(|line| line.contains("`mode` is \"dsr\", but the service is")), "{found:?}");
    }
}

#[test]
fn direct_services_may_be_encapsulated() {
    let outer = |lines: &str| good(&direct(lines)).snapshot.services[0].outer;
    assert_eq!(outer(""), Outer::default());
    assert_eq!(outer("encapsulation = \"ipip\"\n"), Outer { encapsulation: Encapsulation::Ipip, ..Outer::default() });
    let source = Some(Address::from("10.0.0.9".parse::<std::net::IpAddr>().unwrap()));
    assert_eq!(
        outer("encapsulation = \"gue\"\nencapsulation_source = \"10.0.0.9\"\n"),
        Outer { encapsulation: Encapsulation::Gue, port: 6080, source }
    );
    let other = outer("encapsulation = \"gue\"\nencapsulation_port = 5555\n");
    assert_eq!((other.port, other.bytes(true), other.bytes(false)), (5555, 28, 48));
}

#[test]
fn encapsulation_is_for_direct_services() {
    refuses(
        &(GOOD.to_string() + "encapsulation = \"ipip\"\n"),
        "5:17: error: `encapsulation` is \"ipip\", but service \"192.0.2.1:80/tcp\" is not dsr: Hairpin translates its \
         packets' addresses, and needs no outer header; leave it out, or use mode = \"dsr\"",
    );
}

#[test]
fn outer_headers_have_the_backends_family() {
    let mixed = |lines: &str| direct(lines).replace("10.0.0.1:80", "[fd00::1]:80");
    for lines in ["encapsulation = \"gue\"\n", "encapsulation = \"ipip\"\nencapsulation_source = \"fd00::2\"\n"] {
        let config = good(&mixed(lines));
        let service = &config.snapshot.services[0];
        assert!(service.is_mixed(&service.backends[0]) && config.warnings.is_empty(), "{:?}", config.warnings);
    }
    refuses(
        &direct("encapsulation = \"gue\"\nencapsulation_source = \"fd00::1\"\n"),
        "7:24: error: `encapsulation_source` \"fd00::1\" is of another family than all backends of the service; name an \
         address of the backends' family, which outer headers have, or leave it out",
    );
    refuses(
        &mixed(""),
        "4:13: error: backend [fd00::1]:80 is IPv6, its service \"192.0.2.1:80/tcp\" IPv4; packets are not translated \
         between families: use a backend of the same, or an `encapsulation`",
    );
    refuses(
        &direct("encapsulation = \"gue\"\nencapsulation_source = \"eth0\"\n"),
        "7:24: error: `encapsulation_source` \"eth0\" is not an IP address; write one of this host's, such as \"10.0.2.1\"",
    );
}

#[test]
fn encapsulation_warns_of_what_it_does_not_use() {
    for (lines, field, needed) in [
        ("encapsulation_port = 6081\n", "encapsulation_port", "\"gue\""),
        ("encapsulation = \"ipip\"\nencapsulation_port = 6081\n", "encapsulation_port", "\"gue\""),
        ("encapsulation_source = \"10.0.0.9\"\n", "encapsulation_source", "\"ipip\"` or `\"gue\""),
    ] {
        let expected =
            format!("`{field}` means nothing to service \"192.0.2.1:80/tcp\" without `encapsulation = {needed}`");
        let found = super::warned(&direct(lines));
        assert!(found.len() == 1 && found[0].contains(&expected), "{found:?}");
    }
}
