//! Sticky cookies under keys that balancers share.

use super::one_worker::{OneWorker, Script, http, snapshot};
use super::{REQUEST, RESPONSE, only};
use crate::flow::Endpoint;
use crate::keys::{Keys, Secret};
use crate::l7::config::{Kind, Sticky};
use crate::wire::tcp::{ACK, RST};
use alloc::format;
use alloc::string::{String, ToString};

const A: Secret = Secret::new([1, 1]);
const B: Secret = Secret::new([2, 2]);
const C: Secret = Secret::new([3, 3]);

/// A balancer with these keys and 8 backends.
fn fixture(keys: &[Secret]) -> OneWorker {
    let mut http = http();
    http.sticky = Some(Sticky { cookie: (*b"stuck").into(), attributes: (*b"").into() });
    let mut snapshot = snapshot(8, Kind::Http(http.into()));
    snapshot.keys = Keys::new(keys);
    let mut fixture = OneWorker::with(snapshot);
    // Every process begins with the first backend.
    fixture.restarts = false;
    fixture
}

/// Asks with this cookie; the end that was asked, and the cookie that the response sets.
fn ask(fixture: &mut OneWorker, port: u16, cookie: Option<&str>) -> (Endpoint, Option<String>) {
    let mut client = Script::client(fixture, port);
    let request = match cookie {
        Some(cookie) => format!("GET / HTTP/1.1\r\nHost: a\r\nCookie: stuck={cookie}\r\n\r\n"),
        None => REQUEST.to_string(),
    };
    let syn = only(client.sends(fixture, &request));
    let (mut backend, sent) = Script::backend(fixture, &syn);
    backend.gets(&only(sent));
    let response = client.receives(&backend.sends(fixture, RESPONSE));
    client.acknowledges(fixture);
    // No connection is left for the next one.
    backend.says(fixture, RST | ACK, b"");
    let set = response.split("stuck=").nth(1).and_then(|rest| rest.split([';', '\r']).next());
    (backend.own, set.map(ToString::to_string))
}

#[test]
fn any_of_the_keys_is_accepted_and_the_first_makes_cookies() {
    let mut one = fixture(&[A]);
    // Two others first, so that no other balancer would choose the same by itself.
    ask(&mut one, 1000, None);
    ask(&mut one, 1001, None);
    let (end, cookie) = ask(&mut one, 1002, None);
    let cookie = cookie.expect("a cookie");
    assert_eq!(ask(&mut one, 1003, Some(&cookie)), (end, None));

    // Another balancer with the same key, alone or behind others.
    let mut same = fixture(&[A, B]);
    assert_eq!(ask(&mut same, 1000, Some(&cookie)), (end, None), "it is in use");
    let mut later = fixture(&[B, C, A]);
    let (at, renewed) = ask(&mut later, 1000, Some(&cookie));
    assert_eq!(at, end);
    let renewed = renewed.expect("one of the key in use");
    assert_ne!(renewed, cookie);
    assert_eq!(ask(&mut same, 1001, Some(&renewed)), (end, Some(cookie.clone())), "before it has changed");

    let mut last = fixture(&[B]);
    assert_eq!(ask(&mut last, 1000, Some(&renewed)), (end, None));
    let (at, set) = ask(&mut last, 1001, Some(&cookie));
    assert_ne!(at, end, "a key that is gone names no backend");
    assert!(set.is_some_and(|set| set != cookie));
}

#[test]
fn without_keys_each_has_its_own() {
    let mut own = fixture(&[]);
    ask(&mut own, 1000, None);
    let (end, cookie) = ask(&mut own, 1001, None);
    let cookie = cookie.expect("a cookie");
    assert_eq!(ask(&mut own, 1002, Some(&cookie)), (end, None));
    let (at, set) = ask(&mut fixture(&[A]), 1000, Some(&cookie));
    assert_ne!(at, end);
    assert!(set.is_some());
}
