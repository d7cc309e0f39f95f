//! Requests whose own parts, or whose times, choose their backends.

use super::one_worker::{self, OneWorker, Script};
use super::{RESPONSE, only};
use crate::balance::{Balancer, Demand, Loads, bytes_hash};
use crate::config::Algorithm;
use crate::flow::FlowKey;
use crate::l7::config::Kind;
use crate::time::{Duration, Time};
use alloc::format;
use alloc::string::String;

fn request(path: &str, fields: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: example.org\r\n{fields}\r\n")
}

/// The text of the request of this number.
type Text<'a> = &'a dyn Fn(u16) -> String;

#[test]
fn parts_of_requests_choose_backends() {
    let header = |i| request(&format!("/{i}?x={i}"), "X-TENANT: blue\r\nCookie: x=1; user=2\r\n");
    let cookie = |i| request("/", &format!("X-Tenant: {i}\r\nCookie: a={i}; user=anne\r\n"));
    let path = |i| request(&format!("/a?x={i}"), &format!("X-Tenant: {i}\r\n"));
    let host = |i| request(&format!("http://example.net/{i}"), "");
    let cases: [(Algorithm, &str, Text<'_>, &[u8]); 4] = [
        (Algorithm::HeaderHash, "x-tenant", &header, b"blue"),
        (Algorithm::HeaderHash, "host", &host, b"example.net"),
        (Algorithm::CookieHash, "user", &cookie, b"anne"),
        (Algorithm::PathHash, "", &path, b"/a"),
    ];
    for (algorithm, name, text, part) in cases {
        let mut snapshot = one_worker::snapshot(8, Kind::Http(one_worker::http().into()));
        let service = &mut snapshot.services[0];
        (service.algorithm, service.hash_name) = (algorithm, name.as_bytes().into());
        let demand = Demand { flow: &FlowKey::default(), hash: Some(bytes_hash(part)), now: Time::ZERO };
        let expected = Balancer::new(service, Loads::new(8), 0, 1, 1).choose_for(&demand).unwrap();
        let expected = service.backends[usize::from(expected)].endpoint;
        let mut fixture = OneWorker::with(snapshot);
        for i in 0..5 {
            let mut client = Script::client(&mut fixture, 1000 + i);
            let syn = only(client.sends(&mut fixture, &text(i)));
            assert_eq!(syn.to, expected, "{algorithm:?} {name}");
        }
    }
}

#[test]
fn latency_of_responses_chooses_backends() {
    let mut snapshot = one_worker::snapshot(2, Kind::Http(one_worker::http().into()));
    snapshot.services[0].algorithm = Algorithm::LeastLatency;
    let mut fixture = OneWorker::with(snapshot);
    // Another process has to measure anew.
    fixture.restarts = false;
    let mut ask = |port: u16, wait: Duration| {
        let mut client = Script::client(&mut fixture, port);
        let syn = only(client.sends(&mut fixture, &request("/", "Connection: close\r\n")));
        let (mut backend, sent) = Script::backend(&mut fixture, &syn);
        backend.gets(&only(sent));
        fixture.wait(wait);
        backend.sends(&mut fixture, &RESPONSE.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"));
        syn.to
    };
    let slow = ask(1000, Duration::from_millis(200));
    let fast = ask(1001, Duration::from_millis(1));
    assert_ne!(slow, fast, "one of which nothing is known is tried");
    for port in 1002..1010 {
        assert_eq!(ask(port, Duration::from_millis(1)), fast);
    }
}
