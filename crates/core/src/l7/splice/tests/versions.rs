//! HTTP/1.0, requests that expect something before their body, responses that are not the one they wait for.

use super::one_worker::{OneWorker, Script, Sent};
use super::{REQUEST, RESPONSE, asked, only};
use crate::wire::tcp::{ACK, FIN};
use alloc::format;
use alloc::vec::Vec;

fn to(sent: &[Sent], script: &Script) -> Vec<Sent> {
    sent.iter().filter(|sent| sent.to == script.own).cloned().collect()
}

#[test]
fn http_1_0_closes_unless_it_asks_for_more() {
    for (fields, keeps) in [("", false), ("Connection: close\r\n", false), ("Connection: keep-alive\r\n", true)] {
        for ipv6 in [false, true] {
            let mut fixture = OneWorker::over_ip(ipv6, |_| {});
            let request = format!("GET / HTTP/1.0\r\nHost: a\r\n{fields}\r\n");
            let (mut client, mut backend, head) = asked(&mut fixture, 1000, &request);
            assert!(head.text().starts_with("GET / HTTP/1.0\r\n"), "{head:?}");
            let sent = backend.sends(&mut fixture, RESPONSE);
            let text = client.receives(&sent);
            assert!(text.ends_with("hello"), "{text}");
            assert_eq!(to(&sent, &client).iter().any(|sent| sent.segment.has(FIN)), !keeps, "{fields}: {sent:?}");
            client.acknowledges(&mut fixture);
            if keeps {
                let sent = client.sends(&mut fixture, &request);
                assert!(sent.iter().any(|sent| sent.to == backend.own || !sent.segment.has(ACK)), "{sent:?}");
            }
            fixture.over();
        }
    }
}

#[test]
fn an_http_1_0_client_gets_nothing_it_does_not_know() {
    let request = "GET / HTTP/1.0\r\nHost: a\r\n\r\n";
    // No interim response.
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, request);
    assert!(to(&backend.sends(&mut fixture, "HTTP/1.1 103 Early Hints\r\n\r\n"), &client).is_empty());
    let text = client.receives(&backend.sends(&mut fixture, &format!("HTTP/1.1 102 Processing\r\n\r\n{RESPONSE}")));
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("hello"), "{text}");
    client.acknowledges(&mut fixture);
    fixture.over();
    // No chunks.
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, request);
    let sent = backend.sends(&mut fixture, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    assert!(client.receives(&sent).starts_with("HTTP/1.1 502 "), "{sent:?}");
    client.acknowledges(&mut fixture);
    fixture.over();
}

#[test]
fn an_http_1_0_backends_response_ends_with_its_connection() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    let sent = backend.says(&mut fixture, ACK | FIN, b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    let response = only(to(&sent, &client));
    assert!(!response.segment.has(FIN), "its length is known: the client's goes on");
    client.gets(&response);
    let sent = client.acknowledges(&mut fixture);
    assert!(to(&sent, &backend).iter().any(|sent| sent.segment.has(FIN)), "{sent:?}");
    let syn = only(client.sends(&mut fixture, REQUEST));
    assert_ne!(syn.from, backend.peer);
    fixture.over();
}

#[test]
fn a_body_that_waits_for_100_continue() {
    let request = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
    // It comes, and the response in the same segment, before the body.
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, request);
    let all = format!("HTTP/1.1 100 Continue\r\n\r\n{RESPONSE}");
    assert_eq!(client.receives(&backend.sends(&mut fixture, &all)), all);
    assert_eq!(backend.receives(&client.sends(&mut fixture, "body")), "body");
    backend.acknowledges(&mut fixture);
    assert_eq!(backend.receives(&client.sends(&mut fixture, REQUEST)), REQUEST);
    fixture.over();
    // It does not come, the client goes on by itself; then it comes, late.
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, request);
    assert_eq!(backend.receives(&client.sends(&mut fixture, "body")), "body");
    assert_eq!(client.receives(&backend.sends(&mut fixture, &all)), all);
    assert_eq!(backend.receives(&client.sends(&mut fixture, REQUEST)), REQUEST);
    fixture.over();
    // 417 instead, and the backend closes: the body will not come, and the client's connection cannot go on.
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, request);
    let refusal = "HTTP/1.1 417 Expectation Failed\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    let sent = backend.says(&mut fixture, ACK | FIN, refusal.as_bytes());
    let reply = to(&sent, &client).remove(0);
    assert!(reply.text().starts_with("HTTP/1.1 417 "), "{sent:?}");
    client.gets(&reply);
    client.acknowledges(&mut fixture);
    client.says(&mut fixture, ACK | FIN, b"");
    fixture.over();
}

#[test]
fn chunks_of_a_request_that_lie_within_one_may_overtake_others() {
    let request = "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n01";
    for first in [5000, u32::MAX - request.len() as u32] {
        let mut fixture = OneWorker::new(|_| {});
        let mut client = Script::client_with(&mut fixture, 1000, first, super::one_worker::USUAL);
        let syn = only(client.sends(&mut fixture, request));
        let (mut backend, sent) = Script::backend(&mut fixture, &syn);
        backend.receives(&sent);
        backend.acknowledges(&mut fixture);
        let start = client.next;
        let rest = b"23456789abcdef\r\n0\r\n\r\n";
        let part = |fixture: &mut OneWorker, from: usize, end: usize| {
            let sent = client.repeats(fixture, start.wrapping_add(from as u32), &[], &rest[from..end]);
            let passed = to(&sent, &backend);
            if passed.is_empty() {
                assert_eq!(only(sent).segment.acknowledgement, start, "not passed on, and told so");
                return false;
            }
            let passed = only(passed);
            assert_eq!(passed.segment.sequence, backend.expected.wrapping_add(from as u32));
            assert_eq!(passed.bytes, rest[from..end]);
            true
        };
        assert!(!part(&mut fixture, 10, 16), "beyond the chunk");
        assert!(part(&mut fixture, 8, 14) && part(&mut fixture, 4, 6) && part(&mut fixture, 0, 10));
        assert!(part(&mut fixture, 14, rest.len()));
        backend.expected = backend.expected.wrapping_add(rest.len() as u32);
        client.next = start.wrapping_add(rest.len() as u32);
        backend.acknowledges(&mut fixture);
        client.receives(&backend.sends(&mut fixture, RESPONSE));
        assert_eq!(backend.receives(&client.sends(&mut fixture, REQUEST)), REQUEST);
        fixture.over();
    }
}
