//! What either end takes now: windows of zero, at bodies and at what is ours, and windows beside bytes that we put in.

use super::one_worker::{OneWorker, Script, Sent, USUAL};
use super::{REQUEST, only};
use crate::l7::config::{Http, Sticky};
use crate::l7::splice::tcp::segment::Abilities;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, SYN};
use alloc::format;
use alloc::vec::Vec;

const UPLOAD: &str = "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3000\r\n\r\n";
const DOWNLOAD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n";

fn to(sent: &[Sent], script: &Script) -> Vec<Sent> {
    sent.iter().filter(|sent| sent.to == script.own).cloned().collect()
}

fn sticky(http: &mut Http) {
    http.sticky = Some(Sticky { cookie: (*b"stuck").into(), attributes: (*b"").into() });
}

/// A client and a backend with scale 7 both, as ours is.
fn same_scale(fixture: &mut OneWorker, request: &str) -> (Script, Script) {
    let mut client = Script::client(fixture, 1000);
    let syn = only(client.sends(fixture, request));
    let (mut backend, sent) = Script::backend_with(fixture, &syn, 70_000, USUAL);
    backend.gets(&only(sent));
    backend.acknowledges(fixture);
    (client, backend)
}

#[test]
fn a_fin_that_is_kept_here_may_open_a_window_all_the_same() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend) = same_scale(&mut fixture, REQUEST);
    client.receives(&backend.sends(&mut fixture, DOWNLOAD));
    client.gets(&only(backend.says(&mut fixture, ACK, &[b'a'; 1000])));
    client.window = 0;
    assert_eq!(only(client.acknowledges(&mut fixture)).segment.window, 0);
    client.window = 700;
    let sent = client.says(&mut fixture, ACK | FIN, b"");
    let told = only(to(&sent, &backend));
    assert_eq!((told.segment.flags, told.segment.acknowledgement), (ACK, backend.next));
    assert_eq!(told.segment.window, 700);
    fixture.over();
}

/// One segment of a body in chunks.
fn chunks() -> Vec<u8> {
    let chunk = [&b"64\r\n"[..], &[b'a'; 100], b"\r\n"].concat();
    chunk.repeat(10)
}

/// Of three segments of a body in chunks the first is lost: until the last of them has come again, the window that their
/// sender is told of has no room for what it has not sent yet.
fn misses(fixture: &mut OneWorker, from: &mut Script, to: &mut Script) {
    let chunks = chunks();
    let sequences = [0, 1, 2].map(|at| from.next.wrapping_add(at * chunks.len() as u32));
    for &sequence in &sequences[1..] {
        let told = only(from.repeats(fixture, sequence, &[], &chunks));
        assert_eq!((told.to, told.segment.flags, told.segment.acknowledgement), (from.own, ACK, from.next));
    }
    let end = sequences[2].wrapping_add(chunks.len() as u32);
    for at in 0..3 {
        let sent = only(from.says(fixture, ACK, &chunks));
        to.gets(&sent);
        let told = only(to.acknowledges(fixture));
        assert_eq!((told.to, told.segment.acknowledgement), (from.own, from.next));
        let edge = from.next.wrapping_add(u32::from(told.segment.window) << 7);
        let is_last = at == 2;
        assert_eq!(edge.wrapping_sub(end) as i32 <= 0, !is_last, "after {at}: {edge} {end}");
        assert!(told.segment.window > 0, "after {at}");
    }
}

#[test]
fn sender_with_a_gap_has_no_window_for_new_data() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend) =
        same_scale(&mut fixture, "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    misses(&mut fixture, &mut client, &mut backend);
    backend.gets(&only(client.sends(&mut fixture, "0\r\n\r\n")));
    backend.acknowledges(&mut fixture);
    client.receives(&backend.sends(&mut fixture, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"));
    client.acknowledges(&mut fixture);
    misses(&mut fixture, &mut backend, &mut client);
    client.gets(&only(backend.sends(&mut fixture, "0\r\n\r\n")));
    client.acknowledges(&mut fixture);
    fixture.over();
}

/// In the middle of a body that `from` sends, `to` takes nothing for a while: it says so, is asked, and says that it does
/// again. All of that is the ends' own; nothing is made up, nothing is lost.
fn closes_and_opens(fixture: &mut OneWorker, from: &mut Script, to: &mut Script) {
    let first = only(from.says(fixture, ACK, &[b'a'; 1000]));
    to.gets(&first);
    to.window = 0;
    let told = only(to.acknowledges(fixture));
    assert_eq!((told.to, told.segment.acknowledgement, told.segment.window), (from.own, from.next, 0));
    for minute in 0..3 {
        assert!(
            fixture.wait(Duration::from_secs(25)).is_empty(),
            "{minute}: the waiting side probes the window itself"
        );
        let probe = only(from.repeats(fixture, from.next, &[], b"b"));
        assert_eq!((probe.to, probe.segment.sequence, probe.text()), (to.own, to.expected, "b"));
        let told = only(to.acknowledges(fixture));
        assert_eq!((told.to, told.segment.acknowledgement, told.segment.window), (from.own, from.next, 0));
    }
    to.window = 700;
    let told = only(to.acknowledges(fixture));
    assert_eq!((told.to, told.segment.acknowledgement, told.segment.window), (from.own, from.next, 700));
    for part in 0..2 {
        let sent = only(from.says(fixture, ACK, &[b'b' + part; 1000]));
        to.gets(&sent);
        assert_eq!(only(to.acknowledges(fixture)).segment.acknowledgement, from.next);
    }
}

#[test]
fn an_end_that_takes_nothing_for_a_while_gets_all_of_a_body() {
    for ipv6 in [false, true] {
        let mut fixture = OneWorker::over_ip(ipv6, |http| http.limits.send_timeout = Duration::from_secs(100));
        let (mut client, mut backend) = same_scale(&mut fixture, UPLOAD);
        closes_and_opens(&mut fixture, &mut client, &mut backend);
        client.gets(&only(backend.sends(&mut fixture, DOWNLOAD)));
        closes_and_opens(&mut fixture, &mut backend, &mut client);
        let next = client.sends(&mut fixture, REQUEST);
        assert_eq!(backend.receives(&next), REQUEST, "{next:?}");
        fixture.over();
    }
}

#[test]
fn a_shut_window_is_probed_ever_later_while_probes_are_answered() {
    for to_client in [true, false] {
        let mut fixture = OneWorker::new(|http| {
            sticky(http);
            // Not for longer than a response may take.
            http.limits.response_timeout = Duration::from_secs(300);
            http.limits.body_timeout = Duration::from_secs(300);
            http.limits.send_timeout = Duration::from_secs(300);
        });
        // Every process probes again soon.
        fixture.restarts = false;
        let mut client = Script::client(&mut fixture, 1000);
        client.window = if to_client { 0 } else { 1000 };
        let syn = only(client.sends(&mut fixture, REQUEST));
        let mut backend =
            Script { own: syn.to, peer: syn.from, next: 7000, expected: syn.segment.sequence + 1, window: 0 };
        backend.window = if to_client { 60_000 } else { 0 };
        let own = backend.own(SYN | ACK, Some(USUAL));
        let mut sent = fixture.arrives(&own, b"");
        backend.next += 1;
        if to_client {
            backend.receives(&sent);
            sent = backend.sends(&mut fixture, &format!("{DOWNLOAD}{}", "x".repeat(3000)));
        }
        let mut end = if to_client { client } else { backend };
        let probe = to(&sent, &end).remove(0);
        assert_eq!((probe.segment.sequence, probe.bytes.len()), (end.expected, 1), "one byte, to ask");
        let mut asked = 0;
        let begin = fixture.now;
        while fixture.now.since(begin) < Duration::from_secs(120) {
            let sent = to(&fixture.wait(Duration::from_millis(50)), &end);
            for sent in sent.iter().filter(|sent| !sent.bytes.is_empty()) {
                assert_eq!((sent.segment.sequence, sent.bytes.len()), (end.expected, 1));
                asked += 1;
                end.acknowledges(&mut fixture);
            }
        }
        assert!((14..25).contains(&asked), "every 8 s at last: {asked}");
        assert_eq!(fixture.worker.splices().0, 1, "it answers, so it has not vanished");
        end.window = 1000;
        let rest = to(&end.acknowledges(&mut fixture), &end);
        assert!(rest[0].segment.sequence.wrapping_sub(end.expected) <= 1 && rest[0].bytes.len() > 30, "{rest:?}");
        fixture.over();
    }
}

#[test]
fn window_shrinks_by_unacked_inserted_bytes() {
    for (of_client, field) in [(1000u16, 1000u16), (1, 1), (0, 0)] {
        let mut fixture = OneWorker::new(sticky);
        let (mut client, mut backend) = same_scale(&mut fixture, UPLOAD);
        // The response's head comes before the body; the client's window, beside the body, does not know of it yet.
        let response = only(backend.sends(&mut fixture, DOWNLOAD));
        let put = response.segment.payload - DOWNLOAD.len() as u32;
        client.window = of_client;
        let body = only(client.says(&mut fixture, ACK, &[b'a'; 100]));
        let free = (u32::from(field) << 7).saturating_sub(put) >> 7;
        assert_eq!(
            u32::from(body.segment.window),
            free,
            "what the client takes is shared by our bytes and the backend's"
        );
        assert_eq!(body.segment.acknowledgement, backend.next.wrapping_sub(DOWNLOAD.len() as u32));
        backend.gets(&body);
        client.gets(&response);
        let body = only(client.says(&mut fixture, ACK, &[b'a'; 100]));
        assert_eq!((body.segment.window, body.segment.acknowledgement), (field, backend.next));
        fixture.over();
    }
}

#[test]
fn no_window_is_shown_larger_than_it_is() {
    // Whatever either side scales by: the receiver's window in bytes, rounded down to what can be said.
    for of_client in [None, Some(0), Some(7), Some(14)] {
        for of_backend in [None, Some(0), Some(7), Some(14)] {
            let mut fixture = OneWorker::new(|_| {});
            let mut client = Script::client_with(&mut fixture, 1000, 5000, Abilities { scale: of_client, ..USUAL });
            let syn = only(client.sends(&mut fixture, UPLOAD));
            let abilities = Abilities { scale: of_backend, ..USUAL };
            let (mut backend, sent) = Script::backend_with(&mut fixture, &syn, 7000, abilities);
            backend.receives(&sent);
            backend.acknowledges(&mut fixture);
            for window in [0, 1, 127, 128, 1000, u16::MAX] {
                client.window = window;
                let shown = only(client.says(&mut fixture, ACK, b"x")).segment.window;
                backend.expected = backend.expected.wrapping_add(1);
                let bytes = u32::from(window) << of_client.unwrap_or(0);
                let said = u32::from(shown) << if of_backend.is_some() { 7 } else { 0 };
                assert!(said <= bytes && (bytes - said < 128 || shown == u16::MAX), "{window}: {bytes}, said {said}");
                backend.window = window;
                let shown = only(backend.acknowledges(&mut fixture)).segment.window;
                let bytes = u32::from(window) << of_backend.unwrap_or(0);
                let said = u32::from(shown) << if of_client.is_some() { 7 } else { 0 };
                assert!(said <= bytes && (bytes - said < 128 || shown == u16::MAX), "{window}: {bytes}, said {said}");
            }
            fixture.over();
        }
    }
}
