//! TLS, and egress paths with a smaller MTU than others.

use super::one_worker::{OneWorker, Script, Sent, USUAL, end};
use super::stamped;
use super::{asked, only};
use crate::flow::{Address, Endpoint, Protocol};
use crate::frame::{Arrival, Frame, VecFrame};
use crate::l7::config::{Http, Kind, ProxyVersion, Sticky, Tls, TlsRoute};
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, RST};
use crate::wire::{checksum::Sum, ipv4};
use alloc::format;
use alloc::vec::Vec;

/// A ClientHello that asks for `name`.
pub(super) fn hello(name: &str) -> Vec<u8> {
    let length = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let names = length(&[&[0][..], &length(name.as_bytes())].concat());
    let extensions = length(&[&[0, 0][..], &length(&names)].concat());
    let body = [&[3, 3][..], &[7; 32], &[0], &[0, 2, 0x13, 1], &[1, 0], &extensions].concat();
    let message = [&[1, 0][..], &(body.len() as u16).to_be_bytes(), &body].concat();
    [&[22, 3, 1][..], &length(&message)].concat()
}

pub(super) fn tls(proxy_protocol: Option<ProxyVersion>) -> Kind {
    let names = [b"a.example".to_vec().into()].into();
    let route = TlsRoute { names, protocols: [].into(), groups: [(0, 1)].into() };
    let second = Duration::from_secs(1);
    Kind::Tls(
        Tls {
            routes: [route].into(),
            proxy_protocol,
            is_plain: false,
            hello_bytes_max: 4096,
            hello_timeout: second,
            connect_timeout: second,
            connect_tries: 2,
            offload_bytes_min: None,
            timestamps: true,
        }
        .into(),
    )
}

#[test]
fn a_hello_in_pieces_is_routed_and_what_follows_is_a_tunnel() {
    for size in [1, 50, 1000] {
        let mut fixture = OneWorker::of(1, tls(None));
        let mut client = Script::client(&mut fixture, 1000);
        let hello = hello("a.example");
        let mut sent = Vec::new();
        for piece in hello.chunks(size) {
            sent = client.says(&mut fixture, ACK, piece);
        }
        let (mut backend, sent) = Script::backend(&mut fixture, &only(sent));
        let first = only(sent);
        assert_eq!(first.bytes, hello);
        backend.gets(&first);
        for text in ["one", "two"] {
            assert_eq!(client.receives(&backend.sends(&mut fixture, text)), text);
            assert_eq!(backend.receives(&client.sends(&mut fixture, text)), text);
        }
        backend.gets(&only(client.says(&mut fixture, ACK | FIN, b"")));
        let fin = only(backend.says(&mut fixture, ACK | FIN, b""));
        client.gets(&fin);
        client.acknowledges(&mut fixture);
        fixture.over();
    }
}

#[test]
fn a_hello_that_leads_nowhere_is_reset() {
    let long = [&[22, 3, 1, 0x40, 0][..], &[1, 0, 0x3f, 0], &[0; 5000]].concat();
    for hello in [hello("b.example"), b"GET / HTTP/1.1\r\n\r\n".to_vec(), long] {
        let mut fixture = OneWorker::of(1, tls(None));
        let mut client = Script::client(&mut fixture, 1000);
        let mut sent = Vec::new();
        for piece in hello.chunks(1400) {
            sent.extend(client.says(&mut fixture, ACK, piece));
        }
        assert!(sent.iter().any(|sent| sent.segment.has(RST)) && sent.iter().all(|sent| sent.to == client.own));
        assert_eq!(fixture.worker.splices(), (1, 0, 0), "its client is asked whether it believed that");
        fixture.over();
    }
    let mut fixture = OneWorker::of(1, tls(None));
    let mut client = Script::client(&mut fixture, 1000);
    client.says(&mut fixture, ACK, &hello("a.example")[..20]);
    let sent = fixture.wait(Duration::from_millis(1200));
    assert!(sent.iter().any(|sent| sent.segment.has(RST)), "too slow: {sent:?}");
    fixture.over();
}

#[test]
fn client_fin_after_hello_reaches_the_backend() {
    let mut fixture = OneWorker::of(1, tls(Some(ProxyVersion::V2)));
    let mut client = Script::client(&mut fixture, 1000);
    let hello = hello("a.example");
    let syn = only(client.says(&mut fixture, ACK | FIN, &hello));
    let (mut backend, sent) = Script::backend(&mut fixture, &syn);
    let first = only(sent);
    assert!(first.segment.has(FIN) && first.bytes.ends_with(&hello) && first.bytes.len() > hello.len());
    backend.gets(&first);
    let told = only(backend.acknowledges(&mut fixture));
    assert_eq!((told.to, told.segment.acknowledgement), (client.own, client.next));
    let last = only(backend.says(&mut fixture, ACK | FIN, b"alert"));
    client.gets(&last);
    assert!(last.segment.has(FIN));
    let told = only(client.acknowledges(&mut fixture));
    assert_eq!((told.to, told.segment.acknowledgement), (backend.own, backend.next));
    fixture.over();
}

/// A router says that a packet of `from`'s, to `to`, was too big.
pub(super) fn too_big(fixture: &mut OneWorker, (from, to): (Endpoint, Endpoint), mtu: u32, sequence: u32) -> Vec<Sent> {
    let is_ipv4 = from.address.is_ipv4();
    let ports = [&from.port.to_be_bytes()[..], &to.port.to_be_bytes(), &sequence.to_be_bytes()].concat();
    let quoted = packet(from.address, to.address, Protocol::Tcp as u8, &ports);
    let router = end(!is_ipv4, 99, 0).address;
    // The part of the header behind the checksum: in ICMPv4 only its last two bytes are the MTU.
    let (kind, protocol) = if is_ipv4 { ([3, 4], 1) } else { ([2, 0], 58) };
    let mut icmp = [&kind[..], &[0, 0], &mtu.to_be_bytes(), &quoted].concat();
    let pseudo = match is_ipv4 {
        true => Vec::new(),
        false => {
            let length = (icmp.len() as u32).to_be_bytes();
            [&router.0[..], &from.address.0, &length, &[0, 0, 0, protocol]].concat()
        }
    };
    let sum = Sum::of(&[pseudo, icmp.clone()].concat()).checksum();
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let kind: [u8; 2] = if is_ipv4 { [8, 0] } else { [0x86, 0xdd] };
    fixture.comes(VecFrame::new(&[&[0; 12][..], &kind, &packet(router, from.address, protocol, &icmp)].concat()))
}

fn sticky(http: &mut Http) {
    http.sticky = Some(Sticky { cookie: (*b"stuck").into(), attributes: (*b"").into() });
}

/// An IP packet.
fn packet(source: Address, destination: Address, protocol: u8, body: &[u8]) -> Vec<u8> {
    if !source.is_ipv4() {
        let length = (body.len() as u16).to_be_bytes();
        return [&[0x60, 0, 0, 0][..], &length, &[protocol, 64], &source.0, &destination.0, body].concat();
    }
    let mut header = [0; ipv4::HEADER];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&((ipv4::HEADER + body.len()) as u16).to_be_bytes());
    (header[8], header[9]) = (64, protocol);
    header[12..16].copy_from_slice(&source.ipv4_octets());
    header[16..].copy_from_slice(&destination.ipv4_octets());
    let sum = Sum::of(&header).checksum();
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    [&header[..], body].concat()
}

/// Payload of a segment on a way with this MTU.
fn payload(ipv6: bool, mtu: u16) -> u16 {
    mtu - 20 - if ipv6 { 40 } else { 20 }
}

#[test]
fn a_path_that_takes_less_gets_smaller_segments() {
    stamped::without();
    for ipv6 in [false, true] {
        let mut fixture = OneWorker::over_ip(ipv6, sticky);
        let mut client = Script::client_with(&mut fixture, 1000, 5000, USUAL);
        let request = "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 4000\r\n\r\n";
        let syn = only(client.sends(&mut fixture, request));
        let (mut backend, sent) = Script::backend_with(&mut fixture, &syn, 7000, USUAL);
        let head = only(sent);
        // What is ours goes again, at once.
        let again = only(too_big(&mut fixture, (backend.peer, backend.own), 1300, head.segment.sequence));
        assert_eq!(again.what(), head.what());
        backend.gets(&again);
        backend.acknowledges(&mut fixture);
        // What went through, its sender sends again: it is cut smaller.
        let body = only(client.says(&mut fixture, ACK, &[b'x'; 1400]));
        assert_eq!((body.gso_size, body.bytes.len()), (payload(ipv6, 1300), 1400));
        assert!(too_big(&mut fixture, (backend.peer, backend.own), 1290, body.segment.sequence).is_empty(), "not ours");
        let body = only(client.repeats(&mut fixture, client.next.wrapping_sub(1400), &[], &[b'x'; 1400]));
        assert_eq!((body.gso_size, body.bytes.len()), (payload(ipv6, 1290), 1400));
        backend.gets(&body);
        backend.gets(&only(client.says(&mut fixture, ACK, &[b'x'; 2600])));
        backend.acknowledges(&mut fixture);
        // The other way: the head is ours, the body is not.
        let all = format!("HTTP/1.1 200 OK\r\nContent-Length: 1400\r\n\r\n{}", "x".repeat(1400));
        let response = only(backend.sends(&mut fixture, &all));
        let head = response.bytes.len() - 1400;
        let again = only(too_big(&mut fixture, (client.peer, client.own), 1285, response.segment.sequence));
        assert_eq!((again.segment.sequence, &again.bytes[..]), (client.expected, &response.bytes[..head]));
        let body = only(backend.repeats(&mut fixture, backend.next.wrapping_sub(1400), &[], &[b'x'; 1400]));
        assert_eq!(body.gso_size, payload(ipv6, 1285));
        client.receives(&[again, body]);
        client.acknowledges(&mut fixture);
        fixture.over();
    }
}

#[test]
fn path_mtu_stays_between_minimum_and_previous() {
    stamped::without();
    for ipv6 in [false, true] {
        let mut fixture = OneWorker::over_ip(ipv6, |_| {});
        let mut client = Script::client(&mut fixture, 1000);
        let syn = only(client.sends(&mut fixture, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 40000\r\n\r\n"));
        let (mut backend, sent) = Script::backend_with(&mut fixture, &syn, 7000, USUAL);
        backend.receives(&sent);
        backend.acknowledges(&mut fixture);
        let least = if ipv6 { 1220 } else { 536 };
        let usual = USUAL.mss;
        for (mtu, size) in [(9000, usual), (100_000, usual), (68, least), (0, least), (1500, least)] {
            assert!(too_big(&mut fixture, (backend.peer, backend.own), mtu, backend.expected).is_empty());
            let body = only(client.says(&mut fixture, ACK, &[b'x'; 3000]));
            assert_eq!(body.gso_size, size, "{mtu}");
            backend.gets(&body);
        }
        fixture.over();
    }
}

#[test]
fn packet_reported_too_big_is_sent_in_pieces() {
    stamped::without();
    for (of_client, ipv6) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut fixture = OneWorker::over_ip(ipv6, |_| {});
        let (mut client, mut backend, _) =
            asked(&mut fixture, 1000, "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 2800\r\n\r\n");
        backend.acknowledges(&mut fixture);
        let sent = if of_client {
            only(client.says(&mut fixture, ACK, &[b'x'; 1400]))
        } else {
            let head = "HTTP/1.1 200 OK\r\nContent-Length: 2800\r\n\r\n";
            client.receives(&backend.sends(&mut fixture, head));
            only(backend.says(&mut fixture, ACK, &[b'x'; 1400]))
        };
        let mut frame = VecFrame::default();
        let segment = sent.segment;
        let own = Script {
            own: sent.from,
            peer: sent.to,
            next: segment.sequence,
            expected: segment.acknowledgement,
            window: 9,
        };
        assert!(own.own(ACK, None).write(&mut frame, [&sent.bytes, &[]]));
        frame.meta_mut().arrival = Arrival::too_big(1280);
        let again = only(fixture.comes(frame));
        assert_eq!((again.gso_size, &again.bytes), (payload(ipv6, 1280), &sent.bytes));
        assert_eq!(again.what(), (segment.sequence, segment.acknowledgement, ACK, sent.text()));
        // And what follows is cut from the beginning.
        let (from, to) = if of_client { (&mut client, &mut backend) } else { (&mut backend, &mut client) };
        to.gets(&again);
        let next = only(from.says(&mut fixture, ACK, &[b'x'; 1400]));
        assert_eq!(next.gso_size, payload(ipv6, 1280));
        to.gets(&next);
        fixture.over();
    }
}
