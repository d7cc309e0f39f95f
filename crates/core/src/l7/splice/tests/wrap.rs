//! Sequence numbers that wrap: each end's, and Hairpin's own, in either direction, at every place of an exchange whose
//! heads and bodies both are others on the other side.

use super::one_worker::{OneWorker, Script, Sent, USUAL};
use super::{RESPONSE, only};
use crate::flow::FlowKey;
use crate::l7::config::{Http, Sticky};
use crate::l7::cookie::{Cookies, Offer};
use crate::l7::splice::tcp::segment::flow;
use crate::time::{Duration, Time};
use crate::wire::tcp::{ACK, FIN};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

const UPLOAD: &str = "PUT /a HTTP/1.1\r\nHost: example.org\r\nContent-Length: 90\r\n\r\n";
const DOWNLOAD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n";
/// An HTTP service that writes both heads anew.
fn edits(http: &mut Http) {
    http.forwarded.x_for = true;
    http.sticky = Some(Sticky { cookie: (*b"stuck").into(), attributes: (*b"").into() });
}

fn body(first: u8) -> Vec<u8> {
    (first..first + 90).collect()
}

fn block(left: u32, right: u32) -> Vec<u8> {
    [&[1, 1, 5, 10][..], &left.to_be_bytes(), &right.to_be_bytes()].concat()
}

/// A body in three parts of which the second is lost, found missing, and sent again with what is around it. `from` sends
/// its bytes from `next` on; `to` has acknowledged all before.
fn lossy(fixture: &mut OneWorker, from: &mut Script, to: &mut Script, bytes: &[u8]) {
    let (start, base) = (from.next, to.expected);
    let part = |fixture: &mut OneWorker, from: &Script, at: usize, end: usize| -> Sent {
        let sent = only(from.repeats(fixture, start.wrapping_add(at as u32), &[], &bytes[at..end]));
        assert_eq!((sent.to, sent.segment.sequence), (to.own, base.wrapping_add(at as u32)), "from {start}, {at}");
        assert_eq!(sent.bytes, bytes[at..end]);
        sent
    };
    part(fixture, from, 0, 30);
    part(fixture, from, 60, 90);
    // It has the first part and the third.
    to.expected = base.wrapping_add(30);
    let has = block(base.wrapping_add(60), base.wrapping_add(90));
    let told = only(to.repeats(fixture, to.next, &has, b""));
    assert_eq!((told.to, told.segment.acknowledgement), (from.own, start.wrapping_add(30)));
    assert_eq!(told.options, block(start.wrapping_add(60), start.wrapping_add(90)));
    part(fixture, from, 20, 70);
    from.next = start.wrapping_add(90);
    to.expected = base.wrapping_add(90);
    let told = only(to.acknowledges(fixture));
    assert_eq!((told.to, told.segment.acknowledgement), (from.own, from.next));
}

/// One exchange and the beginning of another, from the connection to the backend on.
fn exchange(fixture: &mut OneWorker, client: &mut Script, first_of_backend: u32) {
    let head = only(client.sends(fixture, UPLOAD));
    let (mut backend, sent) = Script::backend_with(fixture, &head, first_of_backend, USUAL);
    let head = only(sent);
    assert!(head.text().contains("X-Forwarded-For: "), "{head:?}");
    let again = only(fixture.wait(Duration::from_millis(260)));
    assert_eq!(again.what(), head.what(), "ours");
    backend.gets(&again);
    let told = only(backend.acknowledges(fixture));
    assert_eq!((told.to, told.segment.acknowledgement), (client.own, client.next));
    lossy(fixture, client, &mut backend, &body(b' '));
    // The response's head with the first bytes of its body; it is lost, and asked for.
    let sent = only(backend.sends(fixture, &format!("{DOWNLOAD}0123456789")));
    assert_eq!(sent.segment.sequence, client.expected);
    assert!(sent.text().contains("stuck="), "{sent:?}");
    let length = sent.segment.payload - 10;
    let start = client.expected;
    client.expected = start.wrapping_add(length / 2);
    assert!(client.acknowledges(fixture).is_empty());
    let again = only(fixture.wait(Duration::from_millis(260)));
    assert_eq!(again.segment.sequence, client.expected);
    assert_eq!(again.bytes, sent.bytes[length as usize / 2..length as usize], "ours");
    // All of it again by the backend: what follows the head goes on.
    let from = backend.next.wrapping_sub(DOWNLOAD.len() as u32 + 10);
    let all = format!("{DOWNLOAD}0123456789");
    let tail = only(backend.repeats(fixture, from, &[], all.as_bytes()));
    assert_eq!((tail.segment.sequence, tail.text()), (start.wrapping_add(length), "0123456789"));
    client.expected = start.wrapping_add(length + 10);
    let told = only(client.acknowledges(fixture));
    assert_eq!((told.to, told.segment.acknowledgement), (backend.own, backend.next));
    // 80 bytes are left of it: as many as parts of 90 with the next response behind them would be too many.
    let bytes: Vec<u8> = (b'0'..b'0' + 80).collect();
    for (at, end) in [(40, 80), (0, 50)] {
        let sent = only(backend.repeats(fixture, backend.next.wrapping_add(at as u32), &[], &bytes[at..end]));
        assert_eq!(sent.segment.sequence, client.expected.wrapping_add(at as u32));
        assert_eq!(sent.bytes, bytes[at..end]);
    }
    backend.next = backend.next.wrapping_add(80);
    client.expected = client.expected.wrapping_add(80);
    // The next request, over the same connection, and its response; both close.
    let head = only(client.sends(fixture, UPLOAD));
    backend.gets(&head);
    assert_eq!(head.segment.acknowledgement, backend.next);
    backend.acknowledges(fixture);
    lossy(fixture, client, &mut backend, &body(b' '));
    assert!(client.receives(&backend.sends(fixture, RESPONSE)).ends_with("\r\n\r\nhello"));
    let own = client.own;
    for sent in client.says(fixture, ACK | FIN, b"").iter().filter(|sent| sent.to == own) {
        client.gets(sent);
    }
    client.acknowledges(fixture);
    fixture.over();
}

/// Places of the streams to wrap at: each number of the first exchange's heads, some of its bodies, of the next one.
fn places() -> impl Iterator<Item = u32> {
    (0..130).chain((130..500).step_by(17))
}

#[test]
fn the_ends_numbers_wrap_anywhere() {
    for place in places() {
        let wrapping = 0u32.wrapping_sub(place);
        for (of_client, of_backend) in [(wrapping, 5000), (5000, wrapping), (wrapping, wrapping)] {
            let mut fixture = OneWorker::over_ip(place & 1 == 1, edits);
            let mut client = Script::client_with(&mut fixture, 1000, of_client, USUAL);
            exchange(&mut fixture, &mut client, of_backend);
        }
    }
}

#[test]
fn our_number_to_a_backend_wraps_anywhere() {
    // It goes on with a clock: so the moment of the connection decides.
    for place in places() {
        let begin = |wait: u64| {
            let mut fixture = OneWorker::over_ip(place & 1 == 1, edits);
            fixture.now = Time::from_nanos(fixture.now.as_nanos() + (wait << 12));
            let client = Script::client(&mut fixture, 1000);
            (fixture, client)
        };
        let (mut fixture, mut client) = begin(0);
        let usual = only(client.sends(&mut fixture, UPLOAD)).segment.sequence;
        let wrapping = 0u32.wrapping_sub(place);
        let wait = wrapping.wrapping_sub(usual).into();
        let (mut fixture, mut client) = begin(wait);
        assert_eq!(only(client.sends(&mut fixture, UPLOAD)).segment.sequence, wrapping);
        let (mut fixture, mut client) = begin(wait);
        exchange(&mut fixture, &mut client, 5000);
    }
}

/// A client's first number for which the cookie's is so far, or less, before 2^32, and how far that is. A cookie's lower
/// bits are not ours to choose.
fn near_the_end(fixture: &OneWorker, within: core::ops::Range<u32>) -> (u32, u32) {
    let cookies = Cookies::new([[1, 2], [3, 4]]);
    let own = super::one_worker::end(!fixture.vip.address.is_ipv4(), 10, 1000);
    let key: FlowKey = flow(own, fixture.vip);
    let offer = Offer { mss: USUAL.mss, scale: USUAL.scale, sack: USUAL.sack };
    (0..u32::MAX)
        .find_map(|first| {
            let left = 0u32.wrapping_sub(cookies.make(fixture.now, &key, first, &offer));
            within.contains(&left).then_some((first, left))
        })
        .expect("one in 2^15 or so")
}

/// A client whose first request has reached a backend.
fn opened(ipv6: bool, first: u32) -> (OneWorker, Script, Script) {
    let mut fixture = OneWorker::over_ip(ipv6, edits);
    let mut client = Script::client_with(&mut fixture, 1000, first, USUAL);
    let syn = only(client.sends(&mut fixture, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"));
    let (mut backend, sent) = Script::backend(&mut fixture, &syn);
    backend.receives(&sent);
    (fixture, client, backend)
}

#[test]
fn the_cookie_wraps_anywhere() {
    let head = |length: u32| format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    for ipv6 in [false, true] {
        let (first, left) = near_the_end(&OneWorker::over_ip(ipv6, edits), 20_000..60_000);
        let (mut fixture, mut client, mut backend) = opened(ipv6, first);
        let written = client.receives(&backend.sends(&mut fixture, &head(10_000))).len() as u32;
        for place in places() {
            let (mut fixture, mut client, mut backend) = opened(ipv6, first);
            assert_eq!(client.expected, 1u32.wrapping_sub(left));
            // A first response that ends so far before the wrap.
            let length = left - 1 - place - written;
            let mut text = head(length);
            text.extend((0..length).map(|_| 'x'));
            let got: String = client.receives(&backend.sends(&mut fixture, &text));
            assert_eq!((got.len() as u32, client.expected), (written + length, 0u32.wrapping_sub(place)));
            backend.gets(&only(client.acknowledges(&mut fixture)));
            backend.says(&mut fixture, ACK | FIN, b"");
            exchange(&mut fixture, &mut client, 5000);
        }
    }
}
