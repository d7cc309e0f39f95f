//! What requests tell of their backends.

use super::one_worker::{OneWorker, Script, http, snapshot};
use super::paths::{hello, tls};
use super::{REQUEST, RESPONSE, asked, only};
use crate::l7::config::Kind;
use crate::l7::splice::Fault;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, RST};
use alloc::format;
use alloc::string::String;

/// What has been counted of the first backend: what speaks for it, connections it has not taken up, and its faults.
fn counted(fixture: &OneWorker) -> (u64, u64, [u64; Fault::ALL.len()]) {
    let backend = &fixture.worker.statistics().backends[0];
    (backend.established, backend.failed, backend.faults)
}

fn status(code: u16) -> String {
    format!("HTTP/1.1 {code} Whatever\r\nContent-Length: 2\r\n\r\nno")
}

/// What the client is told within so many seconds.
fn reply(fixture: &mut OneWorker, client: &mut Script, seconds: u64) -> String {
    let sent = fixture.wait(Duration::from_secs(seconds));
    let mut mine = sent.iter().filter(|sent| sent.to == client.own);
    mine.next().map_or_else(String::new, |sent| String::from(sent.text()))
}

#[test]
fn a_handshake_does_not_speak_for_a_backend_a_response_does() {
    let mut fixture = OneWorker::new(|_| {});
    let (_client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    assert_eq!(counted(&fixture), (0, 0, [0; 3]), "the handshake");
    backend.sends(&mut fixture, "HTTP/1.1 103 Early Hints\r\n\r\n");
    assert_eq!(counted(&fixture), (0, 0, [0; 3]), "an interim response");
    backend.sends(&mut fixture, RESPONSE);
    assert_eq!(counted(&fixture), (1, 0, [0; 3]));
    fixture.over();
    assert_eq!(counted(&fixture), (1, 0, [0; 3]), "what becomes of the connection says nothing");
}

#[test]
fn backend_close_before_an_answer_is_a_failure() {
    for (flags, said) in [(RST | ACK, ""), (ACK | FIN, ""), (ACK | FIN, "HTTP/1.1 2"), (RST | ACK, "HTTP/1.1 2")] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        if !said.is_empty() && flags & RST != 0 {
            backend.sends(&mut fixture, said);
        }
        let bytes = if flags & RST == 0 { said } else { "" };
        let sent = backend.says(&mut fixture, flags, bytes.as_bytes());
        let answer = client.receives(&sent);
        assert!(answer.starts_with("HTTP/1.1 502 "), "{flags:x} {said:?}: {sent:?}");
        assert_eq!(counted(&fixture), (0, 0, [1, 0, 0]), "{flags:x} {said:?}");
        fixture.over();
        assert_eq!(counted(&fixture), (0, 0, [1, 0, 0]), "counted once");
    }
}

#[test]
fn one_that_resets_after_an_interim_response_is_at_fault_too() {
    let mut fixture = OneWorker::new(|_| {});
    let (_client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    backend.sends(&mut fixture, "HTTP/1.1 103 Early Hints\r\n\r\n");
    backend.says(&mut fixture, RST | ACK, b"");
    assert_eq!(counted(&fixture), (0, 0, [1, 0, 0]));
    fixture.over();
}

#[test]
fn one_that_resets_in_the_middle_of_a_response_has_answered() {
    let mut fixture = OneWorker::new(|_| {});
    let (_client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    backend.sends(&mut fixture, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe");
    backend.says(&mut fixture, RST | ACK, b"");
    assert_eq!(counted(&fixture), (1, 0, [0; 3]));
    fixture.over();
}

#[test]
fn silent_backend_fails_unfinished_client_does_not() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    backend.acknowledges(&mut fixture);
    assert!(reply(&mut fixture, &mut client, 61).starts_with("HTTP/1.1 504 "));
    assert_eq!(counted(&fixture), (0, 0, [0, 1, 0]));
    fixture.over();

    let mut fixture = OneWorker::new(|_| {});
    let request = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nnot all";
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, request);
    backend.acknowledges(&mut fixture);
    assert!(reply(&mut fixture, &mut client, 61).starts_with("HTTP/1.1 408 "));
    assert_eq!(counted(&fixture), (0, 0, [0; 3]));
    fixture.over();
}

#[test]
fn one_that_does_not_even_acknowledge_is_at_fault() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, _, _) = asked(&mut fixture, 1000, REQUEST);
    assert!(reply(&mut fixture, &mut client, 59).starts_with("HTTP/1.1 502 "));
    assert_eq!(counted(&fixture), (0, 0, [1, 0, 0]));
    fixture.over();
}

#[test]
fn statuses_count_as_faults_if_the_service_says_so() {
    for (faulty, code, expected) in [
        (&[][..], 500, (1, 0, [0; 3])),
        (&[500, 502], 500, (0, 0, [0, 0, 1])),
        (&[500, 502], 502, (0, 0, [0, 0, 1])),
        (&[500, 502], 503, (1, 0, [0; 3])),
        (&[500, 404], 404, (1, 0, [0; 3])),
        (&[599], 599, (0, 0, [0, 0, 1])),
    ] {
        let mut snapshot = snapshot(1, Kind::Http(http().into()));
        snapshot.services[0].faulty = faulty.iter().copied().collect();
        let mut fixture = OneWorker::with(snapshot);
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        let sent = backend.sends(&mut fixture, &status(code));
        assert_eq!(client.receives(&sent), status(code), "it goes to the client as it is");
        assert_eq!(counted(&fixture), expected, "{faulty:?}, {code}");
        fixture.over();
    }
}

/// A connection that was idle may be closed at any time (RFC 9112, 9.3.1); a request that meets this says nothing.
#[test]
fn a_close_that_crosses_a_request_is_no_failure_of_the_backend() {
    for method in ["GET", "POST"] {
        let request = format!("{method} /a HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        let response = only(backend.sends(&mut fixture, RESPONSE));
        client.gets(&response);
        client.sends(&mut fixture, &request);
        let sent = backend.says(&mut fixture, RST | ACK, b"");
        assert_eq!(counted(&fixture), (1, 0, [0; 3]), "{method}: {sent:?}");
        fixture.over();
    }
    // One that has seen the request is at fault.
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    let response = only(backend.sends(&mut fixture, RESPONSE));
    client.gets(&response);
    let next = only(client.sends(&mut fixture, REQUEST));
    backend.gets(&next);
    backend.acknowledges(&mut fixture);
    backend.says(&mut fixture, RST | ACK, b"");
    assert_eq!(counted(&fixture), (1, 0, [1, 0, 0]));
    fixture.over();
}

#[test]
fn refused_connection_counts_as_one_failure() {
    let mut fixture = OneWorker::new(|http| http.limits.connect_tries = 1);
    let mut client = Script::client(&mut fixture, 1000);
    let syn = only(client.sends(&mut fixture, REQUEST));
    let mut refusing = Script { own: syn.to, peer: syn.from, next: 0, expected: syn.segment.sequence + 1, window: 0 };
    let reply = only(refusing.says(&mut fixture, RST | ACK, b""));
    assert!(reply.text().starts_with("HTTP/1.1 502 "), "{reply:?}");
    assert_eq!(counted(&fixture), (0, 1, [0; 3]));
    client.gets(&reply);
    fixture.over();
}

/// Of a TLS service only connections are known.
#[test]
fn a_handshake_speaks_for_a_backend_where_nothing_else_is_seen() {
    let mut fixture = OneWorker::of(1, tls(None));
    let mut client = Script::client(&mut fixture, 1000);
    let syn = only(client.says(&mut fixture, ACK, &hello("a.example")));
    assert_eq!(counted(&fixture), (0, 0, [0; 3]));
    let (mut backend, sent) = Script::backend(&mut fixture, &syn);
    backend.gets(&only(sent));
    assert_eq!(counted(&fixture), (1, 0, [0; 3]));
    backend.says(&mut fixture, RST | ACK, b"");
    assert_eq!(counted(&fixture), (1, 0, [0; 3]), "a client may have made it so");
    fixture.over();
}
