//! What the simulator has found, told in a few segments.

use super::one_worker::{OneWorker, Script};
use super::{REQUEST, RESPONSE, asked, only};
use crate::engine::{Completion, RuleId, RuleOp};
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, PSH, RST, SYN};
use alloc::vec::Vec;

#[test]
fn repeated_first_segment_after_close_is_ignored() {
    let mut fixture = OneWorker::new(|_| {});
    let mut client = Script::client(&mut fixture, 1000);
    let first = client.own(ACK | FIN | PSH, None);
    let syn = only(client.says(&mut fixture, ACK | FIN | PSH, REQUEST.as_bytes()));
    let again = fixture.arrives(&first, REQUEST.as_bytes());
    assert!(again.iter().all(|sent| sent.to == client.own), "{again:?}");
    let (mut backend, sent) = Script::backend(&mut fixture, &syn);
    backend.gets(&only(sent));
    let again = fixture.arrives(&first, REQUEST.as_bytes());
    assert!(again.iter().all(|sent| sent.to == client.own), "{again:?}");
    let sent = backend.sends(&mut fixture, RESPONSE);
    client.receives(&sent);
    assert!(sent.iter().any(|sent| sent.to == client.own && sent.segment.has(FIN)), "{sent:?}");
    client.acknowledges(&mut fixture);
    fixture.over();
}

#[test]
fn a_probe_with_the_number_of_a_request_that_waits_is_answered() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    assert!(client.sends(&mut fixture, REQUEST).is_empty(), "it waits");
    let answer = only(client.repeats(&mut fixture, client.next.wrapping_sub(1), &[], b"\n"));
    assert_eq!((answer.to, answer.segment.payload), (client.own, 0));
    let answer = only(client.repeats(&mut fixture, client.next.wrapping_add(5), &[], b"GET"));
    assert_eq!((answer.to, answer.segment.payload), (client.own, 0), "behind something that is missing");
    let response = only(backend.sends(&mut fixture, RESPONSE));
    client.gets(&response);
    fixture.over();
}

#[test]
fn body_is_offloaded_after_our_head_is_acked() {
    let close = |http: &mut crate::l7::config::Http| http.offload_bytes_min = Some(1000);
    let mut fixture = OneWorker::new(close);
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, "GET /a HTTP/1.0\r\nHost: a\r\n\r\n");
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n";
    let response = only(backend.sends(&mut fixture, &alloc::format!("{head}{:1000}", "")));
    client.gets(&response);
    assert!(response.text().len() > head.len() + 1000, "the head is another");
    client.gets(&only(backend.sends(&mut fixture, &alloc::format!("{:1000}", ""))));
    assert!(fixture.worker.poll_op().is_none(), "its acknowledgement may be lost");
    client.acknowledges(&mut fixture);
    client.gets(&only(backend.sends(&mut fixture, &alloc::format!("{:1000}", ""))));
    assert!(fixture.worker.poll_op().is_some());
}

#[test]
fn request_is_retried_after_rules_are_removed() {
    let mut fixture = OneWorker::new(|_| {});
    // Another connection to the same backend, which becomes idle.
    let (mut other, mut idle, _) = asked(&mut fixture, 2000, REQUEST);
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    other.gets(&only(idle.sends(&mut fixture, RESPONSE)));
    idle.receives(&other.acknowledges(&mut fixture));
    // The engine has forwarded a response.
    let length = 3 << 20;
    client
        .receives(&backend.sends(&mut fixture, &alloc::format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n")));
    let rules: Vec<RuleId> = core::iter::from_fn(|| fixture.worker.poll_op())
        .map(|op| match op {
            RuleOp::Install(rule) => rule.id,
            RuleOp::Remove { id, .. } => id,
        })
        .collect();
    let complete = |fixture: &mut OneWorker, completion| fixture.worker.handle_completion(fixture.now, &completion);
    rules.iter().for_each(|&id| complete(&mut fixture, Completion::Installed(id)));
    client.expected = client.expected.wrapping_add(length);
    backend.next = backend.next.wrapping_add(length);
    // The next request meets a connection that its backend has just given up.
    let request = only(client.sends(&mut fixture, REQUEST));
    assert_eq!((request.to, request.from), (backend.own, backend.peer));
    assert!(backend.says(&mut fixture, RST | ACK, b"").is_empty(), "first the rules go");
    assert_eq!(core::iter::from_fn(|| fixture.worker.poll_op()).count(), rules.len());
    rules.iter().for_each(|&id| complete(&mut fixture, Completion::Removed(id, None)));
    let sent = fixture.wait(Duration::from_millis(10));
    assert_eq!(only(sent).segment.flags, SYN, "not over the idle one, which may have been given up, too");
    fixture.over();
}
