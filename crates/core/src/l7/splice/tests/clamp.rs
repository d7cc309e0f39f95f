//! Until the engine carries a large response, its backend is shown a small window.

use super::offload::{complete, installs};
use super::one_worker::{OneWorker, Script, Sent};
use super::{REQUEST, asked, only};
use crate::engine::{Completion, Refusal, Rule};
use crate::time::Duration;
use crate::wire::tcp::ACK;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Bodies of at least so many bytes are offered.
const LEAST: u64 = 20_000;
/// What its backend is shown until then, and what the client has, both in units of 128 bytes.
const HELD: u16 = ((LEAST + 2048) >> 7) as u16;
const OPEN: u16 = 1000;

fn fixture() -> OneWorker {
    OneWorker::new(|http| http.offload_bytes_min = Some(LEAST))
}

/// A response with this field has begun.
fn begun(fixture: &mut OneWorker, field: &str) -> (Script, Script) {
    let (mut client, mut backend, head) = asked(fixture, 1000, REQUEST);
    assert_eq!(head.segment.window, HELD, "a request makes room for what is not offered");
    let head = format!("HTTP/1.1 200 OK\r\n{field}\r\n\r\n");
    let sent = backend.sends(fixture, &head);
    client.receives(&sent);
    (client, backend)
}

/// A large one of so many bytes has begun, its backend has used its room, and rules are asked for.
fn large(fixture: &mut OneWorker) -> (Script, Script, u32, [Rule; 2]) {
    let (mut client, mut backend) = begun(fixture, "Content-Length: 100000");
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n".len();
    client.receives(&backend.says(fixture, ACK, &[b'x'; 1000]));
    assert!(fixture.worker.poll_op().is_none(), "more may be on its way");
    let up = only(client.acknowledges(fixture));
    let shown = up.segment.acknowledgement.wrapping_add(u32::from(up.segment.window) << 7);
    let room = usize::from(HELD) * 128 - head - 1000;
    assert!((0..128).contains(&backend.next.wrapping_add(room as u32).wrapping_sub(shown)), "no more room than before");
    client.receives(&backend.says(fixture, ACK, &[b'x'].repeat(room)));
    let rules = installs(fixture);
    assert!(rules.iter().all(|rule| rule.at_once), "nothing is on its way");
    let up = only(client.acknowledges(fixture));
    assert_eq!((up.to, up.segment.window), (backend.own, 0), "the rules are not in force yet");
    (client, backend, 100_000 - 1000 - room as u32, rules)
}

fn opens(sent: &Sent, backend: &Script) {
    let segment = &sent.segment;
    assert_eq!((sent.to, segment.flags, segment.payload, segment.window), (backend.own, ACK, 0, OPEN), "{sent:?}");
    assert_eq!((segment.sequence, segment.acknowledgement), (backend.expected, backend.next));
}

#[test]
fn it_is_lifted_once_the_rules_are_in_force() {
    let mut fixture = fixture();
    let (mut client, mut backend, left, [up, down]) = large(&mut fixture);
    complete(&mut fixture, Completion::Installed(up.id));
    assert!(fixture.wait(Duration::from_millis(1)).is_empty(), "one is not enough");
    complete(&mut fixture, Completion::Installed(down.id));
    opens(&only(fixture.wait(Duration::from_millis(1))), &backend);
    assert!(fixture.wait(Duration::from_millis(100)).is_empty(), "once");
    // The engine carries the rest; the acknowledgement of its end comes by here, and makes the window small again.
    let guard = up.guard.expect("guarded");
    let end = client.expected.wrapping_add(left);
    assert_eq!(guard.acknowledgement.wrapping_add(guard.acknowledgement_length + 1), end);
    (client.expected, backend.next) = (end, backend.next.wrapping_add(left));
    let last = only(client.acknowledges(&mut fixture));
    assert_eq!((last.segment.acknowledgement, last.segment.window), (backend.next, HELD));
    let next = only(client.sends(&mut fixture, REQUEST));
    assert_eq!((next.to, next.segment.window), (backend.own, HELD));
}

/// A window field counts in units: what is left of a window can be shown as less than a segment when it is more.
#[test]
fn backend_shown_less_than_a_segment_is_not_waited_for() {
    for (room, is_waited_for) in [(1500, false), (1440, false), (1600, true)] {
        let mut fixture = fixture();
        let (mut client, mut backend) = begun(&mut fixture, "Content-Length: 100000");
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n".len();
        let body = usize::from(HELD) * 128 - head - room;
        client.receives(&backend.says(&mut fixture, ACK, &[b'x'].repeat(body)));
        let up = only(client.acknowledges(&mut fixture));
        assert_eq!(usize::from(up.segment.window), room >> 7);
        if is_waited_for {
            assert!(fixture.worker.poll_op().is_none(), "{room}: it may send more");
            continue;
        }
        // It may have sent more when it was shown more: that may not be overtaken.
        let rules = installs(&mut fixture);
        assert!(rules.iter().all(|rule| rule.at_once == (room < 1448)), "{room}: {rules:?}");
    }
}

#[test]
fn backend_probe_is_answered_after_the_end() {
    let mut fixture = fixture();
    let (mut client, mut backend, left, rules) = large(&mut fixture);
    rules.iter().for_each(|rule| complete(&mut fixture, Completion::Installed(rule.id)));
    fixture.wait(Duration::from_millis(1));
    client.expected = client.expected.wrapping_add(left);
    backend.next = backend.next.wrapping_add(left);
    let last = only(client.acknowledges(&mut fixture));
    assert_eq!((last.to, last.segment.acknowledgement), (backend.own, backend.next));
    // The last segment comes a second time, and the client says so (RFC 2883).
    let (left, right) = (client.expected.wrapping_sub(5), client.expected);
    let edges = [left.to_be_bytes(), right.to_be_bytes()].concat();
    let options = [&[1, 1, 5, 10][..], &edges].concat();
    let sent = client.repeats(&mut fixture, client.next, &options, b"");
    let sent: Vec<_> = sent.iter().filter(|sent| sent.to == backend.own).collect();
    assert_eq!(sent.len(), 1, "{sent:?}");
    let edges = [backend.next.wrapping_sub(5).to_be_bytes(), backend.next.to_be_bytes()].concat();
    assert_eq!(sent[0].options, [&[1, 1, 5, 10][..], &edges].concat());
    assert_eq!((sent[0].segment.acknowledgement, sent[0].segment.window), (backend.next, HELD));
    // A keep-alive probe is answered here, whatever stands in it.
    let answer = only(client.repeats(&mut fixture, client.next.wrapping_sub(1), &options, b""));
    assert_eq!((answer.to, answer.segment.acknowledgement), (client.own, client.next));
}

#[test]
fn it_learns_that_also_when_others_may_have_its_connection() {
    let mut fixture = fixture();
    let (mut client, backend) = begun(&mut fixture, "Content-Length: 0");
    assert_eq!(only(client.acknowledges(&mut fixture)).segment.acknowledgement, backend.next);
    let (left, right) = (client.expected.wrapping_sub(5), client.expected);
    let options = [&[1, 1, 5, 10][..], &left.to_be_bytes(), &right.to_be_bytes()].concat();
    let told = |client: &Script, fixture: &mut OneWorker, options: &[u8]| {
        let sent = client.repeats(fixture, client.next, options, b"");
        sent.into_iter().filter(|sent| sent.to == backend.own).collect::<Vec<_>>()
    };
    let sent = only(told(&client, &mut fixture, &options));
    let (own, flags) = ((sent.segment.sequence, sent.segment.acknowledgement), sent.segment.flags);
    assert_eq!((own, flags, sent.segment.payload), ((backend.expected, backend.next), ACK, 0));
    assert_eq!(sent.segment.window, HELD, "nothing new");
    assert!(told(&client, &mut fixture, &[1, 1, 1, 1]).is_empty(), "it reports nothing");
    // Another client's request goes over it.
    let mut other = Script::client(&mut fixture, 1001);
    let request = only(other.sends(&mut fixture, REQUEST));
    assert_eq!(request.to, backend.own);
    assert_eq!(only(told(&client, &mut fixture, &options)).segment.acknowledgement, backend.next);
}

#[test]
fn less_than_a_segment_of_room_is_not_waited_for() {
    for (left, asked_for) in [(0, true), (1000, true), (1500, false)] {
        let mut fixture = fixture();
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n";
        let room = usize::from(HELD) * 128 - head.len() - left;
        let sent = backend.sends(&mut fixture, &format!("{head}{}", "x".repeat(room)));
        client.receives(&sent);
        assert_eq!(fixture.worker.poll_op().is_some(), asked_for, "{left} bytes left");
    }
}

#[test]
fn it_is_lifted_when_the_engine_refuses() {
    let mut fixture = fixture();
    let (_, backend, _, [up, down]) = large(&mut fixture);
    complete(&mut fixture, Completion::Rejected(up.id, Refusal::Full));
    complete(&mut fixture, Completion::Rejected(down.id, Refusal::Full));
    opens(&only(fixture.wait(Duration::from_millis(1))), &backend);
}

#[test]
fn it_is_lifted_at_once_for_what_the_engine_is_not_offered() {
    // What follows the head at once, and whether more room is needed then.
    let cases: [(&str, String, bool); 5] = [
        ("Transfer-Encoding: chunked", "10\r\n0123456789abcdef\r\n".into(), true),
        ("Transfer-Encoding: chunked", "1\r\nx\r\n0\r\n\r\n".into(), false),
        ("Connection: close", "x".into(), true),
        ("Content-Length: 19000", "x".repeat(5000), false),
        ("Content-Length: 30000", "x".repeat(1000), true),
    ];
    for (field, body, needs) in cases {
        let mut fixture = fixture();
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        let sent = backend.sends(&mut fixture, &format!("HTTP/1.1 200 OK\r\n{field}\r\n\r\n{body}"));
        client.receives(&sent);
        let lifts: Vec<_> = sent.iter().filter(|sent| sent.to == backend.own).collect();
        assert_eq!(lifts.len(), usize::from(needs), "{field}");
        for lift in lifts {
            assert_eq!((lift.segment.flags, lift.segment.payload, lift.segment.window), (ACK, 0, OPEN), "{field}");
        }
        if needs {
            assert_eq!(only(client.acknowledges(&mut fixture)).segment.window, OPEN, "{field}");
        }
    }
}

#[test]
fn no_client_is_held_back_where_nothing_is_offered() {
    let mut fixture = OneWorker::new(|http| http.offload_bytes_min = Some(10 << 20));
    let (_, _, head) = asked(&mut fixture, 1000, REQUEST);
    assert_eq!(head.segment.window, OPEN);
}
