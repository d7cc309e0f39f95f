//! Bodies that the engine carries: what it is asked, and what software makes of what it does not see.

use super::listed::one;
use super::one_worker::{OneWorker, Script};
use super::paths::too_big;
use super::stamped;
use super::{REQUEST, RESPONSE, asked, only};
use crate::engine::{Completion, Guard, Refusal, Rule, RuleOp};
use crate::l7::splice::SplicedPath;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, RST, SYN};
use alloc::format;
use alloc::vec::Vec;

const LENGTH: u32 = 3 << 20;

pub(super) fn installs(fixture: &mut OneWorker) -> [Rule; 2] {
    let rules: Vec<Rule> = core::iter::from_fn(|| fixture.worker.poll_op())
        .map(|op| match op {
            RuleOp::Install(rule) => rule,
            RuleOp::Remove { .. } => panic!("{op:?}"),
        })
        .collect();
    rules.try_into().expect("a pair")
}

pub(super) fn removals(fixture: &mut OneWorker) -> usize {
    core::iter::from_fn(|| fixture.worker.poll_op()).filter(|op| matches!(op, RuleOp::Remove { .. })).count()
}

pub(super) fn complete(fixture: &mut OneWorker, completion: Completion) {
    fixture.worker.handle_completion(fixture.now, &completion);
}

/// A large response has begun; its rules are asked for.
fn downloading(fixture: &mut OneWorker) -> (Script, Script, [Rule; 2]) {
    let (mut client, mut backend, _) = asked(fixture, 1000, REQUEST);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n0123456789");
    client.receives(&backend.sends(fixture, &head));
    let rules = installs(fixture);
    (client, backend, rules)
}

#[test]
fn a_large_response_goes_to_the_engine_with_guards() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, [up, down]) = downloading(&mut fixture);
    let left = LENGTH - 10;
    assert_eq!((up.key.source, up.key.destination), (client.own, client.peer));
    assert_eq!((down.key.source, down.key.destination), (backend.own, backend.peer));
    let of_client = Guard {
        sequence: client.next,
        sequence_length: 0,
        acknowledgement: client.expected,
        // That of the end is software's.
        acknowledgement_length: left - 1,
    };
    let of_backend = Guard {
        sequence: backend.next,
        sequence_length: left,
        acknowledgement: backend.expected,
        acknowledgement_length: 0,
    };
    assert_eq!((up.guard, down.guard), (Some(of_client), Some(of_backend)));
    assert_eq!(up.rewrite.source, backend.peer);
    assert_eq!(up.rewrite.sequence_delta, backend.expected.wrapping_sub(client.next));
    assert_eq!(up.rewrite.acknowledgement_delta, backend.next.wrapping_sub(client.expected));
    assert_eq!(down.rewrite.sequence_delta, client.expected.wrapping_sub(backend.next));
    assert_eq!((up.rewrite.window_shift, down.rewrite.window_shift), (0, 2));
    // In any order.
    complete(&mut fixture, Completion::Installed(down.id));
    complete(&mut fixture, Completion::Installed(up.id));
    assert_eq!(fixture.worker.rules_known().count(), 2);
    // The engine carries all but the last segment, which is lost and comes by here.
    client.expected = client.expected.wrapping_add(left - 100);
    backend.next = backend.next.wrapping_add(left - 100);
    let last = only(backend.says(&mut fixture, ACK, &[b'x'; 100]));
    client.gets(&last);
    // The next request, which acknowledges it, is outside the guard; it goes over the same connection.
    let next = only(client.sends(&mut fixture, REQUEST));
    backend.gets(&next);
    assert_eq!(next.segment.acknowledgement, backend.next);
    assert!(fixture.worker.poll_op().is_none(), "the rules stay, they do no harm");
    // Another large response: the same rules for another offload range.
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n");
    client.receives(&backend.sends(&mut fixture, &head));
    let [next_up, next_down] = installs(&mut fixture);
    assert_eq!((next_up.id, next_up.key, next_down.id, next_down.key), (up.id, up.key, down.id, down.key));
    assert_eq!(next_down.guard.map(|guard| (guard.sequence, guard.sequence_length)), Some((backend.next, LENGTH)));
    // One is refused: the old one stays in force, and is known to be.
    complete(&mut fixture, Completion::Rejected(up.id, Refusal::Full));
    complete(&mut fixture, Completion::Installed(down.id));
    assert_eq!(fixture.worker.rules_known().count(), 2);
    client.says(&mut fixture, RST, b"");
    assert_eq!(fixture.worker.splices().0, 1, "until the engine has let go of it");
    assert_eq!(removals(&mut fixture), 2);
    for id in [up.id, down.id] {
        complete(&mut fixture, Completion::Removed(id, None));
    }
    assert_eq!(fixture.worker.rules_known().count(), 0);
    fixture.over();
}

#[test]
fn packets_over_the_path_mtu_leave_the_engine() {
    stamped::without();
    for to_client in [true, false] {
        let mut fixture = OneWorker::new(|_| {});
        let (client, mut backend, [up, down]) = downloading(&mut fixture);
        complete(&mut fixture, Completion::Installed(up.id));
        complete(&mut fixture, Completion::Installed(down.id));
        let far = if to_client { &client } else { &backend };
        let (way, next) = ((far.peer, far.own), far.expected);
        // Errors about numbers that are not under way are guesses.
        for guess in [next.wrapping_sub(100_000), next.wrapping_add(1 << 30)] {
            assert!(too_big(&mut fixture, way, 1300, guess).is_empty());
        }
        // No less than was agreed on: that was another connection's, or long ago.
        assert!(too_big(&mut fixture, way, 1500, next).is_empty());
        assert_eq!(removals(&mut fixture), 0);
        assert!(too_big(&mut fixture, way, 1300, next).is_empty(), "it was not ours");
        assert_eq!(removals(&mut fixture), 2);
        for id in [up.id, down.id] {
            complete(&mut fixture, Completion::Removed(id, None));
        }
        let body = only(backend.says(&mut fixture, ACK, &[b'x'; 1400]));
        assert_eq!((body.gso_size, body.bytes.len()), (if to_client { 1260 } else { 0 }, 1400));
        fixture.wait(Duration::from_secs(5));
        backend.says(&mut fixture, ACK, &[b'x'; 1400]);
        assert!(fixture.worker.poll_op().is_none(), "it is not offered again");
        assert_eq!(one(&fixture).path, SplicedPath::Narrow);
        fixture.over();
    }
}

#[test]
fn client_close_frees_backend_after_rule_removal() {
    // The client says that it will, or closes of itself when it has it all; the engine answers before that or late.
    for (says, installed) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut fixture = OneWorker::new(|_| {});
        let connection = if says { "\r\nConnection: close\r\n\r\n" } else { "\r\n\r\n" };
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, &REQUEST.replace("\r\n\r\n", connection));
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n0123456789");
        let text = client.receives(&backend.sends(&mut fixture, &head));
        assert_eq!(text.contains("Connection: close"), says);
        if says {
            // The head is another one, and ours until it is acknowledged.
            client.acknowledges(&mut fixture);
            client.receives(&backend.sends(&mut fixture, "abcdefghij"));
        }
        let rules = installs(&mut fixture);
        let installs = |fixture: &mut OneWorker| {
            rules.iter().for_each(|rule| complete(fixture, Completion::Installed(rule.id)));
        };
        if installed {
            installs(&mut fixture);
        }
        let forwarded = LENGTH - if says { 20 } else { 10 };
        client.expected = client.expected.wrapping_add(forwarded);
        backend.next = backend.next.wrapping_add(forwarded);
        let sent = client.says(&mut fixture, if says { ACK } else { ACK | FIN }, b"");
        let (to_client, to_backend): (Vec<_>, Vec<_>) = sent.into_iter().partition(|sent| sent.to == client.own);
        client.receives(&to_client);
        assert!(to_client.iter().any(|sent| sent.segment.has(FIN)), "says {says}: {to_client:?}");
        assert!(to_backend.iter().all(|sent| sent.segment.flags == ACK), "says {says}: {to_backend:?}");
        client.says(&mut fixture, if says { ACK | FIN } else { ACK }, b"");
        if !installed {
            installs(&mut fixture);
        }
        // Until then the engine would take another's response for the last one's.
        let mut other = Script::client(&mut fixture, 1001);
        let syn = only(other.sends(&mut fixture, REQUEST));
        assert_eq!(syn.segment.flags, SYN);
        assert_eq!(removals(&mut fixture), 2);
        for rule in &rules {
            complete(&mut fixture, Completion::Removed(rule.id, None));
        }
        let sent = fixture.wait(Duration::from_millis(10));
        backend.receives(&sent);
        let mut third = Script::client(&mut fixture, 1002);
        assert_eq!(backend.receives(&third.sends(&mut fixture, REQUEST)), REQUEST);
        third.receives(&backend.sends(&mut fixture, RESPONSE));
        fixture.over();
    }
}

#[test]
fn last_offloaded_segment_returns_with_our_fin() {
    let mut fixture = OneWorker::new(|_| {});
    let request = REQUEST.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, &request);
    client.receives(&backend.sends(&mut fixture, &format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n")));
    client.acknowledges(&mut fixture);
    client.receives(&backend.sends(&mut fixture, "0123456789"));
    let [up, down] = installs(&mut fixture);
    let left = LENGTH - 10;
    assert_eq!(down.guard.map(|guard| (guard.sequence, guard.sequence_length)), Some((backend.next, left - 1)));
    for rule in [&up, &down] {
        complete(&mut fixture, Completion::Installed(rule.id));
    }
    client.expected = client.expected.wrapping_add(left - 100);
    backend.next = backend.next.wrapping_add(left - 100);
    let last = only(backend.says(&mut fixture, ACK, &[b'x'; 100]));
    assert_eq!((last.to, last.segment.flags), (client.own, ACK | FIN));
    client.gets(&last);
    let told = client.says(&mut fixture, ACK | FIN, b"");
    assert!(told.iter().all(|sent| sent.segment.flags == ACK), "no FIN is forwarded: {told:?}");
    assert_eq!(removals(&mut fixture), 2);
    for rule in [up, down] {
        complete(&mut fixture, Completion::Removed(rule.id, None));
    }
    fixture.over();
}

#[test]
fn a_refused_pair_is_taken_back() {
    let mut fixture = OneWorker::new(|_| {});
    let (_, _, [up, down]) = downloading(&mut fixture);
    complete(&mut fixture, Completion::Installed(up.id));
    complete(&mut fixture, Completion::Rejected(down.id, Refusal::Full));
    assert_eq!(removals(&mut fixture), 1, "one alone is of no use");
    complete(&mut fixture, Completion::Removed(up.id, None));
    assert_eq!(fixture.worker.rules_known().count(), 0);
    fixture.over();
}

#[test]
fn a_large_upload_goes_to_the_engine_with_guards() {
    let mut fixture = OneWorker::new(|_| {});
    let request = format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n");
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, &request);
    assert!(fixture.worker.poll_op().is_none(), "the head is ours until it is acknowledged");
    backend.acknowledges(&mut fixture);
    backend.receives(&client.sends(&mut fixture, "0123456789"));
    let [up, down] = installs(&mut fixture);
    let left = LENGTH - 10;
    let of_client = Guard {
        sequence: client.next,
        sequence_length: left,
        acknowledgement: client.expected,
        acknowledgement_length: 0,
    };
    let of_backend = Guard {
        sequence: backend.next,
        sequence_length: 0,
        acknowledgement: backend.expected,
        acknowledgement_length: left,
    };
    assert_eq!((up.guard, down.guard), (Some(of_client), Some(of_backend)));
    for rule in [up, down] {
        complete(&mut fixture, Completion::Installed(rule.id));
    }
    // The engine has forwarded all of it; the response acknowledges it.
    client.next = client.next.wrapping_add(left);
    backend.expected = backend.expected.wrapping_add(left);
    let response = only(backend.sends(&mut fixture, RESPONSE));
    assert_eq!(response.segment.acknowledgement, client.next);
    client.gets(&response);
    let next = client.sends(&mut fixture, REQUEST);
    assert_eq!(backend.receives(&next), REQUEST, "{next:?}");
}

/// The engine would carry the acknowledgement of the request's end, and the exchange would never be over.
#[test]
fn response_waits_for_ack_of_request_to_offload() {
    let mut fixture = OneWorker::new(|_| {});
    let request = format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n");
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, &request);
    backend.acknowledges(&mut fixture);
    backend.receives(&client.sends(&mut fixture, "0123456789"));
    for rule in installs(&mut fixture) {
        complete(&mut fixture, Completion::Installed(rule.id));
    }
    // The engine has forwarded all but the last bytes of it, and the backend begins to answer.
    let left = LENGTH - 15;
    client.next = client.next.wrapping_add(left);
    backend.expected = backend.expected.wrapping_add(left);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n01234");
    client.receives(&backend.sends(&mut fixture, &head));
    let last = only(client.sends(&mut fixture, "56789"));
    // More of the response crosses the request's end.
    client.receives(&backend.sends(&mut fixture, "56789"));
    assert!(fixture.worker.poll_op().is_none());
    backend.gets(&last);
    client.receives(&backend.sends(&mut fixture, "01234"));
    let [_, down] = installs(&mut fixture);
    assert_eq!(down.guard.map(|guard| guard.acknowledgement), Some(backend.expected));
}

#[test]
fn a_backend_that_ends_while_the_engine_carries_is_heard() {
    for reset in [false, true] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, mut backend, rules) = downloading(&mut fixture);
        for rule in rules {
            complete(&mut fixture, Completion::Installed(rule.id));
        }
        let forwarded = if reset { 2 << 20 } else { LENGTH - 10 };
        client.expected = client.expected.wrapping_add(forwarded);
        backend.next = backend.next.wrapping_add(forwarded);
        if reset {
            let sent = backend.says(&mut fixture, RST | ACK, b"");
            assert!(
                sent.iter().any(|sent| sent.segment.has(RST) && sent.segment.sequence == client.expected),
                "{sent:?}"
            );
        } else {
            let sent = backend.says(&mut fixture, ACK | FIN, b"");
            assert!(sent.iter().all(|sent| sent.to == backend.own), "the response was complete: {sent:?}");
            let sent = client.sends(&mut fixture, REQUEST);
            assert!(sent.iter().all(|sent| sent.text() != REQUEST), "not to that backend any more: {sent:?}");
        }
        assert_eq!(removals(&mut fixture), 2);
        for rule in rules {
            complete(&mut fixture, Completion::Removed(rule.id, None));
        }
        let sent = fixture.wait(Duration::from_millis(10));
        assert_eq!(sent.iter().any(|sent| sent.segment.flags == crate::wire::tcp::SYN), !reset, "{sent:?}");
        fixture.over();
    }
}

#[test]
fn bytes_that_were_never_sent_are_not_acknowledged() {
    let mut fixture = OneWorker::new(|http| http.offload_bytes_min = Some(u64::MAX));
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    client.receives(&backend.sends(&mut fixture, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbegin"));
    let real = client.expected;
    client.expected = real.wrapping_add(95);
    assert!(client.acknowledges(&mut fixture).is_empty(), "else the connection would be others' before its time");
    client.expected = real;
    assert_eq!(only(client.acknowledges(&mut fixture)).segment.acknowledgement, backend.next);
    fixture.over();
}
