//! TCP timestamps through the splice. Beside what is said here, `stamped.rs` checks all that ends get.

use super::offload::{complete, installs, removals};
use super::one_worker::{OneWorker, Script, Sent, USUAL};
use super::{REQUEST, RESPONSE, asked, only, stamped};
use crate::engine::{Completion, Counters, Rule};
use crate::l7::splice::tcp::segment::{Abilities, Own};
use crate::l7::splice::tcp::timestamps::Timestamps;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, PSH, SYN};
use crate::worker::Which;
use alloc::format;
use alloc::vec::Vec;

const LENGTH: u64 = 3 << 20;

/// A segment of a script's with these timestamps.
fn says(script: &mut Script, fixture: &mut OneWorker, value: u32, echo: u32, bytes: &[u8]) -> Vec<Sent> {
    let timestamps = Some(Timestamps { value, echo });
    let own = Own { timestamps, ..script.own(ACK | PSH, None) };
    script.next = script.next.wrapping_add(bytes.len() as u32);
    fixture.arrives(&own, bytes)
}

fn stamps(sent: &Sent) -> (u32, u32) {
    let Some(Timestamps { value, echo }) = sent.segment.timestamps else { panic!("no timestamps: {sent:?}") };
    (value, echo)
}

/// A client that has agreed on timestamps, and what it has seen.
fn client(fixture: &mut OneWorker, port: u16, value: u32) -> (Script, u32) {
    let own = super::one_worker::end(false, 10, port);
    let mut client = Script { own, peer: fixture.vip, next: 5000, expected: 0, window: 1000 };
    let syn = Own { timestamps: Some(Timestamps { value, echo: 0 }), ..client.own(SYN, Some(USUAL)) };
    let answer = only(fixture.arrives(&syn, b""));
    let (seen, echo) = stamps(&answer);
    assert_eq!((echo, answer.segment.flags), (value, SYN | ACK));
    assert_eq!((answer.abilities.mss, answer.abilities.scale, answer.abilities.sack), (1460, Some(7), true));
    client.next += 1;
    client.expected = answer.segment.sequence.wrapping_add(1);
    (client, seen)
}

/// A backend that takes up the connection of this SYN, with this value, and what it has seen; and its request.
fn backend(fixture: &mut OneWorker, syn: &Sent, value: u32) -> (Script, u32, Sent) {
    let (seen, echo) = stamps(syn);
    assert_eq!((echo, syn.segment.flags), (0, SYN));
    let expected = syn.segment.sequence.wrapping_add(1);
    let mut backend = Script { own: syn.to, peer: syn.from, next: 900_000, expected, window: 60_000 };
    let own = Own { timestamps: Some(Timestamps { value, echo: seen }), ..backend.own(SYN | ACK, Some(USUAL)) };
    let request = only(fixture.arrives(&own, b""));
    (backend.next, backend.window) = (900_001, 1000);
    backend.gets(&request);
    assert!(stamps(&request).0.wrapping_sub(seen) < 1 << 31 && stamps(&request).1 == value, "{request:?}");
    (backend, stamps(&request).0, request)
}

/// The engine carries a response: its ends, the request as its backend got it and the response's head, and the rules.
fn carried(fixture: &mut OneWorker) -> (Script, Script, [Sent; 2], [Rule; 2]) {
    let (mut client, mut backend, request) = asked(fixture, 1000, REQUEST);
    let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n");
    let head = only(backend.sends(fixture, &response));
    client.gets(&head);
    let rules = installs(fixture);
    rules.iter().for_each(|rule| complete(fixture, Completion::Installed(rule.id)));
    (client, backend, [request, head], rules)
}

#[test]
fn each_end_sees_the_others_clock_shifted_and_its_own_back() {
    stamped::unchecked();
    let mut fixture = OneWorker::new(|_| {});
    // Both are about to wrap.
    let (mut client, seen) = client(&mut fixture, 1000, u32::MAX - 5);
    let syn = only(says(&mut client, &mut fixture, u32::MAX - 3, seen, REQUEST.as_bytes()));
    let (mut backend, asked, _) = backend(&mut fixture, &syn, u32::MAX - 100);
    fixture.now = fixture.now + Duration::from_millis(40);
    // 40 ms later it answers, and echoes the request's.
    let response = only(says(&mut backend, &mut fixture, u32::MAX - 60, asked, RESPONSE.as_bytes()));
    client.gets(&response);
    let (value, echo) = stamps(&response);
    assert_eq!(echo, u32::MAX - 3, "the request's");
    assert!(value.wrapping_sub(seen) < 100, "the clock goes on: {value} after {seen}");
    // The client says 200 ms later that it has it; the backend sees its own clock come back.
    let sent = says(&mut client, &mut fixture, 197, value, REQUEST.as_bytes());
    let next = only(sent);
    backend.gets(&next);
    assert_eq!(stamps(&next), (asked.wrapping_add(201), u32::MAX - 60), "as old as its client says");
    // The exchange is of the same two ends: nothing is shifted anew.
    let later = only(says(&mut backend, &mut fixture, 900, asked.wrapping_add(200), RESPONSE.as_bytes()));
    assert_eq!(stamps(&later), (value.wrapping_add(961), 196));
    fixture.over();
}

#[test]
fn rules_add_the_same_as_software() {
    stamped::with();
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, head) = asked(&mut fixture, 1000, REQUEST);
    let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n");
    let down = only(says(&mut backend, &mut fixture, 7000, stamps(&head).0, response.as_bytes()));
    client.gets(&down);
    let [of_client, of_backend] = installs(&mut fixture);
    let (value, echo) = stamps(&down);
    let (there, back) = (of_backend.rewrite.timestamp_delta, of_backend.rewrite.echo_delta);
    assert_eq!((7000u32.wrapping_add(there), stamps(&head).0.wrapping_add(back)), (value, echo));
    assert_eq!(
        (of_client.rewrite.timestamp_delta, of_client.rewrite.echo_delta),
        (back.wrapping_neg(), there.wrapping_neg())
    );
    // What comes by software after all is shifted alike.
    let more = only(says(&mut backend, &mut fixture, 7100, stamps(&head).0, &[b'x'; 100]));
    assert_eq!(stamps(&more), (value.wrapping_add(100), echo));
}

#[test]
fn an_upload_has_rules_once_its_backend_has_spoken() {
    stamped::with();
    let mut fixture = OneWorker::new(|_| {});
    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n");
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, &head);
    assert!(fixture.worker.poll_op().is_none());
    backend.acknowledges(&mut fixture);
    client.says(&mut fixture, ACK, &[b'x'; 100]);
    let [of_client, of_backend] = installs(&mut fixture);
    assert_ne!(of_client.rewrite.timestamp_delta, 0);
    assert_eq!(of_client.rewrite.timestamp_delta, of_backend.rewrite.echo_delta.wrapping_neg());
}

#[test]
fn clients_with_and_without_have_connections_of_their_own() {
    let mut fixture = OneWorker::new(|_| {});
    let exchange = |fixture: &mut OneWorker, port| {
        let mut client = Script::client(fixture, port);
        let sent = only(client.sends(fixture, REQUEST));
        let is_new = sent.segment.has(SYN);
        let mut backend = match is_new {
            true => {
                let (mut backend, request) = Script::backend(fixture, &sent);
                backend.gets(&only(request));
                backend
            }
            false => {
                let sequence = sent.segment.sequence.wrapping_add(sent.segment.payload);
                Script {
                    own: sent.to,
                    peer: sent.from,
                    next: sent.segment.acknowledgement,
                    expected: sequence,
                    window: 1000,
                }
            }
        };
        client.receives(&backend.sends(fixture, RESPONSE));
        client.acknowledges(fixture);
        client.says(fixture, ACK | FIN, b"");
        (is_new, backend.peer.port)
    };
    stamped::with();
    let (is_new, with) = exchange(&mut fixture, 1000);
    assert!(is_new);
    stamped::without();
    let (is_new, without) = exchange(&mut fixture, 1001);
    assert!(is_new);
    assert_eq!(exchange(&mut fixture, 1002), (false, without));
    stamped::with();
    assert_eq!(exchange(&mut fixture, 1003), (false, with));
    fixture.over();
}

/// Its segments have none, and the client's must (RFC 7323, 3.2).
#[test]
fn a_backend_that_declines_is_met_in_software() {
    stamped::with();
    let mut fixture = OneWorker::new(|_| {});
    let mut client = Script::client(&mut fixture, 1000);
    let syn = only(client.sends(&mut fixture, REQUEST));
    assert!(syn.segment.timestamps.is_some());
    let own = Script { own: syn.to, peer: syn.from, next: 900_000, expected: syn.segment.sequence + 1, window: 60_000 };
    let mut backend = Script { next: 900_001, window: 1000, ..own.clone() };
    stamped::forget(backend.own, backend.peer);
    let own = Own { timestamps: None, ..own.own(SYN | ACK, Some(Abilities { scale: Some(9), ..USUAL })) };
    backend.gets(&only(fixture.arrives(&own, b"")));
    assert_eq!(fixture.worker.statistics().http.timestamps_declined, 1);
    // Long enough to be cut for the option that comes in front of it.
    let body = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n{:1410}", "x");
    let sent = only(backend.sends(&mut fixture, &body));
    assert_eq!((sent.gso_size, sent.text()), (1448, &*body));
    client.gets(&sent);
    assert!(fixture.worker.poll_op().is_none(), "no rule could put them in");
    let sent = only(client.acknowledges(&mut fixture));
    assert_eq!((sent.segment.timestamps, sent.options.iter().all(|&byte| byte == 1)), (None, true), "{sent:?}");
    fixture.over();
}

#[test]
fn an_engine_that_cannot_add_has_clients_without() {
    stamped::with();
    let mut fixture = OneWorker::before_engine(|caps| caps.rewrites_timestamps = false);
    let (mut client, mut backend, head) = asked(&mut fixture, 1000, REQUEST);
    assert_eq!(head.segment.timestamps, None);
    client.receives(&backend.sends(&mut fixture, &format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n")));
    installs(&mut fixture);
    for (caps, http) in [(true, false), (false, true)] {
        let mut fixture = match caps {
            true => OneWorker::before_engine(|caps| caps.rewrites_timestamps = true),
            false => OneWorker::new(|kind| kind.timestamps = http),
        };
        let (_, _, head) = asked(&mut fixture, 1000, REQUEST);
        assert!(head.segment.timestamps.is_some());
    }
    let mut fixture = OneWorker::new(|http| http.timestamps = false);
    let (_, _, head) = asked(&mut fixture, 1000, REQUEST);
    assert_eq!(head.segment.timestamps, None, "so configured");
}

/// What an engine has forwarded of an exchange whose segments have 12 bytes of options.
#[test]
fn options_do_not_count_as_payload_sent_again() {
    stamped::with();
    for lost in [0, 1, 2] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        client.receives(&backend.sends(&mut fixture, &format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n")));
        let rules = installs(&mut fixture);
        rules.iter().for_each(|rule| complete(&mut fixture, Completion::Installed(rule.id)));
        client.expected = client.expected.wrapping_add(LENGTH as u32);
        client.acknowledges(&mut fixture);
        client.says(&mut fixture, ACK | FIN, b"");
        assert_eq!(removals(&mut fixture), rules.len());
        let packets = LENGTH.div_ceil(1448) + lost;
        let counters = Counters { packets, bytes: LENGTH + packets * 52 + lost * 1448, last_seen: None };
        rules.iter().for_each(|rule| complete(&mut fixture, Completion::Removed(rule.id, Some(counters))));
        fixture.wait(Duration::from_millis(10));
        assert_eq!(fixture.worker.statistics().http.retired, u64::from(lost > 1), "{lost}: one may be a probe");
    }
}

/// A head of our own is cut for the option in front of each piece, and so is what comes back as too big.
#[test]
fn pieces_leave_room_for_the_option() {
    stamped::with();
    let mut fixture = OneWorker::new(|_| {});
    let long = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(3000));
    let mut client = Script::client(&mut fixture, 1000);
    let mut sent = client.sends(&mut fixture, &long[..1448]);
    sent.extend(client.sends(&mut fixture, &long[1448..]));
    let syn = sent.iter().find(|sent| sent.segment.has(SYN)).unwrap();
    let (_, request) = Script::backend(&mut fixture, syn);
    assert_eq!((only(request.clone()).gso_size, only(request).bytes.len()), (1448, long.len()));
}

/// What the engine has forwarded, software has not seen; what it sends of its own is not older than that.
#[test]
fn requests_are_not_older_than_what_the_engine_forwarded() {
    stamped::with();
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, [request, head], _) = carried(&mut fixture);
    client.expected = client.expected.wrapping_add(LENGTH as u32);
    backend.next = backend.next.wrapping_add(LENGTH as u32);
    // It has taken ten seconds: so old was the last segment of the client's that the engine forwarded.
    stamped::unchecked();
    let (seen, own) = (stamps(&head).0.wrapping_add(10_000), stamps(&head).1.wrapping_add(10_000));
    let next = only(says(&mut client, &mut fixture, own, seen, REQUEST.as_bytes()));
    assert_eq!(stamps(&next).0.wrapping_sub(stamps(&request).0), 10_000);
    backend.gets(&next);
    // And an answer to its client is as new as what that has seen.
    client.next = client.next.wrapping_sub(REQUEST.len() as u32);
    let probe = only(client.repeats(&mut fixture, client.next.wrapping_sub(1), &[], b""));
    assert_eq!((probe.to, stamps(&probe).0), (client.own, seen));
}

#[test]
fn a_client_is_asked_with_and_without_timestamps() {
    stamped::with();
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, _, _, rules) = carried(&mut fixture);
    stamped::unchecked();
    // The engine has forwarded some, and then the backend is taken away.
    client.expected = client.expected.wrapping_add(100_000);
    fixture.worker.end_backend(fixture.now, 0, Which::All);
    fixture.wait(Duration::from_millis(10));
    assert_eq!(removals(&mut fixture), 2);
    rules.iter().for_each(|rule| complete(&mut fixture, Completion::Removed(rule.id, None)));
    let sent = fixture.wait(Duration::from_millis(10));
    let questions: Vec<&Sent> = sent.iter().filter(|sent| sent.to == client.own).collect();
    let [known, bare] = questions[..] else { panic!("{sent:?}") };
    assert!(known.segment.timestamps.is_some() && bare.segment.timestamps.is_none(), "{sent:?}");
    assert!(questions.iter().all(|sent| sent.segment.flags == ACK && sent.segment.payload == 0));
    let behind = client.expected.wrapping_sub(bare.segment.sequence) as i32;
    assert!(known.segment.sequence == bare.segment.sequence && behind > 0, "a number that it has got: {sent:?}");
}
