//! Requests of which more comes than can be kept until their backend is there: a client on a kept connection
//! still goes by the window of its last backend.

use super::one_worker::{OneWorker, SPLICES_MAX, Script, Sent};
use super::{RESPONSE, asked, only};
use crate::l7::config::ProxyVersion;
use crate::l7::splice::Refused;
use crate::wire::tcp::{ACK, SYN};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Bytes of a body that no buffer takes.
const LENGTH: usize = 200_000;

/// A client that sends a request, all of it whatever window it is shown, and again what is not acknowledged.
struct Uploader {
    script: Script,
    request: Vec<u8>,
    /// The number of the request's first byte.
    first: u32,
}

impl Uploader {
    fn new(script: Script, request: Vec<u8>) -> Uploader {
        let first = script.next;
        Uploader { script, request, first }
    }

    /// Sends all of it from the byte that it was told of last, in segments of so many bytes.
    fn sends(&mut self, fixture: &mut OneWorker, size: usize) -> Vec<Sent> {
        let from = self.script.next.wrapping_sub(self.first) as usize;
        let pieces: Vec<Vec<u8>> = self.request[from..].chunks(size).map(<[u8]>::to_vec).collect();
        pieces.iter().flat_map(|piece| self.script.says(fixture, ACK, piece)).collect()
    }

    /// Goes back to what these segments acknowledge. Says whether they acknowledge anything.
    fn hears(&mut self, sent: &[Sent]) -> bool {
        let own = self.script.own;
        let acknowledged = sent.iter().filter(|sent| sent.to == own).map(|sent| {
            assert!(sent.segment.payload == 0 && sent.segment.flags == ACK, "no answer yet: {sent:?}");
            sent.segment.acknowledgement.wrapping_sub(self.first)
        });
        let Some(acknowledged) = acknowledged.max() else { return false };
        self.script.next = self.first.wrapping_add(acknowledged);
        true
    }
}

/// What a backend has got of a stream that begins with number `first`, in order or not.
fn assemble(got: &mut Vec<Option<u8>>, first: u32, sent: &[Sent], backend: &Script) -> usize {
    for sent in sent.iter().filter(|sent| sent.to == backend.own) {
        let at = sent.segment.sequence.wrapping_sub(first) as usize;
        got.resize(got.len().max(at + sent.bytes.len()), None);
        for (place, byte) in got[at..].iter_mut().zip(&sent.bytes) {
            assert!(place.is_none_or(|known| known == *byte), "the same bytes have the same numbers");
            *place = Some(*byte);
        }
    }
    got.iter().take_while(|byte| byte.is_some()).count()
}

fn body() -> Vec<u8> {
    (0..LENGTH).map(|at| (at % 251) as u8).collect()
}

/// The body as it is, or in chunks of 1000 bytes.
fn request(is_chunked: bool) -> Vec<u8> {
    if !is_chunked {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LENGTH}\r\n\r\n");
        return [head.into_bytes(), body()].concat();
    }
    let mut request = Vec::from(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    for chunk in body().chunks(1000) {
        request.extend_from_slice(b"3E8\r\n");
        request.extend_from_slice(chunk);
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"0\r\n\r\n");
    request
}

/// The backend gets all of a request, which it acknowledges as it comes, and answers; so the client gets its answer.
fn arrives(fixture: &mut OneWorker, client: &mut Uploader, mut backend: Script, mut sent: Vec<Sent>, expected: &[u8]) {
    let (first, mut got) = (backend.expected, Vec::new());
    for _ in 0..100 {
        let through = assemble(&mut got, first, &sent, &backend);
        backend.expected = first.wrapping_add(through as u32);
        if through == expected.len() {
            break;
        }
        sent = backend.acknowledges(fixture);
        if client.hears(&sent) {
            sent.extend(client.sends(fixture, 1400));
        }
    }
    let got: Vec<u8> = got.into_iter().map_while(|byte| byte).collect();
    assert_eq!(got.len(), expected.len());
    assert!(got == expected, "the bytes that were sent");
    client.script.next = client.first.wrapping_add(client.request.len() as u32);
    let answer = backend.sends(fixture, RESPONSE);
    assert_eq!(client.script.receives(&answer), RESPONSE);
    client.script.acknowledges(fixture);
}

#[test]
fn data_beyond_the_buffer_is_requested_again() {
    for (is_chunked, size) in [(false, 1400), (false, 60_000), (true, 1400), (true, 60_000)] {
        let mut fixture = OneWorker::new(|_| {});
        let mut client = Uploader::new(Script::client(&mut fixture, 1000), request(is_chunked));
        let sent = client.sends(&mut fixture, size);
        let syns: Vec<Sent> = sent.into_iter().filter(|sent| sent.segment.flags == SYN).collect();
        let (backend, sent) = Script::backend(&mut fixture, &only(syns));
        let all = client.request.clone();
        arrives(&mut fixture, &mut client, backend, sent, &all);
        assert_eq!(fixture.worker.statistics().http.refused, [0; Refused::ALL.len()], "{is_chunked} {size}");
        fixture.over();
    }
}

#[test]
fn what_comes_before_a_request_has_room_beside_all_that_is_kept() {
    let mut fixture = OneWorker::new(|http| http.proxy_protocol = Some(ProxyVersion::V1));
    let mut client = Uploader::new(Script::client(&mut fixture, 1000), request(false));
    let sent = client.sends(&mut fixture, 60_000);
    let syn = only(sent.into_iter().filter(|sent| sent.segment.flags == SYN).collect());
    let (backend, sent) = Script::backend(&mut fixture, &syn);
    let preface = String::from("PROXY TCP4 10.0.0.10 10.0.0.1 1000 80\r\n").into_bytes();
    let all = [preface, client.request.clone()].concat();
    arrives(&mut fixture, &mut client, backend, sent, &all);
    fixture.over();
}

#[test]
fn uploads_that_wait_are_all_served_also_without_large_buffers() {
    let mut fixture = OneWorker::new(|_| {});
    let mut all = Vec::new();
    for port in 0..SPLICES_MAX as u16 {
        let mut client = Uploader::new(Script::client(&mut fixture, 1000 + port), request(port % 2 == 1));
        let sent = client.sends(&mut fixture, 1400);
        let syns: Vec<Sent> = sent.into_iter().filter(|sent| sent.segment.flags == SYN).collect();
        all.push((client, only(syns)));
    }
    for (mut client, syn) in all {
        let (backend, sent) = Script::backend(&mut fixture, &syn);
        let request = client.request.clone();
        arrives(&mut fixture, &mut client, backend, sent, &request);
    }
    assert_eq!(fixture.worker.statistics().http.refused, [0; Refused::ALL.len()]);
    fixture.over();
}

#[test]
fn upload_after_offloaded_response_changes_backend() {
    let mut fixture = OneWorker::with_backends(2, |_| {});
    // Every process begins with the first backend.
    fixture.restarts = false;
    let (script, mut backend, _) = asked(&mut fixture, 1000, super::REQUEST);
    let mut client = Uploader::new(script, Vec::new());
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n0123456789", 3 << 20);
    client.script.receives(&backend.sends(&mut fixture, &head));
    let rules = super::offload::installs(&mut fixture);
    rules.iter().for_each(|rule| super::offload::complete(&mut fixture, crate::engine::Completion::Installed(rule.id)));
    client.script.expected = client.script.expected.wrapping_add((3 << 20) - 10);
    client = Uploader::new(client.script, request(false));
    // The engine is slow to let go of the first backend.
    client.sends(&mut fixture, 1400);
    assert_eq!(super::offload::removals(&mut fixture), 2);
    for rule in rules {
        super::offload::complete(&mut fixture, crate::engine::Completion::Removed(rule.id, None));
    }
    let sent = fixture.wait(crate::time::Duration::from_millis(10));
    let syns: Vec<Sent> = sent.into_iter().filter(|sent| sent.segment.flags == SYN).collect();
    let (backend, sent) = Script::backend(&mut fixture, &only(syns));
    let all = client.request.clone();
    arrives(&mut fixture, &mut client, backend, sent, &all);
    fixture.over();
}
