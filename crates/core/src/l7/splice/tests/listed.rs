//! What is told of connections to who asks.

use super::offload::{complete, installs};
use super::one_worker::{OneWorker, SPLICES_MAX, Script};
use super::paths::{hello, tls};
use super::{REQUEST, RESPONSE, asked, only};
use crate::engine::{Completion, Counters};
use crate::l7::head::Method;
use crate::l7::splice::{BackendConnState, ClientConnState, MessageView, SplicedConnection, SplicedPath, SplicedState};
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN};
use alloc::vec::Vec;

/// All that is told, asked for so many at a time.
fn listed(fixture: &OneWorker, at_a_time: usize) -> Vec<SplicedConnection> {
    let (mut all, mut next) = (Vec::new(), Some(0));
    while let Some(start) = next {
        let mut some = Vec::with_capacity(at_a_time);
        let capacity = some.capacity();
        next = fixture.worker.snapshot_splices(fixture.now, start, &mut some);
        assert!(some.len() <= at_a_time && some.capacity() == capacity, "nothing is allocated");
        assert!(next.is_none_or(|next| next > start), "it goes on");
        all.extend(some);
    }
    all
}

pub(super) fn one(fixture: &OneWorker) -> SplicedConnection {
    let all = listed(fixture, 128);
    assert_eq!(all.len(), 1, "{all:?}");
    all[0]
}

#[test]
fn client_connection_is_listed_with_its_request() {
    let mut fixture = OneWorker::new(|_| {});
    assert!(listed(&fixture, 128).is_empty());
    let begun = fixture.now;
    let mut client = Script::client(&mut fixture, 1000);
    assert!(listed(&fixture, 128).is_empty(), "a handshake makes no connection");
    let (first, second) = REQUEST.split_at(10);
    client.sends(&mut fixture, first);
    let view = one(&fixture);
    assert_eq!(view.client, Some((client.own, fixture.vip)));
    assert_eq!((view.state, view.path), (SplicedState::Client(ClientConnState::Reading), SplicedPath::NoExchange));
    assert_eq!((view.requests, view.backend, view.service), (0, None, 0));
    assert!(view.exchange.is_none());

    fixture.wait(Duration::from_secs(1));
    let syn = only(client.sends(&mut fixture, second));
    let view = one(&fixture);
    assert_eq!((view.state, view.requests), (SplicedState::Client(ClientConnState::Waiting), 1));
    let leg = view.backend.unwrap();
    assert_eq!((leg.number, leg.source, leg.target), (0, syn.from, syn.to), "a connection that is being made is its");
    assert_eq!((view.created, view.last_seen), (begun, fixture.now));

    let (mut backend, sent) = Script::backend(&mut fixture, &syn);
    backend.gets(&only(sent));
    let view = one(&fixture);
    assert_eq!(
        (view.state, view.requests, view.path),
        (SplicedState::Client(ClientConnState::Spliced), 1, SplicedPath::NoBody)
    );
    let exchange = view.exchange.unwrap();
    assert_eq!((exchange.method, exchange.route, exchange.group), (Method::Get, Some(0), 0));
    assert_eq!((exchange.request, exchange.response), (MessageView::Done, MessageView::Head));
    assert_eq!(exchange.started, fixture.now);

    let response = only(backend.sends(&mut fixture, "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello"));
    client.gets(&response);
    let view = one(&fixture);
    assert_eq!(view.path, SplicedPath::Small(1 << 20));
    assert_eq!(view.exchange.unwrap().response, MessageView::Bytes(495));
    assert_eq!(view.forwarded.map(|volume| volume.packets), [0, 1], "the request was sent by us");
    assert_eq!(view.forwarded_by_engine.map(|volume| volume.packets), [0, 0]);
    fixture.over();
    assert!(listed(&fixture, 128).is_empty());
}

#[test]
fn why_a_body_stays_with_the_worker_is_said() {
    for (request, response, path) in [
        (REQUEST, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe", SplicedPath::Chunked),
        (REQUEST, "HTTP/1.1 200 OK\r\n\r\nhello", SplicedPath::Endless),
        ("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n", "", SplicedPath::Next),
        ("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2000\r\n\r\n", "", SplicedPath::Small(1 << 20)),
        ("PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", "", SplicedPath::Chunked),
    ] {
        let mut fixture = OneWorker::new(|_| {});
        let (_client, mut backend, _) = asked(&mut fixture, 1000, request);
        if !response.is_empty() {
            backend.sends(&mut fixture, response);
        }
        assert_eq!(one(&fixture).path, path, "{request} {response}");
    }
}

#[test]
fn an_idle_connection_to_a_backend_is_told_by_itself() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, head) = asked(&mut fixture, 1000, REQUEST);
    let begun = fixture.now;
    let response = only(backend.sends(&mut fixture, RESPONSE));
    client.gets(&response);
    fixture.wait(Duration::from_secs(1));
    let own = client.own;
    for sent in client.says(&mut fixture, ACK | FIN, b"").iter().filter(|sent| sent.to == own) {
        client.gets(sent);
    }
    client.acknowledges(&mut fixture);
    let rested = fixture.now;
    fixture.wait(Duration::from_secs(3));
    let all = listed(&fixture, 128);
    assert_eq!(all.len(), 2, "{all:?}");
    let [client_s, idle] = [all[0], all[1]];
    assert_eq!((client_s.state, client_s.backend), (SplicedState::Client(ClientConnState::TimeWait), None));
    assert_eq!((idle.state, idle.client, idle.requests), (SplicedState::Backend(BackendConnState::Idle), None, 1));
    let leg = idle.backend.unwrap();
    assert_eq!((leg.source, leg.target), (head.from, head.to));
    assert_eq!((idle.created, idle.last_seen), (begun, rested));
}

#[test]
fn pages_have_every_connection_once() {
    let mut fixture = OneWorker::new(|_| {});
    // Three that idle at the backend, of clients that are in use again or gone.
    let clients: Vec<_> = (0..20).map(|i| asked(&mut fixture, 1000 + i, REQUEST)).collect();
    for (mut client, mut backend, _) in clients {
        let response = only(backend.sends(&mut fixture, RESPONSE));
        client.gets(&response);
        client.acknowledges(&mut fixture);
    }
    let all = listed(&fixture, 1000);
    let count = |backend: bool| all.iter().filter(|view| view.client.is_none() == backend).count();
    assert_eq!((count(false), count(true)), (20, 20), "clients', and those that rest");
    for at_a_time in [1, 2, 7, 19, 20, 21, 39, 40, 41] {
        let some = listed(&fixture, at_a_time);
        let ends =
            |views: &[SplicedConnection]| views.iter().map(|view| (view.client, view.backend)).collect::<Vec<_>>();
        assert_eq!(ends(&some), ends(&all), "{at_a_time} at a time");
    }
    // Each says where to go on with it.
    for view in &all {
        let mut next = Vec::with_capacity(1);
        fixture.worker.snapshot_splices(fixture.now, view.place, &mut next);
        assert_eq!((next[0].place, next[0].client, next[0].backend), (view.place, view.client, view.backend));
    }
    // The caller has no room for what is told.
    assert_eq!(fixture.worker.snapshot_splices(fixture.now, 0, &mut Vec::new()), Some(0));
    assert_eq!(fixture.worker.snapshot_splices(fixture.now, 2 * SPLICES_MAX, &mut Vec::with_capacity(1)), None);
    assert_eq!(fixture.worker.snapshot_splices(fixture.now, u32::MAX, &mut Vec::with_capacity(1)), None);
}

#[test]
fn what_the_engine_carries_is_told_apart() {
    let mut fixture = OneWorker::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut fixture, 1000, REQUEST);
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n0123456789";
    client.receives(&backend.sends(&mut fixture, head));
    let rules = installs(&mut fixture);
    let view = one(&fixture);
    assert_eq!((view.path, view.rules), (SplicedPath::Installing, [None; 2]));
    rules.iter().for_each(|rule| complete(&mut fixture, Completion::Installed(rule.id)));
    let view = one(&fixture);
    assert_eq!((view.path, view.rules), (SplicedPath::Offloaded, [Some(rules[0].key), Some(rules[1].key)]));
    // What the rules have counted is the connection's once they are gone.
    let before = view.forwarded;
    let last_seen = Some(fixture.now + Duration::from_millis(1));
    for (rule, packets) in rules.iter().zip([7, 2000]) {
        let counters = Counters { packets, bytes: packets * 1000, last_seen };
        complete(&mut fixture, Completion::Removed(rule.id, Some(counters)));
    }
    let view = one(&fixture);
    assert_eq!((view.path, view.rules), (SplicedPath::Next, [None; 2]));
    assert_eq!(view.forwarded_by_engine.map(|volume| (volume.packets, volume.bytes)), [(7, 7000), (2000, 2_000_000)]);
    let more = [0, 1].map(|way| view.forwarded[way].packets - before[way].packets);
    assert_eq!((more, Some(view.last_seen)), ([7, 2000], last_seen));
}

#[test]
fn a_tunnel_is_told_as_one_request_without_an_end() {
    let mut fixture = OneWorker::of(1, tls(None));
    let mut client = Script::client(&mut fixture, 1000);
    let syn = only(client.says(&mut fixture, ACK, &hello("a.example")));
    let (mut backend, sent) = Script::backend(&mut fixture, &syn);
    backend.gets(&only(sent));
    client.receives(&backend.sends(&mut fixture, "hello"));
    let view = one(&fixture);
    assert_eq!((view.state, view.path), (SplicedState::Client(ClientConnState::Spliced), SplicedPath::Endless));
    let exchange = view.exchange.unwrap();
    assert_eq!((exchange.request, exchange.response), (MessageView::Endless, MessageView::Endless));
    backend.says(&mut fixture, ACK | FIN, b"");
    assert_eq!(one(&fixture).path, SplicedPath::Closing);
}
