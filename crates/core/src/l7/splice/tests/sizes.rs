//! Neither end gets longer segments than it has said that it takes, by the worker or by the engine.

use super::listed::one;
use super::offload::installs;
use super::one_worker::{OneWorker, Script, Sent, USUAL};
use super::paths::{hello, tls};
use super::stamped;
use super::{REQUEST, RESPONSE, asked, only};
use crate::l7::splice::SplicedPath;
use crate::l7::splice::tcp::segment::Abilities;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, SYN};
use alloc::format;
use alloc::vec::Vec;

fn client(fixture: &mut OneWorker, port: u16, mss: u16) -> Script {
    Script::client_with(fixture, port, 5000, Abilities { mss, ..USUAL })
}

/// A client's request over a new connection, whose backend is told this MSS.
fn connects(fixture: &mut OneWorker, client: &mut Script, asked: u16) -> Script {
    let syn = only(client.sends(fixture, REQUEST));
    assert_eq!((syn.segment.flags, syn.abilities.mss), (SYN, asked));
    let (mut backend, sent) = Script::backend(fixture, &syn);
    backend.receives(&sent);
    backend
}

/// A response that is over, after which the connection is free for any client.
fn answers(fixture: &mut OneWorker, backend: &mut Script, client: &mut Script) {
    client.receives(&backend.sends(fixture, RESPONSE));
    client.acknowledges(fixture);
}

/// A large response begins with a segment of the longest kind; what comes to the client.
fn downloads(fixture: &mut OneWorker, backend: &mut Script, client: &mut Script) -> Sent {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n";
    let sent = backend.sends(fixture, &format!("{head}{}", "x".repeat(1460 - head.len())));
    client.receives(&sent);
    only(sent)
}

#[test]
fn clients_behind_a_tunnel_have_connections_of_their_own() {
    for (ipv6, tunnel, full) in [(false, 1300, 1460), (true, 1360, 1440)] {
        let mut fixture = OneWorker::over_ip(ipv6, |_| {});
        let mut usual = client(&mut fixture, 1000, 1460);
        let mut wide = connects(&mut fixture, &mut usual, full);
        answers(&mut fixture, &mut wide, &mut usual);
        let mut behind = client(&mut fixture, 1001, 1400);
        let mut narrow = connects(&mut fixture, &mut behind, tunnel);
        answers(&mut fixture, &mut narrow, &mut behind);
        // Each kind to its own, whichever was idle last.
        let mut next = client(&mut fixture, 1002, 1460);
        assert_eq!(wide.receives(&next.sends(&mut fixture, REQUEST)), REQUEST);
        answers(&mut fixture, &mut wide, &mut next);
        let mut next = client(&mut fixture, 1003, tunnel);
        assert_eq!(narrow.receives(&next.sends(&mut fixture, REQUEST)), REQUEST);
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\nx";
        next.receives(&narrow.sends(&mut fixture, head));
        // What its backend sends fits it: the engine may have it.
        installs(&mut fixture);
    }
}

#[test]
fn what_a_client_does_not_take_is_cut_and_never_the_engines() {
    stamped::without();
    for (announced, takes) in [(536, 536), (1299, 536), (535, 48), (88, 48), (1, 48)] {
        let mut fixture = OneWorker::new(|_| {});
        let mut poor = client(&mut fixture, 1000, announced);
        let mut backend = connects(&mut fixture, &mut poor, 1460);
        let sent = downloads(&mut fixture, &mut backend, &mut poor);
        assert_eq!(sent.gso_size, takes, "{announced}");
        poor.acknowledges(&mut fixture);
        let sent = only(backend.says(&mut fixture, ACK, &[b'x'; 1460]));
        assert_eq!((sent.gso_size, sent.bytes.len()), (takes, 1460), "{announced}");
        poor.receives(&[sent]);
        assert!(fixture.worker.poll_op().is_none(), "{announced}");
        assert_eq!(one(&fixture).path, SplicedPath::Longer);
    }
}

#[test]
fn small_mss_client_leaves_a_shareable_connection() {
    stamped::without();
    let mut fixture = OneWorker::new(|_| {});
    let mut poor = client(&mut fixture, 1000, 88);
    let mut backend = connects(&mut fixture, &mut poor, 1460);
    answers(&mut fixture, &mut backend, &mut poor);
    let mut next = client(&mut fixture, 1001, 1460);
    assert_eq!(backend.receives(&next.sends(&mut fixture, REQUEST)), REQUEST);
    assert_eq!(downloads(&mut fixture, &mut backend, &mut next).gso_size, 0);
    installs(&mut fixture);
}

#[test]
fn an_upload_is_the_engines_only_if_it_fits_the_backend() {
    stamped::without();
    for (takes, is_offered) in [(1460, true), (8960, true), (1410, false)] {
        let mut fixture = OneWorker::new(|_| {});
        let mut client = client(&mut fixture, 1000, 1460);
        let request = "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n";
        let syn = only(client.sends(&mut fixture, request));
        let (mut backend, sent) = Script::backend_with(&mut fixture, &syn, 7000, Abilities { mss: takes, ..USUAL });
        backend.receives(&sent);
        backend.acknowledges(&mut fixture);
        let sent = only(client.says(&mut fixture, ACK, &[b'x'; 1460]));
        assert_eq!(sent.gso_size, if is_offered { 0 } else { takes });
        assert_eq!(fixture.worker.poll_op().is_some(), is_offered, "{takes}");
        // What it answers fits the client all the same.
        backend.receives(&[sent]);
        assert_eq!(one(&fixture).path == SplicedPath::Longer, !is_offered);
    }
}

#[test]
fn a_backend_that_takes_less_is_no_hindrance_to_its_responses() {
    let mut fixture = OneWorker::new(|_| {});
    let mut client = client(&mut fixture, 1000, 1460);
    let syn = only(client.sends(&mut fixture, REQUEST));
    let (mut backend, sent) = Script::backend_with(&mut fixture, &syn, 7000, Abilities { mss: 1000, ..USUAL });
    backend.receives(&sent);
    downloads(&mut fixture, &mut backend, &mut client);
    installs(&mut fixture);
}

#[test]
fn dedicated_connection_uses_the_client_mss() {
    let mut fixture = OneWorker::of(1, tls(None));
    let mut client = client(&mut fixture, 1000, 536);
    let syn = only(client.says(&mut fixture, ACK, &hello("a.example")));
    assert_eq!((syn.segment.flags, syn.abilities.mss), (SYN, 536));
    let mut fixture = OneWorker::new(|http| http.reuse = false);
    let mut client = self::client(&mut fixture, 1000, 536);
    let mut backend = connects(&mut fixture, &mut client, 536);
    client.receives(&backend.sends(&mut fixture, "HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\nx"));
    client.acknowledges(&mut fixture);
    client.receives(&backend.says(&mut fixture, ACK, b"x"));
    installs(&mut fixture);
}

#[test]
fn where_there_is_no_room_for_another_any_connection_will_do() {
    stamped::without();
    let mut fixture = OneWorker::new(|_| {});
    let mut clients: Vec<Script> = (0..64).map(|port| client(&mut fixture, 1000 + port, 1460)).collect();
    let mut backends: Vec<Script> = clients.iter_mut().map(|client| connects(&mut fixture, client, 1460)).collect();
    answers(&mut fixture, &mut backends[0], &mut clients[0]);
    let own = clients[0].own;
    let sent = clients[0].says(&mut fixture, ACK | FIN, b"");
    let sent: Vec<_> = sent.into_iter().filter(|sent| sent.to == own).collect();
    clients[0].receives(&sent);
    clients[0].acknowledges(&mut fixture);
    fixture.wait(Duration::from_secs(6));
    // All places for connections to backends are taken, and the one that is idle is not of its size.
    let mut behind = client(&mut fixture, 2000, 1300);
    assert_eq!(backends[0].receives(&behind.sends(&mut fixture, REQUEST)), REQUEST);
    assert_eq!(downloads(&mut fixture, &mut backends[0], &mut behind).gso_size, 1300);
    assert!(fixture.worker.poll_op().is_none());
}

#[test]
fn the_one_that_was_idle_longest_makes_room() {
    let mut fixture = OneWorker::new(|http| http.limits.idle_per_backend_max = 2);
    let sizes = [1460, 1300, 1460];
    let mut clients: Vec<Script> = (0..).zip(sizes).map(|(i, mss)| client(&mut fixture, 1000 + i, mss)).collect();
    let mut backends: Vec<Script> =
        clients.iter_mut().zip(sizes).map(|(client, mss)| connects(&mut fixture, client, mss)).collect();
    for i in 0..3 {
        fixture.wait(Duration::from_millis(100));
        clients[i].receives(&backends[i].sends(&mut fixture, RESPONSE));
        let sent = clients[i].acknowledges(&mut fixture);
        let closed: Vec<_> = sent.iter().filter(|sent| sent.segment.has(FIN)).map(|sent| sent.to).collect();
        assert_eq!(closed, if i < 2 { Vec::new() } else { Vec::from([backends[0].own]) });
        if i == 2 {
            assert_eq!(closed[0].port, backends[0].own.port);
            let to_first: Vec<_> = sent.into_iter().filter(|sent| sent.segment.has(FIN)).collect();
            assert_eq!(to_first[0].segment.sequence, backends[0].expected);
        }
    }
    assert_eq!(fixture.worker.statistics().http.idle_now, 2);
}

#[test]
fn head_longer_than_a_frame_uses_whole_segments() {
    stamped::without();
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "y".repeat(5000));
    // What fits beside 54 bytes of headers: some segments, one, less than one.
    for (room, sizes) in [(54 + 3000, &[2920, 2112][..]), (54 + 1500, &[1460, 1460, 1460, 652]), (54 + 1459, &[1459])] {
        let mut fixture = OneWorker::new(|_| {});
        let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
        client.receives(&backend.sends(&mut fixture, RESPONSE));
        client.acknowledges(&mut fixture);
        assert!(client.sends(&mut fixture, &long[..2500]).iter().all(|sent| sent.bytes.is_empty()));
        fixture.room = room;
        let sent = client.sends(&mut fixture, &long[2500..]);
        let sent: Vec<_> = sent.into_iter().filter(|sent| sent.to == backend.own).collect();
        let lengths: Vec<_> = sent.iter().map(|sent| sent.bytes.len()).collect();
        assert_eq!(lengths[..sizes.len()], *sizes, "{room}");
        assert_eq!(backend.receives(&sent), long);
        fixture.over();
    }
}
