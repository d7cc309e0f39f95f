//! `mode = "dsr"`: backends answer clients themselves.

use super::{GOOD, good, refuses, said, with};
use hairpin_core::config::Forwarding;

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
