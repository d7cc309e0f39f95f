//! Keep-alives (RFC 9293, 3.8.4): a number before the next one, without data or with a byte of anything. The end that
//! asks gets an answer, in every state, and the byte goes nowhere where it could do harm.

use super::one_worker::{OneWorker, Script, Sent};
use super::{REQUEST, RESPONSE, asked, only};
use crate::l7::config::{Http, Sticky};
use crate::time::Duration;
use crate::wire::tcp::RST;
use alloc::vec::Vec;

const UPGRADE: &str = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

/// What an exchange has come to.
const STATES: [&str; 8] = ["idle", "asked", "uploading", "chunks up", "head", "downloading", "chunks down", "tunnel"];

fn edits(http: &mut Http) {
    http.forwarded.x_for = true;
    http.sticky = Some(Sticky { cookie: (*b"stuck").into(), attributes: (*b"").into() });
}

fn at(fixture: &mut OneWorker, state: &str) -> (Script, Script) {
    let request = match state {
        "uploading" => "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n",
        "chunks up" => "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        "tunnel" => UPGRADE,
        _ => REQUEST,
    };
    let (mut client, mut backend, _) = asked(fixture, 1000, request);
    backend.acknowledges(fixture);
    let (request, response) = match state {
        "idle" => ("", RESPONSE),
        "asked" => ("", ""),
        "uploading" => ("body", ""),
        "chunks up" => ("5\r\nabc", ""),
        "head" => ("", "HTTP/1.1 200 OK\r\nContent-"),
        "downloading" => ("", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbody"),
        "chunks down" => ("", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc"),
        _ => ("", SWITCHED),
    };
    if !request.is_empty() {
        backend.receives(&client.sends(fixture, request));
        backend.acknowledges(fixture);
    }
    if !response.is_empty() {
        client.receives(&backend.sends(fixture, response));
        client.acknowledges(fixture);
    }
    (client, backend)
}

/// `asker` asks; the answer comes from us, or from `other`, to whom the question went.
fn asks(fixture: &mut OneWorker, asker: &Script, other: &mut Script, bytes: &[u8], state: &str) {
    let mut sent: Vec<Sent> = asker.repeats(fixture, asker.next.wrapping_sub(1), &[], bytes);
    if sent.iter().any(|sent| sent.to == other.own) {
        let probe = only(sent);
        assert_eq!(probe.segment.sequence, other.expected.wrapping_sub(1), "{state}: nothing new");
        sent = other.acknowledges(fixture);
    }
    let answer = only(sent);
    assert_eq!((answer.to, answer.segment.acknowledgement), (asker.own, asker.next), "{state}");
    assert_eq!((answer.segment.sequence, answer.bytes.len()), (asker.expected, 0), "{state}");
}

#[test]
fn a_keep_alive_is_answered_in_every_state() {
    for (state, bytes) in STATES.iter().flat_map(|state| [(*state, &b""[..]), (state, b"\0")]) {
        for edited in [false, true] {
            let mut fixture = OneWorker::over_ip(edited, |http| {
                if edited {
                    edits(http)
                }
            });
            let (mut client, mut backend) = at(&mut fixture, state);
            for _ in 0..3 {
                asks(&mut fixture, &client.clone(), &mut backend, bytes, state);
                asks(&mut fixture, &backend.clone(), &mut client, bytes, state);
            }
            // It goes on where it was.
            match state {
                "uploading" | "chunks up" => {
                    assert_eq!(backend.receives(&client.sends(&mut fixture, "de")), "de", "{state}");
                }
                "downloading" | "chunks down" | "tunnel" => {
                    assert_eq!(client.receives(&backend.sends(&mut fixture, "de")), "de", "{state}");
                }
                "head" => {
                    let got = client.receives(&backend.sends(&mut fixture, "Length: 2\r\n\r\nde"));
                    assert!(got.ends_with("\r\nContent-Length: 2\r\n\r\nde") || edited && got.ends_with("de"), "{got}");
                }
                "asked" => {
                    assert!(client.receives(&backend.sends(&mut fixture, RESPONSE)).ends_with("hello"), "{state}");
                }
                _ => {
                    let text = backend.receives(&client.sends(&mut fixture, REQUEST));
                    assert!(text.starts_with(&REQUEST[..REQUEST.len() - 2]), "{text}");
                }
            }
            if state == "tunnel" {
                client.says(&mut fixture, RST, b"");
            }
            fixture.over();
        }
    }
}

#[test]
fn keep_alive_of_a_waiting_client_is_answered() {
    let mut fixture = OneWorker::new(|_| {});
    let mut client = Script::client(&mut fixture, 1000);
    let syn = only(client.sends(&mut fixture, REQUEST));
    let answer = only(client.repeats(&mut fixture, client.next - 1, &[], b""));
    assert_eq!(answer.to, client.own);
    let (mut backend, sent) = Script::backend(&mut fixture, &syn);
    assert_eq!(backend.receives(&sent), REQUEST);
    // And while we close.
    let mut fixture = OneWorker::new(|http| http.routes = [].into());
    let mut client = Script::client(&mut fixture, 1000);
    let reply = client.sends(&mut fixture, "GET / HTTP/1.0\r\n\r\n");
    client.receives(&reply);
    client.acknowledges(&mut fixture);
    let answer = only(client.repeats(&mut fixture, client.next - 1, &[], b"\n"));
    assert_eq!((answer.to, answer.segment.acknowledgement), (client.own, client.next));
    fixture.over();
}

#[test]
fn a_probe_does_not_keep_a_client_alive_that_asks_for_nothing() {
    let mut fixture = OneWorker::new(|_| {});
    let (client, _) = at(&mut fixture, "idle");
    for _ in 0..9 {
        fixture.wait(Duration::from_secs(10));
        client.repeats(&mut fixture, client.next - 1, &[], b"");
    }
    assert_eq!(fixture.worker.splices().0, 0, "75 s, and 10 s to close");
}
