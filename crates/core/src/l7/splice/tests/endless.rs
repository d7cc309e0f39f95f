//! What ends with its connection: the engine carries it once there was much of it, and software sees it end.

use super::offload::{complete, installs, removals};
use super::one_worker::{OneWorker, Script, Sent};
use super::stamped;
use super::{REQUEST, asked, only};
use crate::engine::{Completion, Guard, Rule};
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN};

const LEAST: u64 = 20_000;
/// A guard's longest range.
const OFFLOAD_RANGE: u32 = 1 << 30;

fn fixture() -> OneWorker {
    stamped::without();
    OneWorker::new(|http| {
        http.offload_bytes_min = Some(LEAST);
        http.upgrade = true;
    })
}

/// So much of it that it is worth rules, in several segments.
fn much(fixture: &mut OneWorker, from: &mut Script, to: &mut Script) {
    for _ in 0..20 {
        assert!(fixture.worker.poll_op().is_none(), "too early");
        let sent = from.says(fixture, ACK, &[b'x'; 1000]);
        to.receives(&sent);
    }
}

fn guard(sequence: u32, sequence_length: u32, acknowledgement: u32, acknowledgement_length: u32) -> Option<Guard> {
    Some(Guard { sequence, sequence_length, acknowledgement, acknowledgement_length })
}

#[test]
fn a_response_that_ends_with_its_connection() {
    let mut fixture = fixture();
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    client.receives(&backend.sends(&mut fixture, "HTTP/1.1 200 OK\r\n\r\n"));
    much(&mut fixture, &mut backend, &mut client);
    let [up, down] = installs(&mut fixture);
    assert_eq!(up.guard, guard(client.next, 0, client.expected, OFFLOAD_RANGE - 1));
    assert_eq!(down.guard, guard(backend.next, OFFLOAD_RANGE, backend.expected, 0));
    for rule in [up, down] {
        complete(&mut fixture, Completion::Installed(rule.id));
    }
    // The engine carries a lot; then the backend closes, which software sees.
    client.expected = client.expected.wrapping_add(900_000_000);
    backend.next = backend.next.wrapping_add(900_000_000);
    let fin = only(backend.says(&mut fixture, ACK | FIN, b"end"));
    assert_eq!((fin.text(), fin.segment.flags & FIN), ("end", FIN));
    client.gets(&fin);
    assert_eq!(removals(&mut fixture), 2, "what is acknowledged now matters");
    for id in [up.id, down.id] {
        complete(&mut fixture, Completion::Removed(id, None));
    }
    backend.receives(&client.acknowledges(&mut fixture));
    let sent = client.says(&mut fixture, ACK | FIN, b"");
    assert!(sent.iter().any(|sent| sent.to == backend.own && sent.segment.has(FIN)), "{sent:?}");
    backend.receives(&sent);
    client.receives(&backend.acknowledges(&mut fixture));
    fixture.wait(Duration::from_secs(10));
    fixture.over();
    assert_eq!(fixture.worker.splices().0, 0);
}

#[test]
fn chunks_behind_which_both_ends_close() {
    let request = REQUEST.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n10000000\r\n";
    let kept = head.replace("Connection: close\r\n", "");
    // The backend would go on, or the client: where the chunks end has to be read.
    for (request, head) in [(request.as_str(), kept.as_str()), (REQUEST, head)] {
        let mut fixture = fixture();
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, request);
        client.receives(&backend.sends(&mut fixture, head));
        much(&mut fixture, &mut backend, &mut client);
        assert!(fixture.worker.poll_op().is_none());
    }
    let mut fixture = fixture();
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, &request);
    let got = client.receives(&backend.sends(&mut fixture, head));
    assert!(got.contains("chunked") && got.to_ascii_lowercase().contains("connection: close"), "{got}");
    // What is shorter than what is worth rules, the worker carries to its end.
    client.receives(&backend.says(&mut fixture, ACK, &[b'x'; 1000]));
    let fin = only(backend.says(&mut fixture, ACK | FIN, b"\r\n0\r\n\r\n"));
    assert_eq!((fin.text(), fin.segment.flags & FIN), ("\r\n0\r\n\r\n", FIN));
    client.gets(&fin);
    backend.receives(&client.says(&mut fixture, ACK | FIN, b""));
    fixture.over();
    let mut fixture = OneWorker::new(|http| http.offload_bytes_min = Some(LEAST));
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, &request);
    client.receives(&backend.sends(&mut fixture, head));
    much(&mut fixture, &mut backend, &mut client);
    let [up, down] = installs(&mut fixture);
    assert_eq!(up.guard, guard(client.next, 0, client.expected, OFFLOAD_RANGE - 1));
    assert_eq!(down.guard, guard(backend.next, OFFLOAD_RANGE, backend.expected, 0));
}

/// A tunnel that the engine carries, and its rules.
fn carried(fixture: &mut OneWorker) -> (Script, Script, [Rule; 2]) {
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    let (mut client, mut backend, _) = asked(fixture, 1000, request);
    let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    client.receives(&backend.sends(fixture, answer));
    client.acknowledges(fixture);
    much(fixture, &mut client, &mut backend);
    backend.acknowledges(fixture);
    backend.receives(&client.sends(fixture, "and more"));
    let rules = installs(fixture);
    for rule in rules {
        complete(fixture, Completion::Installed(rule.id));
    }
    (client, backend, rules)
}

#[test]
fn a_tunnel_in_both_directions() {
    let mut fixture = fixture();
    let (mut client, mut backend, [up, down]) = carried(&mut fixture);
    for (rule, own, other) in [(up, &client, &backend), (down, &backend, &client)] {
        let guard = rule.guard.expect("guarded");
        assert_eq!((guard.sequence_length, guard.acknowledgement_length), (OFFLOAD_RANGE, OFFLOAD_RANGE));
        assert!(own.next.wrapping_sub(guard.sequence) < 100, "from here on");
        assert!(own.expected.wrapping_sub(guard.acknowledgement) < 100);
        assert_ne!(other.next, own.next);
    }
    // A offload range of one direction is over: another begins.
    client.next = client.next.wrapping_add(OFFLOAD_RANGE);
    backend.expected = backend.expected.wrapping_add(OFFLOAD_RANGE);
    let sent = client.sends(&mut fixture, "over");
    backend.receives(&sent);
    let [up, _] = installs(&mut fixture);
    assert_eq!(up.guard.map(|guard| guard.sequence), Some(client.next));
}

#[test]
fn last_acknowledgements_that_the_engine_forwards_are_asked_for() {
    for client_first in [true, false] {
        let mut fixture = fixture();
        let (client, backend, rules) = carried(&mut fixture);
        let (mut first, mut second) = if client_first { (client, backend) } else { (backend, client) };
        second.gets(&only(first.says(&mut fixture, ACK | FIN, b"")));
        assert_eq!(removals(&mut fixture), 2);
        // The rules are still there: the second end's FIN comes by software, the first end's last acknowledgement does not.
        first.gets(&only(second.says(&mut fixture, ACK | FIN, b"")));
        for rule in rules {
            complete(&mut fixture, Completion::Removed(rule.id, None));
        }
        let asked = fixture.wait(Duration::from_millis(100));
        let is_question =
            |sent: &Sent| sent.to == first.own && sent.what().2 == ACK && sent.segment.sequence != first.expected;
        assert!(asked.iter().any(is_question), "{asked:?}");
        first.acknowledges(&mut fixture);
        fixture.wait(Duration::from_secs(10));
        assert_eq!(fixture.worker.splices(), (0, 0, 0), "client first: {client_first}");
    }
}

#[test]
fn numbers_stay_comparable_however_much_software_carries() {
    // More than half of the space of numbers, none of it the engine's.
    let mut fixture = OneWorker::new(|http| http.offload_bytes_min = Some(u64::MAX));
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    client.receives(&backend.sends(&mut fixture, "HTTP/1.1 200 OK\r\n\r\n"));
    for turn in 0..24 {
        // What lies between is not played.
        let step = 200_000_000;
        client.expected = client.expected.wrapping_add(step);
        backend.next = backend.next.wrapping_add(step);
        let part = only(backend.says(&mut fixture, ACK, b"part"));
        assert_eq!(part.text(), "part", "turn {turn}");
        client.gets(&part);
        let up = client.acknowledges(&mut fixture);
        assert_eq!(up.len(), 1, "turn {turn}");
    }
}
