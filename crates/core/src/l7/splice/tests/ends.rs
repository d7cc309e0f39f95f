//! Ends in every state: either side resets, closes, or says nothing any more.

use super::one_worker::{OneWorker, Script, Sent, USUAL};
use super::{REQUEST, RESPONSE, asked, only};
use crate::l7::splice::limits::CLOSING_TIMEOUT;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, RST};
use alloc::vec::Vec;

const UPGRADE: &str = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const CHUNKED: &str = "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab";

fn to(sent: &[Sent], script: &Script) -> Vec<Sent> {
    sent.iter().filter(|sent| sent.to == script.own).cloned().collect()
}

fn is_reset(sent: &[Sent], script: &Script) -> bool {
    to(sent, script).iter().any(|sent| sent.segment.has(RST))
}

/// How far an exchange has come.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// The request's body is on its way.
    Uploading,
    /// A request's body in chunks is on its way.
    Chunked,
    /// A part of the response's head is there.
    Head,
    /// An interim response has gone.
    Interim,
    /// A part of a response of known length has gone to the client.
    Body,
    /// A part of a response in chunks has gone to the client.
    Chunks,
    /// A part of a response that the end of the connection ends has gone to the client.
    Endless,
    Tunnel,
}

const STATES: [State; 8] = [
    State::Uploading,
    State::Chunked,
    State::Head,
    State::Interim,
    State::Body,
    State::Chunks,
    State::Endless,
    State::Tunnel,
];

fn at(fixture: &mut OneWorker, state: State) -> (Script, Script) {
    let request = match state {
        State::Uploading => "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n",
        State::Chunked => CHUNKED,
        State::Tunnel => UPGRADE,
        _ => REQUEST,
    };
    let (mut client, mut backend, _) = asked(fixture, 1000, request);
    backend.acknowledges(fixture);
    let response = match state {
        State::Uploading | State::Chunked => "",
        State::Head => "HTTP/1.1 200 OK\r\nContent-",
        State::Interim => "HTTP/1.1 103 Early Hints\r\n\r\n",
        State::Body => "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbody",
        State::Chunks => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        State::Endless => "HTTP/1.1 200 OK\r\n\r\nbody",
        State::Tunnel => SWITCHED,
    };
    if !response.is_empty() {
        client.receives(&backend.sends(fixture, response));
        client.acknowledges(fixture);
    }
    (client, backend)
}

#[test]
fn a_reset_goes_to_the_other_end_whatever_there_is() {
    for ((state, of_client), ipv6) in
        STATES.into_iter().flat_map(|state| [(state, true), (state, false)]).zip([false, true].into_iter().cycle())
    {
        let mut fixture = OneWorker::over_ip(ipv6, |_| {});
        let (mut client, mut backend) = at(&mut fixture, state);
        if of_client {
            let sent = client.says(&mut fixture, RST, b"");
            let reset = only(sent);
            assert_eq!((reset.to, reset.segment.sequence), (backend.own, backend.expected), "{state:?}");
            assert!(reset.segment.has(RST), "{state:?}");
        } else {
            let sent = backend.says(&mut fixture, RST | ACK, b"");
            let begun = !matches!(state, State::Uploading | State::Chunked | State::Head);
            if begun {
                let reset = only(sent);
                assert_eq!((reset.to, reset.segment.sequence), (client.own, client.expected), "{state:?}");
                assert!(reset.segment.has(RST), "{state:?}");
            } else {
                assert!(client.receives(&sent).starts_with("HTTP/1.1 502 "), "{state:?}: {sent:?}");
                client.acknowledges(&mut fixture);
            }
        }
        assert_eq!(fixture.worker.splices().1, 0, "{state:?}: the backend's is gone");
        fixture.over();
    }
}

#[test]
fn a_backend_resets_in_every_state() {
    // Before the response: 502; in the middle of it: the client's connection breaks too; behind it: nothing is sent.
    for state in 0..3 {
        let mut fixture = OneWorker::new(|_| {});
        // Every process begins with the first port.
        fixture.restarts = false;
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        let (part, rest) = RESPONSE.split_at(RESPONSE.len() - 3);
        if state > 0 {
            client.receives(&backend.sends(&mut fixture, part));
        }
        if state > 1 {
            client.receives(&backend.sends(&mut fixture, rest));
            client.acknowledges(&mut fixture);
        }
        let sent = backend.says(&mut fixture, RST | ACK, b"");
        match state {
            0 => assert!(client.receives(&sent).starts_with("HTTP/1.1 502 "), "{sent:?}"),
            1 => assert!(sent.iter().all(|sent| sent.to == client.own && sent.segment.has(RST))),
            _ => {
                assert!(sent.is_empty(), "{sent:?}");
                let syn = only(client.sends(&mut fixture, REQUEST));
                assert_ne!(syn.from, backend.peer);
            }
        }
        fixture.over();
    }
}

#[test]
fn a_client_whose_reset_is_lost_hears_of_it_again() {
    for (state, ipv6) in
        [State::Body, State::Chunks, State::Endless, State::Tunnel].into_iter().zip([false, true].repeat(2))
    {
        let mut fixture = OneWorker::over_ip(ipv6, |_| {});
        let (mut client, mut backend) = at(&mut fixture, state);
        let lost = only(backend.says(&mut fixture, RST | ACK, b""));
        assert!(lost.segment.has(RST) && lost.to == client.own, "{state:?}");
        // A client that only receives sends nothing by itself.
        let asked = only(fixture.wait(Duration::from_millis(150)));
        let far = asked.segment.sequence.wrapping_sub(client.expected) as i32;
        assert!(asked.segment.flags == ACK && far < 0, "{state:?}: a number that it has acknowledged: {asked:?}");
        let reset = only(client.acknowledges(&mut fixture));
        assert_eq!((reset.segment.flags, reset.segment.sequence), (RST, client.expected), "{state:?}");
        let asked = only(fixture.wait(Duration::from_millis(100)));
        assert_eq!(asked.segment.flags, ACK, "{state:?}");
        client.next = asked.segment.acknowledgement;
        assert!(client.says(&mut fixture, RST, b"").is_empty(), "{state:?}: it says that it has no connection");
        assert_eq!(fixture.worker.splices(), (0, 0, 0), "{state:?}");
    }
}

#[test]
fn a_client_that_was_reset_may_begin_again_at_once() {
    // Its new connection's numbers are far from the old one's, and near to them.
    for apart in [1 << 30, 1000] {
        let mut fixture = OneWorker::new(|_| {});
        let (client, mut backend) = at(&mut fixture, State::Body);
        assert!(only(backend.says(&mut fixture, RST | ACK, b"")).segment.has(RST));
        let mut next = Script::client_with(&mut fixture, 1000, client.next.wrapping_add(apart), USUAL);
        let syn = only(next.sends(&mut fixture, REQUEST));
        let (mut backend, sent) = Script::backend(&mut fixture, &syn);
        assert_eq!(backend.receives(&sent), REQUEST, "{apart}");
        fixture.over();
    }
}

#[test]
fn a_reset_outside_the_window_is_ignored() {
    for (state, of_client) in STATES.into_iter().flat_map(|state| [(state, true), (state, false)]) {
        let mut fixture = OneWorker::new(|_| {});
        let (client, backend) = at(&mut fixture, state);
        let end = if of_client { &client } else { &backend };
        for far in [1 << 26, 1 << 31, (1u32 << 26).wrapping_neg()] {
            let sent = Script { next: end.next.wrapping_add(far), ..end.clone() }.says(&mut fixture, RST | ACK, b"");
            assert!(sent.is_empty(), "{state:?} {far}: {sent:?}");
        }
        assert_eq!((fixture.worker.splices().0, fixture.worker.splices().1), (1, 1), "{state:?}");
    }
}

#[test]
fn a_client_resets_what_is_ours() {
    // A reply that goes on; one that closes; behind that, when both have closed.
    for state in 0..3 {
        let mut fixture = OneWorker::new(|http| http.routes = [].into());
        let mut client = Script::client(&mut fixture, 1000);
        let request = if state == 0 { "GET / HTTP/1.1\r\nHost: a\r\n\r\n" } else { "GET / HTTP/1.0\r\n\r\n" };
        let reply = client.sends(&mut fixture, request);
        client.receives(&reply);
        if state == 2 {
            client.says(&mut fixture, ACK | FIN, b"");
        }
        assert!(client.says(&mut fixture, RST, b"").is_empty(), "{state}");
        assert_eq!(fixture.worker.splices(), (0, 0, 0), "{state}");
    }
}

#[test]
fn a_backend_resets_connections_without_a_client() {
    // It refuses; idle; closing; when both have closed.
    for state in 0..4 {
        let mut fixture = OneWorker::new(|http| http.limits.connect_tries = 1);
        let mut client = Script::client(&mut fixture, 1000);
        let syn = only(client.sends(&mut fixture, REQUEST));
        if state == 0 {
            let mut backend = Script { own: syn.to, peer: syn.from, next: 0, expected: 0, window: 0 };
            // One that does not answer our SYN is not believed.
            for wrong in [0, syn.segment.sequence, syn.segment.sequence + 2] {
                backend.expected = wrong;
                assert!(backend.says(&mut fixture, RST | ACK, b"").is_empty());
            }
            backend.expected = syn.segment.sequence + 1;
            assert!(client.receives(&backend.says(&mut fixture, RST | ACK, b"")).starts_with("HTTP/1.1 502 "));
            fixture.over();
            continue;
        }
        let (mut backend, sent) = Script::backend(&mut fixture, &syn);
        backend.receives(&sent);
        client.receives(&backend.sends(&mut fixture, RESPONSE));
        client.acknowledges(&mut fixture);
        if state > 1 {
            let sent = fixture.wait(Duration::from_millis(60_100));
            backend.gets(&to(&sent, &backend)[0]);
        }
        if state > 2 {
            let told = only(backend.says(&mut fixture, ACK | FIN, b""));
            assert_eq!((told.segment.flags, told.segment.acknowledgement), (ACK, backend.next));
        }
        let far = Script { next: backend.next.wrapping_add(1 << 20), ..backend.clone() }.says(&mut fixture, RST, b"");
        assert!(far.is_empty() && fixture.worker.splices().1 == 1, "{state}: {far:?}");
        assert!(backend.says(&mut fixture, RST, b"").is_empty(), "{state}");
        assert_eq!(fixture.worker.splices().1, 0, "{state}");
        // The client's next request reaches a backend.
        let syn = only(client.sends(&mut fixture, REQUEST));
        let (mut backend, sent) = Script::backend(&mut fixture, &syn);
        assert_eq!(backend.receives(&sent), REQUEST);
        fixture.over();
    }
}

#[test]
fn either_end_of_a_tunnel_half_closes_first() {
    for (client_first, ipv6) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut fixture = OneWorker::over_ip(ipv6, |_| {});
        let (client, backend) = at(&mut fixture, State::Tunnel);
        let (mut first, mut second) = if client_first { (client, backend) } else { (backend, client) };
        let fin = only(first.says(&mut fixture, ACK | FIN, b"last"));
        assert!(fin.segment.has(FIN));
        second.gets(&fin);
        let told = only(second.acknowledges(&mut fixture));
        assert_eq!((told.to, told.segment.acknowledgement), (first.own, first.next));
        // The other goes on.
        for _ in 0..3 {
            let sent = only(second.says(&mut fixture, ACK, b"more"));
            first.gets(&sent);
            assert_eq!(only(first.acknowledges(&mut fixture)).segment.acknowledgement, second.next);
        }
        let fin = only(second.says(&mut fixture, ACK | FIN, b""));
        first.gets(&fin);
        // It is lost, and comes again.
        let again =
            only(Script { next: second.next.wrapping_sub(1), ..second.clone() }.says(&mut fixture, ACK | FIN, b""));
        assert_eq!(again.what(), fin.what());
        let told = only(first.acknowledges(&mut fixture));
        assert_eq!((told.to, told.segment.acknowledgement), (second.own, second.next));
        fixture.wait(Duration::from_secs(10));
        assert_eq!(fixture.worker.splices(), (0, 0, 0), "soon");
    }
}

#[test]
fn both_ends_of_a_tunnel_close_at_once() {
    for ipv6 in [false, true] {
        let mut fixture = OneWorker::over_ip(ipv6, |_| {});
        let (mut client, mut backend) = at(&mut fixture, State::Tunnel);
        let of_client = only(client.says(&mut fixture, ACK | FIN, b""));
        let of_backend = only(backend.says(&mut fixture, ACK | FIN, b""));
        assert_eq!((of_client.to, of_backend.to), (backend.own, client.own));
        client.gets(&of_backend);
        backend.gets(&of_client);
        let told = only(client.acknowledges(&mut fixture));
        assert_eq!((told.to, told.segment.acknowledgement), (backend.own, backend.next));
        let told = only(backend.acknowledges(&mut fixture));
        assert_eq!((told.to, told.segment.acknowledgement), (client.own, client.next));
        fixture.wait(Duration::from_secs(10));
        assert_eq!(fixture.worker.splices(), (0, 0, 0));
    }
}

#[test]
fn our_fin_crosses_the_other_ends() {
    // To an idle backend.
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    client.acknowledges(&mut fixture);
    let sent = fixture.wait(Duration::from_millis(60_100));
    let fin = to(&sent, &backend).remove(0);
    assert!(fin.segment.has(FIN));
    let told = only(backend.says(&mut fixture, ACK | FIN, b""));
    assert_eq!(told.what(), (fin.segment.sequence + 1, backend.next, ACK, ""), "it has not seen ours");
    backend.gets(&fin);
    assert!(backend.acknowledges(&mut fixture).is_empty());
    // To an idle client, whose next request crosses it, and its FIN.
    let sent = fixture.wait(Duration::from_secs(15));
    let fin = to(&sent, &client).remove(0);
    assert!(fin.segment.has(FIN));
    let told = client.says(&mut fixture, ACK | FIN, REQUEST.as_bytes());
    assert!(told.iter().all(|sent| sent.to == client.own), "it goes nowhere: {told:?}");
    assert_eq!(told.last().unwrap().segment.acknowledgement, client.next);
    client.gets(&fin);
    client.acknowledges(&mut fixture);
    fixture.wait(Duration::from_secs(6));
    assert_eq!(fixture.worker.splices(), (0, 0, 0));
}

#[test]
fn a_backend_whose_fins_and_reset_are_lost_is_asked() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    client.acknowledges(&mut fixture);
    let fins = to(&fixture.wait(Duration::from_millis(60_100)), &backend);
    assert!(!fins.is_empty() && fins.iter().all(|sent| sent.segment.has(FIN)));
    let sent = fixture.wait(CLOSING_TIMEOUT + Duration::from_millis(100));
    assert!(is_reset(&sent, &backend));
    assert_eq!(to(&sent, &backend).pop().unwrap().segment.flags, ACK, "it is asked");
    let reset = to(&backend.acknowledges(&mut fixture), &backend).remove(0);
    assert_eq!((reset.segment.flags, reset.segment.sequence), (RST, backend.expected));
    let asked = to(&fixture.wait(Duration::from_millis(400)), &backend).remove(0);
    backend.next = asked.segment.acknowledgement;
    assert!(backend.says(&mut fixture, RST, b"").is_empty(), "it says that it has no connection");
    assert!(to(&fixture.wait(Duration::from_secs(4)), &backend).is_empty());
}

#[test]
fn repeated_fin_after_the_end_is_acknowledged() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    client.receives(&backend.sends(&mut fixture, RESPONSE));
    client.acknowledges(&mut fixture);
    let fin = client.own(ACK | FIN, None);
    let ours = to(&client.says(&mut fixture, ACK | FIN, b""), &client);
    client.receives(&ours);
    client.acknowledges(&mut fixture);
    for _ in 0..3 {
        fixture.wait(Duration::from_secs(1));
        let told = to(&fixture.arrives(&fin, b""), &client);
        assert_eq!(only(told).what(), (client.expected, client.next, ACK, ""));
    }
    fixture.over();
}

#[test]
fn both_vanish_in_every_state() {
    for state in STATES {
        let mut fixture = OneWorker::new(|_| {});
        let (_, mut backend) = at(&mut fixture, state);
        if state == State::Tunnel {
            // A tunnel may be silent for as long as any connection: an hour or more.
            fixture.wait(Duration::from_secs(300));
            assert_eq!(fixture.worker.splices().0, 1);
            fixture.wait(Duration::from_secs(8 * 3600));
        }
        // A byte that the client does not acknowledge any more.
        backend.sends(&mut fixture, "x");
        fixture.over();
        assert!(fixture.worker.poll_timeout(fixture.now).is_none(), "{state:?}: nothing is left to be done");
    }
    let mut fixture = OneWorker::new(|_| {});
    let (client, backend) = at(&mut fixture, State::Body);
    let sent = fixture.wait(Duration::from_secs(70));
    assert!(is_reset(&sent, &client) && is_reset(&sent, &backend), "should they be there, they are told");
}
