//! Resets of clients whose next expected sequence number software does not know, because the engine forwarded to them.

use super::offload::{complete, installs, removals};
use super::one_worker::{OneWorker, Script, Sent, end};
use super::{REQUEST, asked, only};
use crate::engine::{Completion, Rule};
use crate::time::Duration;
use crate::wire::tcp::{ACK, PSH, RST, SYN};
use crate::worker::Which;
use alloc::format;
use alloc::vec::Vec;

const LENGTH: u32 = 30 << 20;
/// What the engine has forwarded, unseen.
const CARRIED: u32 = 20 << 20;

/// A client that gets a large response, of which the engine has forwarded a part.
fn forwarded(fixture: &mut OneWorker, port: u16) -> (Script, Script, [Rule; 2]) {
    let (mut client, mut backend, _) = asked(fixture, port, REQUEST);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n0123456789");
    client.receives(&backend.sends(fixture, &head));
    let rules = installs(fixture);
    rules.iter().for_each(|rule| complete(fixture, Completion::Installed(rule.id)));
    client.expected = client.expected.wrapping_add(CARRIED);
    backend.next = backend.next.wrapping_add(CARRIED);
    (client, backend, rules)
}

fn release_clamp(fixture: &mut OneWorker, rules: &[Rule]) {
    assert_eq!(removals(fixture), rules.len());
    rules.iter().for_each(|rule| complete(fixture, Completion::Removed(rule.id, None)));
}

fn to<'a>(script: &Script, sent: &'a [Sent]) -> Vec<&'a Sent> {
    sent.iter().filter(|sent| sent.to == script.own).collect()
}

/// A client is asked for a packet; the answer is reset with the number that it expects.
fn is_asked_and_reset(fixture: &mut OneWorker, client: &mut Script) {
    let sent = fixture.wait(Duration::from_millis(10));
    let [question] = to(client, &sent)[..] else { panic!("{sent:?}") };
    let behind = client.expected.wrapping_sub(question.segment.sequence) as i32;
    assert!(question.segment.flags == ACK && behind > 0, "a number that it has got: {question:?}");
    let reset = only(client.acknowledges(fixture));
    assert_eq!((reset.to, reset.segment.flags, reset.segment.sequence), (client.own, RST, client.expected));
}

#[test]
fn the_client_of_a_disabled_backend_is_reset_with_its_number() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, backend, rules) = forwarded(&mut fixture, 1000);
    fixture.worker.end_backend(fixture.now, 0, Which::All);
    let sent = fixture.wait(Duration::from_millis(100));
    assert!(to(&backend, &sent).iter().all(|sent| sent.segment.sequence == backend.expected), "{sent:?}");
    assert!(to(&client, &sent).iter().all(|sent| sent.segment.has(RST)), "no question while rules are: {sent:?}");
    release_clamp(&mut fixture, &rules);
    is_asked_and_reset(&mut fixture, &mut client);
    // What was on its way moves the number: it is reset with that too, once.
    client.expected = client.expected.wrapping_add(5000);
    assert_eq!(only(client.acknowledges(&mut fixture)).segment.sequence, client.expected);
    assert!(client.acknowledges(&mut fixture).is_empty());
    // It is asked again, and says that it has no connection.
    let again = only(fixture.wait(Duration::from_millis(200)));
    assert_eq!(again.segment.flags, ACK);
    assert!(client.says(&mut fixture, RST, b"").is_empty());
    assert_eq!(fixture.worker.splices().0, 0);
    fixture.over();
}

/// A client that has got all of a response does not know that its exchange goes on for Hairpin: it takes its connection for
/// idle.
#[test]
fn client_with_its_whole_response_outlives_its_backend() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, _, rules) = forwarded(&mut fixture, 1000);
    client.expected = client.expected.wrapping_add(LENGTH - 10 - CARRIED);
    fixture.worker.end_backend(fixture.now, 0, Which::All);
    let sent = fixture.wait(Duration::from_millis(100));
    assert!(to(&client, &sent).iter().all(|sent| sent.segment.sequence != client.expected), "{sent:?}");
    release_clamp(&mut fixture, &rules);
    let sent = fixture.wait(Duration::from_millis(10));
    let [question] = to(&client, &sent)[..] else { panic!("{sent:?}") };
    assert_eq!(question.segment.flags, ACK);
    assert_eq!(fixture.worker.statistics().services[0].client_conns_now, 1, "it goes on, perhaps");
    assert!(client.acknowledges(&mut fixture).is_empty());
    let syn = only(client.sends(&mut fixture, REQUEST));
    let (mut next, _) = Script::backend(&mut fixture, &syn);
    client.receives(&next.sends(&mut fixture, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"));
    client.acknowledges(&mut fixture);
    assert_eq!(fixture.worker.statistics().services[0].client_conns_now, 1);
    fixture.over();
}

/// A worker has sent the whole response in software. The client's acknowledgement of the last byte is on its way, or comes
/// with its next request.
#[test]
fn client_sent_its_whole_response_outlives_its_backend() {
    for has_all in [true, false] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        client.receives(&backend.sends(&mut fixture, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"));
        fixture.worker.end_backend(fixture.now, 0, Which::All);
        let sent = fixture.wait(Duration::from_millis(10));
        assert!(to(&client, &sent).iter().all(|sent| sent.segment.flags == ACK), "{sent:?}");
        if has_all {
            let syn = only(client.sends(&mut fixture, REQUEST));
            assert_eq!((syn.segment.flags, syn.to.port), (SYN, backend.own.port));
        } else {
            client.expected = client.expected.wrapping_sub(2);
            let reset = only(client.acknowledges(&mut fixture));
            assert_eq!((reset.segment.flags, reset.segment.sequence), (RST, client.expected));
        }
        fixture.over();
    }
}

#[test]
fn unsent_request_of_a_disabled_backend_goes_to_another() {
    let mut fixture = OneWorker::with_backends(2, |_| {});
    let mut client = Script::client(&mut fixture, 1000);
    let first = only(client.sends(&mut fixture, REQUEST));
    let number = (0..4).find(|&number| end(false, 100 + number, 8080) == first.to).expect("a backend's address");
    fixture.worker.end_backend(fixture.now, number.into(), Which::All);
    let sent = fixture.wait(Duration::from_millis(10));
    let [reset, second] = &sent[..] else { panic!("{sent:?}") };
    assert!(reset.segment.has(RST) && reset.to == first.to, "{reset:?}");
    assert!(second.segment.flags == SYN && second.to != first.to, "{second:?}");
    let (_, sent) = Script::backend(&mut fixture, second);
    assert_eq!(only(sent).text(), REQUEST);
    assert!(fixture.worker.statistics().backends.iter().all(|backend| backend.failed == 0));
    fixture.over();
}

/// A client in the middle of a large upload that the engine carries.
fn uploading(fixture: &mut OneWorker) -> (Script, Script, [Rule; 2]) {
    let request = format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n");
    let (mut client, mut backend, _) = asked(fixture, 1000, &request);
    backend.acknowledges(fixture);
    backend.receives(&client.sends(fixture, "0123456789"));
    let rules = installs(fixture);
    rules.iter().for_each(|rule| complete(fixture, Completion::Installed(rule.id)));
    (client, backend, rules)
}

#[test]
fn a_client_in_the_middle_of_an_upload_is_reset_with_its_number() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, _, rules) = uploading(&mut fixture);
    client.next = client.next.wrapping_add(LENGTH - 1000);
    fixture.worker.end_backend(fixture.now, 0, Which::All);
    fixture.wait(Duration::from_millis(100));
    release_clamp(&mut fixture, &rules);
    let reset = only(client.says(&mut fixture, ACK | PSH, &[b'x'; 500]));
    assert_eq!((reset.to, reset.segment.flags, reset.segment.sequence), (client.own, RST, client.expected));
    assert!(client.says(&mut fixture, ACK | PSH, &[b'x'; 500]).is_empty(), "one is enough");
    fixture.over();
}

#[test]
fn the_backend_of_an_upload_is_reset_with_its_number() {
    for asks in [false, true] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, mut backend, rules) = uploading(&mut fixture);
        // Both have gone on, unseen.
        client.next = client.next.wrapping_add(CARRIED);
        backend.expected = backend.expected.wrapping_add(CARRIED);
        // The client has nothing to do with it any more.
        client.says(&mut fixture, RST, b"");
        release_clamp(&mut fixture, &rules);
        if asks {
            let sent = fixture.wait(Duration::from_millis(150));
            let [question] = to(&backend, &sent)[..] else { panic!("{sent:?}") };
            let behind = backend.expected.wrapping_sub(question.segment.sequence) as i32;
            assert!(question.segment.flags == ACK && behind > 0, "a number that it has got: {question:?}");
        }
        let reset = only(backend.acknowledges(&mut fixture));
        assert_eq!((reset.to, reset.segment.flags, reset.segment.sequence), (backend.own, RST, backend.expected));
        assert!(backend.acknowledges(&mut fixture).is_empty(), "one is enough");
        assert!(!fixture.wait(Duration::from_millis(400)).is_empty(), "it is asked again");
        assert!(backend.says(&mut fixture, RST, b"").is_empty());
        assert_eq!(fixture.worker.splices(), (0, 0, 0), "it has no connection any more");
        fixture.over();
    }
}

#[test]
fn a_client_that_says_nothing_any_more_is_forgotten() {
    let mut fixture = OneWorker::new(|_| {});
    let (client, _, rules) = forwarded(&mut fixture, 1000);
    fixture.worker.end_backend(fixture.now, 0, Which::All);
    fixture.wait(Duration::from_millis(100));
    release_clamp(&mut fixture, &rules);
    let sent = fixture.wait(Duration::from_secs(3));
    assert_eq!(to(&client, &sent).len(), 5, "{sent:?}");
    assert_eq!(fixture.worker.splices().0, 1);
    fixture.wait(Duration::from_millis(200));
    assert_eq!(fixture.worker.splices().0, 0);
    fixture.over();
}

#[test]
fn a_process_that_ends_resets_each_connection_once() {
    let mut fixture = OneWorker::new(|_| {});
    let mut all: Vec<_> = (1000..1020).map(|port| forwarded(&mut fixture, port)).collect();
    let (mut sent, mut calls) = (Vec::new(), 0);
    loop {
        let (some, more) = fixture.abandons();
        sent.extend(some);
        calls += 1;
        if !more {
            break;
        }
    }
    assert!(calls < 5, "{calls} calls");
    for (client, backend, _) in &all {
        // With what it has acknowledged, and with what was on its way when the engine took over.
        let mut numbers: Vec<u32> = to(client, &sent).iter().map(|sent| sent.segment.sequence).collect();
        numbers.dedup();
        assert_eq!((numbers.len(), to(client, &sent).len()), (2, 2), "each number once");
        let of_backend = |sent: &&Sent| (sent.from, sent.to) == (backend.peer, backend.own);
        assert_eq!(sent.iter().filter(of_backend).count(), 1);
    }
    assert_eq!(removals(&mut fixture), 40);
    for (_, _, rules) in &all {
        rules.iter().for_each(|rule| complete(&mut fixture, Completion::Removed(rule.id, None)));
    }
    let asked = fixture.wait(Duration::from_millis(10));
    for (client, _, _) in &mut all {
        assert_eq!(to(client, &asked).len(), 1);
        assert_eq!(only(client.acknowledges(&mut fixture)).segment.sequence, client.expected);
        client.says(&mut fixture, RST, b"");
    }
    assert_eq!(fixture.worker.splices(), (0, 0, 0));
    // What comes now is for the next process.
    let mut late = Script::client(&mut fixture, 1100);
    assert!(late.sends(&mut fixture, REQUEST).is_empty());
}
