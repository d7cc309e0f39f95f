//! Scripted two-sided TCP: each segment by hand.

mod again;
mod agreed;
mod bodies;
mod bounds;
mod cards;
mod chosen;
mod chunked;
mod clamp;
mod closing;
mod crashes;
mod damaged;
mod dealt;
mod endless;
mod ends;
mod faults;
mod former;
mod heads;
mod hunted;
mod interim;
mod listed;
mod offload;
mod one_worker;
mod paths;
mod plain;
mod probes;
mod recorded;
mod requests;
mod resets;
mod script;
mod shared;
mod sizes;
mod stalled;
mod stamped;
#[cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]
mod stepped;
mod superseded;
mod taking;
mod timestamps;
mod unmatched;
mod uploads;
mod versions;
mod windows;
mod wrap;

use crate::config::Algorithm;
use crate::l7::config::{Action, Kind};
use crate::l7::date::Date;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, RST, SYN};
use one_worker::{OneWorker, Script, Sent};

const REQUEST: &str = "GET /a HTTP/1.1\r\nHost: example.org\r\n\r\n";
const RESPONSE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

fn only(mut sent: alloc::vec::Vec<Sent>) -> Sent {
    assert_eq!(sent.len(), 1, "{sent:?}");
    sent.remove(0)
}

/// A client with a request that has reached a backend.
fn asked(fixture: &mut OneWorker, port: u16, request: &str) -> (Script, Script, Sent) {
    let mut client = Script::client(fixture, port);
    let syn = only(client.sends(fixture, request));
    let (mut backend, sent) = Script::backend(fixture, &syn);
    let head = only(sent);
    backend.gets(&head);
    (client, backend, head)
}

#[test]
fn a_request_and_its_response() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, head) = asked(&mut fixture, 1000, REQUEST);
    assert_eq!(head.text(), "GET /a HTTP/1.1\r\nHost: example.org\r\n\r\n");
    assert_eq!(head.segment.flags & ACK, ACK, "the handshake's third packet carries the request");
    let response = only(backend.sends(&mut fixture, RESPONSE));
    assert_eq!(response.text(), RESPONSE);
    client.gets(&response);
    assert_eq!(response.segment.acknowledgement, client.next, "it acknowledges the request");
    // The next request acknowledges the response, and goes over the same connection.
    let next = only(client.sends(&mut fixture, REQUEST));
    backend.gets(&next);
    assert_eq!(next.segment.acknowledgement, backend.next);
    assert_eq!(next.text(), head.text());
}

#[test]
fn windows_are_shifted_between_different_scales() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, head) = asked(&mut fixture, 1000, REQUEST);
    // The client's 1000 << 7, said to a backend to whom we have announced 7.
    assert_eq!(head.segment.window, 1000);
    let response = only(backend.sends(&mut fixture, RESPONSE));
    assert_eq!(response.segment.window, 4000, "the backend's 1000 << 9, said to a client with 7");
    client.gets(&response);
}

#[test]
fn a_client_that_closes_leaves_the_backend_to_others() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    let response = only(backend.sends(&mut fixture, RESPONSE));
    client.gets(&response);
    let sent = client.says(&mut fixture, ACK | FIN, b"");
    let to_client: alloc::vec::Vec<_> = sent.iter().filter(|sent| sent.to == client.own).collect();
    assert!(to_client.iter().any(|sent| sent.segment.has(FIN)), "{sent:?}");
    for sent in &to_client {
        client.gets(sent);
    }
    for sent in sent.iter().filter(|sent| sent.to == backend.own) {
        assert_eq!((sent.segment.flags, sent.segment.acknowledgement), (ACK, backend.next));
    }
    assert!(client.acknowledges(&mut fixture).is_empty());
    let mut other = Script::client(&mut fixture, 1001);
    let head = only(other.sends(&mut fixture, REQUEST));
    backend.gets(&head);
    fixture.wait(Duration::from_secs(6));
    assert_eq!(fixture.worker.splices().0, 1, "the first client's connection is forgotten");
}

#[test]
fn what_we_own_is_sent_again() {
    let mut fixture = OneWorker::new(|_| {});
    let mut client = Script::client(&mut fixture, 1000);
    let syn = only(client.sends(&mut fixture, REQUEST));
    let again = fixture.wait(Duration::from_millis(310));
    assert_eq!(again.len(), 1, "{again:?}");
    assert_eq!((again[0].segment.flags, again[0].segment.sequence), (SYN, syn.segment.sequence));
    let (mut backend, sent) = Script::backend(&mut fixture, &syn);
    let head = only(sent);
    let again = fixture.wait(Duration::from_millis(260));
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].bytes, head.bytes);
    backend.gets(&again[0]);
    let answered = only(backend.sends(&mut fixture, RESPONSE));
    assert_eq!(answered.text(), RESPONSE);
    assert!(fixture.wait(Duration::from_secs(3)).is_empty(), "it was acknowledged");
}

#[test]
fn an_unreachable_backend_is_skipped() {
    let mut fixture = OneWorker::with_backends(2, |_| {});
    let mut client = Script::client(&mut fixture, 1000);
    let syn = only(client.sends(&mut fixture, REQUEST));
    let mut refusing = Script { own: syn.to, peer: syn.from, next: 0, expected: syn.segment.sequence + 1, window: 0 };
    let second = only(refusing.says(&mut fixture, RST | ACK, b""));
    assert_eq!(second.segment.flags, SYN);
    assert_ne!(second.to, syn.to, "another backend");
    let mut refusing = Script { own: second.to, peer: second.from, expected: second.segment.sequence + 1, ..refusing };
    let third = only(refusing.says(&mut fixture, RST | ACK, b""));
    let mut refusing = Script { own: third.to, peer: third.from, expected: third.segment.sequence + 1, ..refusing };
    let reply = only(refusing.says(&mut fixture, RST | ACK, b""));
    assert!(reply.text().starts_with("HTTP/1.1 502 "), "{reply:?}");
    client.gets(&reply);
    assert!(reply.segment.has(FIN));
}

#[test]
fn another_backend_is_tried_also_where_the_client_decides_which() {
    for algorithm in [Algorithm::SourceHash, Algorithm::Maglev, Algorithm::PathHash] {
        let mut snapshot = one_worker::snapshot(3, Kind::Http(one_worker::http().into()));
        snapshot.services[0].algorithm = algorithm;
        let mut fixture = OneWorker::with(snapshot);
        let mut client = Script::client(&mut fixture, 1000);
        let first = only(client.sends(&mut fixture, REQUEST));
        let expected = first.segment.sequence + 1;
        let mut refusing = Script { own: first.to, peer: first.from, next: 0, expected, window: 0 };
        let second = only(refusing.says(&mut fixture, RST | ACK, b""));
        assert_eq!(second.segment.flags, SYN);
        assert_ne!(second.to, first.to, "{algorithm:?}");
    }
}

#[test]
fn a_request_in_two_segments_is_acknowledged() {
    let mut fixture = OneWorker::new(|_| {});
    let mut client = Script::client(&mut fixture, 1000);
    let (first, second) = REQUEST.split_at(10);
    let ack = only(client.sends(&mut fixture, first));
    assert_eq!((ack.segment.flags, ack.segment.acknowledgement), (ACK, client.next));
    let syn = only(client.sends(&mut fixture, second));
    let (_, sent) = Script::backend(&mut fixture, &syn);
    assert_eq!(only(sent).text(), REQUEST);
}

#[test]
fn what_is_there_and_what_was_done_is_counted() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    let statistics = fixture.worker.statistics();
    let http = &statistics.http;
    assert_eq!(
        (http.client_conns_now, http.client_conns_peak, http.backend_conns_now, http.idle_now, http.requests),
        (1, 1, 1, 0, 1)
    );
    assert_eq!((statistics.services[0].client_conns_now, statistics.services[0].requests), (1, 1));
    assert!(http.client_conns_max > 0 && http.buffers_max > 0);
    let response = only(backend.sends(&mut fixture, RESPONSE));
    client.gets(&response);
    let own = client.own;
    for sent in client.says(&mut fixture, ACK | FIN, b"").iter().filter(|sent| sent.to == own) {
        client.gets(sent);
    }
    client.acknowledges(&mut fixture);
    let statistics = fixture.worker.statistics();
    assert_eq!((statistics.http.client_conns_now, statistics.services[0].client_conns_now), (1, 0), "kept, but over");
    fixture.wait(Duration::from_secs(6));
    let statistics = fixture.worker.statistics();
    let http = &statistics.http;
    assert_eq!((http.client_conns_now, http.client_conns_peak, http.backend_conns_now, http.idle_now), (0, 1, 1, 1));
    assert_eq!((statistics.services[0].client_conns_now, http.responses, http.replies), (0, [0, 1, 0, 0, 0], 0));
    let of_backends = statistics.backends.iter().map(|backend| backend.responses[1]).sum::<u64>();
    assert_eq!(of_backends, 1);
}

#[test]
fn a_refusal_is_counted_also_where_the_connection_goes_on() {
    let mut fixture = OneWorker::new(|http| http.routes = [].into());
    let mut client = Script::client(&mut fixture, 1000);
    let reply = only(client.sends(&mut fixture, REQUEST));
    assert!(reply.text().starts_with("HTTP/1.1 404"), "{reply:?}");
    assert!(!reply.segment.has(FIN));
    let http = &fixture.worker.statistics().http;
    assert_eq!((http.requests, http.replies, http.refused[super::Refused::NoRoute as usize]), (1, 1, 1));
}

#[test]
fn replies_of_our_own_say_when_they_were_made() {
    let redirect = Action::Redirect { status: 308, location: b"https://a/"[..].into() };
    for (action, request) in [(None, REQUEST), (Some(redirect), REQUEST), (None, "GET / HTTP/1.1\r\n\r\n")] {
        let mut fixture = OneWorker::new(|http| match action {
            Some(action) => http.routes.iter_mut().for_each(|route| route.action = action.clone()),
            None => http.routes = [].into(),
        });
        // Every process is told the date by its caller.
        fixture.restarts = false;
        fixture.worker.set_date(Date::new(784_111_777));
        let mut client = Script::client(&mut fixture, 1000);
        let reply = only(client.sends(&mut fixture, request));
        assert!(reply.text().contains("\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n"), "{reply:?}");
    }
}
