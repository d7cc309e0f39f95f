//! What a client can make us wait for or keep: bounded by time, by bytes, and by their number.

use super::super::Refused;
use super::one_worker::{OneWorker, SPLICES_MAX, Script, Sent, USUAL};
use super::{REQUEST, RESPONSE, asked, only};
use crate::l7::config::HttpLimits;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, RST, SYN};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

fn to(sent: &[Sent], script: &Script) -> Vec<Sent> {
    sent.iter().filter(|sent| sent.to == script.own).cloned().collect()
}

/// Sends a byte of `text` every so often, until there is an answer; says after how many milliseconds, and what.
fn dribbles(fixture: &mut OneWorker, client: &mut Script, text: &str, every: Duration) -> Option<(u64, String)> {
    let begin = fixture.now;
    for byte in text.bytes() {
        let mut sent = client.says(fixture, ACK, &[byte]);
        sent.extend(fixture.wait(every));
        let mine = to(&sent, client);
        if let Some(reply) = mine.iter().find(|sent| !sent.bytes.is_empty()) {
            return Some((fixture.now.since(begin).as_millis() as u64, reply.text().into()));
        }
    }
    None
}

#[test]
fn a_head_has_its_time_from_its_first_byte_on_however_it_comes() {
    for every in [100, 900] {
        let second = Duration::from_secs(1);
        let mut fixture =
            OneWorker::new(|http| http.limits = HttpLimits { head_timeout: second, ..Default::default() });
        // Every process gives what waits a second more.
        fixture.restarts = false;
        let mut client = Script::client(&mut fixture, 1000);
        let found = dribbles(&mut fixture, &mut client, &REQUEST.repeat(10), Duration::from_millis(every));
        let (after, reply) = found.expect("an end");
        assert!((1000..2000).contains(&after) && reply.starts_with("HTTP/1.1 408 "), "{after}: {reply}");
        // And the next one's, on a connection that was idle for longer than that.
        let mut fixture =
            OneWorker::new(|http| http.limits = HttpLimits { head_timeout: second, ..Default::default() });
        fixture.restarts = false;
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        client.receives(&backend.sends(&mut fixture, RESPONSE));
        client.acknowledges(&mut fixture);
        assert!(to(&fixture.wait(Duration::from_secs(30)), &client).is_empty());
        let found = dribbles(&mut fixture, &mut client, &REQUEST.repeat(10), Duration::from_millis(every));
        let (after, reply) = found.expect("an end");
        assert!((1000..2000).contains(&after) && reply.starts_with("HTTP/1.1 408 "), "{after}: {reply}");
        fixture.over();
    }
}

#[test]
fn a_body_may_pause_for_so_long_and_no_longer() {
    for (pause, ends) in [(900, false), (1200, true)] {
        let second = Duration::from_secs(1);
        let limits = HttpLimits { body_timeout: second, response_timeout: second, ..Default::default() };
        let mut fixture = OneWorker::new(|http| http.limits = limits);
        let (mut client, mut backend, _) =
            asked(&mut fixture, 1000, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n");
        backend.acknowledges(&mut fixture);
        let mut ended = false;
        for _ in 0..20 {
            let sent = client.sends(&mut fixture, "x");
            if to(&sent, &backend).is_empty() {
                break;
            }
            backend.receives(&to(&sent, &backend));
            backend.acknowledges(&mut fixture);
            let sent = fixture.wait(Duration::from_millis(pause));
            ended |= to(&sent, &client).iter().any(|sent| sent.text().starts_with("HTTP/1.1 408 "));
        }
        assert_eq!(ended, ends, "{pause}");
        fixture.over();
    }
}

#[test]
fn a_head_is_no_longer_than_may_be_and_has_no_more_fields() {
    let fields = |count: usize| "X: y\r\n".repeat(count);
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", fields(101));
    let target = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(8200));
    let endless = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}", "x".repeat(40_000));
    for (text, status) in [(long, "431"), (target, "414"), (endless, "431")] {
        let mut fixture = OneWorker::new(|_| {});
        let mut client = Script::client(&mut fixture, 1000);
        let mut reply = Vec::new();
        let mut taken = 0;
        for piece in text.as_bytes().chunks(1000) {
            reply = to(&client.says(&mut fixture, ACK, piece), &client);
            reply.retain(|sent| !sent.bytes.is_empty());
            taken += piece.len();
            if !reply.is_empty() {
                break;
            }
        }
        assert!(only(reply).text().starts_with(&format!("HTTP/1.1 {status} ")));
        assert!(taken <= 18_000, "{taken} bytes");
        fixture.over();
    }
}

#[test]
fn a_body_is_no_longer_than_may_be() {
    let limits = HttpLimits { body_bytes_max: 8, ..Default::default() };
    let head = "POST / HTTP/1.1\r\nHost: a\r\n";
    let chunked = &format!("{head}Transfer-Encoding: chunked\r\n\r\n");
    // What comes with the head, and behind it once that has reached a backend; whether one is asked at all.
    for (first, then, is_asked) in [
        (format!("{head}Content-Length: 9\r\n\r\n"), "", false),
        (format!("{chunked}9\r\n"), "", true),
        (chunked.clone(), "9\r\n", true),
        (format!("{chunked}8\r\nabc"), "defgh\r\n1\r\n", true),
    ] {
        let mut fixture = OneWorker::new(|http| http.limits = limits);
        let mut client = Script::client(&mut fixture, 1000);
        let mut sent = client.sends(&mut fixture, &first);
        let mut backend = None;
        if is_asked {
            let (script, more) = Script::backend(&mut fixture, &only(sent));
            sent = more;
            let backend = backend.insert(script);
            if !then.is_empty() {
                let got = backend.receives(&sent);
                assert!(got.len() >= chunked.len() && !got.contains("HTTP/1.1 413"), "{got}");
                backend.acknowledges(&mut fixture);
                sent = client.sends(&mut fixture, then);
            }
        }
        let mine = to(&sent, &client);
        assert!(only(mine).text().starts_with("HTTP/1.1 413 "), "{first}: {sent:?}");
        if let (Some(backend), false) = (&backend, then.is_empty()) {
            let resets = to(&sent, backend);
            assert!(resets.iter().all(|sent| sent.segment.has(RST)) && !resets.is_empty(), "{resets:?}");
        }
        assert_eq!(fixture.worker.statistics().http.refused[Refused::TooLarge as usize], 1);
        fixture.over();
    }
    for body in ["Content-Length: 8\r\n\r\n12345678", "Transfer-Encoding: chunked\r\n\r\n8\r\n12345678\r\n0\r\n\r\n"] {
        let mut fixture = OneWorker::new(|http| http.limits = limits);
        let (mut client, mut backend, sent) = asked(&mut fixture, 1000, &format!("{head}{body}"));
        assert!(sent.text().contains("12345678"));
        assert_eq!(client.receives(&backend.sends(&mut fixture, RESPONSE)), RESPONSE);
        client.acknowledges(&mut fixture);
        fixture.over();
    }
}

#[test]
fn too_long_body_after_response_start_is_aborted() {
    let mut fixture = OneWorker::new(|http| http.limits = HttpLimits { body_bytes_max: 8, ..Default::default() });
    let request = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n12345678\r\n";
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, request);
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    let sent = client.sends(&mut fixture, "1\r\n");
    assert!(sent.iter().all(|sent| sent.segment.has(RST)), "{sent:?}");
    assert!(!to(&sent, &client).is_empty() && !to(&sent, &backend).is_empty());
    assert_eq!(fixture.worker.statistics().http.refused[Refused::TooLarge as usize], 1);
    fixture.over();
}

#[test]
fn early_client_data_is_kept_up_to_the_buffer() {
    let mut fixture = OneWorker::new(|_| {});
    let mut client = Script::client(&mut fixture, 1000);
    let syn = only(client.sends(&mut fixture, REQUEST));
    // Requests that wait, until there is no room.
    let many = REQUEST.repeat(40);
    for _ in 0..100 {
        client.sends(&mut fixture, &many);
    }
    let told = only(client.repeats(&mut fixture, client.next.wrapping_sub(1), &[], b""));
    assert_eq!(told.segment.acknowledgement, 5001, "what waits is not acknowledged");
    assert_eq!(fixture.worker.splices().2, 1, "in one buffer");
    // None is lost: those that are kept are served, the others come again.
    let (mut backend, sent) = Script::backend(&mut fixture, &syn);
    let mut served = backend.receives(&to(&sent, &backend)).len() / REQUEST.len();
    loop {
        client.receives(&backend.sends(&mut fixture, RESPONSE));
        let sent = client.acknowledges(&mut fixture);
        let text = backend.receives(&to(&sent, &backend));
        if text.is_empty() {
            break;
        }
        assert_eq!(text, REQUEST);
        served += 1;
    }
    let kept = served * REQUEST.len();
    assert!((65_535..80_000).contains(&kept), "{kept} bytes were kept");
    client.says(&mut fixture, RST, b"");
    fixture.over();
}

#[test]
fn a_table_full_of_exchanges_takes_no_more_and_forgets_none() {
    let mut fixture = OneWorker::new(|_| {});
    let mut all: Vec<Script> = Vec::new();
    for port in 0..SPLICES_MAX as u16 {
        let mut client = Script::client(&mut fixture, 1000 + port);
        client.sends(&mut fixture, REQUEST);
        all.push(client);
    }
    let mut late = Script::client(&mut fixture, 5000);
    assert!(late.sends(&mut fixture, REQUEST).is_empty(), "it will try again by itself");
    assert_eq!((fixture.worker.splices().0, fixture.worker.statistics().services[0].refused), (SPLICES_MAX, 1));
    all[0].says(&mut fixture, RST, b"");
    late.next = late.next.wrapping_sub(REQUEST.len() as u32);
    assert!(late.sends(&mut fixture, REQUEST).iter().any(|sent| sent.segment.has(SYN)), "now there is room");
    fixture.over();
}

#[test]
fn another_backend_is_tried_only_while_nothing_was_sent() {
    // Silent; refusing; one that resets, or closes, after it was sent the request.
    for state in 0..4 {
        let mut fixture = OneWorker::with_backends(2, |_| {});
        let mut client = Script::client(&mut fixture, 1000);
        let syn = only(client.sends(&mut fixture, REQUEST));
        let sent = match state {
            0 => {
                let sent = fixture.wait(Duration::from_millis(3100));
                sent.into_iter().filter(|sent| sent.to != syn.to).collect()
            }
            1 => {
                let expected = syn.segment.sequence + 1;
                Script { own: syn.to, peer: syn.from, next: 0, expected, window: 0 }.says(&mut fixture, RST | ACK, b"")
            }
            _ => {
                let (mut backend, sent) = Script::backend(&mut fixture, &syn);
                // It has not even acknowledged it, but who knows.
                assert_eq!(only(sent).text(), REQUEST);
                backend.says(&mut fixture, if state == 2 { RST | ACK } else { ACK | FIN }, b"")
            }
        };
        let http = &fixture.worker.statistics().http;
        if state < 2 {
            assert_eq!((http.retries, http.replies), (1, 0), "{state}");
            let (mut backend, sent) = Script::backend(&mut fixture, &only(sent));
            assert_eq!(backend.receives(&sent), REQUEST);
            assert_eq!(client.receives(&backend.sends(&mut fixture, RESPONSE)), RESPONSE);
            client.acknowledges(&mut fixture);
        } else {
            assert_eq!((http.retries, http.refused[Refused::BackendClosed as usize]), (0, 1), "{state}");
            assert!(client.receives(&sent).starts_with("HTTP/1.1 502 "), "{state}: {sent:?}");
            client.acknowledges(&mut fixture);
        }
        fixture.over();
    }
}

#[test]
fn a_backend_that_answers_otherwise_is_no_backend() {
    // To our SYN: an acknowledgement of something else, a SYN of its own, an old connection's segment, a SYN-ACK with a
    // wrong number.
    let mut fixture = OneWorker::new(|_| {});
    let mut client = Script::client(&mut fixture, 1000);
    let syn = only(client.sends(&mut fixture, REQUEST));
    let right = syn.segment.sequence.wrapping_add(1);
    let mut backend = Script { own: syn.to, peer: syn.from, next: 77, expected: right.wrapping_add(9), window: 9 };
    let reset = only(backend.acknowledges(&mut fixture));
    assert_eq!((reset.segment.flags, reset.segment.sequence), (RST, right.wrapping_add(9)), "RFC 9293, 3.5.1");
    for (flags, expected) in [(SYN, 0), (SYN | ACK, right.wrapping_add(1)), (SYN | ACK, right.wrapping_sub(1))] {
        backend.expected = expected;
        let sent = fixture.arrives(&backend.own(flags, Some(USUAL)), b"");
        assert!(sent.is_empty(), "{flags}: {sent:?}");
    }
    let (mut backend, sent) = Script::backend(&mut fixture, &syn);
    assert_eq!(backend.receives(&sent), REQUEST, "the right answer is still welcome");
    fixture.over();
}

#[test]
fn a_client_that_is_gone_after_half_a_request_is_soon_forgotten() {
    let mut fixture = OneWorker::new(|_| {});
    let mut client = Script::client(&mut fixture, 1000);
    client.sends(&mut fixture, &REQUEST[..20]);
    let sent = fixture.wait(HttpLimits::default().head_timeout + Duration::from_millis(1900));
    let told: Vec<_> = sent.iter().filter(|sent| sent.text().starts_with("HTTP/1.1 408 ")).collect();
    assert_eq!(told.len(), 4, "four times in a second and a half: {sent:?}");
    fixture.wait(Duration::from_secs(2));
    assert_eq!(fixture.worker.splices(), (0, 0, 0));
    // One that has taken it has its time to close.
    let mut client = Script::client(&mut fixture, 1001);
    client.sends(&mut fixture, &REQUEST[..20]);
    let sent = fixture.wait(HttpLimits::default().head_timeout + Duration::from_millis(100));
    client.gets(&only(sent));
    client.acknowledges(&mut fixture);
    assert_eq!(fixture.worker.splices(), (1, 0, 0), "without a buffer");
    assert!(fixture.wait(Duration::from_secs(5)).is_empty());
    fixture.over();
}
