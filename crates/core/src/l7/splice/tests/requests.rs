//! Requests: in pieces, many at once, to whom, and over which connection.

use super::one_worker::{OneWorker, SPLICES_MAX, Script, Sent, USUAL, http, snapshot};
use super::stamped;
use super::{REQUEST, RESPONSE, asked, only};
use crate::balance::{Loads, Tables};
use crate::config::{BackendState, Snapshot, WhenFull};
use crate::l7::config::{Action, Field, HeadEdits, Http, Kind, ProxyVersion};
use crate::l7::route::Conditions;
use crate::l7::route::path::PathPattern;
use crate::l7::splice::REMEMBERED_MAX;
use crate::l7::splice::tcp::segment::Abilities;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, RST, SYN};
use crate::worker::{RequestTimes, Update, Which};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

const OTHER: &str = "GET /other/b HTTP/1.1\r\nHost: example.org\r\n\r\n";

fn to(sent: &[Sent], script: &Script) -> Vec<Sent> {
    sent.iter().filter(|sent| sent.to == script.own).cloned().collect()
}

/// What begins with `/other` goes to the other group.
fn two_groups(http: &mut Http) {
    let mut other = http.routes[0].clone();
    other.conditions = Conditions { paths: [PathPattern::Prefix((*b"/other").into())].into(), ..Conditions::default() };
    other.action = Action::Forward { groups: [(1, 1)].into(), replace_prefix: None };
    http.routes = vec![other, http.routes[0].clone()].into();
}

#[test]
fn a_request_byte_by_byte_and_out_of_order() {
    let mut fixture = OneWorker::new(|_| {});
    let mut client = Script::client(&mut fixture, 1000);
    let bytes = REQUEST.as_bytes();
    for (at, byte) in bytes.iter().enumerate().take(bytes.len() - 1) {
        let told = only(client.says(&mut fixture, ACK, &[*byte]));
        assert_eq!(told.segment.acknowledgement, client.next, "byte {at}");
        // One that was received, and one that comes too early.
        let told = only(client.repeats(&mut fixture, client.next - 1, &[], &[*byte]));
        assert_eq!(told.segment.acknowledgement, client.next);
        let told = only(client.repeats(&mut fixture, client.next + 3, &[], b"GET"));
        assert_eq!(told.segment.acknowledgement, client.next);
    }
    // The last, and all before it once more, overlapping.
    let start = client.next - 10;
    let syn = only(client.repeats(&mut fixture, start, &[], &bytes[bytes.len() - 11..]));
    let (mut backend, sent) = Script::backend(&mut fixture, &syn);
    assert_eq!(backend.receives(&sent), REQUEST);
    fixture.over();
}

#[test]
fn waiting_requests_keep_their_own_heads() {
    // More clients wait for their backends than heads are remembered: some are read again.
    let clients = 3 * REMEMBERED_MAX as u16;
    let mut fixture = OneWorker::new(|_| {});
    let head = |client: u16| format!("GET /{client} HTTP/1.1\r\nHost: example.org\r\nX-Client: {client}\r\n\r\n");
    let mut waiting = Vec::new();
    for number in 0..clients {
        let mut client = Script::client(&mut fixture, 1000 + number);
        let syn = only(client.sends(&mut fixture, &head(number)));
        waiting.push((number, syn));
    }
    // The last one's backend answers first.
    for (number, syn) in waiting.into_iter().rev() {
        let (mut backend, sent) = Script::backend(&mut fixture, &syn);
        assert_eq!(backend.receives(&sent), head(number));
    }
    fixture.over();
}

#[test]
fn a_request_sent_again_is_sent_once() {
    let mut fixture = OneWorker::new(|_| {});
    let mut client = Script::client(&mut fixture, 1000);
    let syn = only(client.sends(&mut fixture, REQUEST));
    let start = client.next - REQUEST.len() as u32;
    assert!(client.repeats(&mut fixture, start, &[], REQUEST.as_bytes()).is_empty(), "while it waits");
    let (mut backend, sent) = Script::backend(&mut fixture, &syn);
    assert_eq!(backend.receives(&sent), REQUEST);
    let sent = client.repeats(&mut fixture, start, &[], REQUEST.as_bytes());
    assert!(to(&sent, &backend).is_empty(), "while it is on its way: {sent:?}");
    backend.acknowledges(&mut fixture);
    let told = only(client.repeats(&mut fixture, start, &[], REQUEST.as_bytes()));
    assert_eq!(
        (told.to, told.segment.acknowledgement),
        (client.own, client.next),
        "the client was told, is told again"
    );
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    client.acknowledges(&mut fixture);
    let told = only(client.repeats(&mut fixture, start, &[], REQUEST.as_bytes()));
    assert_eq!((told.to, told.segment.acknowledgement), (client.own, client.next), "after its response");
    fixture.over();
}

#[test]
fn pipelined_requests_go_their_ways_one_by_one() {
    let mut fixture = OneWorker::new(two_groups);
    let mut client = Script::client(&mut fixture, 1000);
    let all = format!("{REQUEST}{OTHER}{REQUEST}");
    let syn = only(client.sends(&mut fixture, &all));
    let (mut first, sent) = Script::backend(&mut fixture, &syn);
    assert_eq!(first.receives(&sent), REQUEST);
    let sent = first.sends(&mut fixture, RESPONSE);
    assert_eq!(client.receives(&sent), RESPONSE);
    assert_eq!(sent[0].segment.acknowledgement, 5001 + REQUEST.len() as u32, "of the first request, no more");
    let sent = client.acknowledges(&mut fixture);
    let syn = sent.iter().find(|sent| sent.segment.has(SYN)).expect("the other group");
    assert_ne!(syn.to, first.own);
    let (mut second, sent) = Script::backend(&mut fixture, syn);
    assert_eq!(second.receives(&sent), OTHER);
    assert_eq!(client.receives(&second.sends(&mut fixture, RESPONSE)), RESPONSE);
    let sent = client.acknowledges(&mut fixture);
    assert_eq!(first.receives(&to(&sent, &first)[..]), REQUEST, "over the connection there was: {sent:?}");
    assert_eq!(client.receives(&first.sends(&mut fixture, RESPONSE)), RESPONSE);
    client.acknowledges(&mut fixture);
    assert_eq!(fixture.worker.splices(), (1, 2, 0));
    fixture.over();
}

#[test]
fn a_connection_is_reused_by_a_client_that_can_other_things() {
    stamped::without();
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    client.acknowledges(&mut fixture);
    let poor = Abilities { mss: 1000, scale: None, sack: false, timestamps: None };
    let mut other = Script::client_with(&mut fixture, 1001, u32::MAX - 10, poor);
    other.window = 12_800;
    let head = only(other.sends(&mut fixture, REQUEST));
    backend.gets(&head);
    assert_eq!(head.segment.window, 100, "12,800 bytes, to a backend with scale 7");
    let body = "x".repeat(3000);
    let sent = backend.sends(&mut fixture, &format!("HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n{body}"));
    assert_eq!(
        (only(sent.clone()).gso_size, sent[0].segment.window),
        (536, 65_535),
        "cut for it: the cookie remembers no finer"
    );
    assert!(other.receives(&sent).ends_with(&body));
    other.acknowledges(&mut fixture);
    fixture.over();
}

#[test]
fn proxy_protocol_starts_every_backend_connection() {
    for (version, begins) in [
        (ProxyVersion::V1, &b"PROXY TCP4 10.0.0.10 10.0.0.1 1000 80\r\n"[..]),
        (ProxyVersion::V2, b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x0a\0\0\x0a\x0a\0\0\x01\x03\xe8\0\x50"),
    ] {
        let mut fixture = OneWorker::new(|http| (http.proxy_protocol, http.reuse) = (Some(version), false));
        let mut client = Script::client(&mut fixture, 1000);
        for _ in 0..2 {
            let sent = client.sends(&mut fixture, REQUEST);
            let syn = sent.iter().find(|sent| sent.segment.flags == SYN).expect("a connection of its own");
            let (mut backend, sent) = Script::backend(&mut fixture, syn);
            let head = only(sent);
            assert!(head.bytes.starts_with(begins), "{head:?}");
            assert!(head.bytes[begins.len()..].starts_with(b"GET /a HTTP/1.1\r\n"), "{head:?}");
            backend.gets(&head);
            assert_eq!(client.receives(&backend.sends(&mut fixture, RESPONSE)), RESPONSE);
            client.acknowledges(&mut fixture);
        }
        fixture.over();
    }
}

#[test]
fn request_on_a_closed_connection_is_retried_once() {
    let get = (REQUEST, true);
    let post = ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx", false);
    for ((request, may), acknowledged) in [(get, false), (get, true), (post, false)] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        client.receives(&backend.sends(&mut fixture, RESPONSE));
        client.acknowledges(&mut fixture);
        let head = client.sends(&mut fixture, request);
        assert_eq!(backend.receives(&to(&head, &backend)), request);
        if acknowledged {
            backend.acknowledges(&mut fixture);
        } else {
            backend.expected -= request.len() as u32;
        }
        let sent = backend.says(&mut fixture, RST | ACK, b"");
        if may && !acknowledged {
            let (mut next, sent) = Script::backend(&mut fixture, &only(sent));
            assert_eq!(next.receives(&sent), request);
            assert_eq!(client.receives(&next.sends(&mut fixture, RESPONSE)), RESPONSE);
            client.acknowledges(&mut fixture);
        } else {
            assert!(client.receives(&sent).starts_with("HTTP/1.1 502 "), "{sent:?}");
        }
        fixture.over();
    }
}

#[test]
fn what_was_on_its_way_to_one_backend_goes_to_no_other() {
    // Which one it is stands in the request.
    let mut fixture = OneWorker::with_backends(2, |http| {
        let set = [Field::parse("X-B", "{backend}").unwrap()].into();
        http.edits.request = HeadEdits { set, ..HeadEdits::default() };
    });
    // Every process begins with the first backend.
    fixture.restarts = false;
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    client.acknowledges(&mut fixture);
    let syn = only(client.sends(&mut fixture, REQUEST));
    let (mut other, sent) = Script::backend(&mut fixture, &syn);
    other.gets(&only(sent));
    client.receives(&other.sends(&mut fixture, RESPONSE));
    client.acknowledges(&mut fixture);
    let third = only(client.sends(&mut fixture, REQUEST));
    assert_eq!(third.to, backend.own, "each in turn");
    let syn = only(backend.says(&mut fixture, RST | ACK, b""));
    assert_eq!((syn.to, syn.segment.flags), (backend.own, SYN), "to the same, once more");
    // It has restarted, and does not listen yet.
    let mut refuses =
        Script { own: syn.to, peer: syn.from, next: 0, expected: syn.segment.sequence.wrapping_add(1), window: 0 };
    let sent = refuses.says(&mut fixture, RST | ACK, b"");
    assert!(client.receives(&sent).starts_with("HTTP/1.1 502 "), "{sent:?}");
    fixture.over();
}

#[test]
fn a_body_that_went_on_is_not_sent_once_more() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    client.acknowledges(&mut fixture);
    let before = backend.expected;
    backend.receives(&client.sends(&mut fixture, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n"));
    backend.receives(&client.sends(&mut fixture, "body"));
    backend.expected = before;
    let sent = backend.says(&mut fixture, RST | ACK, b"");
    assert!(to(&sent, &client)[0].text().starts_with("HTTP/1.1 502 "), "only the client has its body: {sent:?}");
    fixture.over();
}

#[test]
fn answers_of_our_own() {
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    for (request, status, closes) in [
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400", true),
        ("GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", "400", true),
        (long.as_str(), "431", true),
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", "505", true),
        ("GET /none HTTP/1.1\r\nHost: a\r\n\r\n", "404", false),
        ("POST /none HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n", "404", true),
    ] {
        let mut fixture = OneWorker::new(|http| {
            let paths = [PathPattern::Exact((*b"/there").into())].into();
            http.routes[0].conditions = Conditions { paths, ..Conditions::default() };
        });
        let mut client = Script::client(&mut fixture, 1000);
        let mut text = String::new();
        let mut closed = false;
        for piece in request.as_bytes().chunks(1400) {
            let sent = client.says(&mut fixture, ACK, piece);
            closed |= sent.iter().any(|sent| sent.segment.has(FIN));
            text += &client.receives(&sent);
        }
        assert!(text.starts_with(&format!("HTTP/1.1 {status} ")), "{text}");
        assert_eq!(closed, closes, "{status}");
        client.acknowledges(&mut fixture);
        fixture.over();
    }
}

#[test]
fn the_last_request_of_a_connection_says_so() {
    let mut fixture = OneWorker::new(|http| http.limits.requests_max = 2);
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    assert_eq!(client.receives(&backend.sends(&mut fixture, RESPONSE)), RESPONSE);
    backend.receives(&client.sends(&mut fixture, REQUEST));
    let sent = backend.sends(&mut fixture, RESPONSE);
    let last = client.receives(&sent);
    assert!(last.contains("Connection: close\r\n"), "{last}");
    client.acknowledges(&mut fixture);
    assert!(to(&sent, &client).iter().any(|sent| sent.segment.has(FIN)), "{sent:?}");
    fixture.over();
}

#[test]
fn a_full_table_gives_up_those_that_do_nothing() {
    let mut fixture = OneWorker::new(|_| {});
    for port in 0..SPLICES_MAX as u16 {
        let mut client = Script::client(&mut fixture, 1000 + port);
        client.sends(&mut fixture, "GET /");
    }
    assert_eq!(fixture.worker.splices().0, SPLICES_MAX);
    let mut client = Script::client(&mut fixture, 5000);
    let sent = client.sends(&mut fixture, REQUEST);
    assert_eq!(fixture.worker.splices().0, SPLICES_MAX);
    assert!(sent.iter().any(|sent| sent.segment.has(RST)) && sent.iter().any(|sent| sent.segment.has(SYN)), "{sent:?}");
    fixture.over();
}

#[test]
fn a_client_without_room_is_reset_if_it_is_so_configured() {
    for when_full in [WhenFull::Drop, WhenFull::Reset] {
        let mut snapshot = snapshot(1, Kind::Http(http().into()));
        snapshot.when_full = when_full;
        let mut fixture = OneWorker::with(snapshot);
        for port in 0..SPLICES_MAX as u16 {
            asked(&mut fixture, 1000 + port, REQUEST);
        }
        let mut client = Script::client(&mut fixture, 5000);
        let sent = client.sends(&mut fixture, REQUEST);
        match when_full {
            WhenFull::Drop => assert!(sent.is_empty(), "it asks again: {sent:?}"),
            WhenFull::Reset => {
                let reset = only(sent);
                assert_eq!((reset.segment.flags, reset.segment.sequence), (RST, client.expected));
            }
        }
        fixture.over();
    }
}

#[test]
fn a_client_that_begins_anew_between_the_same_ends() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, backend, _) = asked(&mut fixture, 1000, REQUEST);
    let mut next = Script::client_with(&mut fixture, 1000, client.next.wrapping_add(1 << 30), USUAL);
    let sent = next.sends(&mut fixture, REQUEST);
    assert!(to(&sent, &backend)[0].segment.has(RST), "no client waits for that response: {sent:?}");
    assert!(sent.iter().any(|sent| sent.segment.flags == SYN));
    assert_eq!(fixture.worker.splices().0, 1);
    // What is left of the old one means nothing.
    assert!(client.sends(&mut fixture, REQUEST).is_empty());
    fixture.over();
}

#[test]
fn a_cookie_that_is_too_old_is_none() {
    let mut fixture = OneWorker::new(|_| {});
    let mut client = Script::client(&mut fixture, 1000);
    fixture.wait(Duration::from_secs(600));
    assert!(client.sends(&mut fixture, REQUEST).is_empty());
    client.expected = client.expected.wrapping_add(1);
    assert!(client.sends(&mut fixture, REQUEST).is_empty());
    assert_eq!((fixture.worker.splices(), fixture.worker.statistics().http.cookies_invalid), ((0, 0, 0), 2));
}

fn reload(fixture: &mut OneWorker, change: impl FnOnce(&mut Http)) {
    let mut kind = http();
    change(&mut kind);
    reload_as(fixture, snapshot(1, Kind::Http(kind.into())));
}

pub(super) fn reload_as(fixture: &mut OneWorker, snapshot: Snapshot) {
    let id = fixture.snapshot.id + 1;
    reload_with(fixture, snapshot, id);
}

pub(super) fn reload_with(fixture: &mut OneWorker, mut snapshot: Snapshot, id: u64) {
    snapshot.id = id;
    fixture.formers.push(Arc::clone(&fixture.snapshot));
    let snapshot = Arc::new(snapshot);
    let tables = Tables::new(&snapshot, &Tables::default());
    let steering = crate::flow::Steering::by_hash([1, 2], 1);
    fixture.snapshot = snapshot.clone();
    let update = Update::new(snapshot, &tables, &Loads::default(), &steering, 0, 4);
    fixture.worker.reconfigure(fixture.now, update);
}

#[test]
fn a_reload_changes_the_next_request_not_this_one() {
    let gone = |http: &mut Http| http.routes = [].into();
    // Within an exchange.
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    reload(&mut fixture, gone);
    assert_eq!(client.receives(&backend.sends(&mut fixture, RESPONSE)), RESPONSE);
    let reply = client.sends(&mut fixture, REQUEST);
    assert!(client.receives(&reply).starts_with("HTTP/1.1 404 "), "{reply:?}");
    client.acknowledges(&mut fixture);
    fixture.over();
    // While a request waits for its backend.
    let mut fixture = OneWorker::new(|_| {});
    let mut client = Script::client(&mut fixture, 1000);
    let syn = only(client.sends(&mut fixture, REQUEST));
    reload(&mut fixture, gone);
    let (backend, sent) = Script::backend(&mut fixture, &syn);
    assert!(client.receives(&sent).starts_with("HTTP/1.1 404 "), "{sent:?}");
    assert!(to(&sent, &backend).iter().all(|sent| sent.bytes.is_empty()));
    fixture.over();
}

#[test]
fn a_backend_that_is_taken_away_ends_what_it_has() {
    for busy in [true, false] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        if !busy {
            client.receives(&backend.sends(&mut fixture, RESPONSE));
            client.acknowledges(&mut fixture);
        }
        fixture.worker.end_backend(fixture.now, 0, Which::All);
        let sent = fixture.wait(Duration::from_millis(500));
        assert!(to(&sent, &backend).iter().any(|sent| sent.segment.has(RST)), "{sent:?}");
        assert_eq!(to(&sent, &client).iter().any(|sent| sent.segment.has(RST)), busy, "{sent:?}");
        assert_eq!(fixture.worker.splices().1, 0);
        fixture.over();
    }
}

#[test]
fn all_requests_in_front_of_a_fin_are_answered() {
    let body = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    for (request, count, apart) in [
        (REQUEST, 1, false),
        (REQUEST, 3, false),
        (REQUEST, 7, true),
        (body, 5, false),
        (body, 2, true),
        (chunked, 1, false),
        (chunked, 3, false),
        (chunked, 4, true),
    ] {
        let mut fixture = OneWorker::new(|_| {});
        let mut client = Script::client(&mut fixture, 1000);
        let all = request.repeat(count);
        let sent = match apart {
            true => {
                let sent = client.sends(&mut fixture, &all);
                client.says(&mut fixture, ACK | FIN, b"");
                sent
            }
            false => client.says(&mut fixture, ACK | FIN, all.as_bytes()),
        };
        let syn = sent.into_iter().find(|sent| sent.to != client.own).expect("a SYN");
        let (mut backend, mut sent) = Script::backend(&mut fixture, &syn);
        let mut closed = false;
        for number in 0..count {
            assert_eq!(backend.receives(&to(&sent, &backend)), request, "{number} of {count}");
            sent = backend.sends(&mut fixture, RESPONSE);
            let answer = client.receives(&to(&sent, &client));
            let is_last = number + 1 == count;
            assert_eq!(answer.contains("Connection: close"), is_last, "{answer}");
            assert!(answer.ends_with("hello"));
            closed |= to(&sent, &client).iter().any(|sent| sent.segment.has(FIN));
            sent = client.acknowledges(&mut fixture);
            closed |= !client.receives(&to(&sent, &client)).is_empty()
                || to(&sent, &client).iter().any(|sent| sent.segment.has(FIN));
            assert_eq!(closed, is_last);
        }
        client.acknowledges(&mut fixture);
        fixture.over();
    }
}

#[test]
fn a_backend_that_drains_loses_its_idle_connections() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    client.acknowledges(&mut fixture);
    fixture.wait(Duration::from_millis(10));
    assert_eq!(fixture.worker.statistics().http.idle_now, 1);
    let mut draining = snapshot(1, Kind::Http(http().into()));
    draining.services[0].backends[0].state = BackendState::Draining;
    reload_as(&mut fixture, draining);
    let sent = fixture.wait(Duration::from_millis(100));
    assert!(to(&sent, &backend).iter().any(|sent| sent.segment.has(FIN)), "{sent:?}");
    backend.receives(&sent);
    backend.says(&mut fixture, ACK | FIN, b"");
    fixture.wait(Duration::from_secs(6));
    assert_eq!(fixture.worker.statistics().backends[0].connections_now, 0);
    assert_eq!(fixture.worker.splices().0, 1, "the client's stays");
}

/// The response is taken in and closed behind, so that its end is not that of an exchange.
#[test]
fn request_times_have_the_last_of_a_connection() {
    let mut fixture = OneWorker::new(|_| {});
    let request = REQUEST.replacen("\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1);
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, &request);
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    let delivered = |fixture: &OneWorker| -> u64 {
        fixture.worker.statistics().services.iter().map(|service| service.times.in_all.count).sum()
    };
    assert_eq!(delivered(&fixture), 0, "the client does not have the response");
    client.acknowledges(&mut fixture);
    assert_eq!(delivered(&fixture), 1);
    client.says(&mut fixture, ACK | FIN, b"");
    assert_eq!(delivered(&fixture), 1, "once");
    fixture.over();
}

#[test]
fn request_times_are_to_backend_response_and_end() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    fixture.wait(Duration::from_millis(20));
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    fixture.wait(Duration::from_millis(50));
    let times = |fixture: &OneWorker| {
        let mut all = RequestTimes::default();
        fixture.worker.statistics().services.iter().for_each(|service| all.merge(&service.times));
        [all.to_backend, all.to_response, all.in_all].map(|time| (time.count, Duration::from_nanos(time.sum_ns)))
    };
    assert_eq!(times(&fixture)[2].0, 0, "the client does not have the response");
    client.acknowledges(&mut fixture);
    let [(connected, _), (answered, to_response), (delivered, in_all)] = times(&fixture);
    assert_eq!([connected, answered, delivered], [1; 3]);
    let within = |took: Duration, least: u64| (least..least + 10).contains(&(took.as_millis() as u64));
    assert!(within(to_response, 20) && within(in_all, 70), "{to_response:?}, {in_all:?}");
    client.says(&mut fixture, ACK | FIN, b"");
    client.expected = client.expected.wrapping_add(1);
    client.acknowledges(&mut fixture);
    assert_eq!(times(&fixture)[2].0, 1, "the connection's end is no request's");
    fixture.over();
}

#[test]
fn exchanges_count_for_their_service_and_their_group() {
    let mut config = http();
    config.routes[0].action = Action::Forward { groups: [(1, 1)].into(), replace_prefix: None };
    let mut fixture = OneWorker::with(snapshot(1, Kind::Http(config.into())));
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    client.acknowledges(&mut fixture);
    let lengths = [REQUEST.len() as u64, RESPONSE.len() as u64];
    for service in &fixture.worker.statistics().services {
        assert_eq!(service.sizes.map(|sizes| sizes.sum), lengths);
        let times = &service.times;
        assert_eq!([&times.to_backend, &times.to_response, &times.in_all].map(|time| time.count), [1; 3]);
    }
    fixture.over();
}

#[test]
fn responses_of_our_own_count_by_class() {
    let mut fixture = OneWorker::new(|http| http.routes = [].into());
    let mut client = Script::client(&mut fixture, 1000);
    let sent = client.sends(&mut fixture, REQUEST);
    client.receives(&sent);
    client.acknowledges(&mut fixture);
    assert_eq!(fixture.worker.statistics().services[0].replies, [0, 0, 0, 1, 0]);
    fixture.over();
}

#[test]
fn exchanges_do_not_count_for_the_service_that_is_followed() {
    let mut config = http();
    config.routes[0].action = Action::Forward { groups: [(1, 1)].into(), replace_prefix: None };
    let mut config = snapshot(1, Kind::Http(config.into()));
    // Its routes lead to the other service's own backends.
    config.services[1].kind = Kind::Http(Http::default().into());
    config.services[1].endpoint.port = 81;
    let mut fixture = OneWorker::with(config);
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    client.acknowledges(&mut fixture);
    let counts = |service: usize| fixture.worker.statistics().services[service].times.in_all.count;
    assert_eq!([0, 1].map(counts), [1, 0]);
    fixture.over();
}
