//! TLS, and ways that take less than others.

use super::stage::{Script, Stage, USUAL};
use super::{REQUEST, RESPONSE, asked, only};
use crate::flow::Protocol;
use crate::frame::{Arrival, Frame, VecFrame};
use crate::l7::config::{Kind, ProxyVersion, Tls, TlsRoute};
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, RST};
use crate::wire::{checksum::Sum, ipv4};
use alloc::vec::Vec;

/// A ClientHello that asks for `name`.
fn hello(name: &str) -> Vec<u8> {
    let length = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let names = length(&[&[0][..], &length(name.as_bytes())].concat());
    let extensions = length(&[&[0, 0][..], &length(&names)].concat());
    let body = [&[3, 3][..], &[7; 32], &[0], &[0, 2, 0x13, 1], &[1, 0], &extensions].concat();
    let message = [&[1, 0][..], &(body.len() as u16).to_be_bytes(), &body].concat();
    [&[22, 3, 1][..], &length(&message)].concat()
}

fn tls(proxy_protocol: Option<ProxyVersion>) -> Kind {
    let names = [b"a.example".to_vec().into()].into();
    let route = TlsRoute { names, protocols: [].into(), groups: [(0, 1)].into() };
    let second = Duration::from_secs(1);
    Kind::Tls(
        Tls {
            routes: [route].into(),
            proxy_protocol,
            hello_bytes_max: 4096,
            hello_timeout: second,
            connect_timeout: second,
            connect_tries: 2,
        }
        .into(),
    )
}

#[test]
fn a_hello_in_pieces_is_routed_and_what_follows_is_a_tunnel() {
    for size in [1, 50, 1000] {
        let mut stage = Stage::of(1, tls(None));
        let mut client = Script::client(&mut stage, 1000);
        let hello = hello("a.example");
        let mut sent = Vec::new();
        for piece in hello.chunks(size) {
            sent = client.says(&mut stage, ACK, piece);
        }
        let (mut backend, sent) = Script::backend(&mut stage, &only(sent));
        let first = only(sent);
        assert_eq!(first.bytes, hello);
        backend.gets(&first);
        for text in ["one", "two"] {
            assert_eq!(client.receives(&backend.sends(&mut stage, text)), text);
            assert_eq!(backend.receives(&client.sends(&mut stage, text)), text);
        }
        backend.gets(&only(client.says(&mut stage, ACK | FIN, b"")));
        let fin = only(backend.says(&mut stage, ACK | FIN, b""));
        client.gets(&fin);
        client.acknowledges(&mut stage);
        stage.over();
    }
}

#[test]
fn a_hello_that_leads_nowhere_is_reset() {
    let long = [&[22, 3, 1, 0x40, 0][..], &[1, 0, 0x3f, 0], &[0; 5000]].concat();
    for hello in [hello("b.example"), b"GET / HTTP/1.1\r\n\r\n".to_vec(), long] {
        let mut stage = Stage::of(1, tls(None));
        let mut client = Script::client(&mut stage, 1000);
        let mut sent = Vec::new();
        for piece in hello.chunks(1400) {
            sent.extend(client.says(&mut stage, ACK, piece));
        }
        assert!(sent.iter().any(|sent| sent.segment.has(RST)) && sent.iter().all(|sent| sent.to == client.own));
        assert_eq!(stage.worker.splices(), (0, 0, 0));
    }
    let mut stage = Stage::of(1, tls(None));
    let mut client = Script::client(&mut stage, 1000);
    client.says(&mut stage, ACK, &hello("a.example")[..20]);
    let sent = stage.wait(Duration::from_millis(1200));
    assert!(sent.iter().any(|sent| sent.segment.has(RST)), "too slow: {sent:?}");
    stage.over();
}

#[test]
fn a_client_that_has_closed_behind_its_hello_has_closed_for_the_backend() {
    let mut stage = Stage::of(1, tls(Some(ProxyVersion::V2)));
    let mut client = Script::client(&mut stage, 1000);
    let hello = hello("a.example");
    let syn = only(client.says(&mut stage, ACK | FIN, &hello));
    let (mut backend, sent) = Script::backend(&mut stage, &syn);
    let first = only(sent);
    assert!(first.segment.has(FIN) && first.bytes.ends_with(&hello) && first.bytes.len() > hello.len());
    backend.gets(&first);
    let told = only(backend.acknowledges(&mut stage));
    assert_eq!((told.to, told.segment.acknowledgement), (client.own, client.next));
    let last = only(backend.says(&mut stage, ACK | FIN, b"alert"));
    client.gets(&last);
    assert!(last.segment.has(FIN));
    let told = only(client.acknowledges(&mut stage));
    assert_eq!((told.to, told.segment.acknowledgement), (backend.own, backend.next));
    stage.over();
}

/// A router says that a packet of `from`'s, to `to`, was too big.
fn too_big(
    stage: &mut Stage,
    from: crate::flow::Endpoint,
    to: crate::flow::Endpoint,
    mtu: u16,
) -> Vec<super::stage::Sent> {
    let packet = |source: [u8; 4], destination: [u8; 4], protocol: u8, body: &[u8]| {
        let mut header = [0; ipv4::HEADER];
        header[0] = 0x45;
        header[2..4].copy_from_slice(&((ipv4::HEADER + body.len()) as u16).to_be_bytes());
        (header[8], header[9]) = (64, protocol);
        header[12..16].copy_from_slice(&source);
        header[16..].copy_from_slice(&destination);
        let sum = Sum::of(&header).checksum();
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        [&header[..], body].concat()
    };
    let ports = [&from.port.to_be_bytes()[..], &to.port.to_be_bytes(), &[0; 4]].concat();
    let quoted = packet(from.address.ipv4_octets(), to.address.ipv4_octets(), Protocol::Tcp as u8, &ports);
    let mut icmp = [&[3, 4, 0, 0, 0, 0][..], &mtu.to_be_bytes(), &quoted].concat();
    let sum = Sum::of(&icmp).checksum();
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let ip = packet([10, 9, 9, 9], from.address.ipv4_octets(), 1, &icmp);
    stage.comes(VecFrame::new(&[&[0; 12][..], &[8, 0], &ip].concat()))
}

#[test]
fn a_path_that_takes_less_gets_smaller_segments() {
    let mut stage = Stage::new(|_| {});
    let mut client = Script::client_with(&mut stage, 1000, 5000, USUAL);
    let syn = only(client.sends(&mut stage, REQUEST));
    let (mut backend, sent) = Script::backend(&mut stage, &syn);
    let head = only(sent);
    // What is ours goes again, at once.
    let again = only(too_big(&mut stage, backend.peer, backend.own, 1300));
    assert_eq!(again.what(), head.what());
    backend.gets(&again);
    let body = "x".repeat(4000);
    assert!(too_big(&mut stage, client.peer, client.own, 1000).is_empty(), "nothing of ours is on its way");
    let all = alloc::format!("HTTP/1.1 200 OK\r\nContent-Length: 4000\r\n\r\n{body}");
    let response = only(backend.sends(&mut stage, &all));
    assert_eq!((response.gso_size, response.text()), (960, all.as_str()));
    client.gets(&response);
    client.acknowledges(&mut stage);
    stage.over();
}

#[test]
fn a_packet_of_ours_that_comes_back_as_too_big_goes_in_pieces() {
    let mut stage = Stage::new(|_| {});
    let (mut client, mut backend, _) = asked(&mut stage, 1000, REQUEST);
    let body = "x".repeat(1400);
    let response =
        only(backend.sends(&mut stage, &alloc::format!("HTTP/1.1 200 OK\r\nContent-Length: 1400\r\n\r\n{body}")));
    client.gets(&response);
    let mut frame = VecFrame::default();
    let own = Script {
        own: response.from,
        peer: response.to,
        next: response.segment.sequence,
        expected: client.next,
        window: 9,
    };
    assert!(own.own(ACK, None).write(&mut frame, [&response.bytes, &[]]));
    frame.meta_mut().arrival = Arrival::TooBig { mtu: 1000 };
    let again = only(stage.comes(frame));
    assert_eq!((again.gso_size, &again.bytes), (960, &response.bytes));
    client.acknowledges(&mut stage);
    backend.receives(&client.sends(&mut stage, REQUEST));
    assert_eq!(client.receives(&backend.sends(&mut stage, RESPONSE)), RESPONSE);
    client.acknowledges(&mut stage);
    stage.over();
}
