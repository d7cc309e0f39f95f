//! Responses' heads: interim ones, those in pieces, those that are edited.

use super::one_worker::{OneWorker, Script, USUAL};
use super::{REQUEST, asked, only};
use crate::l7::config::{Http, Sticky};
use crate::l7::splice::tcp::segment::Abilities;
use crate::time::Duration;
use crate::wire::tcp::{ACK, RST};
use alloc::format;
use alloc::string::String;

const INTERIM: &str = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
const RESPONSE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

#[test]
fn interim_responses_are_delivered_by_us() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    let first = only(backend.sends(&mut fixture, INTERIM));
    assert_eq!(first.text(), INTERIM);
    assert_eq!(first.segment.sequence, client.expected);
    // It is lost, and sent again: by us, whatever the backend does.
    let again = only(fixture.wait(Duration::from_millis(260)));
    assert_eq!(again.what(), first.what());
    client.gets(&again);
    let told = only(client.acknowledges(&mut fixture));
    assert_eq!(told.what(), (backend.expected, backend.next, ACK, ""));
    // Two more, and the response, in one segment.
    let all = format!("{INTERIM}{INTERIM}{RESPONSE}");
    let sent = backend.sends(&mut fixture, &all);
    assert_eq!(client.receives(&sent), all);
    let told = only(client.acknowledges(&mut fixture));
    assert_eq!(told.what(), (backend.expected, backend.next, ACK, ""));
    fixture.over();
}

#[test]
fn fields_for_one_hop_stop_here_in_interim_responses_too() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    let hinted = "HTTP/1.1 103 Early Hints\r\nConnection: X-S\r\nX-S: 1\r\nLink: </a>\r\n\r\n";
    let sent = backend.sends(&mut fixture, &format!("{hinted}{hinted}{RESPONSE}"));
    assert_eq!(client.receives(&sent), format!("{INTERIM}{INTERIM}{RESPONSE}"));
    let told = only(client.acknowledges(&mut fixture));
    assert_eq!(told.what(), (backend.expected, backend.next, ACK, ""));
    fixture.over();
}

#[test]
fn a_protocol_switch_without_a_request_is_refused() {
    let switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    for request in [REQUEST, "GET / HTTP/1.0\r\nHost: a\r\n\r\n"] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, request);
        let sent = backend.sends(&mut fixture, switched);
        assert!(client.receives(&sent).starts_with("HTTP/1.1 502 "), "{sent:?}");
        fixture.over();
    }
}

/// Every response gets a cookie: its head becomes another.
fn sticky(http: &mut Http) {
    http.sticky = Some(Sticky { cookie: (*b"stuck").into(), attributes: (*b"").into() });
}

#[test]
fn numbers_are_translated_around_an_edited_head() {
    // Where both ends' numbers begin: also such that they wrap in the request, in the head, in the body.
    for first in [5000, u32::MAX - 20, u32::MAX - 50, u32::MAX - 90] {
        let mut fixture = OneWorker::new(sticky);
        let mut client = Script::client_with(&mut fixture, 1000, first, USUAL);
        let syn = only(client.sends(&mut fixture, REQUEST));
        let (mut backend, sent) = Script::backend_with(&mut fixture, &syn, first, USUAL);
        backend.gets(&only(sent));
        let (head, body) = RESPONSE.split_at(RESPONSE.len() - 5);
        let (start, body_start) = (backend.next, backend.next.wrapping_add(head.len() as u32));
        let response = only(backend.sends(&mut fixture, RESPONSE));
        let text = String::from(response.text());
        assert!(text.contains("stuck=") && text.ends_with("\r\n\r\nhello"), "{text}");
        let mine = client.expected;
        let mine_body = mine.wrapping_add((text.len() - 5) as u32);
        // Acknowledgements of nothing, of a part of the head: they are for us.
        for part in [0, 1, text.len() as u32 - 6] {
            client.expected = mine.wrapping_add(part);
            assert!(client.acknowledges(&mut fixture).is_empty(), "{part}");
        }
        client.expected = mine_body;
        assert_eq!(only(client.acknowledges(&mut fixture)).segment.acknowledgement, body_start);
        client.expected = mine_body.wrapping_add(2);
        assert_eq!(only(client.acknowledges(&mut fixture)).segment.acknowledgement, body_start.wrapping_add(2));
        // The backend sends all of it again: only what is not ours goes on.
        let again = only(backend.repeats(&mut fixture, start, &[], RESPONSE.as_bytes()));
        assert_eq!((again.segment.sequence, again.text()), (mine_body, body));
        client.expected = mine_body.wrapping_add(5);
        let told = client.acknowledges(&mut fixture).remove(0);
        assert_eq!(told.what(), (backend.expected, backend.next, ACK, ""));
        fixture.over();
    }
}

#[test]
fn duplicate_acks_within_an_edited_head_are_ours() {
    let mut fixture = OneWorker::new(sticky);
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n";
    let body_start = backend.next + head.len() as u32;
    let first = only(backend.sends(&mut fixture, &format!("{head}{}", "a".repeat(1000))));
    let written = first.bytes.len() as u32 - 1000;
    let start = client.expected;
    // All of it is lost; what follows is not.
    let next = only(backend.sends(&mut fixture, &"b".repeat(1000)));
    assert_eq!(next.segment.sequence, start + written + 1000);
    let block = |left: u32, right: u32| [&[1, 1, 5, 10][..], &left.to_be_bytes(), &right.to_be_bytes()].concat();
    let has_next = block(start + written + 1000, start + written + 2000);
    let ask =
        |client: &Script, fixture: &mut OneWorker, options: &[u8]| client.repeats(fixture, client.next, options, b"");
    assert!(ask(&client, &mut fixture, &has_next).is_empty());
    assert!(ask(&client, &mut fixture, &has_next).is_empty());
    let again = only(ask(&client, &mut fixture, &has_next));
    assert_eq!((again.segment.sequence, again.bytes.len() as u32), (start, written), "the head, and no more is ours");
    assert_eq!(again.bytes, first.bytes[..written as usize]);
    assert!(ask(&client, &mut fixture, &has_next).is_empty(), "once");
    // It has the head now: what is missing is the backend's to send.
    client.expected = start + written;
    for _ in 0..3 {
        let passed = only(ask(&client, &mut fixture, &has_next));
        assert_eq!((passed.to, passed.segment.acknowledgement), (backend.own, body_start));
        assert_eq!(passed.options, block(body_start + 1000, body_start + 2000), "in the backend's numbers");
    }
    let missing = only(backend.repeats(&mut fixture, body_start, &[], &[b'a'; 1000]));
    assert_eq!(missing.segment.sequence, start + written);
    fixture.over();
}

#[test]
fn sack_is_forwarded_only_if_both_ends_agreed() {
    let block = |left: u32, right: u32| [&[1, 1, 5, 10][..], &left.to_be_bytes(), &right.to_be_bytes()].concat();
    for (of_client, of_backend) in [(true, true), (true, false), (false, true)] {
        let mut fixture = OneWorker::new(|_| {});
        let mut client = Script::client_with(&mut fixture, 1000, 5000, Abilities { sack: of_client, ..USUAL });
        let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3000\r\n\r\n";
        let syn = only(client.sends(&mut fixture, head));
        let abilities = Abilities { sack: of_backend, ..USUAL };
        let (mut backend, sent) = Script::backend_with(&mut fixture, &syn, 7000, abilities);
        backend.gets(&only(sent));
        assert_eq!(only(backend.acknowledges(&mut fixture)).segment.acknowledgement, client.next);
        // The second part of the body overtakes the first.
        let start = client.next;
        let part = only(client.repeats(&mut fixture, start + 100, &[], &[b'x'; 100]));
        assert_eq!(part.segment.sequence, backend.expected + 100);
        let has = block(backend.expected + 100, backend.expected + 200);
        let told = only(backend.repeats(&mut fixture, backend.next, &has, b""));
        assert_eq!(told.segment.acknowledgement, start);
        if of_client && of_backend {
            assert_eq!(told.options, block(start + 100, start + 200));
        } else {
            assert_eq!(told.options, [1; 12], "taken out");
        }
        fixture.over();
    }
}

#[test]
fn a_head_in_pieces_is_ours_and_its_body_is_not() {
    for edited in [false, true] {
        let mut fixture = OneWorker::new(|http| {
            if edited {
                sticky(http)
            }
        });
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        let begin = client.expected;
        let (first, rest) = RESPONSE.split_at(20);
        let told = only(backend.sends(&mut fixture, first));
        assert_eq!(told.what(), (backend.expected, backend.next, ACK, ""), "go on");
        // A piece behind the next one is not ours to keep.
        let told = only(backend.repeats(&mut fixture, backend.next + 5, &[], &rest.as_bytes()[5..]));
        assert_eq!(told.segment.acknowledgement, backend.next);
        let body = "x".repeat(4000);
        let head = format!("{}\r\n\r\n", rest.split("\r\n\r\n").next().unwrap()).replace(": 5", ": 4000");
        let all = format!("{head}{body}");
        let sent = backend.sends(&mut fixture, &all);
        assert_eq!(sent.len(), 2, "{sent:?}");
        let text = client.receives(&sent);
        assert!(text.ends_with(&format!("\r\n\r\n{body}")) && text.contains("stuck=") == edited, "{text}");
        assert_eq!(sent[1].text(), body, "as the backend sent it");
        let head = sent[0].bytes.len() as u32;
        // Of what is sent again by a timer, only the head is ours.
        let again = only(fixture.wait(Duration::from_millis(260)));
        assert_eq!((again.segment.sequence, again.bytes.len() as u32), (begin, head));
        assert_eq!(only(client.acknowledges(&mut fixture)).segment.acknowledgement, backend.next);
        fixture.over();
    }
}

#[test]
fn an_edited_head_waits_for_a_client_that_takes_nothing_now() {
    let mut fixture = OneWorker::new(sticky);
    let mut client = Script::client(&mut fixture, 1000);
    client.window = 0;
    let syn = only(client.sends(&mut fixture, REQUEST));
    let (mut backend, sent) = Script::backend(&mut fixture, &syn);
    let head = only(sent);
    backend.gets(&head);
    let sent = backend.sends(&mut fixture, RESPONSE);
    // One byte asks whether that is still so.
    let probe = sent.iter().find(|sent| sent.segment.sequence == client.expected).unwrap();
    assert_eq!(probe.bytes.len(), 1);
    for _ in 0..20 {
        fixture.wait(Duration::from_secs(2));
        client.acknowledges(&mut fixture);
    }
    assert_eq!(fixture.worker.splices().0, 1, "it answers, so it has not vanished");
    client.window = 1000;
    let all = only(client.acknowledges(&mut fixture));
    assert!(all.segment.sequence.wrapping_sub(client.expected) <= 1 && all.bytes.len() > 60, "at once: {all:?}");
    fixture.over();
}

#[test]
fn a_response_that_is_none_becomes_502() {
    for bad in ["SSH-2.0-nonsense\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        let sent = backend.sends(&mut fixture, bad);
        assert!(sent.iter().any(|sent| sent.to == backend.own && sent.segment.has(RST)), "{sent:?}");
        assert!(client.receives(&sent).starts_with("HTTP/1.1 502 "), "{sent:?}");
        fixture.over();
    }
}
