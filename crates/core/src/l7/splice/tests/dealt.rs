//! Connections go to another number of workers, and to memory of another size.

use super::one_worker::{OneWorker, Script};
use super::{REQUEST, asked};
use crate::engine::RuleOp;
use crate::flow::Steering;
use crate::l7::splice::{DealtSplices, SplicedMemory, deal};
use crate::time::Duration;
use crate::wire::tcp::RST;
use crate::worker::Worker;
use alloc::vec;
use alloc::vec::Vec;

const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n01234";
const REST: &str = "56789";

/// Clients in the middle of a response, and one whose request's head is not complete.
fn talking(fixture: &mut OneWorker, count: u16) -> (Vec<(Script, Script)>, Script) {
    let talk = |port| {
        let (mut client, mut backend, _) = asked(fixture, port, REQUEST);
        client.receives(&backend.sends(fixture, HEAD));
        client.acknowledges(fixture);
        (client, backend)
    };
    let talks = (1000..1000 + count).map(talk).collect();
    let mut reading = Script::client(fixture, 900);
    reading.sends(fixture, &REQUEST[..10]);
    (talks, reading)
}

/// Their memory, dealt out to workers with room for `connections` each.
fn dealt(fixture: &mut OneWorker, workers: u16, connections: u32) -> (Vec<SplicedMemory>, DealtSplices) {
    let steering = Steering { workers, ..fixture.steering() };
    let to = (0..workers).map(|_| SplicedMemory::own(connections)).collect();
    deal(fixture.now, vec![fixture.take_memory()], to, &steering)
}

#[test]
fn connections_go_to_the_workers_of_their_clients() {
    let mut fixture = OneWorker::new(|_| {});
    fixture.restarts = false;
    let (mut talks, mut reading) = talking(&mut fixture, 12);
    let (memory, dealt) = dealt(&mut fixture, 2, 64);
    assert_eq!(dealt, DealtSplices { client_conns: 13, ..DealtSplices::default() });
    let steering = Steering { workers: 2, ..fixture.steering() };
    let mut adopted = Vec::new();
    let mut workers: Vec<Worker<_, _>> = (0..)
        .zip(memory)
        .map(|(number, memory)| {
            let (worker, found) = fixture.adopting(number, steering, memory);
            adopted.push(found.splices);
            worker
        })
        .collect();
    assert_eq!(adopted.iter().map(|found| found.client_conns).sum::<u64>(), 13, "{adopted:?}");
    assert!(adopted.iter().all(|found| found.client_conns > 1), "both have some: {adopted:?}");
    assert!(
        adopted.iter().all(|found| (found.interrupted, found.misplaced, found.invalid) == (0, 0, 0)),
        "{adopted:?}"
    );
    let mut diverted: Vec<_> = Vec::new();
    for worker in &mut workers {
        diverted.push(core::iter::from_fn(|| worker.poll_op()).collect::<Vec<RuleOp>>());
    }
    for (client, backend) in &mut talks {
        let own = usize::from(steering.worker(&client.own));
        let rule = diverted[own].iter().find_map(|op| match op {
            RuleOp::Install(rule) if rule.key.source == backend.own && rule.key.destination == backend.peer => {
                Some(rule)
            }
            _ => None,
        });
        let is_astray = usize::from(steering.worker(&backend.peer)) != own;
        assert_eq!(rule.is_some(), is_astray, "a rule brings what is steered to another worker");
        let admits = |rule: &crate::engine::Rule| {
            rule.guard.unwrap().admits(backend.next, 5, backend.expected)
                || rule.guard.unwrap().admits(backend.next, 0, backend.expected)
        };
        assert!(!rule.is_some_and(admits), "and takes nothing");
        core::mem::swap(&mut fixture.worker, &mut workers[own]);
        assert_eq!(client.receives(&backend.sends(&mut fixture, REST)), REST);
        client.acknowledges(&mut fixture);
        core::mem::swap(&mut fixture.worker, &mut workers[own]);
    }
    let own = usize::from(steering.worker(&reading.own));
    core::mem::swap(&mut fixture.worker, &mut workers[own]);
    let sent = reading.sends(&mut fixture, &REQUEST[10..]);
    assert_eq!(sent.len(), 1, "the head is complete: {sent:?}");
    assert!(diverted.iter().any(|ops| !ops.is_empty()), "none is astray: the test shows nothing");
}

#[test]
fn smaller_memory_takes_what_it_can() {
    let mut fixture = OneWorker::new(|_| {});
    fixture.restarts = false;
    // Those whose requests are not complete give way.
    for port in 500..510 {
        Script::client(&mut fixture, port).sends(&mut fixture, &REQUEST[..10]);
    }
    let (talks, _) = talking(&mut fixture, 12);
    let (memory, dealt) = dealt(&mut fixture, 1, 8);
    assert_eq!(dealt, DealtSplices { client_conns: 8, dropped: 19, reset: 0 }, "those of dropped clients, too");
    let steering = fixture.steering();
    let [memory] = memory.try_into().unwrap_or_else(|_| panic!("one worker"));
    let (worker, found) = fixture.adopting(0, steering, memory);
    assert_eq!((found.splices.client_conns, found.splices.invalid), (8, 0));
    fixture.worker = worker;
    let (mut client, mut backend) = talks.into_iter().next().unwrap();
    assert_eq!(client.receives(&backend.sends(&mut fixture, REST)), REST);
}

#[test]
fn client_without_a_buffer_is_reset_with_its_backend() {
    let mut fixture = OneWorker::new(|_| {});
    fixture.restarts = false;
    // Twice the largest buffers that the smaller memory has.
    let (worker, _) = fixture.adopting(0, fixture.steering(), SplicedMemory::own(8192));
    fixture.worker = worker;
    let head = "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n";
    let waiting = |port| {
        let mut client = Script::client(&mut fixture, port);
        let syn = client.sends(&mut fixture, head).remove(0);
        (0..20).for_each(|_| drop(client.sends(&mut fixture, &"x".repeat(1400))));
        (client, syn)
    };
    let all: Vec<_> = (1000..1020).map(waiting).collect();
    let (memory, dealt) = dealt(&mut fixture, 1, 64);
    assert_eq!(dealt, DealtSplices { client_conns: 20, dropped: 0, reset: 4 });
    let [memory] = memory.try_into().unwrap_or_else(|_| panic!("one worker"));
    let (worker, found) = fixture.adopting(0, fixture.steering(), memory);
    assert_eq!((found.splices.interrupted, found.splices.forgotten()), (0, 0), "{found:?}");
    assert_eq!(found.splices.backend_conns, 16, "the others are reset");
    fixture.worker = worker;
    fixture.wait(Duration::from_millis(1));
    let mut reset = 0;
    for (mut client, syn) in all {
        let (mut backend, sent) = Script::backend(&mut fixture, &syn);
        if sent.iter().all(|sent| sent.segment.has(RST)) {
            assert_eq!(sent.len(), 1, "the backend is told");
            let sent = client.sends(&mut fixture, "x");
            assert!(sent.iter().all(|sent| sent.segment.has(RST)) && sent.len() == 1, "the client is told: {sent:?}");
            reset += 1;
        } else {
            assert!(backend.receives(&sent).starts_with(head));
        }
    }
    assert_eq!(reset, 4);
}
