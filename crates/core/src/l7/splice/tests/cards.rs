//! Engines that cannot do all: no guards, no SACK edges, no windows. They carry what the backend sends, and nothing else.

use super::offload::{complete, removals};
use super::one_worker::{OneWorker, Script};
use super::{REQUEST, RESPONSE, only};
use crate::engine::{Completion, EngineCaps, Refusal, Rule, RuleOp};
use crate::l7::splice::tcp::segment::Abilities;
use crate::wire::tcp::{ACK, FIN, RST, SYN};
use alloc::format;
use alloc::vec::Vec;

const LENGTH: u32 = 3 << 20;
/// What a backend can whose windows need no shift.
const SAME_SCALE: Abilities = super::one_worker::USUAL;

fn card(caps: &mut EngineCaps) {
    (caps.checks_guards, caps.rewrites_sack, caps.rewrites_window) = (false, false, false);
}

fn asks(fixture: &mut OneWorker) -> Vec<Rule> {
    let install = |op| match op {
        RuleOp::Install(rule) => rule,
        RuleOp::Remove { .. } => panic!("{op:?}"),
    };
    core::iter::from_fn(|| fixture.worker.poll_op()).map(install).collect()
}

/// A client with a request that has reached a backend.
fn asked_of(fixture: &mut OneWorker, request: &str, abilities: Abilities) -> (Script, Script) {
    let mut client = Script::client(fixture, 1000);
    let syn = only(client.sends(fixture, request));
    let (mut backend, sent) = Script::backend_with(fixture, &syn, 900_000, abilities);
    backend.receives(&sent);
    (client, backend)
}

/// A large response that the engine carries from its tenth byte on, or the eleventh if its head is another one for the
/// client; how many bytes that are.
fn downloading(fixture: &mut OneWorker, field: &str) -> (Script, Script, Rule, u32) {
    let (mut client, mut backend) = asked_of(fixture, REQUEST, SAME_SCALE);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n{field}\r\n0123456789");
    client.receives(&backend.sends(fixture, &head));
    let mut left = LENGTH - 10;
    if !field.is_empty() {
        assert!(asks(fixture).is_empty(), "the head is ours until it is acknowledged");
        client.acknowledges(fixture);
        client.receives(&backend.sends(fixture, "x"));
        left -= 1;
    }
    let rule = only_rule(asks(fixture));
    complete(fixture, Completion::Installed(rule.id));
    (client, backend, rule, left)
}

fn only_rule(rules: Vec<Rule>) -> Rule {
    assert_eq!(rules.len(), 1, "{rules:?}");
    rules[0]
}

#[test]
fn card_forwards_backend_data_worker_client_data() {
    let mut fixture = OneWorker::before_engine(card);
    let (mut client, mut backend, rule, left) = downloading(&mut fixture, "");
    assert_eq!((rule.key.source, rule.key.destination), (backend.own, backend.peer));
    assert!(rule.guard.is_none() && rule.rewrite.window_shift == 0);
    assert_eq!(rule.rewrite.sequence_delta, client.expected.wrapping_sub(backend.next));
    assert_eq!(fixture.worker.rules_known().count(), 1);
    // The engine carries half; the client acknowledges, and lacks something.
    let half = LENGTH / 2;
    client.expected = client.expected.wrapping_add(half);
    backend.next = backend.next.wrapping_add(half);
    let up = only(client.acknowledges(&mut fixture));
    assert_eq!((up.to, up.segment.acknowledgement), (backend.own, backend.next));
    let edges = [client.expected.wrapping_add(1000), client.expected.wrapping_add(2000)];
    let block = [&[1, 1, 5, 10][..], &edges[0].to_be_bytes(), &edges[1].to_be_bytes()].concat();
    let up = only(client.repeats(&mut fixture, client.next, &block, b""));
    let edge = |number: u32| number.wrapping_sub(client.expected).wrapping_add(backend.next).to_be_bytes();
    assert_eq!(up.options[4..12], [edge(edges[0]), edge(edges[1])].concat(), "translated here");
    // The client sends its request again, which was not lost: the backend would say so in numbers of its own.
    let told = only(client.repeats(&mut fixture, client.next.wrapping_sub(10), &[], b"le.org\r\n\r\n"));
    assert_eq!((told.to, told.segment.acknowledgement), (client.own, client.next));
    // All of it: the next request waits until the rule is gone.
    let rest = left - half;
    client.expected = client.expected.wrapping_add(rest);
    backend.next = backend.next.wrapping_add(rest);
    let up = client.acknowledges(&mut fixture);
    assert_eq!(up.last().map(|sent| sent.segment.acknowledgement), Some(backend.next), "{up:?}");
    assert_eq!(removals(&mut fixture), 1, "the exchange is over");
    let waits = client.sends(&mut fixture, REQUEST);
    assert!(waits.iter().all(|sent| sent.to == client.own), "{waits:?}");
    complete(&mut fixture, Completion::Removed(rule.id, None));
    let next = only(fixture.wait(crate::time::Duration::from_millis(10)));
    assert_eq!((next.to, next.text(), next.segment.acknowledgement), (backend.own, REQUEST, backend.next));
    backend.gets(&next);
    assert_eq!(client.receives(&backend.sends(&mut fixture, RESPONSE)), RESPONSE);
    client.acknowledges(&mut fixture);
    assert_eq!(fixture.worker.rules_known().count(), 0);
    fixture.over();
}

#[test]
fn a_connection_whose_rule_is_gone_is_others() {
    for closes in [false, true] {
        let mut fixture = OneWorker::before_engine(card);
        let (mut client, mut backend, rule, left) =
            downloading(&mut fixture, if closes { "Connection: close\r\n" } else { "" });
        client.expected = client.expected.wrapping_add(left);
        backend.next = backend.next.wrapping_add(left);
        let sent = client.acknowledges(&mut fixture);
        assert!(sent.iter().all(|sent| !sent.segment.has(FIN)), "what acknowledges it would go by the rule: {sent:?}");
        assert_eq!(removals(&mut fixture), 1);
        complete(&mut fixture, Completion::Removed(rule.id, None));
        let sent = fixture.wait(crate::time::Duration::from_millis(10));
        assert_eq!(sent.iter().any(|sent| sent.to == backend.own && sent.segment.has(FIN)), closes, "{sent:?}");
        let mut other = Script::client(&mut fixture, 1001);
        let next = only(other.sends(&mut fixture, REQUEST));
        assert_eq!((next.from == backend.peer, next.segment.has(SYN)), (!closes, closes), "{next:?}");
        fixture.over();
    }
}

#[test]
fn what_is_beyond_half_of_all_numbers_is_acknowledged_too() {
    let mut fixture = OneWorker::before_engine(card);
    let (mut client, mut backend) = asked_of(&mut fixture, REQUEST, SAME_SCALE);
    let length = 5u64 << 30;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n0123456789");
    client.receives(&backend.sends(&mut fixture, &head));
    let rule = only_rule(asks(&mut fixture));
    complete(&mut fixture, Completion::Installed(rule.id));
    let mut left = length - 10;
    while left > 0 {
        let some = left.min(1 << 29) as u32;
        left -= u64::from(some);
        client.expected = client.expected.wrapping_add(some);
        backend.next = backend.next.wrapping_add(some);
        let up = client.acknowledges(&mut fixture);
        assert_eq!(up.last().map(|sent| sent.segment.acknowledgement), Some(backend.next), "{left}: {up:?}");
    }
    assert_eq!(removals(&mut fixture), 1, "all of it is there");
    complete(&mut fixture, Completion::Removed(rule.id, None));
    let next = only(client.sends(&mut fixture, REQUEST));
    assert_eq!((next.to, next.text()), (backend.own, REQUEST));
    fixture.over();
}

#[test]
fn who_ends_it_while_the_engine_carries_is_heard() {
    for flags in [RST | ACK, ACK | FIN] {
        let mut fixture = OneWorker::before_engine(card);
        let (mut client, mut backend, rule, _) = downloading(&mut fixture, "");
        client.expected = client.expected.wrapping_add(1 << 20);
        backend.next = backend.next.wrapping_add(1 << 20);
        let sent = backend.says(&mut fixture, flags, b"");
        let end = sent.iter().find(|sent| sent.to == client.own).expect("its end");
        assert_eq!((end.segment.flags & (RST | FIN), end.segment.sequence), (flags & (RST | FIN), client.expected));
        assert_eq!(removals(&mut fixture), 1);
        complete(&mut fixture, Completion::Removed(rule.id, None));
        fixture.over();
    }
    let mut fixture = OneWorker::before_engine(card);
    let (mut client, backend, rule, _) = downloading(&mut fixture, "");
    let sent = client.says(&mut fixture, RST, b"");
    assert!(sent.iter().any(|sent| sent.to == backend.own && sent.segment.has(RST)), "{sent:?}");
    assert_eq!(removals(&mut fixture), 1);
    complete(&mut fixture, Completion::Removed(rule.id, None));
    fixture.over();
}

#[test]
fn nothing_is_asked_of_an_engine_that_cannot_do_it() {
    let upload = format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n");
    let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n0123456789");
    let scaled = Abilities { scale: Some(9), ..SAME_SCALE };
    let unnumbered = |caps: &mut EngineCaps| caps.rewrites_sequence = false;
    let changes: [(fn(&mut EngineCaps), _, _); 3] =
        [(card, REQUEST, scaled), (card, &upload, SAME_SCALE), (unnumbered, REQUEST, SAME_SCALE)];
    for (change, request, abilities) in changes {
        let mut fixture = OneWorker::before_engine(change);
        let (mut client, mut backend) = asked_of(&mut fixture, request, abilities);
        if request == upload {
            backend.acknowledges(&mut fixture);
            backend.receives(&client.sends(&mut fixture, "0123456789"));
        } else {
            client.receives(&backend.sends(&mut fixture, &response));
        }
        assert!(asks(&mut fixture).is_empty());
    }
}

#[test]
fn response_is_offloaded_with_sack_at_one_end() {
    // With an engine that can do everything: what the backend sends of it, with its guard.
    let mut fixture = OneWorker::before_engine(|_| {});
    let (mut client, mut backend) = asked_of(&mut fixture, REQUEST, Abilities { sack: false, ..SAME_SCALE });
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n0123456789");
    client.receives(&backend.sends(&mut fixture, &head));
    let rule = only_rule(asks(&mut fixture));
    let guard = rule.guard.expect("it checks them");
    assert_eq!((guard.sequence, guard.sequence_length), (backend.next, LENGTH - 10));
    complete(&mut fixture, Completion::Rejected(rule.id, Refusal::Full));
    assert_eq!(fixture.worker.rules_known().count(), 0);
    client.receives(&backend.sends(&mut fixture, "x"));
    assert!(asks(&mut fixture).is_empty(), "not at once again");
}
