//! Limits of clients.

use super::http::with;
use super::{good, refuses};
use hairpin_core::limit::{Limit, LimitAction, LimitKind, Rate};
use std::time::Duration;

/// The HTTP service with this after its backends, at line 7.
fn limited(text: &str) -> String {
    with(&[("#WEB", text)])
}

fn limits(text: &str) -> Box<[Limit]> {
    let config = good(&limited(text));
    assert_eq!(config.warnings, []);
    config.services[0].limits.clone()
}

#[test]
fn limits_are_read_with_their_defaults() {
    let all = limits(
        "[[service.limit]]\nrequests = 100\n[[service.limit]]\nrequests = 30\nwithin = \"1m\"\nburst = 5\nipv4_prefix = 24\n\
         ipv6_prefix = 48\naction = \"drop\"\ndry_run = true",
    );
    let [first, second] = &all[..] else { panic!("{all:?}") };
    let requests =
        |count, within, burst| LimitKind::Requests(Rate::new(count, Duration::from_secs(within), burst).unwrap());
    assert_eq!(first.kind, requests(100, 1, 100));
    assert_eq!(
        (first.ipv4_prefix, first.ipv6_prefix, first.action, first.is_dry_run),
        (32, 64, LimitAction::Refuse, false)
    );
    assert_eq!(second.kind, requests(30, 60, 5));
    assert_eq!(
        (second.ipv4_prefix, second.ipv6_prefix, second.action, second.is_dry_run),
        (24, 48, LimitAction::Drop, true)
    );
}

#[test]
fn clients_are_kept_when_a_limit_admits_more_or_fewer() {
    let id = |text: &str| limits(&format!("[[service.limit]]\n{text}"))[0].id;
    let before = id("requests = 100");
    assert_eq!(before, id("requests = 10\nburst = 7\naction = \"drop\"\ndry_run = true"));
    for other in [
        "requests = 100\nheader = \"X-Key\"",
        "requests = 100\nwithin = \"2s\"",
        "requests = 100\nipv4_prefix = 24",
        "requests = 100\nipv6_prefix = 128",
    ] {
        assert_ne!(before, id(other), "{other}");
    }
    let behind = limits("[[service.limit]]\nrequests = 1\nwithin = \"5s\"\n[[service.limit]]\nrequests = 100");
    assert_eq!(before, behind[1].id, "at another place");
}

#[test]
fn mistakes_in_limits_are_told() {
    refuses(
        &limited("[[service.limit]]\nwithin = \"1m\""),
        "7:1: error: the limit has 0 of `requests`, `connections` and `concurrent`; give one of them: each limit counts one thing",
    );
    refuses(
        &limited("[[service.limit]]\nrequests = 5000\nwithin = \"1ms\""),
        "8:12: error: 5000 requests within 1ms are too many; have 1000000 a second at most",
    );
    refuses(
        &limited("[[service.limit]]\nrequests = 1\nburst = 7200"),
        "9:9: error: a burst of 7200 takes 2h to come back; that may take 1h at most: lower `burst`",
    );
    refuses(
        &limited("[[service.limit]]\nrequests = 1\n[[service.limit]]\nrequests = 2"),
        "9:1: error: limit 2 counts what limit 1 counts: for the same clients, within the same time; leave one of them out",
    );
    refuses(
        &limited("[[service.limit]]\nconcurrent = 1\nwithin = \"1m\""),
        "9:10: error: `within` is given beside `concurrent`; connections at a time have neither: leave it out",
    );
    refuses(
        &limited("[[service.limit]]\nconnections = 1\nheader = \"X-Key\""),
        "9:10: error: `header` is given beside `connections`; connections have no fields: leave it out, or limit `requests`",
    );
    refuses(
        &limited("[[service.limit]]\nrequests = 1\nheader = \"X Key\""),
        "9:10: error: `header` is \"X Key\"; a field's name is made of letters, digits and !#$%&'*+-.^_`|~",
    );
    refuses(
        &tcp("requests = 1"),
        "21:12: error: `requests` is given, but the service is tcp; nothing of a request can be seen: limit `connections` or \
         `concurrent`",
    );
}

/// The TCP service with this limit, at line 21.
fn tcp(limit: &str) -> String {
    let backends = "backends = [\"10.0.0.1:81\"]\n";
    with(&[(backends, &format!("{backends}[[service.limit]]\n{limit}\n"))])
}

#[test]
fn connections_are_limited_whatever_a_service_speaks() {
    let config = good(&tcp("connections = 20\nwithin = \"1m\"\n[[service.limit]]\nconcurrent = 50\nipv6_prefix = 56"));
    let limits = &config.services.last().expect("the other service").limits;
    let rate = Rate::new(20, Duration::from_secs(60), 20).unwrap();
    assert_eq!(
        limits.iter().map(|limit| limit.kind).collect::<Vec<_>>(),
        [LimitKind::Connections(rate), LimitKind::Concurrent(50)]
    );
    let http = limits_of_http("connections = 1\n[[service.limit]]\nconcurrent = 1\n[[service.limit]]\nrequests = 1");
    assert_eq!(http.len(), 3);
}

fn limits_of_http(text: &str) -> Box<[Limit]> {
    limits(&format!("[[service.limit]]\n{text}"))
}
