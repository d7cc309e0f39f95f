//! Clients that answer, and take nothing of a response (`send_timeout`).

use super::offload::{complete, installs, removals};
use super::one_worker::{OneWorker, Script, Sent};
use super::{REQUEST, asked, only};
use crate::engine::{Completion, Refusal, RuleId};
use crate::l7::splice::Refused;
use crate::time::Duration;
use crate::wire::tcp::{ACK, RST};
use alloc::vec::Vec;

const LENGTH: u32 = 30 << 20;
/// Of a response that the engine is offered, and of one that it is not.
const LARGE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 31457280\r\n\r\n0123456789";
const SMALL: &str = "HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\n0123456789";

/// With `send_timeout = "20s"`; a backend may pause for less, and a request may last longer.
fn fixture() -> OneWorker {
    OneWorker::new(|http| {
        http.limits.send_timeout = Duration::from_secs(20);
        http.limits.body_timeout = Duration::from_secs(15);
        http.limits.response_timeout = Duration::from_secs(100);
    })
}

fn timeouts(fixture: &OneWorker) -> u64 {
    fixture.worker.statistics().http.refused[Refused::SendTimeout as usize]
}

/// A client that has the head and the first bytes of a response.
fn answered(fixture: &mut OneWorker, head: &str) -> (Script, Script) {
    let (mut client, mut backend, _) = asked(fixture, 1000, REQUEST);
    client.receives(&backend.sends(fixture, head));
    client.acknowledges(fixture);
    (client, backend)
}

/// The backend asks every so often whether there is room, the client says that there is none. Returns how long it took
/// until the client was reset, and the resets.
fn probes(fixture: &mut OneWorker, client: &mut Script, backend: &mut Script, most: u64) -> (Duration, Vec<Sent>) {
    let begin = fixture.now;
    while fixture.now.since(begin) < Duration::from_secs(most) {
        let sent = fixture.wait(Duration::from_secs(1));
        let resets: Vec<Sent> =
            sent.into_iter().filter(|sent| sent.to == client.own && sent.segment.has(RST)).collect();
        if !resets.is_empty() {
            return (fixture.now.since(begin), resets);
        }
        let next = backend.next.wrapping_sub(1);
        for probe in backend.repeats(fixture, next, &[], b"") {
            assert_eq!(probe.to, client.own, "{probe:?}");
            let told = only(client.acknowledges(fixture));
            assert_eq!((told.to, told.segment.window), (backend.own, client.window));
        }
    }
    (fixture.now.since(begin), Vec::new())
}

#[test]
fn a_client_that_takes_nothing_is_reset_with_its_number() {
    let mut fixture = fixture();
    let (mut client, mut backend) = answered(&mut fixture, SMALL);
    client.gets(&only(backend.says(&mut fixture, ACK, &[b'a'; 1000])));
    client.window = 0;
    client.acknowledges(&mut fixture);
    let (took, resets) = probes(&mut fixture, &mut client, &mut backend, 100);
    assert!((20..=22).contains(&took.as_secs()), "{took:?}");
    assert!(resets.iter().any(|reset| reset.segment.sequence == client.expected), "{resets:?}");
    assert_eq!(timeouts(&fixture), 1);
    fixture.over();
    assert_eq!(timeouts(&fixture), 1, "once");
}

#[test]
fn a_client_that_takes_a_little_now_and_then_is_not_reset() {
    let mut fixture = fixture();
    let (mut client, mut backend) = answered(&mut fixture, SMALL);
    for _ in 0..6 {
        client.gets(&only(backend.says(&mut fixture, ACK, &[b'a'; 1000])));
        client.window = 0;
        client.acknowledges(&mut fixture);
        let (_, resets) = probes(&mut fixture, &mut client, &mut backend, 18);
        assert!(resets.is_empty(), "{resets:?}");
        client.window = 700;
        client.acknowledges(&mut fixture);
    }
    assert_eq!(timeouts(&fixture), 0);
    // From now on it is the backend that is waited for.
    let sent = fixture.wait(Duration::from_secs(16));
    assert!(sent.iter().any(|sent| sent.to == client.own && sent.segment.has(RST)), "{sent:?}");
    assert_eq!(timeouts(&fixture), 0);
    fixture.over();
}

#[test]
fn a_client_that_has_vanished_from_a_response_is_reset() {
    let mut fixture = fixture();
    let (client, mut backend) = answered(&mut fixture, SMALL);
    let start = backend.next;
    backend.says(&mut fixture, ACK, &[b'a'; 1000]);
    let mut reset = false;
    for _ in 0..21 {
        // The backend sends it again and again.
        reset |= fixture.wait(Duration::from_secs(1)).iter().any(|sent| sent.to == client.own && sent.segment.has(RST));
        if !reset {
            backend.repeats(&mut fixture, start, &[], &[b'a'; 1000]);
        }
    }
    assert!(reset);
    assert_eq!(timeouts(&fixture), 1);
    fixture.over();
}

#[test]
fn a_pause_of_the_backend_is_no_fault_of_the_client() {
    let mut fixture = OneWorker::new(|http| {
        http.limits.send_timeout = Duration::from_secs(20);
        http.limits.body_timeout = Duration::from_secs(300);
    });
    let (mut client, mut backend) = answered(&mut fixture, SMALL);
    assert!(fixture.wait(Duration::from_secs(90)).is_empty());
    client.gets(&only(backend.says(&mut fixture, ACK, &[b'a'; 1000])));
    // It has its whole time from now on.
    assert!(fixture.wait(Duration::from_secs(18)).is_empty());
    client.acknowledges(&mut fixture);
    assert!(fixture.wait(Duration::from_secs(90)).is_empty());
    assert_eq!(timeouts(&fixture), 0);
    fixture.over();
}

/// The engine carries the response.
fn forwarded(fixture: &mut OneWorker) -> (Script, Script, Vec<RuleId>) {
    let (client, backend) = answered(fixture, LARGE);
    let rules = installs(fixture);
    rules.iter().for_each(|rule| complete(fixture, Completion::Installed(rule.id)));
    (client, backend, rules.iter().map(|rule| rule.id).collect())
}

/// When the rules go, which they do within 10 s, the client is asked for a packet.
fn is_looked_at(fixture: &mut OneWorker, client: &Script, rules: &[RuleId]) {
    assert!(fixture.wait(Duration::from_millis(10_100)).is_empty());
    assert_eq!(removals(fixture), 2);
    rules.iter().for_each(|rule| complete(fixture, Completion::Removed(*rule, None)));
    let question = only(fixture.wait(Duration::from_millis(10)));
    let behind = client.expected.wrapping_sub(question.segment.sequence) as i32;
    assert!(question.to == client.own && question.segment.flags == ACK && behind > 0, "{question:?}");
}

#[test]
fn stalled_offloaded_client_is_reset_in_sequence() {
    for carries in [0, 20 << 20] {
        let mut fixture = fixture();
        let (mut client, mut backend, rules) = forwarded(&mut fixture);
        client.expected = client.expected.wrapping_add(carries);
        backend.next = backend.next.wrapping_add(carries);
        client.window = 0;
        is_looked_at(&mut fixture, &client, &rules);
        client.acknowledges(&mut fixture);
        let (took, _) = probes(&mut fixture, &mut client, &mut backend, 100);
        let most = if carries > 0 { 22 } else { 12 };
        assert!((most - 3..=most).contains(&took.as_secs()), "{took:?}: 20 s from when it was last known to take some");
        assert_eq!(timeouts(&fixture), 1);
        let reset = only(client.acknowledges(&mut fixture));
        assert_eq!((reset.segment.flags & RST, reset.segment.sequence), (RST, client.expected));
        fixture.over();
    }
}

#[test]
fn silent_offloaded_client_gets_its_full_timeout() {
    let mut fixture = fixture();
    let (mut client, mut backend, rules) = forwarded(&mut fixture);
    client.expected = client.expected.wrapping_add(LENGTH / 2);
    backend.next = backend.next.wrapping_add(LENGTH / 2);
    is_looked_at(&mut fixture, &client, &rules);
    // The question was lost: it is asked once more.
    let asked = fixture.wait(Duration::from_secs(12));
    assert!(!asked.is_empty() && asked.iter().all(|sent| sent.segment.flags == ACK), "{asked:?}");
    client.window = 700;
    client.acknowledges(&mut fixture);
    client.gets(&only(backend.says(&mut fixture, ACK, &[b'a'; 1000])));
    client.acknowledges(&mut fixture);
    assert_eq!((timeouts(&fixture), fixture.worker.splices().0), (0, 1));
    for rule in installs(&mut fixture) {
        complete(&mut fixture, Completion::Rejected(rule.id, Refusal::Full));
    }
    fixture.over();
}
