//! TCP services whose backends get the client's address in front of its bytes.

use super::one_worker::{OneWorker, Script, Sent, USUAL};
use super::only;
use super::paths::tls;
use crate::l7::config::{Kind, ProxyVersion};
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, RST, SYN};
use alloc::vec::Vec;

const HEADER: &[u8] = b"PROXY TCP4 10.0.0.10 10.0.0.1 1000 80\r\n";

fn plain(backends: u16) -> OneWorker {
    let mut kind = tls(Some(ProxyVersion::V1));
    let Kind::Tls(tls) = &mut kind else { unreachable!("it is one") };
    tls.is_plain = true;
    tls.routes[0].names = [].into();
    OneWorker::of(backends, kind)
}

/// A client whose last segment of the handshake has come, and the SYN that went to its backend.
fn opened(fixture: &mut OneWorker, bytes: &[u8]) -> (Script, Sent) {
    let mut client = Script::offered(fixture, 1000, 5000, USUAL);
    let syn = only(client.says(fixture, ACK, bytes));
    (client, syn)
}

fn talk(fixture: &mut OneWorker, client: &mut Script, backend: &mut Script) {
    for text in ["one", "two"] {
        assert_eq!(client.receives(&backend.sends(fixture, text)), text);
        assert_eq!(backend.receives(&client.sends(fixture, text)), text);
    }
}

fn close(fixture: &mut OneWorker, client: &mut Script, backend: &mut Script) {
    backend.gets(&only(client.says(fixture, ACK | FIN, b"")));
    client.gets(&only(backend.says(fixture, ACK | FIN, b"")));
    client.acknowledges(fixture);
    fixture.over();
}

#[test]
fn a_server_may_speak_first() {
    let mut fixture = plain(1);
    let (mut client, syn) = opened(&mut fixture, b"");
    let (mut backend, sent) = Script::backend(&mut fixture, &syn);
    let header = only(sent);
    assert_eq!(header.bytes, HEADER);
    backend.gets(&header);
    assert_eq!(client.receives(&backend.sends(&mut fixture, "220 ready")), "220 ready");
    talk(&mut fixture, &mut client, &mut backend);
    close(&mut fixture, &mut client, &mut backend);
}

#[test]
fn bytes_before_the_backend_is_there_go_behind_the_header() {
    // The client's acknowledgement is lost, or comes; its bytes come at once, or while the backend's answer is awaited.
    for (first, then) in [(&b"hello"[..], &b""[..]), (b"", b"hello"), (b"he", b"llo")] {
        let mut fixture = plain(1);
        let (mut client, syn) = opened(&mut fixture, first);
        if !then.is_empty() {
            client.says(&mut fixture, ACK, then);
        }
        let (mut backend, sent) = Script::backend(&mut fixture, &syn);
        let bytes: Vec<u8> = sent.iter().flat_map(|sent| sent.bytes.clone()).collect();
        assert_eq!(bytes, [HEADER, b"hello"].concat());
        sent.iter().for_each(|sent| backend.gets(sent));
        let told = backend.acknowledges(&mut fixture);
        assert!(told.iter().all(|told| told.to == client.own && told.segment.acknowledgement == client.next));
        talk(&mut fixture, &mut client, &mut backend);
        close(&mut fixture, &mut client, &mut backend);
    }
}

#[test]
fn header_is_sent_again_until_it_is_acknowledged() {
    let mut fixture = plain(1);
    let (mut client, syn) = opened(&mut fixture, b"");
    let (mut backend, _) = Script::backend(&mut fixture, &syn);
    let again = fixture.wait(Duration::from_secs(2));
    assert!(again.iter().any(|sent| sent.bytes == HEADER && sent.to == backend.own), "{again:?}");
    // What the client says meanwhile goes behind it.
    let said = only(client.sends(&mut fixture, "one"));
    assert_eq!(said.segment.sequence, backend.expected.wrapping_add(HEADER.len() as u32));
    backend.gets(again.iter().find(|sent| sent.bytes == HEADER).unwrap());
    backend.gets(&said);
    backend.acknowledges(&mut fixture);
    talk(&mut fixture, &mut client, &mut backend);
    close(&mut fixture, &mut client, &mut backend);
}

#[test]
fn client_that_closes_early_is_told_and_forgotten() {
    // Before the backend answers, with and without bytes, ...
    for bytes in [&b""[..], b"bye"] {
        let mut fixture = plain(1);
        let (mut client, syn) = opened(&mut fixture, b"");
        client.says(&mut fixture, ACK | FIN, bytes);
        let (mut backend, sent) = Script::backend(&mut fixture, &syn);
        let said: Vec<u8> = sent.iter().flat_map(|sent| sent.bytes.clone()).collect();
        assert_eq!(said, [HEADER, bytes].concat(), "{sent:?}");
        assert!(sent.last().unwrap().segment.has(FIN), "{sent:?}");
        sent.iter().for_each(|sent| backend.gets(sent));
        backend.acknowledges(&mut fixture);
        client.gets(&only(backend.says(&mut fixture, ACK | FIN, b"")));
        client.acknowledges(&mut fixture);
        fixture.over();
    }
    // ... and with the segment that ends the handshake.
    let mut fixture = plain(1);
    let mut client = Script::offered(&mut fixture, 1000, 5000, USUAL);
    let answer = only(client.says(&mut fixture, ACK | FIN, b""));
    assert!(answer.segment.has(FIN), "{answer:?}");
    fixture.over();
}

#[test]
fn backend_that_refuses_gives_way_to_the_next() {
    let mut fixture = plain(2);
    let (mut client, syn) = opened(&mut fixture, b"");
    let refusing =
        Script { own: syn.to, peer: syn.from, next: 0, expected: syn.segment.sequence.wrapping_add(1), window: 0 };
    let next = only(fixture.arrives(&refusing.own(RST | ACK, None), b""));
    assert!(next.segment.flags == SYN && next.to != syn.to, "{next:?}");
    let (mut backend, sent) = Script::backend(&mut fixture, &next);
    backend.gets(&only(sent));
    talk(&mut fixture, &mut client, &mut backend);
    close(&mut fixture, &mut client, &mut backend);
}

#[test]
fn acknowledgement_without_a_cookie_begins_nothing() {
    let mut fixture = plain(1);
    let mut client = Script::offered(&mut fixture, 1000, 5000, USUAL);
    client.expected = client.expected.wrapping_add(7);
    let sent = client.says(&mut fixture, ACK, b"");
    assert!(sent.iter().all(|sent| sent.segment.has(RST)), "{sent:?}");
    assert_eq!(fixture.worker.splices(), (0, 0, 0));
}

#[test]
fn an_old_acknowledgement_begins_no_second_connection() {
    let mut fixture = plain(1);
    let (mut client, syn) = opened(&mut fixture, b"");
    let early = client.clone();
    let (mut backend, sent) = Script::backend(&mut fixture, &syn);
    backend.gets(&only(sent));
    talk(&mut fixture, &mut client, &mut backend);
    close(&mut fixture, &mut client, &mut backend);
    let sent = early.clone().says(&mut fixture, ACK, b"");
    assert!(sent.iter().all(|sent| !sent.segment.has(SYN)), "{sent:?}");
    assert_eq!(fixture.worker.splices(), (0, 0, 0));
}
