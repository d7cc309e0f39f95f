//! What either end takes now: windows of zero, at bodies and at what is ours, and windows beside bytes that we put in.

use super::stage::{Script, Sent, Stage, USUAL};
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
fn same_scale(stage: &mut Stage, request: &str) -> (Script, Script) {
    let mut client = Script::client(stage, 1000);
    let syn = only(client.sends(stage, request));
    let (mut backend, sent) = Script::backend_with(stage, &syn, 70_000, USUAL);
    backend.gets(&only(sent));
    backend.acknowledges(stage);
    (client, backend)
}

#[test]
fn a_fin_that_is_kept_here_may_open_a_window_all_the_same() {
    let mut stage = Stage::new(|_| {});
    let (mut client, mut backend) = same_scale(&mut stage, REQUEST);
    client.receives(&backend.sends(&mut stage, DOWNLOAD));
    client.gets(&only(backend.says(&mut stage, ACK, &[b'a'; 1000])));
    client.window = 0;
    assert_eq!(only(client.acknowledges(&mut stage)).segment.window, 0);
    client.window = 700;
    let sent = client.says(&mut stage, ACK | FIN, b"");
    let told = only(to(&sent, &backend));
    assert_eq!((told.segment.flags, told.segment.acknowledgement), (ACK, backend.next));
    assert_eq!(told.segment.window, 700);
    stage.over();
}

/// In the middle of a body that `from` sends, `to` takes nothing for a while: it says so, is asked, and says that it does
/// again. All of that is the ends' own; nothing is made up, nothing is lost.
fn closes_and_opens(stage: &mut Stage, from: &mut Script, to: &mut Script) {
    let first = only(from.says(stage, ACK, &[b'a'; 1000]));
    to.gets(&first);
    to.window = 0;
    let told = only(to.acknowledges(stage));
    assert_eq!((told.to, told.segment.acknowledgement, told.segment.window), (from.own, from.next, 0));
    for minute in 0..3 {
        assert!(stage.wait(Duration::from_secs(25)).is_empty(), "{minute}: the waiting side probes the window itself");
        let probe = only(from.repeats(stage, from.next, &[], b"b"));
        assert_eq!((probe.to, probe.segment.sequence, probe.text()), (to.own, to.expected, "b"));
        let told = only(to.acknowledges(stage));
        assert_eq!((told.to, told.segment.acknowledgement, told.segment.window), (from.own, from.next, 0));
    }
    to.window = 700;
    let told = only(to.acknowledges(stage));
    assert_eq!((told.to, told.segment.acknowledgement, told.segment.window), (from.own, from.next, 700));
    for part in 0..2 {
        let sent = only(from.says(stage, ACK, &[b'b' + part; 1000]));
        to.gets(&sent);
        assert_eq!(only(to.acknowledges(stage)).segment.acknowledgement, from.next);
    }
}

#[test]
fn an_end_that_takes_nothing_for_a_while_gets_all_of_a_body() {
    for ipv6 in [false, true] {
        let mut stage = Stage::over_ip(ipv6, |http| http.limits.send_timeout = Duration::from_secs(100));
        let (mut client, mut backend) = same_scale(&mut stage, UPLOAD);
        closes_and_opens(&mut stage, &mut client, &mut backend);
        client.gets(&only(backend.sends(&mut stage, DOWNLOAD)));
        closes_and_opens(&mut stage, &mut backend, &mut client);
        let next = client.sends(&mut stage, REQUEST);
        assert_eq!(backend.receives(&next), REQUEST, "{next:?}");
        stage.over();
    }
}

#[test]
fn a_shut_window_is_probed_ever_later_while_probes_are_answered() {
    for to_client in [true, false] {
        let mut stage = Stage::new(|http| {
            sticky(http);
            // Not for longer than a response may take.
            http.limits.response_timeout = Duration::from_secs(300);
            http.limits.body_timeout = Duration::from_secs(300);
            http.limits.send_timeout = Duration::from_secs(300);
        });
        let mut client = Script::client(&mut stage, 1000);
        client.window = if to_client { 0 } else { 1000 };
        let syn = only(client.sends(&mut stage, REQUEST));
        let mut backend =
            Script { own: syn.to, peer: syn.from, next: 7000, expected: syn.segment.sequence + 1, window: 0 };
        backend.window = if to_client { 60_000 } else { 0 };
        let own = backend.own(SYN | ACK, Some(USUAL));
        let mut sent = stage.arrives(&own, b"");
        backend.next += 1;
        if to_client {
            backend.receives(&sent);
            sent = backend.sends(&mut stage, &format!("{DOWNLOAD}{}", "x".repeat(3000)));
        }
        let mut end = if to_client { client } else { backend };
        let probe = to(&sent, &end).remove(0);
        assert_eq!((probe.segment.sequence, probe.bytes.len()), (end.expected, 1), "one byte, to ask");
        let mut asked = 0;
        let begin = stage.now;
        while stage.now.since(begin) < Duration::from_secs(120) {
            let sent = to(&stage.wait(Duration::from_millis(50)), &end);
            for sent in sent.iter().filter(|sent| !sent.bytes.is_empty()) {
                assert_eq!((sent.segment.sequence, sent.bytes.len()), (end.expected, 1));
                asked += 1;
                end.acknowledges(&mut stage);
            }
        }
        assert!((14..25).contains(&asked), "every 8 s at last: {asked}");
        assert_eq!(stage.worker.splices().0, 1, "it answers, so it has not vanished");
        end.window = 1000;
        let rest = to(&end.acknowledges(&mut stage), &end);
        assert!(rest[0].segment.sequence.wrapping_sub(end.expected) <= 1 && rest[0].bytes.len() > 30, "{rest:?}");
        stage.over();
    }
}

#[test]
fn window_shrinks_by_unacked_inserted_bytes() {
    for (of_client, field) in [(1000u16, 1000u16), (1, 1), (0, 0)] {
        let mut stage = Stage::new(sticky);
        let (mut client, mut backend) = same_scale(&mut stage, UPLOAD);
        // The response's head comes before the body; the client's window, beside the body, does not know of it yet.
        let response = only(backend.sends(&mut stage, DOWNLOAD));
        let put = response.segment.payload - DOWNLOAD.len() as u32;
        client.window = of_client;
        let body = only(client.says(&mut stage, ACK, &[b'a'; 100]));
        let free = (u32::from(field) << 7).saturating_sub(put) >> 7;
        assert_eq!(
            u32::from(body.segment.window),
            free,
            "what the client takes is shared by our bytes and the backend's"
        );
        assert_eq!(body.segment.acknowledgement, backend.next.wrapping_sub(DOWNLOAD.len() as u32));
        backend.gets(&body);
        client.gets(&response);
        let body = only(client.says(&mut stage, ACK, &[b'a'; 100]));
        assert_eq!((body.segment.window, body.segment.acknowledgement), (field, backend.next));
        stage.over();
    }
}

#[test]
fn no_window_is_shown_larger_than_it_is() {
    // Whatever either side scales by: the receiver's window in bytes, rounded down to what can be said.
    for of_client in [None, Some(0), Some(7), Some(14)] {
        for of_backend in [None, Some(0), Some(7), Some(14)] {
            let mut stage = Stage::new(|_| {});
            let mut client = Script::client_with(&mut stage, 1000, 5000, Abilities { scale: of_client, ..USUAL });
            let syn = only(client.sends(&mut stage, UPLOAD));
            let abilities = Abilities { scale: of_backend, ..USUAL };
            let (mut backend, sent) = Script::backend_with(&mut stage, &syn, 7000, abilities);
            backend.receives(&sent);
            backend.acknowledges(&mut stage);
            for window in [0, 1, 127, 128, 1000, u16::MAX] {
                client.window = window;
                let shown = only(client.says(&mut stage, ACK, b"x")).segment.window;
                backend.expected = backend.expected.wrapping_add(1);
                let bytes = u32::from(window) << of_client.unwrap_or(0);
                let said = u32::from(shown) << if of_backend.is_some() { 7 } else { 0 };
                assert!(said <= bytes && (bytes - said < 128 || shown == u16::MAX), "{window}: {bytes}, said {said}");
                backend.window = window;
                let shown = only(backend.acknowledges(&mut stage)).segment.window;
                let bytes = u32::from(window) << of_backend.unwrap_or(0);
                let said = u32::from(shown) << if of_client.is_some() { 7 } else { 0 };
                assert!(said <= bytes && (bytes - said < 128 || shown == u16::MAX), "{window}: {bytes}, said {said}");
            }
            stage.over();
        }
    }
}
