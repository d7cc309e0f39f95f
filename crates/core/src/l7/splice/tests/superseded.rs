//! Bare acknowledgements of a burst: the last says it all.

use super::one_worker::{OneWorker, Script, Sent};
use super::stamped;
use super::{REQUEST, asked};
use crate::frame::VecFrame;
use crate::l7::splice::tcp::segment::Own;
use crate::wire::tcp::ACK;
use alloc::format;
use alloc::vec::Vec;

/// A client, spliced with a backend that has sent the first four segments of a long response.
fn in_the_middle(fixture: &mut OneWorker) -> (Script, Script) {
    let (mut client, mut backend, _) = asked(fixture, 1000, REQUEST);
    let first = format!("HTTP/1.1 200 OK\r\nContent-Length: 30000\r\n\r\n{}", "x".repeat(1000));
    let mut sent = backend.sends(fixture, &first);
    (0..3).for_each(|_| sent.extend(backend.sends(fixture, &"y".repeat(1000))));
    client.receives(&sent);
    (client, backend)
}

/// Acknowledgements of all but so many bytes.
fn acknowledging(client: &Script, short: &[u32]) -> Vec<VecFrame> {
    let own = |short: &u32| Own { acknowledgement: client.expected.wrapping_sub(*short), ..client.own(ACK, None) };
    short.iter().map(|short| OneWorker::frame(&own(short), &[], b"")).collect()
}

fn acknowledged(sent: &[Sent], backend: &Script) -> Vec<u32> {
    let short = |sent: &Sent| backend.next.wrapping_sub(sent.segment.acknowledgement);
    sent.iter().filter(|sent| (sent.from, sent.to) == (backend.peer, backend.own)).map(short).collect()
}

#[test]
fn the_last_of_a_burst_goes_on() {
    let mut fixture = OneWorker::new(|_| {});
    let (client, backend) = in_the_middle(&mut fixture);
    let sent = fixture.come(acknowledging(&client, &[3000, 2000, 1000, 0]));
    assert_eq!(acknowledged(&sent, &backend), [0]);
    assert_eq!(fixture.worker.statistics().http.superseded, 3);
}

#[test]
fn those_that_say_something_else_all_go_on() {
    stamped::without();
    let mut fixture = OneWorker::new(|_| {});
    let (client, backend) = in_the_middle(&mut fixture);
    // Duplicates mean loss; older ones, nothing.
    let sent = fixture.come(acknowledging(&client, &[3000, 3000, 3000, 3000]));
    assert_eq!(acknowledged(&sent, &backend), [3000; 4]);
    let edges = (client.expected.wrapping_sub(1000)..client.expected).len() as u32;
    let sack = [&[1, 1, 5, 10][..], &client.expected.wrapping_sub(edges).to_be_bytes(), &client.expected.to_be_bytes()];
    let sack = OneWorker::frame(
        &Own { acknowledgement: client.expected.wrapping_sub(3000), ..client.own(ACK, None) },
        &sack.concat(),
        b"",
    );
    let mut frames = acknowledging(&client, &[3000, 2000]);
    frames.insert(1, sack);
    assert_eq!(acknowledged(&fixture.come(frames), &backend), [3000, 3000, 2000]);
    assert_eq!(fixture.worker.statistics().http.superseded, 0);
}

#[test]
fn of_several_connections_each_has_its_own() {
    let mut fixture = OneWorker::new(|_| {});
    let (client, backend) = in_the_middle(&mut fixture);
    let mut other = Script::client(&mut fixture, 1001);
    let syn = super::only(other.sends(&mut fixture, REQUEST));
    let (mut second, sent) = Script::backend(&mut fixture, &syn);
    second.gets(&super::only(sent));
    let first = format!("HTTP/1.1 200 OK\r\nContent-Length: 30000\r\n\r\n{}", "x".repeat(1000));
    let mut sent = second.sends(&mut fixture, &first);
    sent.extend(second.sends(&mut fixture, &"y".repeat(1000)));
    other.receives(&sent);
    let frames = [
        acknowledging(&client, &[3000]),
        acknowledging(&other, &[1000]),
        acknowledging(&client, &[2000, 1000]),
        acknowledging(&other, &[0]),
    ];
    let sent = fixture.come(frames.concat());
    assert_eq!(acknowledged(&sent, &backend), [3000, 1000]);
    assert_eq!(acknowledged(&sent, &second), [1000, 0]);
    assert_eq!(fixture.worker.statistics().http.superseded, 1);
}
