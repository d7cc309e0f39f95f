//! Senders that were without a process for long are told by the next one.

use super::asked;
use super::crashes::Conversation;
use super::one_worker::OneWorker;
use crate::time::Duration;
use alloc::vec::Vec;

/// Doublings of a timer that are taken back.
const DOUBLINGS: usize = 6;

#[test]
fn senders_of_what_is_under_way_are_told_once() {
    // The number of steps done; whether the client has something to send, and the backend.
    for (steps, client, backend) in [(0, false, false), (3, false, true), (5, false, false), (7, true, true)] {
        let mut fixture = OneWorker::new(|_| {});
        fixture.restarts = false;
        let mut talk = Conversation::new(&mut fixture, 1000);
        (0..steps).for_each(|step| drop(talk.step(&mut fixture, step)));
        // The first number that is not acknowledged is the next.
        talk.client.script.acknowledges(&mut fixture);
        talk.backend.iter_mut().for_each(|backend| drop(backend.script.acknowledges(&mut fixture)));
        fixture.restart();
        let sent = fixture.wait(Duration::from_millis(90));
        assert!(fixture.notices.is_empty(), "{steps} steps: neighbours are resolved first: {sent:?}");
        fixture.wait(Duration::from_millis(20));
        let ends = [Some(&talk.client), talk.backend.as_ref()].into_iter().flatten();
        let expected: Vec<_> = ends
            .zip([client, backend])
            .filter(|(_, told)| *told)
            .map(|(end, _)| (end.script.own, end.script.peer, end.script.next))
            .collect();
        let told: Vec<_> =
            fixture.notices.iter().map(|(quoted, at)| (quoted.source, quoted.destination, *at)).collect();
        assert_eq!(told.len(), DOUBLINGS * expected.len(), "{steps} steps: {told:?}");
        assert_eq!(fixture.worker.statistics().http.reminded, expected.len() as u64, "{steps} steps");
        assert!(told.iter().all(|notice| expected.contains(notice)), "{steps} steps: {told:?}, not {expected:?}");
        fixture.wait(Duration::from_secs(5));
        assert_eq!(fixture.notices.len(), told.len(), "{steps} steps: they are not sent again");
    }
}

#[test]
fn many_stalled_senders_are_told_a_few_at_a_time() {
    const CONNECTIONS: u16 = 30;
    let mut fixture = OneWorker::new(|_| {});
    fixture.restarts = false;
    for port in 0..CONNECTIONS {
        let mut talk = Conversation::new(&mut fixture, 1000 + port);
        (0..3).for_each(|step| drop(talk.step(&mut fixture, step)));
    }
    fixture.restart();
    fixture.wait(Duration::from_millis(100));
    assert!((1..100).contains(&fixture.notices.len()), "{}", fixture.notices.len());
    fixture.wait(Duration::from_millis(200));
    assert_eq!(fixture.notices.len(), DOUBLINGS * usize::from(CONNECTIONS));
}

#[test]
fn ends_of_an_idle_tunnel_are_not_told() {
    for (idle, told) in [(Duration::from_secs(60), true), (Duration::from_secs(180), false)] {
        let mut fixture = OneWorker::new(|_| {});
        fixture.restarts = false;
        let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, request);
        client.receives(&backend.sends(&mut fixture, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"));
        client.acknowledges(&mut fixture);
        fixture.wait(idle);
        fixture.restart();
        fixture.wait(Duration::from_secs(1));
        assert_eq!(fixture.notices.len(), if told { 2 * DOUBLINGS } else { 0 }, "after {idle:?}");
    }
}
