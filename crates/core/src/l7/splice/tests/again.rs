//! What we own is sent again: when, how often, from which byte on, and what duplicate acknowledgements beside it mean.

use super::super::Refused;
use super::offload::{complete, installs, removals};
use super::one_worker::{OneWorker, Script, Sent, USUAL};
use super::stamped;
use super::{REQUEST, RESPONSE, asked, only};
use crate::engine::{Completion, Counters};
use crate::l7::config::{Http, Sticky};
use crate::time::{Duration, Time};
use crate::wire::tcp::{ACK, FIN, RST, SYN};
use alloc::format;
use alloc::vec::Vec;

/// When, in milliseconds from now on, `to` is sent something again, and when it is reset.
fn times(fixture: &mut OneWorker, to: &Script, is_it: impl Fn(&Sent) -> bool) -> (Vec<u64>, Option<u64>) {
    let begin = fixture.now;
    let since = |now: Time| now.since(begin).as_millis() as u64;
    let (mut again, mut reset) = (Vec::new(), None);
    while since(fixture.now) < 60_000 {
        let sent = fixture.wait(Duration::from_millis(10));
        let mine: Vec<&Sent> = sent.iter().filter(|sent| sent.to == to.own).collect();
        if mine.iter().any(|sent| sent.segment.has(RST)) {
            reset = reset.or(Some(since(fixture.now)));
        } else if mine.iter().any(|sent| is_it(sent)) {
            again.push(since(fixture.now));
        }
    }
    (again, reset)
}

/// Within what timers are exact to.
fn about(times: &[u64], expected: &[u64]) -> bool {
    times.len() == expected.len()
        && times.iter().zip(expected).all(|(at, about)| at.abs_diff(*about) <= 100 + about / 20)
}

fn sticky(http: &mut Http) {
    http.sticky = Some(Sticky { cookie: (*b"stuck").into(), attributes: (*b"").into() });
}

/// After 0.2 s, then 0.4 s later, and so on; never more than 8 s later, seven times in all.
const OWNED: [u64; 7] = [200, 600, 1400, 3000, 6200, 12_600, 20_600];
/// And then the connection is given up.
const GIVEN_UP: u64 = 28_600;
/// When what closes a connection is sent again. There are 10 s for it.
const CLOSING: [u64; 5] = [200, 600, 1400, 3000, 6200];

#[test]
fn a_head_is_sent_again_ever_later_and_then_given_up() {
    for ipv6 in [false, true] {
        let mut fixture = OneWorker::over_ip(ipv6, |_| {});
        let (_, backend, head) = asked(&mut fixture, 1000, REQUEST);
        let (again, reset) = times(&mut fixture, &backend, |sent| sent.what() == head.what());
        assert!(about(&again, &OWNED) && about(&[reset.unwrap()], &[GIVEN_UP]), "{again:?}, {reset:?}");
        let http = &fixture.worker.statistics().http;
        let told = http.refused[Refused::BackendClosed as usize];
        assert_eq!((told, http.retries), (1, 0), "it may have had the request, which goes to no other backend");
        fixture.over();
        let mut fixture = OneWorker::over_ip(ipv6, sticky);
        let (client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        let response = only(backend.sends(&mut fixture, RESPONSE));
        let head = response.bytes.len() - 5;
        let is_head = |sent: &Sent| sent.bytes == response.bytes[..head] && sent.segment.sequence == client.expected;
        let (again, reset) = times(&mut fixture, &client, is_head);
        assert!(about(&again, &OWNED) && about(&[reset.unwrap()], &[GIVEN_UP]), "{again:?}, {reset:?}");
        assert_eq!(fixture.worker.statistics().http.refused[Refused::Vanished as usize], 1);
        fixture.over();
    }
}

#[test]
fn a_syn_is_sent_again_until_another_backend_is_tried() {
    let mut fixture = OneWorker::with_backends(2, |_| {});
    let mut client = Script::client(&mut fixture, 1000);
    let syn = only(client.sends(&mut fixture, REQUEST));
    let silent = Script { own: syn.to, peer: syn.from, next: 0, expected: 0, window: 0 };
    let mut others = Vec::new();
    let begin = fixture.now;
    let mut again = Vec::new();
    while fixture.now.since(begin) < Duration::from_secs(12) {
        for sent in fixture.wait(Duration::from_millis(10)) {
            let at = fixture.now.since(begin).as_millis() as u64;
            match (sent.to == silent.own && sent.from == silent.peer, sent.segment.flags) {
                (true, SYN) => again.push(at),
                (false, SYN) => others.push((at, sent.to)),
                _ => {
                    assert!(client.receives(&[sent]).starts_with("HTTP/1.1 504 "));
                    client.acknowledges(&mut fixture);
                }
            }
        }
    }
    assert!(about(&again, &[250, 750, 1750]), "{again:?}");
    let (first, other) = others[0];
    assert!(about(&[first], &[3000]) && other != silent.own, "{others:?}");
    assert_eq!(fixture.worker.statistics().http.retries, 2, "three backends at most are tried");
    fixture.over();
}

#[test]
fn our_fin_and_our_replies_are_sent_again_ever_later() {
    // To a client: an answer of our own and FIN; FIN alone. To a backend: FIN.
    let mut fixture = OneWorker::new(|http| http.routes = [].into());
    let mut client = Script::client(&mut fixture, 1000);
    let reply = only(client.sends(&mut fixture, "GET / HTTP/1.0\r\n\r\n"));
    let (again, reset) = times(&mut fixture, &client, |sent| sent.what() == reply.what());
    assert!(about(&again, &CLOSING) && about(&[reset.unwrap()], &[10_000]), "{again:?}, {reset:?}");
    fixture.over();
    for to_client in [true, false] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        client.receives(&backend.sends(&mut fixture, RESPONSE));
        client.acknowledges(&mut fixture);
        let end = if to_client { client.clone() } else { backend.clone() };
        let wait = if to_client { 75_000 } else { 60_000 };
        fixture.wait(Duration::from_millis(wait - 500));
        if to_client {
            // What becomes of the backend's connection is not looked at here.
            backend.says(&mut fixture, RST, b"");
        }
        let is_fin = |sent: &Sent| sent.what() == (end.expected, end.next, ACK | FIN, "");
        let (fins, reset) = times(&mut fixture, &end, is_fin);
        let first = fins[0];
        let after: Vec<u64> = fins[1..].iter().map(|at| at - first).collect();
        assert!(about(&after, &CLOSING) && about(&[reset.unwrap() - first], &[10_000]), "{fins:?}, {reset:?}");
        fixture.over();
    }
}

#[test]
fn partial_ack_of_a_head_restarts_its_timer() {
    let mut fixture = OneWorker::new(|_| {});
    let (_, backend, head) = asked(&mut fixture, 1000, REQUEST);
    let start = head.segment.sequence;
    let rest = |sent: &[Sent], from: u32| {
        let sent = only(sent.iter().filter(|sent| sent.to == backend.own).cloned().collect());
        assert_eq!((sent.segment.sequence, sent.text()), (start.wrapping_add(from), &REQUEST[from as usize..]));
    };
    fixture.wait(Duration::from_millis(1500));
    let mut part = Script { expected: start.wrapping_add(10), ..backend.clone() };
    assert!(part.acknowledges(&mut fixture).is_empty(), "what is missing is on its way");
    rest(&fixture.wait(Duration::from_millis(260)), 10);
    // A reordered acknowledgement of less takes nothing back.
    Script { expected: start.wrapping_add(3), ..backend.clone() }.acknowledges(&mut fixture);
    rest(&fixture.wait(Duration::from_millis(460)), 10);
    fixture.over();
}

#[test]
fn duplicate_acks_within_a_request_head_are_ours() {
    for ipv6 in [false, true] {
        let mut fixture = OneWorker::over_ip(ipv6, |_| {});
        let request = "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3000\r\n\r\n";
        let mut client = Script::client(&mut fixture, 1000);
        let syn = only(client.sends(&mut fixture, request));
        let (mut backend, sent) = Script::backend_with(&mut fixture, &syn, 70_000, USUAL);
        let head = only(sent);
        let (start, body) = (backend.expected, client.next);
        let length = head.bytes.len() as u32;
        // The head and the first part of the body are lost, the second part is not.
        for part in 0..2 {
            let sent = only(client.says(&mut fixture, ACK, &[b'a' + part; 1000]));
            assert_eq!(sent.segment.sequence, start.wrapping_add(length + u32::from(part) * 1000));
        }
        let block = |left: u32, right: u32| [&[1, 1, 5, 10][..], &left.to_be_bytes(), &right.to_be_bytes()].concat();
        let has = block(start + length + 1000, start + length + 2000);
        let ask = |backend: &Script, fixture: &mut OneWorker| backend.repeats(fixture, backend.next, &has, b"");
        assert!(ask(&backend, &mut fixture).is_empty(), "of another window than its SYN-ACK: no duplicate");
        assert!(ask(&backend, &mut fixture).is_empty() && ask(&backend, &mut fixture).is_empty());
        let again = only(ask(&backend, &mut fixture));
        assert_eq!((again.segment.sequence, &again.bytes), (start, &head.bytes), "the head, and no more is ours");
        assert!(ask(&backend, &mut fixture).is_empty(), "once");
        backend.expected = start + length;
        for _ in 0..3 {
            let passed = only(ask(&backend, &mut fixture));
            assert_eq!((passed.to, passed.segment.acknowledgement), (client.own, body));
            assert_eq!(passed.options, block(body + 1000, body + 2000), "in the client's numbers");
        }
        let missing = only(client.repeats(&mut fixture, body, &[], &[b'a'; 1000]));
        assert_eq!((missing.to, missing.segment.sequence), (backend.own, start + length));
        fixture.over();
    }
}

#[test]
fn what_was_received_twice_is_said_to_who_sent_it() {
    // RFC 2883: the first block tells of a duplicate, below the acknowledged number.
    let mut fixture = OneWorker::new(sticky);
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n";
    let body = backend.next + head.len() as u32;
    client.receives(&backend.sends(&mut fixture, &format!("{head}{}", "a".repeat(1000))));
    let mine = client.expected - 1000;
    client.acknowledges(&mut fixture);
    let twice = only(backend.repeats(&mut fixture, body, &[], &[b'a'; 1000]));
    assert_eq!(twice.segment.sequence, mine);
    let options = |left: u32, right: u32| [&[1, 1, 5, 10][..], &left.to_be_bytes(), &right.to_be_bytes()].concat();
    let told = only(client.repeats(&mut fixture, client.next, &options(mine, mine + 1000), b""));
    assert_eq!((told.to, told.options), (backend.own, options(body, body + 1000)));
    fixture.over();
}

/// A sender keeps the congestion window that losses on one client's path have left it: no other client gets that. The last
/// segment alone is repeated as a probe, too, when only its acknowledgement is late.
#[test]
fn backend_that_has_repeated_is_kept_for_no_other_client() {
    // Which of the last five bytes are repeated, three of them, and how often; whether that is a loss.
    for (from, times, has_lost) in [(0, 0, false), (2, 1, false), (2, 2, true), (0, 1, true)] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        client.receives(&backend.sends(&mut fixture, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234"));
        client.acknowledges(&mut fixture);
        let sequence = backend.next;
        client.receives(&backend.sends(&mut fixture, "56789"));
        for _ in 0..times {
            backend.repeats(&mut fixture, sequence.wrapping_add(from), &[], &b"56789"[from as usize..][..3]);
        }
        let sent = client.acknowledges(&mut fixture);
        let closed = sent.iter().any(|sent| sent.to == backend.own && sent.segment.has(FIN));
        assert_eq!((closed, fixture.worker.statistics().http.retired), (has_lost, u64::from(has_lost)), "{sent:?}");
        fixture.over();
    }
}

/// The engine's counters tell as much of what it has forwarded.
#[test]
fn repeats_that_the_engine_forwarded_are_noticed() {
    stamped::without();
    const LENGTH: u64 = 30 << 20;
    for lost in [0, 1, 2] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n0123456789");
        client.receives(&backend.sends(&mut fixture, &head));
        let rules = installs(&mut fixture);
        rules.iter().for_each(|rule| complete(&mut fixture, Completion::Installed(rule.id)));
        let carried = (LENGTH - 10) as u32;
        client.expected = client.expected.wrapping_add(carried);
        client.acknowledges(&mut fixture);
        client.says(&mut fixture, ACK | FIN, b"");
        assert_eq!(removals(&mut fixture), rules.len());
        let packets = u64::from(carried).div_ceil(1460) + lost;
        let bytes = u64::from(carried) + packets * 40 + lost * 1460;
        let counters = Counters { packets, bytes, last_seen: None };
        rules.iter().for_each(|rule| complete(&mut fixture, Completion::Removed(rule.id, Some(counters))));
        fixture.wait(Duration::from_millis(10));
        assert_eq!(fixture.worker.statistics().http.retired, u64::from(lost > 1), "one may be a probe");
        fixture.over();
    }
}
