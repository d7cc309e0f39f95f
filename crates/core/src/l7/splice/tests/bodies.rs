//! Bodies, tunnels, and segments in every order.

use super::one_worker::{OneWorker, Script, Sent, USUAL};
use super::{REQUEST, RESPONSE, asked, only};
use crate::l7::config::{Http, HttpLimits};
use crate::l7::splice::tcp::segment::Abilities;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, PSH};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

fn to(sent: &[Sent], script: &Script) -> Vec<Sent> {
    sent.iter().filter(|sent| sent.to == script.own).cloned().collect()
}

/// The exchange is over: the client says what it has, and another request goes the same way.
fn another(fixture: &mut OneWorker, client: &mut Script, backend: &mut Script) {
    client.acknowledges(fixture);
    let sent = client.sends(fixture, REQUEST);
    assert_eq!(backend.receives(&sent), REQUEST, "{sent:?}");
    client.receives(&backend.sends(fixture, RESPONSE));
    client.acknowledges(fixture);
    fixture.over();
}

#[test]
fn responses_without_a_body_end_at_their_head() {
    for (request, response) in [
        ("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"),
        (REQUEST, "HTTP/1.1 204 No Content\r\n\r\n"),
        (REQUEST, "HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\n\r\n"),
    ] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, request);
        assert_eq!(client.receives(&backend.sends(&mut fixture, response)), response);
        another(&mut fixture, &mut client, &mut backend);
    }
}

#[test]
fn chunks_are_followed_wherever_segments_are_cut() {
    let body = "5\r\nhello\r\n3;a=b\r\n,ab\r\n0\r\nX-Sum: x\r\n\r\n";
    let request = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let response = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for size in [1, 2, 3, 7, 100] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, request);
        let mut got = String::new();
        for piece in body.as_bytes().chunks(size) {
            got += &backend.receives(&client.says(&mut fixture, ACK, piece));
        }
        assert_eq!(got, body, "{size}");
        backend.acknowledges(&mut fixture);
        client.receives(&backend.sends(&mut fixture, response));
        let mut got = String::new();
        for piece in body.as_bytes().chunks(size) {
            got += &client.receives(&backend.says(&mut fixture, ACK, piece));
        }
        assert_eq!(got, body);
        another(&mut fixture, &mut client, &mut backend);
    }
}

#[test]
fn chunks_that_overtake_others_are_asked_for_again() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    client.receives(&backend.sends(&mut fixture, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe"));
    client.acknowledges(&mut fixture);
    let start = backend.next;
    let told = only(backend.repeats(&mut fixture, start + 3, &[], b"\r\n0\r\n\r\n"));
    assert_eq!(told.what(), (backend.expected, start, ACK, ""), "not passed on");
    // What lies in the middle of a chunk means nothing to us.
    let passed = only(backend.repeats(&mut fixture, start + 1, &[], b"lo"));
    assert_eq!((passed.to, passed.segment.sequence, passed.text()), (client.own, client.expected + 1, "lo"));
    let passed = only(backend.repeats(&mut fixture, start, &[], b"l"));
    assert_eq!((passed.to, passed.segment.sequence, passed.text()), (client.own, client.expected, "l"));
    backend.next += 3;
    client.expected += 3;
    client.receives(&backend.sends(&mut fixture, "\r\n0\r\n\r\n"));
    another(&mut fixture, &mut client, &mut backend);
}

#[test]
fn body_passes_in_any_order_across_wraparound() {
    for first in [5000, u32::MAX - 60, u32::MAX - 70, u32::MAX - 90] {
        let mut fixture = OneWorker::new(|_| {});
        let mut client = Script::client_with(&mut fixture, 1000, first, USUAL);
        let syn = only(client.sends(&mut fixture, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 40\r\n\r\n01234"));
        let (mut backend, sent) = Script::backend_with(&mut fixture, &syn, first, USUAL);
        let head = only(sent);
        assert!(head.text().ends_with("\r\n\r\n01234"));
        backend.gets(&head);
        backend.acknowledges(&mut fixture);
        let (start, base) = (client.next, backend.expected);
        // From, bytes; a request that follows the body overtakes it, and stays here.
        for (from, length) in [(35, 10), (30, 5), (40, 5), (10, 20), (0, 15), (35, 5), (5, 40)] {
            let text = format!("abcdefghijklmnopqrstuvwxyz012345678{REQUEST}");
            let bytes = &text.as_bytes()[from..from + length];
            let sent = client.repeats(&mut fixture, start.wrapping_add(from as u32), &[], bytes);
            let passed = to(&sent, &backend);
            if from >= 35 {
                assert!(passed.is_empty(), "{passed:?}");
                continue;
            }
            let passed = only(passed);
            assert_eq!(passed.segment.sequence, base.wrapping_add(from as u32));
            assert_eq!(passed.bytes, bytes[..length.min(35 - from)], "from {from}");
        }
        client.next = start.wrapping_add(35);
        backend.expected = base.wrapping_add(35);
        let told = only(backend.acknowledges(&mut fixture));
        assert_eq!((told.to, told.segment.acknowledgement), (client.own, client.next));
        // An old segment, received long ago, and told so: told again.
        let told = only(client.repeats(&mut fixture, start.wrapping_sub(20), &[], &[b'x'; 20]));
        assert_eq!((told.to, told.segment.acknowledgement), (client.own, client.next));
        client.receives(&backend.sends(&mut fixture, RESPONSE));
        another(&mut fixture, &mut client, &mut backend);
    }
}

#[test]
fn one_hundred_continue() {
    let mut fixture = OneWorker::new(|_| {});
    let request = "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, request);
    let interim = "HTTP/1.1 100 Continue\r\n\r\n";
    assert_eq!(client.receives(&backend.sends(&mut fixture, interim)), interim);
    assert_eq!(backend.receives(&client.sends(&mut fixture, "body")), "body");
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    another(&mut fixture, &mut client, &mut backend);
}

#[test]
fn a_response_that_comes_before_the_body_is_all_there() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) =
        asked(&mut fixture, 1000, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\n");
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    client.acknowledges(&mut fixture);
    for part in ["half", "rest"] {
        assert_eq!(backend.receives(&client.sends(&mut fixture, part)), part);
    }
    backend.acknowledges(&mut fixture);
    another(&mut fixture, &mut client, &mut backend);
}

#[test]
fn bytes_behind_a_response_end_its_backend_connection() {
    for separate in [false, true] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        let sent = if separate {
            client.receives(&backend.sends(&mut fixture, RESPONSE));
            backend.sends(&mut fixture, RESPONSE)
        } else {
            let sent = backend.sends(&mut fixture, &format!("{RESPONSE}{RESPONSE}"));
            assert_eq!(client.receives(&sent), RESPONSE);
            sent
        };
        assert!(to(&sent, &client).iter().all(|sent| sent.text() == RESPONSE), "{sent:?}");
        let sent = client.acknowledges(&mut fixture);
        assert!(to(&sent, &backend).iter().any(|sent| sent.segment.has(FIN)), "closed: {sent:?}");
        let syn = only(client.sends(&mut fixture, REQUEST));
        assert_ne!(syn.from, backend.peer);
        fixture.over();
    }
}

fn tunnelled(fixture: &mut OneWorker, request: &str, response: &str) {
    let (mut client, mut backend, _) = asked(fixture, 1000, request);
    // What a client sends too early waits.
    let early = client.sends(fixture, "early");
    assert!(to(&early, &backend).is_empty(), "{early:?}");
    client.next -= 5;
    assert_eq!(client.receives(&backend.sends(fixture, response)), response);
    assert_eq!(backend.receives(&client.sends(fixture, "early")), "early", "it comes again");
    for text in ["GET / HTTP/1.1\r\n\r\n", "\0\u{1}\u{2}"] {
        assert_eq!(backend.receives(&client.sends(fixture, text)), text);
        assert_eq!(client.receives(&backend.sends(fixture, text)), text);
    }
    let fin = only(client.says(fixture, ACK | FIN, b""));
    assert!(fin.segment.has(FIN));
    backend.gets(&fin);
    assert_eq!(client.receives(&backend.sends(fixture, "the rest")), "the rest", "half closed");
    let fin = only(backend.says(fixture, ACK | FIN | PSH, b"!"));
    assert!(fin.segment.has(FIN));
    client.gets(&fin);
    client.acknowledges(fixture);
    fixture.over();
}

#[test]
fn tunnels() {
    let upgrade = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    tunnelled(&mut OneWorker::new(|_| {}), upgrade, switched);
    let connect = "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n";
    tunnelled(&mut OneWorker::new(|http| http.connect = true), connect, "HTTP/1.1 200 OK\r\n\r\n");
    for (request, change) in [(upgrade, false), (connect, true)] {
        let mut fixture = OneWorker::new(|http: &mut Http| http.upgrade = change);
        let mut client = Script::client(&mut fixture, 1000);
        assert!(only(client.sends(&mut fixture, request)).text().starts_with("HTTP/1.1 501 "));
        fixture.over();
    }
}

#[test]
fn urgent_data_is_data() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) =
        asked(&mut fixture, 1000, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n");
    let urgent = 0x20;
    let body = only(client.says(&mut fixture, ACK | urgent, b"body"));
    assert_eq!((body.segment.flags, body.text()), (ACK, "body"));
    backend.gets(&body);
    client.receives(&backend.says(&mut fixture, ACK | urgent, RESPONSE.as_bytes()));
    another(&mut fixture, &mut client, &mut backend);
}

#[test]
fn windows_with_and_without_scaling() {
    for (of_client, of_backend) in [(None, None), (Some(3), None), (None, Some(11)), (Some(14), Some(0))] {
        let mut fixture = OneWorker::new(|_| {});
        let mut client = Script::client_with(&mut fixture, 1000, 5000, Abilities { scale: of_client, ..USUAL });
        client.window = 999;
        let syn = only(client.sends(&mut fixture, REQUEST));
        let abilities = Abilities { scale: of_backend, ..USUAL };
        let (mut backend, sent) = Script::backend_with(&mut fixture, &syn, 9000, abilities);
        let head = only(sent);
        let shown = |window: u32, scales: bool| (window >> if scales { 7 } else { 0 }).min(65_535) as u16;
        let of = |scale: Option<u8>| 999 << scale.unwrap_or(0);
        assert_eq!(head.segment.window, shown(of(of_client), of_backend.is_some()));
        backend.gets(&head);
        backend.window = 999;
        let response = only(backend.sends(&mut fixture, RESPONSE));
        assert_eq!(response.segment.window, shown(of(of_backend), of_client.is_some()));
        client.gets(&response);
        another(&mut fixture, &mut client, &mut backend);
    }
}

#[test]
fn zero_window_backend_gets_the_rest_when_it_opens() {
    let mut fixture = OneWorker::new(|_| {});
    let mut client = Script::client(&mut fixture, 1000);
    let request = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n\r\n{}", "x".repeat(900));
    let syn = only(client.sends(&mut fixture, &request));
    let mut backend =
        Script { own: syn.to, peer: syn.from, next: 7000, expected: syn.segment.sequence + 1, window: 100 };
    let own = backend.own(crate::wire::tcp::SYN | ACK, Some(Abilities { scale: None, ..USUAL }));
    let sent = fixture.arrives(&own, b"");
    backend.next += 1;
    assert_eq!(only(sent.clone()).bytes.len(), 100, "no more than it takes");
    let mut got = backend.receives(&sent);
    backend.window = 300;
    while got.len() < request.len() {
        let sent = backend.acknowledges(&mut fixture);
        let next = to(&sent, &backend);
        assert!(!next.is_empty(), "at once: {} bytes are there", got.len());
        got += &backend.receives(&next);
    }
    assert_eq!(got, request);
    fixture.over();
}

#[test]
fn time_bounds_what_may_be_waited_for() {
    let second = Duration::from_secs(1);
    let limits =
        HttpLimits { head_timeout: second, body_timeout: second, response_timeout: second, ..Default::default() };
    for (request, status) in
        [("GET /", "408"), (REQUEST, "504"), ("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n", "408")]
    {
        let mut fixture = OneWorker::new(|http| http.limits = limits);
        let mut client = Script::client(&mut fixture, 1000);
        let sent = client.sends(&mut fixture, request);
        if let Some(syn) = sent.iter().find(|sent| sent.to != client.own) {
            let (mut backend, sent) = Script::backend(&mut fixture, syn);
            backend.gets(&only(sent));
            backend.acknowledges(&mut fixture);
        }
        let sent = fixture.wait(Duration::from_millis(1400));
        let reply = to(&sent, &client);
        assert!(reply[0].text().starts_with(&format!("HTTP/1.1 {status} ")) && reply[0].segment.has(FIN), "{sent:?}");
        fixture.over();
    }
}

#[test]
fn lost_chunks_are_resent_unchanged_or_not_at_all() {
    let request = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let md5 = [&[1, 1, 19, 18][..], &[0; 16]].concat();
    // Not taken for an option's sake, for want of room; lost on its way.
    for (options, window) in [(&md5[..], 1000), (&[], 0), (&[], 1000)] {
        let mut fixture = OneWorker::new(|_| {});
        let (client, mut backend, _) = asked(&mut fixture, 1000, request);
        backend.window = window;
        backend.acknowledges(&mut fixture);
        // Who reads this believes that a long chunk follows; who does not get it could be told otherwise.
        let first = "fffff\r\nhello, x";
        for _ in 0..2 {
            let sent = client.repeats(&mut fixture, client.next, options, first.as_bytes());
            assert_eq!(to(&sent, &backend)[0].text(), first);
        }
        let other_data = client.repeats(&mut fixture, client.next, &[], b"fffff\r\nhello, y");
        assert_eq!(to(&other_data, &backend)[0].text(), "fffff\r\nhello, y", "far in a chunk it changes nothing");
        let told = only(client.repeats(&mut fixture, client.next, &[], format!("0\r\n\r\n{REQUEST}").as_bytes()));
        assert_eq!((told.to, told.segment.flags, told.segment.acknowledgement), (client.own, ACK, client.next));
        let again = client.repeats(&mut fixture, client.next, &[], first.as_bytes());
        assert_eq!(to(&again, &backend)[0].text(), first, "the right one goes on");
        fixture.over();
    }
}

#[test]
fn the_last_chunk_may_not_become_another_either() {
    let request = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, request);
    let start = client.next;
    // Lost on its way: the backend knows of nothing.
    client.sends(&mut fixture, "4\r\n0\r\n\r\r\n0\r\n\r\n");
    for other in [&b"0\r\n\r\nGET / HT"[..], b"\0"] {
        // The second is no data, but a way to ask whether the other end is there.
        let sequence = if other.len() == 1 { client.next.wrapping_sub(1) } else { start };
        let told = only(client.repeats(&mut fixture, sequence, &[], other));
        assert_eq!((told.to, told.segment.flags, told.text()), (client.own, ACK, ""));
    }
    let sent = client.repeats(&mut fixture, start, &[], b"4\r\n0\r\n\r\r\n0\r\n\r\n");
    assert_eq!(backend.receives(&sent), "4\r\n0\r\n\r\r\n0\r\n\r\n");
    fixture.over();
}

#[test]
fn a_body_that_only_repeats_itself_comes_to_its_end_in_time() {
    let second = Duration::from_secs(1);
    let limits = HttpLimits { body_timeout: second, response_timeout: second, ..Default::default() };
    let mut fixture = OneWorker::new(|http| http.limits = limits);
    // Every process gives what waits a second more.
    fixture.restarts = false;
    let (mut client, mut backend, _) =
        asked(&mut fixture, 1000, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n");
    backend.acknowledges(&mut fixture);
    let start = client.next;
    backend.receives(&client.sends(&mut fixture, "1"));
    let mut answered = false;
    for _ in 0..4 {
        let sent = fixture.wait(Duration::from_millis(700));
        answered |= to(&sent, &client).iter().any(|sent| sent.text().starts_with("HTTP/1.1 408 "));
        if !answered {
            client.repeats(&mut fixture, start, &[], b"1");
        }
    }
    assert!(answered);
    fixture.over();
}
